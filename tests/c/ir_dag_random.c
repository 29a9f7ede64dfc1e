/* Properties of DAGs of random models, cut and split and placed at random. */
#include "ir/dag_text.h"
#include "ir/dag_verify.h"
#include "ir/filter.h"
#include "ir/topo.h"

#include "lib/random_dag.h"
#include "random_data.h"

enum { DAGS = 150, ALL = DAG_BUILT | DAG_PLACED | DAG_BUCKETED | DAG_ORDERED };

static Dag *copy_of(const Dag *d) {
  PiperErr err = {0};
  char *text;
  Dag *twin;
  if (dag_print(d, &text, &err) != PIPER_OK || dag_parse(d->graph, text, &twin, &err) != PIPER_OK)
    bail(err.text);
  free(text);
  return twin;
}

static bool holds(const Dag *d, PiperErr *err) {
  *err = (PiperErr){0};
  return dag_verify(d, ALL, err) == PIPER_OK;
}

static bool text_is_identity(const Dag *d) {
  PiperErr err = {0};
  char *one, *two;
  Dag *twin = copy_of(d);
  if (dag_print(d, &one, &err) != PIPER_OK || dag_print(twin, &two, &err) != PIPER_OK)
    bail(err.text);
  const bool same = strcmp(one, two) == 0 && holds(twin, &err);
  free(one), free(two);
  dag_free(twin);
  return same;
}

static bool order_respects_edges(const Dag *d) {
  PiperErr err = {0};
  Adjacency a;
  uint32_t *order = malloc(d->n * sizeof *order), *place = calloc(d->n, sizeof *place), n;
  if (adjacency_new(d, &a, &err) != PIPER_OK) bail(err.text);
  bool right = topo_order(d, &a, order, &n, &err) == PIPER_OK && n == d->n - 1;
  for (uint32_t i = 0; i < n; i++) place[order[i]] = i + 1;
  for (uint32_t e = 1; e < d->edges.n; e++)
    right = right && place[d->edges.at[e].src] < place[d->edges.at[e].dst];
  adjacency_free(&a);
  free(order), free(place);
  return right;
}

/* Term by term, node by node. */
static bool plainly_matches(const Dag *d, const Filter *f, uint32_t n) {
  if (d->kind[n] != NODE_COMPUTE || (f->passes != 0 && (f->passes >> d->pass[n] & 1) == 0))
    return false;
  for (uint32_t i = 0; i < f->n_terms; i++) {
    const FilterTerm *t = &f->terms[i];
    const uint32_t tag = intern_find(d->names, t->tag);
    const int32_t index = dag_tags_index(d, d->tags[n], tag);
    bool listed = false;
    for (uint32_t k = 0; k < t->n_indices; k++) listed = listed || t->indices[k] == index;
    if (t->kind == TERM_ANY ? index < 0 : t->kind == TERM_NONE ? index >= 0 : !listed) return false;
  }
  return true;
}

/* Random filters over MB and PP against looking at every node. */
static bool filters_agree(const Dag *d) {
  PiperErr err = {0};
  FilterIndex *x;
  U32Vec got = {0};
  bool right = true;
  if (filter_index_new(d, &x, &err) != PIPER_OK) bail(err.text);
  for (int round = 0; round < 40; round++) {
    int32_t lists[2][3];
    FilterTerm terms[2];
    Filter f = {.terms = terms, .passes = random_int(0, 1) ? 0 : (unsigned)random_int(1, 15) << 1};
    for (int t = 0; t < 2; t++) {
      if (random_int(0, 3) == 0) continue;
      const uint32_t n_indices = (uint32_t)random_int(1, 3);
      for (uint32_t k = 0; k < n_indices; k++)
        lists[t][k] = (k > 0 ? lists[t][k - 1] : 0) + random_int(0, 2);
      terms[f.n_terms++] = (FilterTerm){.tag = t == 0 ? "MB" : "PP",
                                        .kind = (TermKind)(random_int(0, 3) % 3),
                                        .indices = lists[t],
                                        .n_indices = n_indices};
    }
    got.n = 0;
    err = (PiperErr){0};
    const PiperStatus st = filter_nodes(x, &f, &got, &err);
    if (st == PIPER_EUSER && strstr(err.text, "}: ") != NULL) continue; /* some index is unknown */
    size_t k = 0;
    for (uint32_t n = 1; n < d->n; n++)
      if (plainly_matches(d, &f, n)) right = right && k < got.n && got.at[k++] == n;
    right = right && k == got.n && (st == PIPER_OK) == (k > 0);
  }
  filter_index_free(x);
  vec_free(&got);
  return right;
}

/* Without any one of its edges the DAG does not hold, nor with one of its data edges twice. Returns
 * the first edge that does not matter; 0: all do. The only update may wait for the metrics or not. */
