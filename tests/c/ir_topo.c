#include "ir/topo.h"

#include <time.h>

#include "lib/stages.h"
#include "tap.h"

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t line(Dag *d, const char *text) { return intern_id(d->names, text); }

/* F of stages 0, 1, 2 for MB 0 and 1: ids 1 .. 6; B: 7 .. 12. Values and gradients flow directly. */
static Dag *small_dag(const Graph *g) {
  Dag *d = dag_new(g, 8);
  if (d == NULL) bail("no memory");
  for (unsigned pass = 0; pass < 2; pass++)
    for (uint32_t c = 1; c <= 3; c++)
      for (uint32_t mb = 0; mb < 2; mb++)
        stages_compute(d, (ChunkId){c}, pass == 0 ? PASS_F : PASS_B, mb, 2);
  for (uint32_t mb = 1; mb <= 2; mb++)
    for (uint32_t c = 0; c < 3; c++) {
      const uint32_t f = 2 * c + mb, b = f + 6;
      if (c < 2) dag_add_edge(d, (NodeId){f}, (NodeId){f + 2}, (TensorId){0});
      if (c < 2) dag_add_edge(d, (NodeId){b + 2}, (NodeId){b}, (TensorId){0});
      dag_add_edge(d, (NodeId){f}, (NodeId){b}, (TensorId){0});
    }
  return d;
}

static PiperStatus order_of(const Dag *d, uint32_t *order, uint32_t *n, PiperErr *err) {
  Adjacency a;
  const PiperStatus st = adjacency_new(d, &a, err);
  if (st != PIPER_OK) bail(err->text);
  const PiperStatus ordered = topo_order(d, &a, order, n, err);
  adjacency_free(&a);
  return ordered;
}

static void cycle_is(const Dag *d, PiperStatus code, const char *want) {
  PiperErr err = {0};
  uint32_t *order = malloc(d->n * sizeof *order), n;
  is_int(order_of(d, order, &n, &err), code, "status of a DAG with a cycle");
  is_str(err.text, want, "%s", want);
  free(order);
}

static void small(const Graph *g) {
  PiperErr err = {0};
  Dag *d = small_dag(g);
  Adjacency a;
  const EdgeId gone = dag_add_temporal(d, (NodeId){7}, (NodeId){1}, 0);
  dag_remove_edge(d, gone);
  if (adjacency_new(d, &a, &err) != PIPER_OK) bail(err.text);
  is_int(a.out_first[2] - a.out_first[1], 2, "a node has its leaving edges");
  ok(a.out_edge[a.out_first[1]] == 1 && a.out_edge[a.out_first[1] + 1] == 3, "ascending by id");
  is_int(a.in_first[2] - a.in_first[1], 0, "a removed edge is in no list");
  is_int(a.in_first[8] - a.in_first[7], 2, "a node has its entering edges");
  is_int(a.in_first[13] - a.in_first[12], 1, "so has the last");
  adjacency_free(&a);

  uint32_t order[12], n;
  is_int(order_of(d, order, &n, &err), PIPER_OK, "an acyclic graph has an order");
  static const uint32_t want[12] = {1, 2, 3, 4, 5, 6, 11, 9, 7, 12, 10, 8};
  ok(n == 12 && memcmp(order, want, sizeof want) == 0, "the smallest ready id goes first");

  dag_add_temporal(d, (NodeId){7}, (NodeId){5}, line(d, "train.lua:50"));
  cycle_is(d, PIPER_EUSER,
           "train.lua:50: order: 0B0 is ordered before 2F0, but has to wait for it: 2F0 -> "
           "2B0 -> 1B0 -> 0B0 -> (order, train.lua:50) 2F0");
  dag_add_temporal(d, (NodeId){12}, (NodeId){3}, line(d, "train.lua:51"));
  dag_add_temporal(d, (NodeId){5}, (NodeId){6}, line(d, "train.lua:52"));
  cycle_is(d, PIPER_EUSER,
           "train.lua:50: order: 0B0 is ordered before 2F0, but has to wait for it: 2F0 -> "
           "2B0 -> 1B0 -> 0B0 -> (order, train.lua:50) 2F0");
  dag_free(d);

  /* Orders that contradict one another, and a shorter cycle among longer ones. */
  d = small_dag(g);
  dag_add_temporal(d, (NodeId){7}, (NodeId){5}, line(d, "train.lua:50"));
  dag_add_temporal(d, (NodeId){1}, (NodeId){2}, line(d, "train.lua:51"));
  dag_add_temporal(d, (NodeId){2}, (NodeId){1}, line(d, "train.lua:52"));
  cycle_is(d, PIPER_EUSER,
           "train.lua:51: order: 0F0 is ordered before 0F1, but has to wait for it: 0F1 -> "
           "(order, train.lua:52) 0F0 -> (order, train.lua:51) 0F1");
  dag_free(d);

  d = small_dag(g);
  dag_add_temporal(d, (NodeId){4}, (NodeId){4}, line(d, "train.lua:9"));
  cycle_is(d, PIPER_EUSER, "train.lua:9: order: 1F1 is ordered before itself");
  dag_free(d);

  d = small_dag(g);
  dag_add_edge(d, (NodeId){7}, (NodeId){5}, (TensorId){0});
  cycle_is(d, PIPER_EBUG, "the data flow goes round in a circle: 2F0 -> 2B0 -> 1B0 -> 0B0 -> 2F0");
  dag_free(d);

  /* { 0B0 } before { 2F0 } by way of a JOIN. */
  d = small_dag(g);
  const NodeId join = dag_add_node(d, NODE_JOIN, 0);
  dag_add_temporal(d, (NodeId){7}, join, line(d, "train.lua:50"));
  dag_add_temporal(d, join, (NodeId){5}, line(d, "train.lua:50"));
  cycle_is(d, PIPER_EUSER,
           "train.lua:50: order: 0B0 is ordered before 2F0, but has to wait for it: 2F0 -> "
           "2B0 -> 1B0 -> 0B0 -> (order, train.lua:50) 2F0");
  dag_add_temporal(d, join, join, line(d, "train.lua:50"));
  cycle_is(d, PIPER_EUSER, "train.lua:50: order: join ? is ordered before itself");
  dag_free(d);

  d = dag_new(g, 8);
  is_int(order_of(d, order, &n, &err), PIPER_OK, "an empty DAG has an order");
  is_int(n, 0, "of nothing");
  dag_free(d);
}

