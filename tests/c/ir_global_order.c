#include "ir/global_order.h"

#include <time.h>

#include "ir/order_priority.h"
#include "ir/order_sets.h"

#include "lib/stages.h"
#include "tap.h"

static const char *const RULE[] = {"best", "critical path", "downstream"};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t random_state = 1;
static uint32_t random_below(uint32_t n) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)((random_state >> 33) % n);
}

static Dag *new_dag(const Graph *g) {
  Dag *d = dag_new(g, 24);
  if (d == NULL || intern_id(d->names, "default_stream") == 0) bail("no memory");
  return d;
}

static uint32_t devs(Dag *d, int32_t first, uint32_t n) {
  int32_t ranks[64];
  for (uint32_t i = 0; i < n; i++) ranks[i] = first + (int32_t)i;
  return devsets_id(d->devsets, ranks, n);
}

static uint32_t add(Dag *d, NodeKind kind, Pass pass, uint32_t devices) {
  const NodeId n = dag_add_node(d, kind, 0);
  if (n.i == 0) bail("no memory");
  d->pass[n.i] = (uint8_t)pass;
  d->devs[n.i] = devices;
  d->stream[n.i] = intern_id(d->names, "default_stream");
  return n.i;
}

static uint32_t add_transfer(Dag *d, uint32_t from, uint32_t to, const char *stream) {
  const uint32_t n = add(d, NODE_TRANSFER, PASS_F, to);
  d->src_devs[n] = from;
  d->stream[n] = intern_id(d->names, stream);
  d->hi[n] = d->src_hi[n] = 24;
  return n;
}

static void edge(Dag *d, uint32_t from, uint32_t to) {
  if (dag_add_edge(d, (NodeId){from}, (NodeId){to}, (TensorId){0}).i == 0) bail("no memory");
}

static GlobalOrder order_of(const Dag *d, const double *seconds, OrderRule rule) {
  PiperErr err = {0};
  GlobalOrder o;
  if (global_order(d, seconds, rule, &o, &err) != PIPER_OK) bail(err.text);
  return o;
}

static bool is_topological(const Dag *d, const GlobalOrder *o) {
  uint32_t *at = calloc(d->n, sizeof *at);
  bool good = o->n == d->n - 1;
  for (uint32_t k = 0; k < o->n; k++) {
    good = good && at[o->order[k]] == 0;
    at[o->order[k]] = k + 1;
  }
  for (size_t e = 1; e < d->edges.n; e++)
    if (d->edges.at[e].src != 0) good = good && at[d->edges.at[e].src] < at[d->edges.at[e].dst];
  free(at);
  return good;
}

/* ---- an oracle: every queue by name, nodes one after another in the order -------------------- */

typedef struct OracleQueue {
  uint32_t stream;
  int32_t rank, peer;
  bool gradient;
  double free_at;
} OracleQueue;

typedef struct Oracle {
  OracleQueue at[512];
  uint32_t n;
} Oracle;

static double *oracle_queue(Oracle *o, uint32_t stream, int32_t rank, int32_t peer, bool gradient) {
  for (uint32_t i = 0; i < o->n; i++)
    if (o->at[i].stream == stream && o->at[i].rank == rank && o->at[i].peer == peer &&
        o->at[i].gradient == gradient)
      return &o->at[i].free_at;
  if (o->n == 512) bail("too many queues");
  o->at[o->n] = (OracleQueue){stream, rank, peer, gradient, 0};
  return &o->at[o->n++].free_at;
}

