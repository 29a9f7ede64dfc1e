/* Any strategy that is legal gives a DAG on which every invariant holds, and which orders what it
 * was asked to: random models (skip connections, values without batch axis, tied and frozen
 * parameters, several losses) under random splits, device sets of 1, 2 and 4, and orders drawn from
 * a random execution. */
#include "ir/dag_text.h"
#include "ir/topo.h"
#include "lib/models.h"
#include "lib/strategies.h"
#include "tap.h"

static uint64_t state;

static uint32_t below(uint32_t n) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)((state >> 33) % n);
}

static bool one_in(uint32_t n) { return below(n) == 0; }

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct Model {
  Graph *g;
  uint32_t n_stages;
  bool whole_tensors; /* values without batch axis cross chunks */
} Model;

typedef struct Pool {
  ValueId at[64];
  uint32_t n;
} Pool;

static void pool_add(Pool *p, ValueId v) {
  if (p->n < 64) p->at[p->n++] = v;
}

/* Mostly a recent one. */
static ValueId pool_pick(const Pool *p) {
  const uint32_t back = one_in(3) ? p->n : p->n < 2 ? p->n : 2;
  return p->at[p->n - 1 - below(back)];
}

static ValueId weight(Graph *g, uint32_t *n_weights) {
  char name[32];
  if (*n_weights == 0 || !one_in(6)) (*n_weights)++, snprintf(name, sizeof name, "w%u", *n_weights);
  else snprintf(name, sizeof name, "w%u", 1 + below(*n_weights));
  return model_param(g, name, 4);
}

/* "moe<stage>" of four experts, in a scope EP between two layers. */
static void random_experts(Graph *g, Pool *batched, uint32_t stage) {
  char name[16];
  snprintf(name, sizeof name, "moe%u", stage);
  pool_add(batched, model_moe_in(g, "LAYER", name, pool_pick(batched), 4));
}

static void random_ops(Graph *g, Pool *batched, Pool *whole, Pool *sums, uint32_t *n_weights) {
  for (uint32_t n = 1 + below(3); n > 0; n--) {
    ValueId v;
    switch (below(6)) {
    case 0:
      pool_add(batched, model_op(g, OP_ADD, NULL, pool_pick(batched), pool_pick(batched)));
      break;
    case 1:
      pool_add(batched, model_op(g, OP_RELU, NULL, pool_pick(batched), MODEL_NONE));
      break;
    case 2:
      v = whole->n > 0 && one_in(2) ? pool_pick(whole) : weight(g, n_weights);
      if (whole->n < 64) pool_add(whole, model_op(g, OP_SCALE, NULL, v, MODEL_NONE));
      break;
    case 3:
      pool_add(sums, model_op(g, OP_SUM_SQUARES, NULL, pool_pick(batched), MODEL_NONE));
      break;
    default:
      v = whole->n > 0 && one_in(3) ? pool_pick(whole) : weight(g, n_weights);
      pool_add(batched, model_op(g, OP_LINEAR, NULL, pool_pick(batched), v));
      break;
    }
  }
}

static Model random_model(void) {
  Model m = {.g = model_new(), .n_stages = 1 + below(5), .whole_tensors = one_in(3)};
  Pool batched = {0}, whole = {0}, sums = {0};
  uint32_t n_weights = 0;
  pool_add(&batched, model_input(m.g, "x"));
  if (one_in(3)) pool_add(&batched, model_input(m.g, "y"));
  for (uint32_t stage = 0; stage < m.n_stages; stage++) {
    model_enter(m.g, "PP");
    if (one_in(5)) random_experts(m.g, &batched, stage);
    for (uint32_t layers = 1 + below(2); layers > 0; layers--) {
      model_enter(m.g, "LAYER");
      if (!m.whole_tensors) whole.n = sums.n = 0;
      random_ops(m.g, &batched, &whole, &sums, &n_weights);
      const bool last = stage + 1 == m.n_stages && layers == 1;
      ValueId loss = MODEL_NONE;
      if (sums.n > 0 && one_in(2)) loss = pool_pick(&sums);
      else if (last) loss = model_op(m.g, OP_SUM_SQUARES, NULL, pool_pick(&batched), MODEL_NONE);
      if (loss.i != 0) model_loss(m.g, loss);
      model_leave(m.g, "LAYER");
    }
    model_leave(m.g, "PP");
  }
  for (size_t p = 1; p < m.g->params.n; p++) m.g->params.at[p].frozen = one_in(5);
  model_cut(m.g);
  return m;
}

