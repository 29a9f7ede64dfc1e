#include "ir/dag.h"

#include "tap.h"

/* A graph with the parts that labels look at: two chunks in PP = 0 and 1, one outside; op 1 named
 * "head", op 2 without a name. */
static Graph *small_graph(bool with_stages) {
  Graph *g = calloc(1, sizeof *g);
  if (g == NULL) bail("no memory");
  g->names = intern_new();
  g->arena = arena_new();
  if (g->names == NULL || g->arena == NULL) bail("no memory");
  const uint32_t pp = intern_id(g->names, with_stages ? "PP" : "LAYER");
  bool fits = vec_push(&g->tag_entries, 0) && vec_push(&g->tag_entries, 2);
  fits = fits && vec_push(&g->scope_first, 0);
  for (int32_t i = 0; i < 3; i++) /* sets: 0 = {}, 1 = { PP = 0 }, 2 = { PP = 1 } */
    fits = fits && (i == 0 || vec_push(&g->scope_tags, ((Tag){pp, i - 1}))) &&
           vec_push(&g->scope_first, (uint32_t)g->scope_tags.n);
  fits = fits && vec_push(&g->chunks, (Chunk){0}) && vec_push(&g->chunks, (Chunk){.scope = 1}) &&
         vec_push(&g->chunks, (Chunk){.scope = 2}) && vec_push(&g->chunks, (Chunk){.scope = 0});
  const Op ops[3] = {{.kind = OP_NONE},
                     {.kind = OP_LINEAR, .chunk = {1}, .name = intern_id(g->names, "head")},
                     {.kind = OP_RELU, .chunk = {2}}};
  for (uint32_t i = 0; i < 3; i++)
    fits = fits && vec_push(&g->ops, ops[i]) &&
           vec_push(&g->values, ((Value){.kind = VALUE_OP, .op = {i}}));
  fits = fits && vec_push(&g->params, (Param){0});
  for (int i = 0; i < 2; i++) {
    const Param p = {.name = intern_id(g->names, i == 0 ? "head.weight" : "head.bias")};
    fits = fits && vec_push(&g->params, p);
  }
  if (!fits) bail("no memory");
  return g;
}

static void small_graph_free(Graph *g) {
  vec_free(&g->tag_entries);
  vec_free(&g->scope_first);
  vec_free(&g->scope_tags);
  vec_free(&g->chunks);
  vec_free(&g->ops);
  vec_free(&g->values);
  vec_free(&g->params);
  intern_free(g->names);
  arena_free(g->arena);
  free(g);
}

static void label_is(const Dag *d, NodeId n, const char *want) {
  char text[64];
  dag_label(d, n, text, sizeof text);
  is_str(text, want, "label \"%s\"", want);
}

static uint32_t devs(Dag *d, int32_t first, int32_t n) {
  int32_t ranks[8];
  for (int32_t i = 0; i < n; i++) ranks[i] = first + i;
  return devsets_id(d->devsets, ranks, (uint32_t)n);
}

static NodeId compute(Dag *d, uint32_t chunk, Pass pass, uint32_t mb) {
  const NodeId n = dag_add_node(d, NODE_COMPUTE, 0);
  d->chunk[n.i] = chunk;
  d->pass[n.i] = (uint8_t)pass;
  d->mb[n.i] = mb;
  return n;
}

static void nodes_and_edges(const Graph *g) {
  Dag *d = dag_new(g, 24);
  if (d == NULL) bail("no memory");
  is_int(d->n, 1, "a new DAG has no node");
  const uint32_t line = intern_id(d->names, "train.lua:7");
  NodeId a = dag_add_node(d, NODE_COMPUTE, line);
  is_int(a.i, 1, "the first node has id 1");
  d->lo[a.i] = 3, d->src_hi[a.i] = 4, d->order_of[a.i] = 5;
  bool fresh = true;
  for (int i = 0; i < 1000; i++) {
    const NodeId n = dag_add_node(d, NODE_UPDATE, 0);
    fresh =
        fresh && d->lo[n.i] == 0 && d->pass[n.i] == 0 && d->tags[n.i] == 0 && d->member[n.i] == 0;
    d->lo[n.i] = d->hi[n.i] = -1;
  }
  ok(fresh, "every field of a new node is 0");
  ok(d->lo[1] == 3 && d->src_hi[1] == 4 && d->order_of[1] == 5 && d->kind[1] == NODE_COMPUTE,
     "fields keep their values when the arrays grow");
  is_str(dag_line(d, d->line[1]), "train.lua:7", "a node names its script line");
  is_str(dag_line(d, 0), "", "no line is the empty text");

  const TensorId t = dag_tensor(d, (Tensor){.kind = TENSOR_VALUE, .value = {1}});
  const EdgeId e = dag_add_edge(d, (NodeId){1}, (NodeId){2}, t);
  const EdgeId f = dag_add_temporal(d, (NodeId){2}, (NodeId){3}, line);
  ok(e.i == 1 && d->edges.at[1].src == 1 && d->edges.at[1].dst == 2 &&
         d->edges.at[1].tensor == t.i && d->edges.at[1].kind == EDGE_DATA,
     "a data edge");
  ok(f.i == 2 && d->edges.at[2].kind == EDGE_TEMPORAL && d->edges.at[2].line == line,
     "a temporal edge");
  dag_remove_edge(d, e);
  ok(d->edges.at[1].src == 0 && d->edges.at[1].dst == 0 && d->edges.n == 3,
     "a removed edge leaves its place");
  dag_free(d);
  dag_free(NULL);
}