/* The node's queues, found the long way. */
static uint32_t oracle_queues(Oracle *o, const Dag *d, uint32_t n, const bool *shared,
                              double **out) {
  uint32_t count = 0;
  const int32_t *to = devsets_ranks(d->devsets, d->devs[n]);
  const uint32_t n_to = devsets_size(d->devsets, d->devs[n]);
  const uint32_t stream =
      NODE_KIND_COMMUNICATES[d->kind[n]] ? d->stream[n] : intern_find(d->names, "default_stream");
  if (d->kind[n] == NODE_JOIN) return 0;
  if (d->kind[n] != NODE_TRANSFER || shared[stream])
    for (uint32_t j = 0; j < n_to; j++) out[count++] = oracle_queue(o, stream, to[j], -1, false);
  if (d->kind[n] != NODE_TRANSFER) return count;
  const int32_t *from = devsets_ranks(d->devsets, d->src_devs[n]);
  const uint32_t n_from = devsets_size(d->devsets, d->src_devs[n]);
  for (uint32_t i = 0; i < n_from; i++) {
    if (shared[stream]) {
      out[count++] = oracle_queue(o, stream, from[i], -1, false);
      continue;
    }
    for (uint32_t j = 0; j < n_to; j++) { /* 24 samples at most: parts end at multiples of 1/24 */
      const double a = (double)d->src_lo[n] + (double)(d->src_hi[n] - d->src_lo[n]) * i / n_from;
      const double b =
          (double)d->src_lo[n] + (double)(d->src_hi[n] - d->src_lo[n]) * (i + 1) / n_from;
      const double p = (double)d->lo[n] + (double)(d->hi[n] - d->lo[n]) * j / n_to;
      const double q = (double)d->lo[n] + (double)(d->hi[n] - d->lo[n]) * (j + 1) / n_to;
      if (fmax(a, p) + 1e-6 < fmin(b, q) && from[i] != to[j])
        out[count++] = oracle_queue(o, stream, from[i], to[j],
                                    d->tensors.at[d->tensor[n]].kind == TENSOR_GRAD);
    }
  }
  return count;
}

/* The time at the end when each queue runs its nodes in this order. */
static double oracle_seconds(const Dag *d, const GlobalOrder *o, const double *seconds) {
  Oracle oracle = {.n = 0};
  bool shared[64] = {false};
  double *end = calloc(d->n, sizeof *end), last = 0;
  shared[intern_find(d->names, "default_stream")] = true;
  for (uint32_t i = 1; i < d->n; i++)
    if (d->kind[i] == NODE_ALL_REDUCE) shared[d->stream[i]] = true;
  for (uint32_t k = 0; k < o->n; k++) {
    const uint32_t n = o->order[k];
    double *queues[256], start = 0;
    const uint32_t n_queues = oracle_queues(&oracle, d, n, shared, queues);
    for (uint32_t q = 0; q < n_queues; q++) start = fmax(start, *queues[q]);
    for (size_t e = 1; e < d->edges.n; e++)
      if (d->edges.at[e].dst == n) start = fmax(start, end[d->edges.at[e].src]);
    end[n] = start + seconds[n];
    for (uint32_t q = 0; q < n_queues; q++) *queues[q] = end[n];
    last = fmax(last, end[n]);
  }
  free(end);
  return last;
}

static void random_node(Dag *d) {
  static const NodeKind kinds[] = {NODE_COMPUTE, NODE_COMPUTE, NODE_TRANSFER, NODE_ALL_REDUCE,
                                   NODE_UPDATE,  NODE_NORM,    NODE_JOIN};
  static const char *const streams[] = {"pp", "dp", "default_stream", "qq"};
  static const uint32_t sizes[] = {1, 2, 3, 4, 6};
  const NodeKind kind = kinds[random_below(7)];
  const uint32_t set = devs(d, (int32_t)random_below(4), sizes[random_below(5)]);
  const uint32_t n = add(d, kind, (Pass)random_below(PASS_COUNT), set);
  if (kind == NODE_TRANSFER) {
    d->src_devs[n] = devs(d, (int32_t)random_below(4), sizes[random_below(5)]);
    d->lo[n] = random_below(2) * 12;
    d->hi[n] = d->lo[n] + 12;
    d->src_lo[n] = random_below(2) ? d->lo[n] : 0;
    d->src_hi[n] = d->src_lo[n] == 12 ? 24 : random_below(2) ? 24 : 12;
    if (random_below(2)) d->tensor[n] = dag_tensor(d, (Tensor){.kind = TENSOR_GRAD}).i;
  }
  if (NODE_KIND_COMMUNICATES[kind]) {
    d->stream[n] = intern_id(d->names, streams[random_below(4)]);
    if (kind == NODE_ALL_REDUCE && random_below(2)) d->stream[n] = intern_id(d->names, "ar");
  }
}

