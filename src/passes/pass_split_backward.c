/* pass_split_backward - B becomes BI (input gradients) -> BW (weight gradients), where an order
 * names BI and BW.
 *
 * requires  F and B nodes, no communication
 * ensures   BI keeps the id and every GRAD edge of its B, so upstream stages wait for the input
 *           gradient only; BW is a new node, in order of B; BI -> BW carries what BI keeps, and
 *           F -> BW what F saved
 * breaks    every backward is one B
 * on error  the DAG may be half rewritten: drop it
 *
 * A filter with PASS = "BI" is answered here on the Bs that are there before the split. */
#include "passes/pass.h"

#include <stdlib.h>
#include <string.h>

/* By node, how orders name it: 1 + index of the directive; 0: none does. */
typedef struct Named {
  uint32_t *bi, *bw, *b;
} Named;

/* Where order x names node n as 'pass': "rank 1, column 5: ". */
static PiperStatus where_named(const FilterIndex *index, const Directive *x, uint32_t n, Pass pass,
                               char *buf, size_t size, PiperErr *err) {
  U32Vec nodes = {0};
  PiperStatus st = PIPER_OK;
  buf[0] = '\0';
  for (uint32_t g = 0; st == PIPER_OK && buf[0] == '\0' && g < x->n_groups; g++)
    for (uint32_t m = 0; st == PIPER_OK && m < x->groups[g].n_members; m++) {
      Filter on_b = x->groups[g].members[m];
      if ((on_b.passes >> pass & 1) == 0) continue;
      on_b.passes = 1u << PASS_B;
      nodes.n = 0;
      st = filter_nodes(index, &on_b, &nodes, err);
      for (size_t k = 0; k < nodes.n; k++)
        if (nodes.at[k] == n) order_where(x, g, buf, size);
    }
  vec_free(&nodes);
  return st;
}

static PiperStatus mark(const FilterIndex *index, const Directive *order, uint32_t by, Pass pass,
                        uint32_t *named, U32Vec *nodes, PiperErr *err) {
  for (uint32_t g = 0; g < order->n_groups; g++)
    for (uint32_t m = 0; m < order->groups[g].n_members; m++) {
      const Filter *f = &order->groups[g].members[m];
      if ((f->passes >> pass & 1) == 0) continue;
      Filter on_b = *f;
      PiperErr found;
      found.code = PIPER_OK;
      on_b.passes = 1u << PASS_B;
      nodes->n = 0;
      PiperStatus st = filter_nodes(index, &on_b, nodes, &found);
      if (st == PIPER_EUSER) /* again, for a message that shows the filter as it was written */
        return member_nodes(index, order, g, m, nodes, err);
      if (st != PIPER_OK) return err_set(err, st, "%s", found.text);
      for (size_t k = 0; k < nodes->n; k++) named[nodes->at[k]] = by;
    }
  return PIPER_OK;
}

/* Each node named BI in an order is named BW in the same one, and B in none. */
static PiperStatus check(const Dag *d, const FilterIndex *index, const Strategy *s,
                         const Named *named, PiperErr *err) {
  for (uint32_t i = 1; i < d->n; i++) {
    const uint32_t bi = named->bi[i], bw = named->bw[i], b = named->b[i];
    if (bi == bw && (bi == 0 || b == 0)) continue;
    char label[TEXT], where[TEXT], other[TEXT];
    dag_label(d, (NodeId){i}, label, sizeof label);
    if (b != 0) {
      const Directive *x = &s->at[b - 1], *y = &s->at[(bi != 0 ? bi : bw) - 1];
      TRY(where_named(index, x, i, PASS_B, where, sizeof where, err));
      TRY(where_named(index, y, i, bi != 0 ? PASS_BI : PASS_BW, other, sizeof other, err));
      if (other[0] != '\0') other[strlen(other) - strlen(": ")] = '\0';
      return directive_fail(err, x,
                            "%s%s is named as B here, and as %s in the order at %s (%s): its "
                            "backward pass is either one or split",
                            where, label, bi == 0 ? "BW" : bw == 0 ? "BI" : "BI and BW", y->line,
                            other);
    }
    const bool has_bi = bi != 0 && (bw == 0 || bi < bw);
    const Directive *x = &s->at[(has_bi ? bi : bw) - 1];
    TRY(where_named(index, x, i, has_bi ? PASS_BI : PASS_BW, where, sizeof where, err));
    return directive_fail(err, x,
                          "%s%s without %s: %s is named as %s, so the same order has to name it as "
                          "%s too, anywhere %s",
                          where, has_bi ? "BI" : "BW", has_bi ? "BW" : "BI", label,
                          has_bi ? "BI" : "BW", has_bi ? "BW" : "BI", has_bi ? "after" : "before");
  }
  return PIPER_OK;
}