/* ---- strategies ------------------------------------------------------------------------------ */

static const char *random_devices(char *buf, size_t size, uint32_t n) {
  int ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  size_t at = 0;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t j = i + below(8 - i);
    const int r = ranks[i];
    ranks[i] = ranks[j];
    ranks[j] = r;
    at += (size_t)snprintf(buf + at, size - at, "%s%d", i > 0 ? "," : "", ranks[i]);
  }
  return buf;
}

static void random_splits(const Model *m, TestStrategy *t, uint32_t *n_mb) {
  char stage[16];
  *n_mb = 1 + below(4);
  if (one_in(4)) *n_mb = 0;
  if (*n_mb > 0) strategy_split(t, "", "MB", *n_mb);
  if (one_in(3)) strategy_split(t, "", "UB", 2);
  if (m->whole_tensors || one_in(2)) return;
  snprintf(stage, sizeof stage, "PP=%u", below(m->n_stages));
  strategy_split(t, stage, "PART", 1 + below(3));
}

/* What replicate says of dividing: the same for all stages, since parameters may be tied. */
typedef struct Flags {
  uint8_t zero;
  bool per_microbatch;
} Flags;

static void random_replicate(TestStrategy *t, const char *filter, const char *devices, Flags f) {
  Directive *x = strategy_replicate(t, filter, devices);
  x->bucket_bytes = 64 << below(4);
  x->zero = f.zero;
  x->per_microbatch = f.per_microbatch;
  x->prefetch = below(4);
  x->keep_bytes = one_in(2) ? 0 : 64 << below(6);
}

/* The stage's experts, if it has any, in groups: 'piece' devices of the list run one microbatch. */
static void random_shard(const Model *m, TestStrategy *t, uint32_t stage, const char *devices,
                         uint32_t piece) {
  char name[32], filter[32];
  snprintf(name, sizeof name, "moe%u.gate.weight", stage);
  if (graph_find_param(m->g, name).i == 0 || one_in(3)) return;
  snprintf(filter, sizeof filter, "PP=%u EP=*", stage);
  strategy_shard(t, filter, devices,
                 one_in(3)                ? 1
                 : piece > 2 && one_in(2) ? 2
                                          : piece)
      ->stream = one_in(3) ? "other" : NULL;
}

static void random_places(const Model *m, TestStrategy *t, uint32_t n_mb) {
  static const uint32_t sizes[] = {1, 1, 2, 4};
  const uint32_t same_size = sizes[below(4)];
  char devices[32], filter[48], both[64];
  if (one_in(8)) return;
  const Flags flags = {(uint8_t)below(ZERO_PARAMS + 1), one_in(2)};
  uint32_t last_size = 0;
  for (uint32_t stage = 0; stage < m->n_stages; stage++) {
    const uint32_t size = m->whole_tensors ? same_size : sizes[below(4)];
    if (!one_in(4) || size != last_size) random_devices(devices, sizeof devices, last_size = size);
    if (n_mb > 1 && one_in(4)) { /* microbatch 0 elsewhere than the others */
      const uint32_t half = m->whole_tensors ? size : size > 2 ? 2 : size;
      random_devices(both, sizeof both, half * 2);
      char *cut = both;
      for (uint32_t i = 0; i < half; i++) cut = strchr(cut, ',') + 1;
      snprintf(filter, sizeof filter, "PP=%u MB=0", stage);
      strategy_place(t, filter, cut);
      cut[-1] = '\0';
      snprintf(filter, sizeof filter, "PP=%u MB=%s", stage,
               n_mb == 2   ? "1"
               : n_mb == 3 ? "1,2"
                           : "1,2,3");
      strategy_place(t, filter, both);
      cut[-1] = ',';
      random_shard(m, t, stage, both, half);
      if (half == 1) continue; /* joined without being asked */
      snprintf(filter, sizeof filter, "PP=%u", stage);
      random_replicate(t, filter, both, flags);
      continue;
    }
    snprintf(filter, sizeof filter, "PP=%u", stage);
    strategy_place(t, filter, devices)->stream = one_in(2) ? "other" : NULL;
    random_shard(m, t, stage, devices, size);
    if (size > 1) random_replicate(t, filter, devices, flags);
  }
}

/* ---- orders ---------------------------------------------------------------------------------- */