/* Whatever is in the DAG: the order is topological, and its time is what the queues, taken one by one,
 * need. Nodes often take no time at all. Transfers stay where the clock put them where no compute
 * node takes time, so in half of the rounds none does. */
static void random_dags(const Graph *g) {
  bool topological = true, exact = true, best = true, again = true;
  for (int round = 0; round < 400; round++) {
    Dag *d = new_dag(g);
    const uint32_t n = 1 + random_below(60);
    double *seconds = calloc(n + 1, sizeof *seconds);
    const bool zeros = random_below(8) == 0, transfers_stay = random_below(2) != 0;
    for (uint32_t i = 1; i <= n; i++) {
      random_node(d);
      seconds[i] = zeros || random_below(3) == 0 ? 0 : random_below(4) * 0.25;
      if (transfers_stay && d->kind[i] == NODE_COMPUTE) seconds[i] = 0;
    }
    for (uint32_t i = 0; i < 2 * n; i++) {
      const uint32_t x = 1 + random_below(n), y = 1 + random_below(n);
      if (x < y) edge(d, x, y);
    }
    GlobalOrder o[3];
    for (int rule = 0; rule < 3; rule++) {
      o[rule] = order_of(d, seconds, (OrderRule)rule);
      topological = topological && is_topological(d, &o[rule]);
      const double want = oracle_seconds(d, &o[rule], seconds);
      if (transfers_stay && fabs(o[rule].seconds[o[rule].rule] - want) > 1e-9) {
        diag("round %d, %s: %g, the queues say %g", round, RULE[rule],
             o[rule].seconds[o[rule].rule], want);
        exact = false;
      }
    }
    const OrderRule kept =
        o[1].seconds[1] <= o[2].seconds[2] ? ORDER_CRITICAL_PATH : ORDER_DOWNSTREAM;
    best = best && o[0].rule == kept && o[0].seconds[1] == o[1].seconds[1] &&
           o[0].seconds[2] == o[2].seconds[2];
    again = again && memcmp(o[0].order, o[kept].order, n * sizeof *o[0].order) == 0;
    for (int rule = 0; rule < 3; rule++) global_order_free(&o[rule]);
    free(seconds);
    dag_free(d);
  }
  ok(topological, "random DAGs: an order respects every edge");
  ok(exact, "its time is that of the queues taken one by one");
  ok(best, "the rule with the shorter time is kept");
  ok(again, "the same DAG has the same order");
}

/* ---- textbook schedules ---------------------------------------------------------------------- */

static FILE *data_file(const char *name) {
  char path[1024];
  const char *srcdir = getenv("srcdir");
  snprintf(path, sizeof path, "%s/tests/data/schedules/%s", srcdir != NULL ? srcdir : ".", name);
  FILE *f = fopen(path, "r");
  if (f == NULL) bail("a schedule table is missing");
  return f;
}

enum { MAX_STAGES = 8, MAX_MB = 20 };