static bool split_nodes(Dag *d, const uint32_t *named_bi, uint32_t *bw_of) {
  const uint32_t n = d->n;
  const size_t n_edges = d->edges.n;
  for (uint32_t b = 1; b < n; b++) {
    if (named_bi[b] == 0) continue;
    const NodeId w = dag_add_node(d, NODE_COMPUTE, d->line[b]);
    const TensorId kept = dag_tensor(d, (Tensor){.kind = TENSOR_KEPT, .chunk = {d->chunk[b]}});
    if (w.i == 0 || kept.i == 0 || dag_add_edge(d, (NodeId){b}, w, kept).i == 0) return false;
    d->pass[b] = PASS_BI;
    d->pass[w.i] = PASS_BW;
    d->chunk[w.i] = d->chunk[b];
    d->lo[w.i] = d->lo[b];
    d->hi[w.i] = d->hi[b];
    d->stream[w.i] = d->stream[b];
    d->tags[w.i] = d->tags[b];
    d->mb[w.i] = d->mb[b];
    bw_of[b] = w.i;
  }
  for (size_t i = 1; i < n_edges; i++) {
    const Edge e = d->edges.at[i];
    if (e.dst < n && bw_of[e.dst] != 0 && d->tensors.at[e.tensor].kind == TENSOR_SAVED &&
        dag_add_edge(d, (NodeId){e.src}, (NodeId){bw_of[e.dst]}, (TensorId){e.tensor}).i == 0)
      return false;
  }
  return true;
}

static bool names_split(const Directive *x) {
  if (x->kind != DIRECTIVE_ORDER) return false;
  for (uint32_t g = 0; g < x->n_groups; g++)
    for (uint32_t m = 0; m < x->groups[g].n_members; m++)
      if ((x->groups[g].members[m].passes & (1u << PASS_BI | 1u << PASS_BW)) != 0) return true;
  return false;
}

PiperStatus pass_split_backward(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  (void)opt;
  if (d->forward_only) return PIPER_OK;
  bool any = false;
  for (uint32_t i = 0; i < s->n; i++) any = any || names_split(&s->at[i]);
  if (!any) return PIPER_OK;

  U32Vec nodes = {0};
  uint32_t *block = calloc((size_t)d->n * 4, sizeof *block);
  const Named named = {block, block + d->n, block + 2 * (size_t)d->n};
  uint32_t *bw_of = block + 3 * (size_t)d->n;
  FilterIndex *index = NULL;
  PiperStatus st =
      block == NULL ? err_nomem(err, "split_backward") : filter_index_new(d, &index, err);
  for (uint32_t i = 0; st == PIPER_OK && i < s->n; i++) {
    const Directive *x = &s->at[i];
    if (x->kind != DIRECTIVE_ORDER) continue;
    st = mark(index, x, i + 1, PASS_BI, named.bi, &nodes, err);
    if (st == PIPER_OK) st = mark(index, x, i + 1, PASS_BW, named.bw, &nodes, err);
    if (st == PIPER_OK) st = mark(index, x, i + 1, PASS_B, named.b, &nodes, err);
  }
  if (st == PIPER_OK) st = check(d, index, s, &named, err);
  filter_index_free(index);
  if (st == PIPER_OK && !split_nodes(d, named.bi, bw_of)) st = err_nomem(err, "split_backward");
  free(block);
  vec_free(&nodes);
  return st;
}