static void interning(const Graph *g) {
  Dag *d = dag_new(g, 24);
  if (d == NULL) bail("no memory");
  const TensorId saved = dag_tensor(d, (Tensor){.kind = TENSOR_SAVED, .chunk = {1}});
  const TensorId kept = dag_tensor(d, (Tensor){.kind = TENSOR_KEPT, .chunk = {1}});
  ok(saved.i != 0 && saved.i != kept.i, "tensors of different kinds differ");
  bool same = true;
  for (uint32_t pass = 0; pass < 2; pass++)
    for (uint32_t i = 0; i < 5000; i++) {
      const Tensor v = {.kind = TENSOR_GRAD, .value = {i % 100}, .chunk = {i}};
      same = same && dag_tensor(d, v).i == kept.i + 1 + i;
    }
  ok(same, "five thousand tensors are found again");

  const uint32_t mb = intern_id(d->names, "MB"), pp = intern_id(d->names, "PP");
  const uint32_t ep = intern_id(d->names, "EP");
  is_int(dag_tags(d, NULL, 0), 0, "tag set 0 is empty");
  const uint32_t s = dag_tags(d, (Tag[]){{pp, 2}}, 1);
  const uint32_t both = dag_tags_with(d, s, (Tag){mb, 7});
  is_int(dag_tags(d, (Tag[]){{mb, 7}, {pp, 2}}, 2), both, "a set is the same however it was made");
  is_int(dag_tags_index(d, both, mb), 7, "index of one tag");
  is_int(dag_tags_index(d, both, pp), 2, "index of the other");
  is_int(dag_tags_index(d, both, ep), -1, "a tag that is not in the set");
  is_int(dag_tags_index(d, 0, pp), -1, "nothing is in the empty set");
  is_int(dag_tags_with(d, both, (Tag){pp, 2}), both, "the same entry again changes nothing");
  is_int(dag_tags_index(d, dag_tags_with(d, both, (Tag){pp, 3}), pp), 3, "a tag has one index");
  same = true;
  uint32_t ids[2000];
  for (int32_t i = 0; i < 2000; i++) ids[i] = dag_tags_with(d, both, (Tag){ep, i});
  for (int32_t i = 0; i < 2000; i++)
    same = same && dag_tags_with(d, both, (Tag){ep, i}) == ids[i] &&
           dag_tags_index(d, ids[i], ep) == i && dag_tags_index(d, ids[i], mb) == 7;
  ok(same, "two thousand tag sets are found again");
  uint32_t wide = 0;
  for (int32_t i = 0; i < 40; i++) {
    char name[8];
    snprintf(name, sizeof name, "T%d", i);
    wide = dag_tags_with(d, wide, (Tag){intern_id(d->names, name), i});
  }
  is_int(dag_tags_index(d, wide, intern_id(d->names, "T39")), 39, "a set of forty tags");
  dag_free(d);
}

static void labels(const Graph *g, const Graph *no_stages) {
  Dag *d = dag_new(g, 24);
  if (d == NULL) bail("no memory");
  label_is(d, compute(d, 1, PASS_F, 0), "0F0");
  label_is(d, compute(d, 2, PASS_B, 3), "1B3");
  label_is(d, compute(d, 2, PASS_BI, 3), "1I3");
  label_is(d, compute(d, 2, PASS_BW, 11), "1W11");
  label_is(d, compute(d, 3, PASS_F, 0), "-F0");

  const NodeId t = dag_add_node(d, NODE_TRANSFER, 0);
  d->tensor[t.i] = dag_tensor(d, (Tensor){.kind = TENSOR_VALUE, .value = {1}}).i;
  d->mb[t.i] = 3;
  d->src_devs[t.i] = devs(d, 0, 1);
  d->devs[t.i] = devs(d, 1, 2);
  label_is(d, t, "transfer head 0F3 0>1-2");
  d->tensor[t.i] = dag_tensor(d, (Tensor){.kind = TENSOR_GRAD, .value = {2}, .chunk = {2}}).i;
  d->pass[t.i] = PASS_BI;
  label_is(d, t, "transfer grad relu.2 1I3 0>1-2");
  char small[10];
  dag_label(d, t, small, sizeof small);
  is_str(small, "transfer ", "a label is cut off where it does not fit");

  if (!vec_push(&d->bucket_params, 1) || !vec_push(&d->bucket_params, 2) ||
      !vec_push(&d->buckets, ((Bucket){.param_first = 0, .n_params = 2})) ||
      !vec_push(&d->buckets, ((Bucket){.param_first = 1, .n_params = 1})))
    bail("no memory");
  const NodeId r = dag_add_node(d, NODE_ALL_REDUCE, 0);
  d->bucket[r.i] = 1;
  d->devs[r.i] = devs(d, 0, 2);
  label_is(d, r, "all_reduce head.weight.. 0-1");
  d->bucket[r.i] = 0;
  d->tensor[r.i] = dag_tensor(d, (Tensor){.kind = TENSOR_METRICS}).i;
  label_is(d, r, "all_reduce metrics 0-1");
  const NodeId u = dag_add_node(d, NODE_UPDATE, 0);
  d->bucket[u.i] = 2;
  label_is(d, u, "update head.bias");
  const NodeId j = dag_add_node(d, NODE_JOIN, 0);
  d->devs[j.i] = devs(d, 2, 2);
  label_is(d, j, "join 2-3");
  dag_free(d);

  d = dag_new(no_stages, 24);
  if (d == NULL) bail("no memory");
  label_is(d, compute(d, 2, PASS_F, 5), "0F5");
  dag_free(d);
}

int main(void) {
  Graph *g = small_graph(true), *no_stages = small_graph(false);
  nodes_and_edges(g);
  interning(g);
  labels(g, no_stages);
  small_graph_free(g);
  small_graph_free(no_stages);
  return done_testing();
}