/* One compute node for each action, stage s on rank s, actions of a rank one after another. */
static Dag *schedule_dag(const Graph *g, FILE *f) {
  Dag *d = new_dag(g);
  uint32_t fwd[MAX_STAGES][MAX_MB] = {{0}}, bwd[MAX_STAGES][MAX_MB] = {{0}}, n_stages = 0;
  char row[4096];
  while (fgets(row, sizeof row, f) != NULL) {
    uint32_t before = 0;
    if (row[0] == '#') continue;
    for (char *word = strtok(row, " \n"); word != NULL; word = strtok(NULL, " \n")) {
      unsigned stage, mb;
      char pass;
      if (sscanf(word, "%u%c%u", &stage, &pass, &mb) != 3 || stage >= MAX_STAGES || mb >= MAX_MB)
        bail("a schedule table is not understood");
      const uint32_t n =
          add(d, NODE_COMPUTE, pass == 'F' ? PASS_F : PASS_B, devs(d, (int32_t)stage, 1));
      d->order_of[n] = 1;
      (pass == 'F' ? fwd : bwd)[stage][mb] = n;
      if (before != 0) dag_add_temporal(d, (NodeId){before}, (NodeId){n}, 0);
      before = n;
      if (stage >= n_stages) n_stages = stage + 1;
    }
  }
  for (uint32_t s = 0; s < n_stages; s++)
    for (uint32_t mb = 0; mb < MAX_MB && fwd[s][mb] != 0; mb++) {
      edge(d, fwd[s][mb], bwd[s][mb]);
      if (s + 1 < n_stages) edge(d, fwd[s][mb], fwd[s + 1][mb]);
      if (s + 1 < n_stages) edge(d, bwd[s + 1][mb], bwd[s][mb]);
    }
  return d;
}

static void textbook(const Graph *g) {
  FILE *metrics = data_file("metrics.csv");
  char row[4096];
  int tried = 0;
  while (fgets(row, sizeof row, metrics) != NULL) {
    char file[128], schedule[64];
    double makespan = 0;
    if (strncmp(row, "gpipe", 5) != 0 && strncmp(row, "1f1b", 4) != 0) continue;
    if (sscanf(row, "%127[^,],%63[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%lf", file,
               schedule, &makespan) != 3)
      bail("metrics.csv is not understood");
    FILE *f = data_file(file);
    Dag *d = schedule_dag(g, f);
    fclose(f);
    double *seconds = calloc(d->n, sizeof *seconds);
    for (uint32_t i = 1; i < d->n; i++) seconds[i] = d->pass[i] == PASS_F ? 1 : 2;
    GlobalOrder o = order_of(d, seconds, ORDER_BEST);
    is_near(o.seconds[ORDER_CRITICAL_PATH], makespan, 0, "%s: time of the table, critical path",
            file);
    is_near(o.seconds[ORDER_DOWNSTREAM], makespan, 0, "%s: downstream", file);
    ok(is_topological(d, &o), "%s: order respects every edge", file);
    global_order_free(&o);
    free(seconds);
    dag_free(d);
    tried++;
  }
  fclose(metrics);
  is_int(tried, 11, "all tables of gpipe and 1f1b");
}

/* ---- choices --------------------------------------------------------------------------------- */

static void order_is(const Dag *d, const double *seconds, OrderRule rule, const char *want,
                     const char *why) {
  char text[512] = "";
  GlobalOrder o = order_of(d, seconds, rule);
  for (uint32_t k = 0, n = 0; k < o.n; k++)
    n += (uint32_t)snprintf(text + n, sizeof text - n, "%s%u", k > 0 ? " " : "", o.order[k]);
  is_str(text, want, "%s", why);
  global_order_free(&o);
}

