/* The primitives of the user's passes: cycles found as edges are added, against a search in each
 * call; what is asked of communication; and where the pipeline calls such passes. */
#include "ir/dag_verify.h"
#include "lib/passes.h"

#include <time.h>

/* ---- cycles ------------------------------------------------------------------------------------ */

static Dag *bare_dag(const Graph *g, uint32_t n) {
  Dag *d = dag_new(g, 4);
  if (d == NULL) bail("no memory");
  const uint32_t devs = devsets_id(d->devsets, &(int32_t){0}, 1);
  for (uint32_t i = 1; i <= n; i++) {
    const NodeId id = dag_add_node(d, NODE_COMPUTE, 0);
    if (id.i == 0) bail("no memory");
    d->devs[id.i] = devs;
    d->chunk[id.i] = 1;
    d->pass[id.i] = PASS_F;
    d->mb[id.i] = i;
  }
  return d;
}

static DagEdit *edit_of(Dag *d, unsigned stages) {
  static const Strategy none = {0};
  PiperErr err = {0};
  DagEdit *x;
  if (dag_edit_new(d, &none, stages, &x, &err) != PIPER_OK) bail(err.text);
  return x;
}

/* A path of edges, by definition. */
static bool leads(const Dag *d, uint32_t a, uint32_t b, bool *seen) {
  if (a == b) return true;
  seen[a] = true;
  for (size_t e = 1; e < d->edges.n; e++)
    if (d->edges.at[e].src == a && !seen[d->edges.at[e].dst] &&
        leads(d, d->edges.at[e].dst, b, seen))
      return true;
  return false;
}

static uint32_t state = 1;
static uint32_t below(uint32_t n) {
  state = state * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)state * n >> 32);
}