static uint32_t edge_without_need(const Dag *d) {
  PiperErr err;
  Dag *twin = copy_of(d);
  uint32_t found = 0, n_updates = 0;
  for (uint32_t n = 1; n < d->n; n++) n_updates += d->kind[n] == NODE_UPDATE;
  const size_t n_edges = twin->edges.n;
  for (uint32_t i = 1; found == 0 && i < n_edges; i++) {
    const Edge e = twin->edges.at[i];
    if (n_updates == 1 && twin->kind[e.dst] == NODE_UPDATE &&
        twin->tensors.at[e.tensor].kind == TENSOR_METRICS)
      continue;
    dag_remove_edge(twin, (EdgeId){i});
    if (holds(twin, &err)) found = i;
    twin->edges.at[i] = e;
    if (e.kind == EDGE_TEMPORAL) continue;
    const EdgeId again = dag_add_edge(twin, (NodeId){e.src}, (NodeId){e.dst}, (TensorId){e.tensor});
    if (holds(twin, &err)) found = i;
    dag_remove_edge(twin, again);
  }
  if (found != 0)
    diag("edge %u: %u -> %u, tensor kind %d", found, twin->edges.at[found].src,
         twin->edges.at[found].dst, (int)twin->tensors.at[twin->edges.at[found].tensor].kind);
  dag_free(twin);
  return found;
}

/* A node with other samples, on other devices, of another chunk or bucket is noticed. Returns the
 * first that is not. */
static uint32_t node_without_need(const Dag *d) {
  PiperErr err;
  Dag *t = copy_of(d);
  uint32_t found = 0;
  for (uint32_t n = 1; found == 0 && n < t->n; n++) {
    const uint32_t devs = t->devs[n], chunk = t->chunk[n], bucket = t->bucket[n];
    const int64_t lo = t->lo[n], hi = t->hi[n];
    const uint8_t kind = t->kind[n];
    const bool moves = kind == NODE_COMPUTE || kind == NODE_TRANSFER;
    const int32_t far = 9;
    t->devs[n] = devsets_id(t->devsets, &far, 1);
    if (holds(t, &err)) found = n;
    t->devs[n] = devs;
    if (moves) {
      t->lo[n]++;
      if (holds(t, &err)) found = n;
      t->lo[n] = lo;
      t->hi[n]--;
      if (holds(t, &err)) found = n;
      t->hi[n] = hi;
    }
    if (kind == NODE_COMPUTE && t->graph->chunks.n > 2) {
      t->chunk[n] = chunk == 1 ? 2 : 1;
      if (holds(t, &err)) found = n;
      t->chunk[n] = chunk;
    }
    if (bucket != 0 && t->buckets.n > 2) {
      t->bucket[n] = bucket == 1 ? 2 : 1;
      if (holds(t, &err)) found = n;
      t->bucket[n] = bucket;
    }
    t->kind[n] = NODE_JOIN;
    if (holds(t, &err)) found = n;
    t->kind[n] = kind;
  }
  if (found != 0) diag("node %u, %s", found, NODE_KIND_NAME[t->kind[found]]);
  dag_free(t);
  return found;
}

int main(void) {
  random_start();
  bool verified = true, identity = true, ordered = true, filtered = true, edges = true,
       nodes = true;
  size_t n_nodes = 0, n_edges = 0;
  for (uint32_t i = 0; i < DAGS; i++) {
    PiperErr err;
    int n_ops;
    const uint64_t seed = random_seed_ * DAGS + i;
    RandomModel cuts = {.state = ~seed}; /* every fourth op begins a chunk */
    Graph *g = random_model(seed, model_next(&cuts) & model_next(&cuts), &n_ops);
    Dag *d = random_dag(g, seed);
    n_nodes += d->n - 1;
    n_edges += d->edges.n - 1;
    if (!holds(d, &err)) {
      verified = false;
      diag("model %u: %s", i, err.text);
    } else {
      identity = identity && text_is_identity(d);
      ordered = ordered && order_respects_edges(d);
      filtered = filtered && filters_agree(d);
      if (i % 10 == 0) {
        edges = edges && edge_without_need(d) == 0;
        nodes = nodes && node_without_need(d) == 0;
      }
    }
    dag_free(d);
    graph_free(g);
  }
  diag("%d DAGs of %zu nodes and %zu edges on average", DAGS, n_nodes / DAGS, n_edges / DAGS);
  ok(verified, "a DAG built the plain way holds");
  ok(identity, "its text gives it back");
  ok(ordered, "its order respects every edge");
  ok(filtered, "filters match what looking at every node matches");
  ok(edges, "no edge can go, and no data edge come twice, without being missed");
  ok(nodes, "no node can change without being noticed");
  return done_testing();
}