static void choices(const Graph *g) {
  /* Three microbatches on one rank: F are 1 2 3, B are 4 5 6. */
  Dag *d = new_dag(g);
  const double seconds[16] = {0, 1, 1, 1, 1, 1, 1, 1, 1};
  for (uint32_t i = 0; i < 6; i++) add(d, NODE_COMPUTE, i < 3 ? PASS_F : PASS_B, devs(d, 0, 1));
  for (uint32_t i = 1; i <= 3; i++) edge(d, i, i + 3);
  order_is(d, seconds, ORDER_BEST, "1 4 2 5 3 6", "a ready backward goes before any forward");
  order_is(d, seconds, ORDER_DOWNSTREAM, "1 4 2 5 3 6", "by either rule");
  for (uint32_t i = 1; i <= 6; i++) d->order_of[i] = 1;
  order_is(d, seconds, ORDER_CRITICAL_PATH, "1 2 3 4 5 6",
           "where there are orders, the longer path first");
  dag_free(d);

  /* 1 leads to a long node, 2 to three short ones, on other ranks. */
  d = new_dag(g);
  const double uneven[16] = {0, 1, 1, 9, 1, 1, 1};
  for (uint32_t i = 0; i < 6; i++) add(d, NODE_COMPUTE, PASS_F, devs(d, i < 2 ? 0 : (int32_t)i, 1));
  edge(d, 1, 3);
  for (uint32_t i = 4; i <= 6; i++) edge(d, 2, i);
  GlobalOrder o = order_of(d, uneven, ORDER_BEST);
  is_int(o.order[0], 1, "critical path: the long way first");
  is_int(o.rule, ORDER_CRITICAL_PATH, "the faster rule is kept");
  is_near(o.seconds[ORDER_CRITICAL_PATH], 10, 0, "its time");
  is_near(o.seconds[ORDER_DOWNSTREAM], 11, 0, "the time of the other");
  global_order_free(&o);
  o = order_of(d, uneven, ORDER_DOWNSTREAM);
  is_int(o.order[0], 2, "downstream: the one that more nodes wait for first");
  is_near(o.seconds[ORDER_CRITICAL_PATH], 0, 0, "a rule not asked for is not tried");
  global_order_free(&o);
  dag_free(d);

  /* Rank 0 makes three values (1 2 3) quickly, rank 1 uses them slowly (4 5 6); transfers 7 8 9. */
  d = new_dag(g);
  const double slow[16] = {0, 1, 1, 1, 10, 10, 10, 0.5, 0.5, 0.5};
  for (uint32_t i = 0; i < 6; i++) add(d, NODE_COMPUTE, PASS_F, devs(d, i < 3 ? 0 : 1, 1));
  for (uint32_t i = 1; i <= 3; i++) {
    const uint32_t t = add_transfer(d, devs(d, 0, 1), devs(d, 1, 1), "pp");
    edge(d, i, t);
    edge(d, t, i + 3);
  }
  order_is(d, slow, ORDER_CRITICAL_PATH, "1 2 7 4 3 8 5 9 6",
           "a transfer is no more than one use ahead");
  dag_free(d);

  /* A transfer (1) and an all_reduce (2) of ranks 0 and 1. */
  d = new_dag(g);
  const double two[16] = {0, 1, 1, 1};
  add_transfer(d, devs(d, 0, 1), devs(d, 1, 1), "pp");
  const uint32_t reduce = add(d, NODE_ALL_REDUCE, PASS_NONE, devs(d, 0, 2));
  d->stream[reduce] = intern_id(d->names, "dp");
  o = order_of(d, two, ORDER_CRITICAL_PATH);
  is_near(o.seconds[1], 1, 0, "streams of their own run side by side");
  global_order_free(&o);
  d->stream[reduce] = intern_id(d->names, "pp");
  o = order_of(d, two, ORDER_CRITICAL_PATH);
  is_near(o.seconds[1], 2, 0, "one name is one queue");
  global_order_free(&o);
  dag_free(d);

  /* Both directions between two ranks. */
  d = new_dag(g);
  add_transfer(d, devs(d, 0, 1), devs(d, 1, 1), "pp");
  add_transfer(d, devs(d, 1, 1), devs(d, 0, 1), "pp");
  const uint32_t gradient = add_transfer(d, devs(d, 0, 1), devs(d, 1, 1), "pp");
  d->tensor[gradient] = dag_tensor(d, (Tensor){.kind = TENSOR_GRAD}).i;
  o = order_of(d, two, ORDER_CRITICAL_PATH);
  is_near(o.seconds[1], 1, 0, "each direction, and gradients apart, has its channel");
  global_order_free(&o);
  d->tensor[gradient] = 0;
  o = order_of(d, two, ORDER_CRITICAL_PATH);
  is_near(o.seconds[1], 2, 0, "a channel carries one transfer at a time");
  global_order_free(&o);
  dag_free(d);

  d = new_dag(g);
  o = order_of(d, two, ORDER_BEST);
  is_int(o.n, 0, "an empty DAG has an empty order");
  global_order_free(&o);
  dag_free(d);
}