static void against_search(const Graph *g, uint32_t n, uint32_t calls, uint32_t before) {
  Dag *d = bare_dag(g, n);
  for (uint32_t i = 0; i < before; i++) { /* edges that are there already */
    const uint32_t a = below(n - 1) + 1, b = a + 1 + below(n - a);
    dag_add_temporal(d, (NodeId){a}, (NodeId){b}, 0);
  }
  DagEdit *x = edit_of(d, DAG_PLACED);
  bool *seen = calloc(n + 1, sizeof *seen);
  uint32_t wrong = 0, refused = 0;
  for (uint32_t i = 0; i < calls; i++) {
    const uint32_t a = below(n) + 1, b = below(n) + 1, e = 1 + below((uint32_t)d->edges.n);
    PiperErr err = {0};
    bool reaches;
    if (below(4) == 0 && e < d->edges.n) {
      if (d->edges.at[e].src != 0) wrong += dag_edit_remove(x, (EdgeId){e}, &err) != PIPER_OK;
      continue;
    }
    memset(seen, 0, n + 1);
    const bool cycle = leads(d, b, a, seen);
    if (dag_edit_reaches(x, (NodeId){b}, (NodeId){a}, &reaches, &err) != PIPER_OK ||
        reaches != cycle)
      wrong++;
    if (dag_edit_before(x, (NodeId){a}, (NodeId){b}, 0, &err) != (cycle ? PIPER_EUSER : PIPER_OK))
      wrong++;
    refused += cycle;
  }
  is_int(wrong, 0, "%u nodes, %u calls on %u edges: every answer is that of a search", n, calls,
         before);
  ok(refused > calls / 20, "some close a cycle");
  free(seen);
  dag_edit_free(x);
  dag_free(d);
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Chains of many calls: along the ids, against them, and every other one first. */
static void chains(const Graph *g) {
  enum { N = 100000 };
  static const char *const NAME[] = {"forward", "backward", "inside out"};
  for (int way = 0; way < 3; way++) {
    Dag *d = bare_dag(g, N);
    DagEdit *x = edit_of(d, DAG_PLACED);
    PiperErr err = {0};
    uint32_t failed = 0;
    const double start = seconds();
    for (uint32_t k = 1; k < N; k++) {
      uint32_t a = k, b = k + 1;
      if (way == 1) a = N - k + 1, b = N - k;
      if (way == 2) a = k % 2 ? N / 2 - k / 2 : N / 2 + k / 2, b = a + 1;
      failed += dag_edit_before(x, (NodeId){a}, (NodeId){b}, 0, &err) != PIPER_OK;
    }
    const double took = seconds() - start;
    is_int(failed, 0, "a chain of %d calls, %s", N, NAME[way]);
    ok(took < 20, "takes %.2f s", took); /* quadratic: minutes */
    dag_edit_free(x);
    dag_free(d);
  }
}

static void messages(const Graph *g) {
  Dag *d = bare_dag(g, 30);
  DagEdit *x = edit_of(d, DAG_PLACED);
  PiperErr err = {0};
  const uint32_t line = intern_id(d->names, "p.lua:3");
  for (uint32_t i = 1; i < 3; i++)
    if (dag_edit_before(x, (NodeId){i}, (NodeId){i + 1}, line, &err) != PIPER_OK) bail(err.text);
  is_int(dag_edit_before(x, (NodeId){3}, (NodeId){1}, line, &err), PIPER_EUSER, "a cycle");
  is_str(err.text,
         "0F3 cannot come before 0F1, since it has to wait for it: 0F1 -> (p.lua:3) 0F2 -> "
         "(p.lua:3) 0F3",
         "is printed");
  const size_t n_edges = d->edges.n;
  err = (PiperErr){0};
  is_int(dag_edit_before(x, (NodeId){1}, (NodeId){2}, line, &err), PIPER_OK, "the same edge again");
  is_int((long long)d->edges.n, (long long)n_edges, "is one");
  dag_edit_before(x, (NodeId){4}, (NodeId){4}, line, &err);
  is_str(err.text, "0F4 cannot come before itself", "a node before itself");
  for (uint32_t i = 3; i < 30; i++) {
    err = (PiperErr){0};
    if (dag_edit_before(x, (NodeId){i}, (NodeId){i + 1}, line, &err) != PIPER_OK) bail(err.text);
  }
  dag_edit_before(x, (NodeId){30}, (NodeId){1}, line, &err);
  ok(strstr(err.text, "0F6 -> ... 18 more ... -> (p.lua:3) 0F25 -> ") != NULL,
     "of a long cycle the middle is left out: %s", err.text);
  dag_edit_free(x);
  d->devs[2] = devsets_id(d->devsets, &(int32_t){1}, 1);
  x = edit_of(d, DAG_PLACED);
  err = (PiperErr){0};
  dag_edit_before(x, (NodeId){1}, (NodeId){2}, line, &err);
  is_str(err.text,
         "0F1 is on device 0 and 0F2 on device 1: an order holds on a device that both are on",
         "nodes that share no device");
  dag_edit_free(x);
  x = edit_of(d, DAG_BUILT);
  err = (PiperErr){0};
  dag_edit_before(x, (NodeId){1}, (NodeId){3}, line, &err);
  is_str(err.text,
         "nodes have devices, and can be ordered on them, from the built-in pass place on",
         "before anything is placed");
  dag_edit_free(x);
  dag_free(d);
}

/* ---- in the pipeline --------------------------------------------------------------------------- */

typedef struct Seen {
  char text[256];
  uint32_t fails;  /* 1 + the pass that fails; 0: none */
  uint32_t breaks; /* likewise: that takes an edge of data away */
} Seen;

static PiperStatus see(void *context, uint32_t i, DagEdit *edit, PiperErr *err) {
  Seen *seen = context;
  const size_t at = strlen(seen->text);
  snprintf(seen->text + at, sizeof seen->text - at, "%u:%x ", i, dag_edit_stages(edit));
  if (seen->breaks == i + 1) dag_remove_edge(dag_edit_dag(edit), (EdgeId){1});
  return seen->fails == i + 1 ? err_set(err, PIPER_EUSER, "it fails") : PIPER_OK;
}

static const UserPass USER[] = {
    {"late", "u.lua:1", "zero"}, {"first", "u.lua:2", "build"}, {"second", "u.lua:3", "build"}};

static PiperStatus run_user_passes(const Graph *g, const TestStrategy *t, Seen *seen,
                                   const char *dump, char **text, PiperErr *err) {
  const PassOptions opt = {
      .float_bytes = 4, .user = {USER, 3, see, seen}, .dump_after = dump, .dump = text};
  const Strategy s = strategy_of(t);
  Dag *d;
  seen->text[0] = '\0';
  const PiperStatus st = passes_run(g, 4, &s, &opt, &d, err);
  if (st == PIPER_OK) dag_free(d);
  return st;
}

static void pipeline(const Graph *g) {
  TestStrategy t = {0};
  Seen seen = {.fails = 0};
  PiperErr err = {0};
  char *text = NULL;
  run_user_passes(g, &t, &seen, "first", &text, &err);
  is_str(seen.text, "1:1 2:1 0:3f ",
         "each runs behind its pass, in order of registration, and knows what has passed");
  is_str(text, passes_text(g, 4, &t, "build", false), "the DAG can be printed after it");
  free(text);
  seen.fails = 2;
  is_int(run_user_passes(g, &t, &seen, NULL, NULL, &err), PIPER_EUSER, "one fails");
  is_str(err.text, "it fails", "with its message");
  is_str(seen.text, "1:1 ", "and nothing runs after it");
  seen.fails = 0;
  seen.breaks = 3;
  err = (PiperErr){0};
  is_int(run_user_passes(g, &t, &seen, NULL, NULL, &err), PIPER_EUSER,
         "the DAG is checked after each");
  is_str(err.text,
         "u.lua:3: pass \"second\" leaves a DAG that is not right: 0B0 (node 4) gets what its "
         "forward pass saved 0 times",
         "and the pass is named");
  err = (PiperErr){0};
  seen.breaks = 0;
  run_user_passes(g, &t, &seen, "thrid", &text, &err);
  is_str(err.text,
         "there is no pass \"thrid\" to dump after; the passes are build, split, split_backward, "
         "recompute, place, "
         "shard, replicate, count, order, zero, late, first, second",
         "an unknown name");
  is_str(passes_name(0), "build", "built-in passes by number");
  ok(passes_name(10) == NULL, "there are ten");
  strategy_clear(&t);
}

int main(void) {
  Graph *g = model_chain(1);
  against_search(g, 8, 400, 0);
  against_search(g, 40, 3000, 0);
  against_search(g, 60, 4000, 300);
  against_search(g, 200, 3000, 3000);
  chains(g);
  messages(g);
  graph_free(g);
  g = model_chain(2);
  pipeline(g);
  graph_free(g);
  return done_testing();
}