/* One action: a node of the DAG without orders, and the pass by which it is named. */
typedef struct Action {
  uint32_t node;
  Pass pass;
} Action;

typedef VEC(Action) ActionVec;

/* Compute nodes in a random order that respects the edges, some backward passes in two. */
static ActionVec random_execution(const Dag *d) {
  PiperErr err = {0};
  Adjacency a;
  if (adjacency_new(d, &a, &err) != PIPER_OK) bail(err.text);
  uint32_t *waiting = malloc(d->n * sizeof *waiting);
  U32Vec ready = {0};
  ActionVec late = {0}, done = {0};
  if (waiting == NULL) bail("no memory");
  const uint32_t split_one_in = 1 + below(4); /* 4: none */
  for (uint32_t i = 1; i < d->n; i++) {
    waiting[i] = a.in_first[i + 1] - a.in_first[i];
    if (waiting[i] == 0 && !vec_push(&ready, i)) bail("no memory");
  }
  while (ready.n > 0 || late.n > 0) {
    if (late.n > 0 && (ready.n == 0 || one_in(4))) {
      const size_t k = below((uint32_t)late.n);
      if (!vec_push(&done, late.at[k])) bail("no memory");
      late.at[k] = late.at[--late.n];
      continue;
    }
    const size_t k = below((uint32_t)ready.n);
    const uint32_t i = ready.at[k];
    ready.at[k] = ready.at[--ready.n];
    if (d->kind[i] == NODE_COMPUTE) {
      Action act = {i, (Pass)d->pass[i]};
      if (act.pass == PASS_B && split_one_in < 4 && one_in(split_one_in)) {
        act.pass = PASS_BI;
        if (!vec_push(&late, ((Action){i, PASS_BW}))) bail("no memory");
      }
      if (!vec_push(&done, act)) bail("no memory");
    }
    for (uint32_t e = a.out_first[i]; e < a.out_first[i + 1]; e++) {
      const uint32_t next = d->edges.at[a.out_edge[e]].dst;
      if (--waiting[next] == 0 && !vec_push(&ready, next)) bail("no memory");
    }
  }
  free(waiting);
  vec_free(&ready);
  vec_free(&late);
  adjacency_free(&a);
  return done;
}

/* The filter that names one action, by all of its tags. */
static Filter filter_of(TestStrategy *t, const Dag *d, Action a) {
  const uint32_t first = d->tags_first.at[d->tags[a.node]],
                 end = d->tags_first.at[d->tags[a.node] + 1];
  FilterTerm *terms = strategy_alloc(t, end - first + 1, sizeof *terms);
  for (uint32_t i = first; i < end; i++) {
    const char *name = intern_text(d->names, d->tags_at.at[i].tag);
    int32_t *index = strategy_alloc(t, 1, sizeof *index);
    *index = d->tags_at.at[i].index;
    terms[i - first] = (FilterTerm){.tag = strcpy(strategy_alloc(t, strlen(name) + 1, 1), name),
                                    .indices = index,
                                    .n_indices = 1};
  }
  qsort(terms, end - first, sizeof *terms, strategy_by_tag);
  return (Filter){terms, end - first, 1u << a.pass};
}

/* One order for each device set: its part of the execution, in groups of one to four. */
static void random_orders(TestStrategy *t, const Dag *d) {
  ActionVec run = random_execution(d);
  const bool all = !one_in(3);
  const uint32_t schedule = all && one_in(2) ? 1 : 0;
  for (uint32_t devs = 1; devs < devsets_count(d->devsets); devs++) {
    if (!all && one_in(2)) continue;
    OrderGroup *groups = strategy_alloc(t, run.n + 1, sizeof *groups);
    Filter *members = strategy_alloc(t, run.n + 1, sizeof *members);
    uint32_t n_groups = 0, left = 0;
    for (size_t i = 0; i < run.n; i++) {
      if (d->devs[run.at[i].node] != devs) continue;
      if (left == 0) {
        groups[n_groups++] = (OrderGroup){members, 0};
        left = one_in(2) ? 1 : 1 + below(4);
      }
      left--;
      *members++ = filter_of(t, d, run.at[i]);
      groups[n_groups - 1].n_members++;
    }
    if (n_groups == 0) continue;
    Directive *x = strategy_order(t, "");
    x->groups = groups;
    x->n_groups = n_groups;
    x->schedule = schedule;
    x->rank_in_schedule = devs;
  }
  for (size_t i = 0; schedule != 0 && i < t->at.n; i++)
    if (t->at.at[i].kind == DIRECTIVE_SPLIT) t->at.at[i].schedule = schedule;
  vec_free(&run);
}