static void cycle(const Graph *g) {
  PiperErr err = {0};
  GlobalOrder o;
  Dag *d = dag_new(g, 8);
  const double seconds[4] = {0, 1, 1, 1};
  for (uint32_t mb = 0; mb < 3; mb++) stages_compute(d, (ChunkId){1}, PASS_F, mb, 4);
  edge(d, 1, 2);
  edge(d, 2, 3);
  dag_add_temporal(d, (NodeId){3}, (NodeId){1}, intern_id(d->names, "train.lua:7"));
  is_int(global_order(d, seconds, ORDER_BEST, &o, &err), PIPER_EUSER,
         "an order against the data flow is refused");
  ok(strstr(err.text, "0F0 -> 0F1 -> 0F2 -> ") != NULL, "with the cycle: %s", err.text);
  ok(o.order == NULL, "and nothing to free");
  dag_free(d);
}

/* ---- sets ------------------------------------------------------------------------------------ */

static void sets(const Graph *g) {
  PiperErr err = {0};
  OrderSets s;
  Dag *d = new_dag(g);
  for (uint32_t stage = 0; stage < 4; stage++)
    add(d, NODE_COMPUTE, PASS_F, devs(d, (int32_t)stage * 64, 64));
  for (uint32_t stage = 0; stage < 3; stage++)
    add_transfer(d, devs(d, (int32_t)stage * 64, 64), devs(d, (int32_t)stage * 64 + 64, 64), "pp");
  if (order_sets_new(d, &s, &err) != PIPER_OK) bail(err.text);
  is_int(s.n_sets, 8, "4 stages and 3 hops have 7 sets of queues");
  is_int(s.n_atoms, 7, "and 7 atoms, for 256 ranks and 192 channels");
  order_sets_free(&s);
  const uint32_t half = add(d, NODE_COMPUTE, PASS_F, devs(d, 32, 32));
  if (order_sets_new(d, &s, &err) != PIPER_OK) bail(err.text);
  is_int(s.n_atoms, 8, "a node on half of a set splits its atom");
  is_int(s.atom_first[s.set[1] + 1] - s.atom_first[s.set[1]], 2, "in two");
  is_int(s.atom_first[s.set[half] + 1] - s.atom_first[s.set[half]], 1, "of which it has one");
  const uint32_t atom = s.atoms[s.atom_first[s.set[half]]];
  is_int(s.set_first[atom + 1] - s.set_first[atom], 2, "that is in both sets");
  order_sets_free(&s);
  dag_free(d);
}

/* ---- descendants ----------------------------------------------------------------------------- */

static void descendants(void) {
  enum { N = 3000 };
  PiperErr err = {0};
  static uint32_t first[N + 2], succ[3 * N], topo[N], n_preds[N + 1];
  static bool below[N + 1];
  uint32_t n_edges = 0;
  for (uint32_t i = 1; i <= N; i++) {
    first[i] = n_edges;
    for (int k = 0; k < 2; k++)
      if (i < N) succ[n_edges++] = i + 1 + random_below(N - i < 40 ? N - i : 40);
    topo[i - 1] = i;
  }
  first[N + 1] = n_edges;
  const Successors g = {N + 1, first, succ, n_preds, topo, N};
  double *count = calloc(N + 1, sizeof *count);
  if (priority_downstream(&g, count, &err) != PIPER_OK) bail(err.text);
  bool exact = true;
  for (uint32_t i = 1; i <= N; i += 97) {
    uint32_t want = 0;
    memset(below, 0, sizeof below);
    for (uint32_t j = i; j <= N; j++) {
      if (j != i && !below[j]) continue;
      want += j != i;
      for (uint32_t e = first[j]; e < first[j + 1]; e++) below[succ[e]] = true;
    }
    exact = exact && count[i] == want;
  }
  ok(exact, "descendants are counted exactly in a DAG of 3000 nodes");
  free(count);
}

