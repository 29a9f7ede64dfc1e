/* pass_build - one F and one B for each chunk of the cut graph.
 *
 * requires  an empty DAG on a cut graph
 * ensures   F of chunk c is node c, the Bs follow in reverse order of chunks, so ids are in
 *           topological order; F(p) -> F(c) for each value of chunk p that c reads, F(c) -> B(c)
 *           for what it saves, B(c) -> B(p) for each gradient that flows. Samples [0, batch)
 *           forward_only: the Fs and what flows between them
 * breaks    nothing
 * on error  out of memory only
 *
 * Inputs of the model make no edge: they are loaded where they are used. A chunk whose backward
 * pass has nothing to do keeps its B: it may be ordered like any other, and vanishes in
 * lowering. */
#include "ir/grad_flow.h"
#include "passes/pass.h"

#include <stdlib.h>

static NodeId forward_of(ChunkId c) { return (NodeId){c.i}; }
static NodeId backward_of(const Dag *d, ChunkId c) {
  return (NodeId){2 * graph_n_chunks(d->graph) + 1 - c.i};
}

/* The chunk's scopes as a tag set of the DAG, whose names have other ids. */
static uint32_t chunk_tags(Dag *d, ChunkId c) {
  const Graph *g = d->graph;
  const uint32_t scope = graph_chunk(g, c)->scope;
  uint32_t set = 0;
  for (uint32_t i = g->scope_first.at[scope]; i < g->scope_first.at[scope + 1]; i++) {
    const uint32_t name = intern_id(d->names, graph_name(g, g->scope_tags.at[i].tag));
    if (name == 0) return UINT32_MAX;
    set = dag_tags_with(d, set, (Tag){.tag = name, .index = g->scope_tags.at[i].index});
    if (set == UINT32_MAX) return UINT32_MAX;
  }
  return set;
}

static bool add_nodes(Dag *d) {
  const uint32_t n_chunks = graph_n_chunks(d->graph);
  const uint32_t stream = intern_id(d->names, "default_stream");
  if (stream == 0) return false;
  for (uint32_t i = 1; i <= (d->forward_only ? 1 : 2) * n_chunks; i++) {
    const ChunkId c = {i <= n_chunks ? i : 2 * n_chunks + 1 - i};
    const uint32_t line = intern_id(d->names, graph_name(d->graph, graph_chunk(d->graph, c)->line));
    const uint32_t tags = chunk_tags(d, c);
    const NodeId n = dag_add_node(d, NODE_COMPUTE, line);
    if (line == 0 || tags == UINT32_MAX || n.i == 0) return false;
    d->pass[n.i] = i <= n_chunks ? PASS_F : PASS_B;
    d->chunk[n.i] = c.i;
    d->hi[n.i] = d->batch;
    d->stream[n.i] = stream;
    d->tags[n.i] = tags;
  }
  return true;
}

static bool add_edge(Dag *d, NodeId src, NodeId dst, Tensor t) {
  const TensorId tensor = dag_tensor(d, t);
  return tensor.i != 0 && dag_add_edge(d, src, dst, tensor).i != 0;
}

PiperStatus pass_build(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  (void)s, (void)opt;
  const Graph *g = d->graph;
  uint32_t *takes_grad = calloc(g->values.n, sizeof *takes_grad); /* chunk that last gave it one */
  if (takes_grad == NULL || !add_nodes(d)) goto nomem;
  for (uint32_t i = 1; i <= graph_n_chunks(g); i++) {
    const ChunkId c = {i};
    const Chunk *chunk = graph_chunk(g, c);
    chunk_mark_grad_flows(g, c, takes_grad);
    for (uint32_t k = 0; k < chunk->n_in; k++) {
      const ValueId v = {g->chunk_values.at[chunk->in_first + k]};
      if (graph_value(g, v)->kind != VALUE_OP) continue;
      const ChunkId p = graph_op(g, graph_value(g, v)->op)->chunk;
      if (!add_edge(d, forward_of(p), forward_of(c), (Tensor){.kind = TENSOR_VALUE, .value = v}))
        goto nomem;
      if (takes_grad[v.i] == i && !d->forward_only && !add_edge(d, backward_of(d, c), backward_of(d, p),
                                            (Tensor){.kind = TENSOR_GRAD, .value = v, .chunk = c}))
        goto nomem;
    }
    if (!d->forward_only &&
        !add_edge(d, forward_of(c), backward_of(d, c), (Tensor){.kind = TENSOR_SAVED, .chunk = c}))
      goto nomem;
  }
  free(takes_grad);
  return PIPER_OK;
nomem:
  free(takes_grad);
  return err_nomem(err, "the training DAG");
}
