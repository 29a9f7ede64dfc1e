/* pass_recompute - matched chunks keep only their inputs, and run forward again (R) before backward.
 *
 * requires  F and backward nodes, no communication
 * ensures   F -> R -> B (or BI, and BW) carry what was F -> B before; all of them have 'recompute'
 *           set. R has no other edges: what it reads is what its F read, which stays where it is
 * breaks    nothing
 * on error  the DAG may be half rewritten: drop it
 *
 * Here, before placement and replication, since R is a pass like the others to all that follows: it
 * is placed with its F, and reads parameters that may have to be gathered for it. When it runs, if
 * no order names it, pass_order says. */
#include "passes/pass.h"

#include <stdlib.h>

static PiperStatus mark(Dag *d, const FilterIndex *index, const Directive *x, U32Vec *nodes,
                        uint32_t *line_of, PiperErr *err) {
  if (x->filter.passes != 0)
    return directive_fail(err, x, "a chunk is recomputed as a whole: leave PASS out of the filter");
  const uint32_t line = directive_line(d, x);
  if (line == 0) return err_nomem(err, "recompute");
  TRY(directive_nodes(index, x, nodes, err));
  for (size_t k = 0; k < nodes->n; k++) {
    d->recompute[nodes->at[k]] = 1;
    line_of[nodes->at[k]] = line;
  }
  return PIPER_OK;
}

/* The R of forward node f. */
static NodeId add_again(Dag *d, uint32_t f, uint32_t line) {
  const NodeId r = dag_add_node(d, NODE_COMPUTE, line);
  if (r.i == 0) return r;
  d->pass[r.i] = PASS_R;
  d->chunk[r.i] = d->chunk[f];
  d->lo[r.i] = d->lo[f];
  d->hi[r.i] = d->hi[f];
  d->stream[r.i] = d->stream[f];
  d->tags[r.i] = d->tags[f];
  d->mb[r.i] = d->mb[f];
  d->recompute[r.i] = 1;
  return r;
}

/* What F saved for others goes through R. */
static bool insert(Dag *d, const uint32_t *line_of, uint32_t *again) {
  const size_t n_edges = d->edges.n;
  for (size_t i = 1; i < n_edges; i++) {
    const Edge e = d->edges.at[i];
    if (e.kind != EDGE_DATA || !d->recompute[e.src] || d->pass[e.src] != PASS_F ||
        d->tensors.at[e.tensor].kind != TENSOR_SAVED)
      continue;
    if (again[e.src] == 0) {
      again[e.src] = add_again(d, e.src, line_of[e.src]).i;
      if (again[e.src] == 0 ||
          dag_add_edge(d, (NodeId){e.src}, (NodeId){again[e.src]}, (TensorId){e.tensor}).i == 0)
        return false;
    }
    dag_remove_edge(d, (EdgeId){(uint32_t)i});
    if (dag_add_edge(d, (NodeId){again[e.src]}, (NodeId){e.dst}, (TensorId){e.tensor}).i == 0)
      return false;
  }
  return true;
}

PiperStatus pass_recompute(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  (void)opt;
  bool any = false;
  for (uint32_t i = 0; i < s->n; i++) any = any || s->at[i].kind == DIRECTIVE_RECOMPUTE;
  if (!any) return PIPER_OK;
  const uint32_t n = d->n;
  U32Vec nodes = {0};
  FilterIndex *index = NULL;
  uint32_t *line_of = calloc((size_t)n * 2, sizeof *line_of); /* by node; then its R */
  PiperStatus st = line_of == NULL ? err_nomem(err, "recompute") : filter_index_new(d, &index, err);
  for (uint32_t i = 0; st == PIPER_OK && i < s->n; i++)
    if (s->at[i].kind == DIRECTIVE_RECOMPUTE)
      st = mark(d, index, &s->at[i], &nodes, line_of, err);
  if (st == PIPER_OK && !insert(d, line_of, line_of + n)) st = err_nomem(err, "recompute");
  filter_index_free(index);
  free(line_of);
  vec_free(&nodes);
  return st;
}