/* ---- size ------------------------------------------------------------------------------------ */

/* 32 stages, 800 microbatches, transfers both ways, 1F1B as temporal edges. */
static Dag *large_dag(const Graph *g) {
  enum { STAGES = 32, MB = 800 };
  static uint32_t node[2][STAGES][MB];
  Dag *d = new_dag(g);
  for (int pass = 0; pass < 2; pass++)
    for (int32_t s = 0; s < STAGES; s++)
      for (uint32_t mb = 0; mb < MB; mb++) {
        node[pass][s][mb] = add(d, NODE_COMPUTE, pass ? PASS_B : PASS_F, devs(d, s, 1));
        d->order_of[node[pass][s][mb]] = 1;
      }
  const uint32_t grad = dag_tensor(d, (Tensor){.kind = TENSOR_GRAD}).i;
  for (int32_t s = 0; s + 1 < STAGES; s++)
    for (uint32_t mb = 0; mb < MB; mb++) {
      const uint32_t down = add_transfer(d, devs(d, s, 1), devs(d, s + 1, 1), "pp");
      edge(d, node[0][s][mb], down);
      edge(d, down, node[0][s + 1][mb]);
      const uint32_t up = add_transfer(d, devs(d, s + 1, 1), devs(d, s, 1), "pp");
      d->tensor[up] = grad;
      edge(d, node[1][s + 1][mb], up);
      edge(d, up, node[1][s][mb]);
    }
  for (uint32_t s = 0; s < STAGES; s++) {
    uint32_t f = 0, b = 0, before = 0;
    while (b < MB) {
      const bool forward = f < MB && f < b + STAGES - s;
      const uint32_t n = forward ? node[0][s][f++] : node[1][s][b++];
      if (before != 0) dag_add_temporal(d, (NodeId){before}, (NodeId){n}, 0);
      before = n;
    }
    for (uint32_t mb = 0; mb < MB; mb++)
      for (uint32_t k = 0; k < 6; k++)
        edge(d, node[0][s][mb], node[1][(s + k) % STAGES][mb]); /* skips */
  }
  return d;
}

static void large(const Graph *g) {
  Dag *d = large_dag(g);
  double *seconds = calloc(d->n, sizeof *seconds);
  for (uint32_t i = 1; i < d->n; i++)
    seconds[i] = d->kind[i] == NODE_TRANSFER ? 1e-5 : d->pass[i] == PASS_F ? 1e-3 : 2e-3;
  for (int ordered = 1; ordered >= 0; ordered--) {
    double best = 1e9;
    GlobalOrder o = {0};
    for (int round = 0; round < 3; round++) {
      global_order_free(&o);
      const double start = now();
      o = order_of(d, seconds, ORDER_BEST);
      best = fmin(best, now() - start);
    }
    diag("%u nodes, %zu edges%s: %.1f ms; %.4f s by critical path, %.4f downstream", d->n - 1,
         d->edges.n - 1, ordered ? "" : ", no order", best * 1e3, o.seconds[1], o.seconds[2]);
    ok(is_topological(d, &o), "an order of 100000 nodes respects every edge");
    ok(best < 1.5, "and is found in time");
    global_order_free(&o);
    for (uint32_t i = 1; i < d->n; i++) d->order_of[i] = 0;
    for (size_t e = 1; e < d->edges.n; e++)
      if (d->edges.at[e].kind == EDGE_TEMPORAL) dag_remove_edge(d, (EdgeId){(uint32_t)e});
  }
  free(seconds);
  dag_free(d);
}

int main(void) {
  Graph *g = stages_graph(3, false);
  choices(g);
  cycle(g);
  sets(g);
  descendants();
  textbook(g);
  random_dags(g);
  large(g);
  graph_free(g);
  return done_testing();
}
