/* Passes on DAGs of more than 100,000 nodes: 1F1B over 32 stages with the backward pass split, as a
 * schedule builder writes it; each stage one chunk, and each stage four. The time is a part of the
 * half second that a compile may take. */
#include "passes/pipeline.h"

#include "lib/models.h"
#include "lib/strategies.h"
#include "tap.h"

#include <stdlib.h>
#include <time.h>

enum { STAGES = 32 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static Filter action(TestStrategy *t, int stage, int mb, Pass pass) {
  FilterTerm *terms = strategy_alloc(t, 2, sizeof *terms);
  int32_t *at = strategy_alloc(t, 2, sizeof *at);
  at[0] = mb;
  at[1] = stage;
  terms[0] = (FilterTerm){.tag = "MB", .indices = at, .n_indices = 1};
  terms[1] = (FilterTerm){.tag = "PP", .indices = at + 1, .n_indices = 1};
  return (Filter){terms, 2, 1u << pass};
}

/* Rank 'stage' of 1F1B; each BW right after its BI. */
static void order_stage(TestStrategy *t, int stage, int n_mb) {
  Directive *x = strategy_add(t, DIRECTIVE_ORDER, "");
  Filter *filters = strategy_alloc(t, (size_t)n_mb * 3, sizeof *filters);
  OrderGroup *groups = strategy_alloc(t, (size_t)n_mb * 3, sizeof *groups);
  const int warmup = STAGES - 1 - stage;
  uint32_t n = 0;
  for (int step = 0; step < n_mb + warmup; step++) {
    if (step < n_mb) filters[n++] = action(t, stage, step, PASS_F);
    if (step < warmup) continue;
    filters[n++] = action(t, stage, step - warmup, PASS_BI);
    filters[n++] = action(t, stage, step - warmup, PASS_BW);
  }
  for (uint32_t i = 0; i < n; i++) groups[i] = (OrderGroup){&filters[i], 1};
  x->groups = groups;
  x->n_groups = n;
  x->schedule = 1;
  x->rank_in_schedule = (uint32_t)stage;
}

/* n chunks in a stage. */
static Graph *model(int n) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x");
  for (int i = 0; i < STAGES * n; i++) {
    char name[16];
    snprintf(name, sizeof name, "l%d", i);
    if (i % n == 0) model_enter(g, "PP");
    model_enter(g, "LAYER");
    h = model_linear(g, name, h);
    if (i + 1 == STAGES * n) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(g, "LAYER");
    if ((i + 1) % n == 0) model_leave(g, "PP");
  }
  return model_cut(g);
}

static void run(int n_chunks, int n_mb) {
  Graph *g = model(n_chunks);
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", n_mb)->schedule = 1;
  for (int i = 0; i < STAGES; i++) {
    char filter[16], devices[16];
    snprintf(filter, sizeof filter, "PP=%d", i);
    snprintf(devices, sizeof devices, "%d", i);
    strategy_place(&t, filter, devices);
    order_stage(&t, i, n_mb);
  }
  const Strategy s = strategy_of(&t);
  const PassOptions opt = {.float_bytes = 4};
  PiperErr err = {0};
  double best = 1e9;
  Dag *d = NULL;
  for (int i = 0; i < 3; i++) {
    dag_free(d);
    const double start = now();
    if (passes_run(g, n_mb, &s, &opt, &d, &err) != PIPER_OK) bail(err.text);
    const double seconds = now() - start;
    if (seconds < best) best = seconds;
  }
  diag("%u nodes, %zu edges: %.0f ms", d->n - 1, d->edges.n - 1, best * 1e3);
  const int compute = STAGES * n_chunks * n_mb * 3, transfers = (STAGES - 1) * n_mb * 2;
  is_int(d->n - 1, compute + transfers + STAGES * n_chunks * 2 + 1,
         "three passes a chunk, two transfers between stages, a norm, an update, the metrics");
  const char *sanitized = getenv("SANITIZED"); /* which cost several times */
  const bool slow = sanitized != NULL && sanitized[0] != '\0';
  ok(best < (slow ? 20 : 2), "less than 2 s, also on a busy machine");
  dag_free(d);
  strategy_clear(&t);
  graph_free(g);
}

int main(void) {
  run(1, 768);
  run(4, 256);
  return done_testing();
}