/* ---- what has to hold ------------------------------------------------------------------------ */

static Dag *run_passes(const Graph *g, const TestStrategy *t, bool clip, uint64_t seed) {
  PiperErr err = {0};
  const PassOptions opt = {.float_bytes = 4, .clip = clip, .verify = true};
  const Strategy s = strategy_of(t);
  Dag *d;
  if (passes_run(g, 576, &s, &opt, &d, &err) == PIPER_OK) return d;
  diag("seed %llu: %s", (unsigned long long)seed, err.text);
  return NULL;
}

/* Every node of a group leads to every node of the next. */
static bool groups_follow(const Dag *d) {
  PiperErr err = {0};
  Adjacency a;
  if (adjacency_new(d, &a, &err) != PIPER_OK) bail(err.text);
  uint32_t *stack = malloc(d->n * sizeof *stack), *seen = calloc(d->n, sizeof *seen);
  if (stack == NULL || seen == NULL) bail("no memory");
  bool held = true;
  for (uint32_t from = 1; held && from < d->n; from++) {
    if (d->order_of[from] == 0) continue;
    uint32_t n = 0;
    for (stack[n++] = from; n > 0;) {
      const uint32_t i = stack[--n];
      for (uint32_t e = a.out_first[i]; e < a.out_first[i + 1]; e++) {
        const uint32_t next = d->edges.at[a.out_edge[e]].dst;
        if (seen[next] == from) continue;
        seen[next] = from;
        stack[n++] = next;
      }
    }
    for (uint32_t to = 1; to < d->n; to++)
      if (d->order_of[to] == d->order_of[from] && d->group[to] == d->group[from] + 1 &&
          seen[to] != from)
        held = false;
  }
  free(stack);
  free(seen);
  adjacency_free(&a);
  return held;
}

static bool one_case(uint64_t seed, uint32_t *n_nodes, uint32_t *n_exchanges) {
  state = seed * UINT64_C(0x9e3779b97f4a7c15);
  for (int i = 0; i < 4; i++) below(2);
  const Model m = random_model();
  const bool clip = one_in(2);
  TestStrategy t = {0};
  uint32_t n_mb;
  random_splits(&m, &t, &n_mb);
  random_places(&m, &t, n_mb);
  Dag *d = run_passes(m.g, &t, clip, seed);
  bool held = d != NULL;
  if (held) {
    random_orders(&t, d);
    dag_free(d);
    d = run_passes(m.g, &t, clip, seed);
    held = d != NULL && groups_follow(d);
    if (d != NULL && !held) diag("seed %llu: a group does not follow", (unsigned long long)seed);
  }
  for (uint32_t i = 1; d != NULL && i < d->n; i++, ++*n_nodes)
    *n_exchanges += d->kind[i] == NODE_ALL_TO_ALL;
  dag_free(d);
  strategy_clear(&t);
  graph_free(m.g);
  return held;
}

/* ---- convex members -------------------------------------------------------------------------- */

/* "LAYER=1,3 PASS=F": some of the chunks, in one pass. */
static const char *random_member(char *buf, size_t size, uint32_t n_layers, const char *pass) {
  size_t at = (size_t)snprintf(buf, size, "PASS=%s LAYER=", pass);
  const uint32_t one_of = 1 + below(4), always = below(n_layers);
  const char *comma = "";
  for (uint32_t i = 0; i < n_layers; i++) {
    if (i != always && !one_in(one_of)) continue;
    at += (size_t)snprintf(buf + at, size - at, "%s%u", comma, i);
    comma = ",";
  }
  return buf;
}

/* A path from a node of a member back into it through a compute node that no member has: member[n]
 * is 1 + that of node n. Depth first over (node, such a node was met). */