/* A ring of 40 stages: the middle of its cycle is left out. */
static void long_cycle(void) {
  Graph *g = stages_graph(40, false);
  Dag *d = dag_new(g, 8);
  if (d == NULL) bail("no memory");
  for (uint32_t c = 1; c <= 40; c++) {
    stages_compute(d, (ChunkId){c}, PASS_F, 0, 1);
    if (c > 1) dag_add_edge(d, (NodeId){c - 1}, (NodeId){c}, (TensorId){0});
  }
  dag_add_temporal(d, (NodeId){40}, (NodeId){1}, line(d, "train.lua:8"));
  cycle_is(
      d, PIPER_EUSER,
      "train.lua:8: order: 39F0 is ordered before 0F0, but has to wait for it: 0F0 -> 1F0 "
      "-> 2F0 -> 3F0 -> 4F0 -> 5F0 -> ... 28 more ... -> 34F0 -> 35F0 -> 36F0 -> 37F0 -> 38F0 -> "
      "39F0 -> (order, train.lua:8) 0F0");
  dag_free(d);
  graph_free(g);
}

static uint64_t random_state = 1;
static uint32_t random_below(uint32_t n) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)((random_state >> 33) % n);
}

/* Any order of ids, three edges a node: the order found respects all edges, and is the one of the
 * definition (no smaller ready id is passed over). */
static void random_dags(const Graph *g) {
  bool respects = true, smallest = true;
  for (int round = 0; round < 50; round++) {
    Dag *d = dag_new(g, 8);
    const uint32_t n = 1 + random_below(round < 40 ? 70 : 5000);
    uint32_t *rank = malloc((n + 1) * sizeof *rank), *order = malloc((n + 1) * sizeof *order);
    uint32_t *place = calloc(n + 1, sizeof *place), *ready_at = calloc(n + 1, sizeof *ready_at),
             got;
    PiperErr err = {0};
    for (uint32_t i = 1; i <= n; i++) {
      dag_add_node(d, NODE_UPDATE, 0);
      rank[i] = random_below(1u << 20); /* edges go from smaller to larger */
    }
    for (uint32_t i = 0; i < 3 * n; i++) {
      const uint32_t x = 1 + random_below(n), y = 1 + random_below(n);
      if (rank[x] < rank[y]) dag_add_edge(d, (NodeId){x}, (NodeId){y}, (TensorId){0});
    }
    if (order_of(d, order, &got, &err) != PIPER_OK) bail(err.text);
    respects = respects && got == n;
    for (uint32_t i = 0; i < got; i++) place[order[i]] = i + 1;
    for (uint32_t e = 1; e < d->edges.n; e++) {
      const Edge *edge = &d->edges.at[e];
      respects = respects && place[edge->src] < place[edge->dst];
      if (place[edge->src] > ready_at[edge->dst]) ready_at[edge->dst] = place[edge->src];
    }
    /* Between becoming ready and its place no larger id is taken. */
    for (uint32_t i = 1; round < 40 && i <= n; i++)
      for (uint32_t p = ready_at[i] + 1; p < place[i]; p++) smallest = smallest && order[p - 1] < i;
    free(rank), free(order), free(place), free(ready_at);
    dag_free(d);
  }
  ok(respects, "an order respects every edge");
  ok(smallest, "no smaller ready id is passed over");
}

static void large(const Graph *g) {
  Dag *d = dag_new(g, 8);
  const uint32_t n = 100000;
  for (uint32_t i = 0; i < n; i++) dag_add_node(d, NODE_UPDATE, 0);
  for (uint32_t i = 0; i < 3 * n; i++) {
    const uint32_t x = 1 + random_below(n - 1), y = x + 1 + random_below(n - x);
    dag_add_edge(d, (NodeId){x}, (NodeId){y}, (TensorId){0});
  }
  uint32_t *order = malloc(n * sizeof *order), got;
  PiperErr err = {0};
  const double start = seconds();
  is_int(order_of(d, order, &got, &err), PIPER_OK, "an order of 100000 nodes and 300000 edges");
  diag("adjacency and order: %.1f ms", (seconds() - start) * 1e3);
  is_int(got, n, "holds every node");

  for (uint32_t i = 0; i < 100; i++)
    dag_add_temporal(d, (NodeId){n - i}, (NodeId){1 + i}, line(d, "train.lua:1"));
  const double again = seconds();
  is_int(order_of(d, order, &got, &err), PIPER_EUSER, "a cycle among 100000 nodes");
  diag("finding a short cycle: %.1f ms", (seconds() - again) * 1e3);
  ok(strlen(err.text) < 1000, "is told in a few words");
  free(order);
  dag_free(d);
}

int main(void) {
  Graph *g = stages_graph(3, false);
  small(g);
  long_cycle();
  random_dags(g);
  large(g);
  graph_free(g);
  return done_testing();
}
