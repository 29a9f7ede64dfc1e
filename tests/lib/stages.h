/* stages.h - small models for tests of the DAG: a chain of stages, each y = relu(x W^T), ending in
 * sum_squares. Any failure ends the test program. */
#ifndef PIPER_TESTS_STAGES_H
#define PIPER_TESTS_STAGES_H

#include "ir/dag.h"
#include "ir/graph.h"

#include "tap.h"

static inline ValueId stages_op(Graph *g, OpKind kind, const char *name, ValueId a, ValueId b) {
  PiperErr err = {0};
  ValueId out;
  const OpSpec spec = {.kind = kind, .in = {a, b}, .name = name};
  if (graph_add_op(g, &spec, 0, &out, &err) != PIPER_OK) bail(err.text);
  return out;
}

static inline ValueId stages_param(Graph *g, const char *name, int64_t rows, int64_t columns) {
  PiperErr err = {0};
  ValueId out;
  const ParamSpec spec = {.name = name, .shape = {.rank = 2, .dim = {rows, columns}}};
  if (graph_add_param(g, &spec, 0, &out, &err) != PIPER_OK) bail(err.text);
  return out;
}

/* Parameters "w0", "w1", ... of [4, 4]; ops "layer0" ...; stage i is PP = i and chunk i + 1. The
 * loss is in the last stage, or in a chunk of its own outside every scope. */
static inline Graph *stages_graph(uint32_t n_stages, bool loss_outside) {
  PiperErr err = {0};
  Graph *g = graph_new("stages");
  if (g == NULL) bail("no memory");
  ValueId h;
  const Shape shape = {
      .rank = 2, .batched = true, .axis = {AXIS_BATCH, AXIS_FEATURE}, .dim = {1, 4}};
  if (graph_add_input(g, "x", &shape, DT_FLOAT, 0, &h, &err) != PIPER_OK) bail(err.text);
  for (uint32_t i = 0; i < n_stages; i++) {
    char param[16], layer[16];
    snprintf(param, sizeof param, "w%u", i);
    snprintf(layer, sizeof layer, "layer%u", i);
    if (graph_enter(g, "PP", &err) != PIPER_OK) bail(err.text);
    h = stages_op(g, OP_LINEAR, layer, h, stages_param(g, param, 4, 4));
    h = stages_op(g, OP_RELU, NULL, h, (ValueId){0});
    if (i + 1 == n_stages && !loss_outside) h = stages_op(g, OP_SUM_SQUARES, NULL, h, (ValueId){0});
    if (graph_leave(g, "PP", &err) != PIPER_OK) bail(err.text);
  }
  if (loss_outside) h = stages_op(g, OP_SUM_SQUARES, NULL, h, (ValueId){0});
  if (graph_add_loss(g, h, 0, &err) != PIPER_OK || graph_cut(g, &err) != PIPER_OK) bail(err.text);
  return g;
}

/* The tag set of a chunk's scopes. */
static inline uint32_t stages_tags(Dag *d, ChunkId c) {
  const Graph *g = d->graph;
  const uint32_t scope = graph_chunk(g, c)->scope;
  uint32_t set = 0;
  for (uint32_t i = g->scope_first.at[scope]; i < g->scope_first.at[scope + 1]; i++) {
    const Tag tag = g->scope_tags.at[i];
    set = dag_tags_with(d, set, (Tag){intern_id(d->names, graph_name(g, tag.tag)), tag.index});
  }
  return set;
}

static inline NodeId stages_compute(Dag *d, ChunkId c, Pass pass, uint32_t mb, uint32_t n_mb) {
  const NodeId n = dag_add_node(d, NODE_COMPUTE, 0);
  if (n.i == 0) bail("no memory");
  d->chunk[n.i] = c.i;
  d->pass[n.i] = (uint8_t)pass;
  d->mb[n.i] = mb;
  d->lo[n.i] = part_lo(0, d->batch, mb, n_mb);
  d->hi[n.i] = part_lo(0, d->batch, mb + 1, n_mb);
  const uint32_t set = stages_tags(d, c);
  d->tags[n.i] = dag_tags_with(d, set, (Tag){intern_id(d->names, "MB"), (int32_t)mb});
  return n;
}

#endif