static bool has_detour(const Dag *d, const Adjacency *a, const uint32_t *member) {
  uint32_t *stack = malloc((size_t)d->n * 2 * sizeof *stack);
  uint32_t *seen = calloc((size_t)d->n * 2, sizeof *seen);
  if (stack == NULL || seen == NULL) bail("no memory");
  bool found = false;
  for (uint32_t from = 1; !found && from < d->n; from++) {
    if (member[from] == 0) continue;
    uint32_t n = 0;
    for (stack[n++] = from * 2; n > 0 && !found;) {
      const uint32_t at = stack[--n], i = at / 2;
      for (uint32_t e = a->out_first[i]; e < a->out_first[i + 1]; e++) {
        const uint32_t next = d->edges.at[a->out_edge[e]].dst;
        const bool outside = d->kind[next] == NODE_COMPUTE && member[next] == 0;
        const uint32_t key = next * 2 + ((at & 1) != 0 || outside);
        if ((key & 1) != 0 && member[next] == member[from]) found = true;
        if (seen[key] == from) continue;
        seen[key] = from;
        stack[n++] = key;
      }
    }
  }
  free(stack);
  free(seen);
  return found;
}

/* An order of two members, in one group or in two, is refused just when one of them has a detour;
 * an order that contradicts the data flow may be refused for that instead. */
static bool convex_case(uint64_t seed, uint32_t *n_refused) {
  state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  for (int i = 0; i < 4; i++) below(2);
  const Model m = random_model();
  TestStrategy t = {0};
  uint32_t n_mb;
  random_splits(&m, &t, &n_mb);
  Dag *d = run_passes(m.g, &t, false, seed);
  if (d == NULL) return false;
  static const char *const passes[] = {"F", "B"};
  const uint32_t pass = below(2);
  uint32_t n_layers = graph_n_chunks(m.g);
  for (uint32_t c = graph_n_chunks(m.g); c > 0; c--)
    n_layers -= graph_chunk(m.g, (ChunkId){c})->n_experts > 0;
  char a[256], b[256], groups[520];
  random_member(a, sizeof a, n_layers, passes[pass]);
  random_member(b, sizeof b, n_layers, passes[1 - pass]);
  snprintf(groups, sizeof groups, "%s%s%s", a, one_in(2) ? "|" : ";", b);

  uint32_t *member = calloc(d->n, sizeof *member);
  FilterIndex *index;
  Adjacency adj;
  U32Vec nodes = {0};
  PiperErr err = {0};
  if (member == NULL || filter_index_new(d, &index, &err) != PIPER_OK ||
      adjacency_new(d, &adj, &err) != PIPER_OK)
    bail(err.text);
  for (uint32_t i = 0; i < 2; i++) {
    const Filter f = strategy_filter(&t, i == 0 ? a : b, strlen(i == 0 ? a : b));
    nodes.n = 0;
    if (filter_nodes(index, &f, &nodes, &err) != PIPER_OK) bail(err.text);
    for (size_t k = 0; k < nodes.n; k++) member[nodes.at[k]] = i + 1;
  }
  const bool detour = has_detour(d, &adj, member);
  filter_index_free(index);
  adjacency_free(&adj);
  vec_free(&nodes);
  free(member);
  dag_free(d);
  d = NULL;

  strategy_order(&t, groups);
  const Strategy s = strategy_of(&t);
  const PassOptions opt = {.float_bytes = 4, .verify = true};
  const PiperStatus st = passes_run(m.g, 576, &s, &opt, &d, &err);
  const bool refused = st == PIPER_EUSER && strstr(err.text, "on the way from one") != NULL;
  const bool contradicts = st == PIPER_EUSER && strstr(err.text, "is ordered before") != NULL;
  const bool held = detour ? refused || contradicts : st == PIPER_OK || contradicts;
  if (!held)
    diag("seed %llu: %s: detour %d, but %s", (unsigned long long)seed, groups, detour,
         st == PIPER_OK ? "accepted" : err.text);
  *n_refused += refused;
  dag_free(d);
  strategy_clear(&t);
  graph_free(m.g);
  return held;
}

int main(int argc, char **argv) {
  const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 400;
  uint32_t failed = 0, n_nodes = 0, n_exchanges = 0;
  for (uint64_t seed = first; seed < first + n && failed < 5; seed++)
    if (!one_case(seed, &n_nodes, &n_exchanges)) failed++;
  diag("%u nodes in all, %u exchanges", n_nodes, n_exchanges);
  ok(n_exchanges > n || n < 100, "some spread experts");
  is_int(failed, 0, "every legal strategy gives a sound DAG that orders what it was asked to");
  uint32_t n_refused = 0;
  failed = 0;
  for (uint64_t seed = first; seed < first + n && failed < 5; seed++)
    if (!convex_case(seed, &n_refused)) failed++;
  diag("%u refused", n_refused);
  is_int(failed, 0, "a member is refused just when a path leaves it and comes back");
  return done_testing();
}
