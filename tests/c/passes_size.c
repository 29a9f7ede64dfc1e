/* Passes on a DAG of more than 100,000 nodes: 1F1B over 32 stages with the backward pass split, as
 * a schedule builder writes it. The time is a part of the half second that a compile may take. */
#include "passes/pipeline.h"

#include "lib/stages.h"
#include "lib/strategies.h"
#include "tap.h"

#include <time.h>

enum { STAGES = 32, MICROBATCHES = 768 };

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
static void order_stage(TestStrategy *t, int stage) {
  Directive *x = strategy_add(t, DIRECTIVE_ORDER, "");
  Filter *filters = strategy_alloc(t, MICROBATCHES * 3, sizeof *filters);
  OrderGroup *groups = strategy_alloc(t, MICROBATCHES * 3, sizeof *groups);
  const int warmup = STAGES - 1 - stage;
  uint32_t n = 0;
  for (int step = 0; step < MICROBATCHES + warmup; step++) {
    if (step < MICROBATCHES) filters[n++] = action(t, stage, step, PASS_F);
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

int main(void) {
  Graph *g = stages_graph(STAGES, false);
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", MICROBATCHES)->schedule = 1;
  for (int i = 0; i < STAGES; i++) {
    char filter[16], devices[16];
    snprintf(filter, sizeof filter, "PP=%d", i);
    snprintf(devices, sizeof devices, "%d", i);
    strategy_place(&t, filter, devices);
    order_stage(&t, i);
  }
  const Strategy s = strategy_of(&t);
  const PassOptions opt = {.float_bytes = 4};
  PiperErr err = {0};
  double best = 1e9;
  Dag *d = NULL;
  for (int i = 0; i < 3; i++) {
    dag_free(d);
    const double start = now();
    if (passes_run(g, MICROBATCHES, &s, &opt, &d, &err) != PIPER_OK) bail(err.text);
    const double seconds = now() - start;
    if (seconds < best) best = seconds;
  }
  diag("%u nodes, %zu edges: %.0f ms", d->n - 1, d->edges.n - 1, best * 1e3);
  is_int(d->n - 1, STAGES * MICROBATCHES * 3 + (STAGES - 1) * MICROBATCHES * 2 + STAGES * 2 + 1,
         "three passes a stage, two transfers between stages, a norm, an update, the metrics");
  ok(best < 2, "less than 2 s, also on a busy machine");
  dag_free(d);
  strategy_clear(&t);
  graph_free(g);
  return done_testing();
}
