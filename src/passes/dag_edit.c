/* Cycles are found as edges are added, by the levels of Bender, Fineman, Gilbert and Tarjan ("A
 * new approach to incremental cycle detection and related problems", 2016, the algorithm for
 * sparse graphs). Along an edge levels never fall. A new edge v -> w with level(v) >= level(w)
 * is followed backward from v within its level, over at most 'bound' edges: where that is all
 * there is, w is among them or there is no cycle through this level; otherwise w moves above v.
 * What moves is followed forward. With a bound of sqrt(edges) no node passes more than about so
 * many levels, so all calls together cost O(edges^1.5): a chain of a hundred thousand calls, in
 * whatever direction, is a matter of a second, and a search from scratch in each would be
 * quadratic.
 *
 * Primitives that make nodes cannot close a cycle: a part of a node has a part of its edges. */
#include "passes/dag_edit.h"

#include "ir/bucket.h"
#include "ir/dag_verify.h"
#include "passes/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct NodeLinks {
  uint32_t out_first, out_last, in_first, in_last; /* edges, in order of ids; 0: none */
  uint32_t level;
  uint32_t same_first; /* edges that enter it from its own level */
  uint32_t seen;       /* == round: the search under way was here */
  uint32_t came;       /* the edge by which */
} NodeLinks;

typedef struct EdgeLinks {
  uint32_t out_next, in_next, same_next;
} EdgeLinks;

struct DagEdit {
  Dag *d;
  const Strategy *s;
  unsigned stages;
  FilterIndex *index; /* NULL: nobody asked since nodes or tags changed */
  VEC(NodeLinks) nodes;
  VEC(EdgeLinks) edges;
  U32Vec stack;
  uint32_t round, bound;
};

static PiperStatus nomem(PiperErr *err) { return err_nomem(err, "a pass of the script"); }

/* ---- links ------------------------------------------------------------------------------------- */

/* Entries for nodes and edges that the DAG has by now. */
static bool cover(DagEdit *x) {
  const Dag *d = x->d;
  while (x->nodes.n < d->n)
    if (!vec_push(&x->nodes, (NodeLinks){0})) return false;
  while (x->edges.n < d->edges.n) {
    const uint32_t e = (uint32_t)x->edges.n;
    const Edge *edge = &d->edges.at[e];
    if (!vec_push(&x->edges, (EdgeLinks){0})) return false;
    if (edge->src == 0) continue;
    NodeLinks *a = &x->nodes.at[edge->src], *b = &x->nodes.at[edge->dst];
    if (a->out_last == 0) a->out_first = e;
    else x->edges.at[a->out_last].out_next = e;
    a->out_last = e;
    if (b->in_last == 0) b->in_first = e;
    else x->edges.at[b->in_last].in_next = e;
    b->in_last = e;
    if (a->level != b->level) continue;
    x->edges.at[e].same_next = b->same_first;
    b->same_first = e;
  }
  return true;
}

static bool is_removed(const DagEdit *x, uint32_t e) { return x->d->edges.at[e].src == 0; }

EdgeId dag_edit_next_in(const DagEdit *x, NodeId n, EdgeId after) {
  uint32_t e = after.i == 0 ? x->nodes.at[n.i].in_first : x->edges.at[after.i].in_next;
  while (e != 0 && is_removed(x, e)) e = x->edges.at[e].in_next;
  return (EdgeId){e};
}

EdgeId dag_edit_next_out(const DagEdit *x, NodeId n, EdgeId after) {
  uint32_t e = after.i == 0 ? x->nodes.at[n.i].out_first : x->edges.at[after.i].out_next;
  while (e != 0 && is_removed(x, e)) e = x->edges.at[e].out_next;
  return (EdgeId){e};
}

#define EACH_IN(x, n, e)                                                                           \
  for (EdgeId e = dag_edit_next_in(x, n, (EdgeId){0}); e.i != 0; e = dag_edit_next_in(x, n, e))
#define EACH_OUT(x, n, e)                                                                          \
  for (EdgeId e = dag_edit_next_out(x, n, (EdgeId){0}); e.i != 0; e = dag_edit_next_out(x, n, e))

PiperStatus dag_edit_new(Dag *d, const Strategy *s, unsigned stages, DagEdit **out, PiperErr *err) {
  DagEdit *x = calloc(1, sizeof *x);
  if (x == NULL) return nomem(err);
  x->d = d;
  x->s = s;
  x->stages = stages;
  x->bound = 16;
  while ((uint64_t)x->bound * x->bound < d->edges.n) x->bound += x->bound / 4;
  if (!vec_push(&x->edges, (EdgeLinks){0}) || !cover(x)) {
    dag_edit_free(x);
    return nomem(err);
  }
  *out = x;
  return PIPER_OK;
}

void dag_edit_free(DagEdit *x) {
  if (x == NULL) return;
  filter_index_free(x->index);
  vec_free(&x->nodes);
  vec_free(&x->edges);
  vec_free(&x->stack);
  free(x);
}

Dag *dag_edit_dag(DagEdit *x) { return x->d; }
unsigned dag_edit_stages(const DagEdit *x) { return x->stages; }

/* Nodes or tags are others now. */
static void changed(DagEdit *x) {
  filter_index_free(x->index);
  x->index = NULL;
}

/* ---- nodes ------------------------------------------------------------------------------------- */

static bool term_holds(const Dag *d, const FilterTerm *t, uint32_t tag, uint32_t n) {
  const int32_t index = tag != 0 ? dag_tags_index(d, d->tags[n], tag) : -1;
  if (t->kind == TERM_ANY) return index >= 0;
  if (t->kind == TERM_NONE) return index < 0;
  for (uint32_t i = 0; i < t->n_indices; i++)
    if (t->indices[i] == index) return true;
  return false;
}

/* Of all kinds: node by node. */
static PiperStatus scan(const DagEdit *x, const Filter *f, unsigned kinds, U32Vec *out,
                        PiperErr *err) {
  const Dag *d = x->d;
  for (uint32_t n = 1; n < d->n; n++) {
    if ((kinds >> d->kind[n] & 1) == 0 || (f->passes != 0 && (f->passes >> d->pass[n] & 1) == 0))
      continue;
    bool holds = true;
    for (uint32_t i = 0; holds && i < f->n_terms; i++)
      holds = term_holds(d, &f->terms[i], intern_find(d->names, f->terms[i].tag), n);
    if (holds && !vec_push(out, n)) return nomem(err);
  }
  return PIPER_OK;
}

PiperStatus dag_edit_nodes(DagEdit *x, const Filter *f, unsigned kinds, U32Vec *out,
                           PiperErr *err) {
  if (kinds != 1u << NODE_COMPUTE) return scan(x, f, kinds, out, err);
  PiperErr found = {0};
  if (x->index == NULL) TRY(filter_index_new(x->d, &x->index, err));
  const PiperStatus st = filter_nodes(x->index, f, out, &found);
  if (st == PIPER_OK || st == PIPER_EUSER) return PIPER_OK; /* nothing matches */
  return err_set(err, st, "%s", found.text);
}

/* ---- levels ------------------------------------------------------------------------------------ */

static bool visit(DagEdit *x, uint32_t n, uint32_t by) {
  NodeLinks *a = &x->nodes.at[n];
  if (a->seen == x->round) return true;
  a->seen = x->round;
  a->came = by;
  return vec_push(&x->stack, n);
}

/* Ancestors of v within its level are marked, or v alone where they have more than 'bound' edges
 * (*whole is false then); *met: w is one of them. */
static bool search_back(DagEdit *x, uint32_t v, uint32_t w, bool *whole, bool *met) {
  uint32_t looked = 0;
  *whole = true;
  *met = false;
  x->round++;
  x->stack.n = 0;
  if (!visit(x, v, 0)) return false;
  while (x->stack.n > 0) {
    const uint32_t n = x->stack.at[--x->stack.n];
    for (uint32_t e = x->nodes.at[n].same_first; e != 0; e = x->edges.at[e].same_next) {
      if (is_removed(x, e)) continue;
      const uint32_t from = x->d->edges.at[e].src;
      if (from == w) {
        *met = true;
        return true;
      }
      if (looked++ >= x->bound) {
        *whole = false;
        x->round++;
        x->nodes.at[v].seen = x->round;
        return true;
      }
      if (!visit(x, from, e)) return false;
    }
  }
  return true;
}

/* Node w moves up to 'level', and what it leads to with it; *met: one of those that are marked.
 * Goes on to the end then, too: without the new edge all levels are right again. */
static bool raise(DagEdit *x, uint32_t w, uint32_t level, bool *met) {
  x->stack.n = 0;
  if (!vec_push(&x->stack, w)) return false;
  x->nodes.at[w].level = level;
  x->nodes.at[w].same_first = 0;
  while (x->stack.n > 0) {
    const uint32_t n = x->stack.at[--x->stack.n];
    for (uint32_t e = x->nodes.at[n].out_first; e != 0; e = x->edges.at[e].out_next) {
      if (is_removed(x, e)) continue;
      const uint32_t to = x->d->edges.at[e].dst;
      NodeLinks *b = &x->nodes.at[to];
      if (b->seen == x->round) *met = true;
      if (b->level > level) continue;
      if (b->level < level) {
        b->level = level;
        b->same_first = 0;
        if (!vec_push(&x->stack, to)) return false;
      }
      x->edges.at[e].same_next = b->same_first;
      b->same_first = e;
    }
  }
  return true;
}

/* Makes room in the levels for an edge v -> w; *cycle: it would close one. False: out of memory. */
static bool make_way(DagEdit *x, uint32_t v, uint32_t w, bool *cycle) {
  const uint32_t level = x->nodes.at[v].level;
  bool whole;
  *cycle = v == w;
  if (*cycle || level < x->nodes.at[w].level) return true;
  if (!search_back(x, v, w, &whole, cycle)) return false;
  if (*cycle || (whole && level == x->nodes.at[w].level)) return true;
  return raise(x, w, whole ? level : level + 1, cycle);
}

/* ---- order ------------------------------------------------------------------------------------- */

/* Breadth first from a to b, so that 'came' leads back along a shortest path; not above b's
 * level. */
static bool find_path(DagEdit *x, uint32_t a, uint32_t b, bool *found) {
  const uint32_t level = x->nodes.at[b].level;
  *found = a == b;
  x->round++;
  x->stack.n = 0;
  if (!visit(x, a, 0)) return false;
  for (size_t head = 0; !*found && head < x->stack.n; head++)
    EACH_OUT(x, (NodeId){x->stack.at[head]}, e) {
      const uint32_t to = x->d->edges.at[e.i].dst;
      if (x->nodes.at[to].level > level) continue;
      if (!visit(x, to, e.i)) return false;
      *found = *found || to == b;
    }
  return true;
}

PiperStatus dag_edit_reaches(DagEdit *x, NodeId a, NodeId b, bool *reaches, PiperErr *err) {
  return find_path(x, a.i, b.i, reaches) ? PIPER_OK : nomem(err);
}

enum { SHOWN_NODES = 12 }; /* of a longer cycle the middle is left out */

/* "2F1 -> transfer h 2F1 2>3 -> (train.lua:50) 1B0": the path that find_path found, a line where
 * the edge is temporal. */
static void path_text(const DagEdit *x, uint32_t a, uint32_t b, char *buf, size_t size) {
  const Dag *d = x->d;
  uint32_t n = 0;
  size_t at = 0;
  for (uint32_t i = b; i != a; i = d->edges.at[x->nodes.at[i].came].src) n++;
  for (uint32_t k = 0; k <= n && at + 1 < size; k++) {
    char label[96], line[128] = "";
    if (n >= SHOWN_NODES && k == SHOWN_NODES / 2) {
      at += (size_t)snprintf(buf + at, size - at, " -> ... %u more ...", n + 1 - SHOWN_NODES);
      k = n - SHOWN_NODES / 2;
      continue;
    }
    uint32_t i = b; /* the k-th: short, or only as many as are shown */
    for (uint32_t back = n - k; back > 0; back--) i = d->edges.at[x->nodes.at[i].came].src;
    if (k > 0) {
      const Edge *e = &d->edges.at[x->nodes.at[i].came];
      if (e->kind == EDGE_TEMPORAL)
        snprintf(line, sizeof line, " -> (%.100s) ", dag_line(d, e->line));
      else snprintf(line, sizeof line, " -> ");
    }
    dag_label(d, (NodeId){i}, label, sizeof label);
    at += (size_t)snprintf(buf + at, size - at, "%s%s", line, label);
  }
}

static PiperStatus would_close(DagEdit *x, NodeId a, NodeId b, PiperErr *err) {
  char from[TEXT], to[TEXT], path[PIPER_ERR_TEXT / 2];
  bool found;
  dag_label(x->d, a, from, sizeof from);
  dag_label(x->d, b, to, sizeof to);
  if (a.i == b.i) return err_set(err, PIPER_EUSER, "%s cannot come before itself", from);
  if (!find_path(x, b.i, a.i, &found)) return nomem(err);
  path_text(x, b.i, a.i, path, sizeof path);
  return err_set(err, PIPER_EUSER, "%s cannot come before %s, since it has to wait for it: %s",
                 from, to, path);
}

static bool meet(const Dag *d, uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return false;
  if (a == b) return true;
  for (uint32_t j = 0; j < devsets_size(d->devsets, b); j++)
    if (devsets_position(d->devsets, a, devsets_ranks(d->devsets, b)[j]) >= 0) return true;
  return false;
}

/* On some rank both have something to do. */
static bool share_rank(const Dag *d, uint32_t a, uint32_t b) {
  return meet(d, d->devs[a], d->devs[b]) || meet(d, d->src_devs[a], d->devs[b]) ||
         meet(d, d->devs[a], d->src_devs[b]) || meet(d, d->src_devs[a], d->src_devs[b]);
}

static PiperStatus check_ends(const DagEdit *x, NodeId a, NodeId b, PiperErr *err) {
  const Dag *d = x->d;
  char from[TEXT], to[TEXT];
  if ((x->stages & DAG_PLACED) == 0)
    return err_set(
        err, PIPER_EUSER,
        "nodes have devices, and can be ordered on them, from the built-in pass place on");
  dag_label(d, a, from, sizeof from);
  dag_label(d, b, to, sizeof to);
  if (d->kind[a.i] == NODE_JOIN || d->kind[b.i] == NODE_JOIN)
    return err_set(err, PIPER_EUSER, "%s runs nothing: order the nodes beside it",
                   d->kind[a.i] == NODE_JOIN ? from : to);
  if (share_rank(d, a.i, b.i)) return PIPER_OK;
  char here[TEXT], there[TEXT];
  devices_text(d, d->devs[a.i], here, sizeof here);
  devices_text(d, d->devs[b.i], there, sizeof there);
  return err_set(err, PIPER_EUSER,
                 "%s is on %s and %s on %s: an order holds on a device that both are on", from,
                 here, to, there);
}

PiperStatus dag_edit_before(DagEdit *x, NodeId a, NodeId b, uint32_t line, PiperErr *err) {
  bool cycle;
  if (a.i == b.i) return would_close(x, a, b, err);
  TRY(check_ends(x, a, b, err));
  EACH_OUT(x, a, e) {
    const Edge *edge = &x->d->edges.at[e.i];
    if (edge->dst == b.i && edge->kind == EDGE_TEMPORAL) return PIPER_OK;
  }
  if (!make_way(x, a.i, b.i, &cycle)) return nomem(err);
  if (cycle) return would_close(x, a, b, err);
  return dag_add_temporal(x->d, a, b, line).i != 0 && cover(x) ? PIPER_OK : nomem(err);
}

PiperStatus dag_edit_remove(DagEdit *x, EdgeId e, PiperErr *err) {
  const Edge *edge = &x->d->edges.at[e.i];
  if (is_removed(x, e.i)) return err_set(err, PIPER_EUSER, "this edge was removed before");
  if (edge->kind != EDGE_TEMPORAL)
    return err_set(err, PIPER_EUSER,
                   "data flows along this edge: only temporal edges can be removed");
  dag_remove_edge(x->d, e); /* levels stay right; lists pass over it */
  return PIPER_OK;
}

/* ---- fields ------------------------------------------------------------------------------------ */

PiperStatus dag_edit_stream(DagEdit *x, NodeId n, const char *stream, PiperErr *err) {
  Dag *d = x->d;
  char label[TEXT];
  if (!NODE_KIND_COMMUNICATES[d->kind[n.i]]) {
    dag_label(d, n, label, sizeof label);
    return err_set(err, PIPER_EUSER,
                   "%s does not communicate, and runs on default_stream: only transfers and "
                   "collectives have a stream to choose",
                   label);
  }
  const uint32_t id = intern_id(d->names, stream);
  if (id == 0) return nomem(err);
  d->stream[n.i] = id;
  return PIPER_OK;
}

static bool is_of_model(const Graph *g, const char *tag) {
  const uint32_t id = intern_find(g->names, tag);
  return id != 0 && id < g->tag_entries.n && g->tag_entries.at[id] != 0;
}

PiperStatus dag_edit_tag(DagEdit *x, NodeId n, const char *tag, int32_t index, PiperErr *err) {
  Dag *d = x->d;
  if (is_of_model(d->graph, tag))
    return err_set(err, PIPER_EUSER, "%s is a tag of the model: take a name of your own", tag);
  for (uint32_t i = 0; i < x->s->n; i++)
    if (x->s->at[i].kind == DIRECTIVE_SPLIT && strcmp(x->s->at[i].dim_name, tag) == 0)
      return err_set(err, PIPER_EUSER, "%s counts microbatches (%s): take a name of your own", tag,
                     x->s->at[i].line);
  const uint32_t id = intern_id(d->names, tag);
  if (id == 0) return nomem(err);
  uint32_t set = d->tags[n.i];
  if (index >= 0) {
    set = dag_tags_with(d, set, (Tag){id, index});
  } else if (dag_tags_index(d, set, id) >= 0) {
    const uint32_t old = set;
    set = 0;
    for (uint32_t i = d->tags_first.at[old]; set != UINT32_MAX && i < d->tags_first.at[old + 1];
         i++)
      if (d->tags_at.at[i].tag != id) set = dag_tags_with(d, set, d->tags_at.at[i]);
  }
  if (set == UINT32_MAX) return nomem(err);
  if (d->tags[n.i] == set) return PIPER_OK;
  d->tags[n.i] = set;
  if (d->kind[n.i] == NODE_COMPUTE) changed(x);
  return PIPER_OK;
}

/* ---- communication ----------------------------------------------------------------------------- */

static bool is_gradient(const Dag *d, EdgeId e) {
  const Edge *edge = &d->edges.at[e.i];
  return edge->kind == EDGE_DATA && d->tensors.at[edge->tensor].kind == TENSOR_BUCKET;
}

static PiperStatus check_reduction(const DagEdit *x, NodeId n, PiperErr *err) {
  const Dag *d = x->d;
  char label[TEXT];
  dag_label(d, n, label, sizeof label);
  if ((x->stages & DAG_BUCKETED) == 0)
    return err_set(err, PIPER_EUSER, "there are reductions from the built-in pass replicate on");
  if ((d->kind[n.i] != NODE_ALL_REDUCE && d->kind[n.i] != NODE_REDUCE_SCATTER) ||
      d->tensors.at[d->tensor[n.i]].kind != TENSOR_BUCKET)
    return err_set(err, PIPER_EUSER, "%s is not a reduction of gradients", label);
  if (bucket_node_joins(d, n))
    return err_set(err, PIPER_EUSER,
                   "%s joins device sets whose gradients are reduced already, and cannot be split",
                   label);
  return PIPER_OK;
}

/* The edge that brings gradients of 'source' to the reduction; 0: none does. */
static EdgeId gradient_edge(const DagEdit *x, NodeId reduction, uint32_t source) {
  EACH_OUT(x, (NodeId){source}, e)
  if (is_gradient(x->d, e) && x->d->edges.at[e.i].dst == reduction.i) return e;
  return (EdgeId){0};
}

static PiperStatus check_sources(DagEdit *x, NodeId reduction, const uint32_t *sources, uint32_t n,
                                 PiperErr *err) {
  char label[TEXT], source[TEXT];
  uint32_t n_in = 0;
  dag_label(x->d, reduction, label, sizeof label);
  x->round++;
  for (uint32_t i = 0; i < n; i++) {
    dag_label(x->d, (NodeId){sources[i]}, source, sizeof source);
    if (x->nodes.at[sources[i]].seen == x->round)
      return err_set(err, PIPER_EUSER, "%s is named twice", source);
    x->nodes.at[sources[i]].seen = x->round;
    if (gradient_edge(x, reduction, sources[i]).i == 0)
      return err_set(err, PIPER_EUSER, "%s gives no gradients to %s", source, label);
  }
  EACH_IN(x, reduction, e) {
    if (!is_gradient(x->d, e)) continue;
    n_in++;
    const uint32_t from = x->d->edges.at[e.i].src;
    if (x->nodes.at[from].seen == x->round) continue;
    dag_label(x->d, (NodeId){from}, source, sizeof source);
    return err_set(err, PIPER_EUSER, "%s gives gradients to %s, but is in no group", source, label);
  }
  return n_in > 0 ? PIPER_OK : err_set(err, PIPER_EUSER, "%s has no gradients to add up", label);
}

/* As node n, without edges, and on its level: its edges will be some of those of n. */
static NodeId add_alike(DagEdit *x, NodeId n) {
  Dag *d = x->d;
  const NodeId m = dag_add_node(d, (NodeKind)d->kind[n.i], d->line[n.i]);
  if (m.i == 0 || !cover(x)) return (NodeId){0};
  x->nodes.at[m.i].level = x->nodes.at[n.i].level;
  d->bucket[m.i] = d->bucket[n.i];
  d->tensor[m.i] = d->tensor[n.i];
  d->devs[m.i] = d->devs[n.i];
  d->stream[m.i] = d->stream[n.i];
  return m;
}

/* It serves the COMPUTE node c. */
static void serve(Dag *d, NodeId n, uint32_t c) {
  d->chunk[n.i] = d->chunk[c];
  d->pass[n.i] = d->pass[c];
  d->mb[n.i] = d->mb[c];
  d->tags[n.i] = d->tags[c];
}

static bool copy_edge(DagEdit *x, EdgeId e, NodeId src, NodeId dst) {
  const Edge edge = x->d->edges.at[e.i];
  if (edge.kind == EDGE_TEMPORAL) return dag_add_temporal(x->d, src, dst, edge.line).i != 0;
  return dag_add_edge(x->d, src, dst, (TensorId){edge.tensor}).i != 0;
}

/* A part of the reduction, with gradients of these sources only. */
static bool add_part(DagEdit *x, NodeId reduction, const uint32_t *sources, uint32_t n,
                     NodeId *out) {
  Dag *d = x->d;
  const NodeId part = add_alike(x, reduction);
  if (part.i == 0) return false;
  *out = part;
  for (uint32_t i = 0; i < n; i++) {
    const EdgeId e = gradient_edge(x, reduction, sources[i]);
    if (!copy_edge(x, e, (NodeId){sources[i]}, part)) return false;
    dag_remove_edge(d, e);
  }
  EACH_IN(x, reduction, e)
  if (d->edges.at[e.i].kind == EDGE_TEMPORAL &&
      !copy_edge(x, e, (NodeId){d->edges.at[e.i].src}, part))
    return false;
  EACH_OUT(x, reduction, e)
  if (!copy_edge(x, e, part, (NodeId){d->edges.at[e.i].dst})) return false;
  return cover(x);
}

PiperStatus dag_edit_split_reduction(DagEdit *x, NodeId reduction, const uint32_t *sources,
                                     const uint32_t *ends, uint32_t n_groups, U32Vec *out,
                                     PiperErr *err) {
  Dag *d = x->d;
  TRY(check_reduction(x, reduction, err));
  for (uint32_t k = 0; k < n_groups; k++)
    if (ends[k] == (k > 0 ? ends[k - 1] : 0))
      return err_set(err, PIPER_EUSER, "group %u is empty", k + 1);
  TRY(check_sources(x, reduction, sources, n_groups > 0 ? ends[n_groups - 1] : 0, err));
  if (!vec_push(out, reduction.i)) return nomem(err);
  if (n_groups == 1) return PIPER_OK;
  Bucket *b = &d->buckets.at[d->bucket[reduction.i]];
  b->per_microbatch = true;
  if (b->zero == ZERO_OPTIMIZER)
    b->zero = ZERO_GRADS; /* as pass_replicate: gradients are apart then */
  for (uint32_t k = 1; k < n_groups; k++) {
    NodeId part;
    if (!add_part(x, reduction, sources + ends[k - 1], ends[k] - ends[k - 1], &part) ||
        !vec_push(out, part.i))
      return nomem(err);
    serve(d, part, sources[ends[k] - 1]);
  }
  serve(d, reduction, sources[ends[0] - 1]);
  return PIPER_OK;
}

/* The edge that brings parameters from the gather to the compute node; 0: none does. */
static EdgeId params_edge(const DagEdit *x, NodeId gather, NodeId compute) {
  const Dag *d = x->d;
  EACH_OUT(x, gather, e) {
    const Edge *edge = &d->edges.at[e.i];
    if (edge->dst == compute.i && edge->kind == EDGE_DATA &&
        d->tensors.at[edge->tensor].kind == TENSOR_PARAMS)
      return e;
  }
  return (EdgeId){0};
}

PiperStatus dag_edit_gather_again(DagEdit *x, NodeId gather, NodeId compute, NodeId *out,
                                  PiperErr *err) {
  Dag *d = x->d;
  char label[TEXT], reader[TEXT];
  dag_label(d, gather, label, sizeof label);
  dag_label(d, compute, reader, sizeof reader);
  if ((x->stages & DAG_GATHERED) == 0)
    return err_set(err, PIPER_EUSER,
                   "there are gathers for compute nodes after the built-in pass zero");
  const EdgeId e = params_edge(x, gather, compute);
  if (d->kind[compute.i] != NODE_COMPUTE || e.i == 0)
    return err_set(err, PIPER_EUSER, "%s brings no parameters to %s", label, reader);
  uint32_t n_served = 0;
  EACH_OUT(x, gather, f) n_served += d->edges.at[f.i].kind == EDGE_DATA;
  if (n_served == 1) return err_set(err, PIPER_EUSER, "%s serves nobody but %s", label, reader);
  const NodeId again = add_alike(x, gather);
  if (again.i == 0 || !copy_edge(x, e, again, compute)) return nomem(err);
  serve(d, again, compute.i);
  EACH_IN(x, gather, f)
  if (!copy_edge(x, f, (NodeId){d->edges.at[f.i].src}, again)) return nomem(err);
  dag_remove_edge(d, e);
  *out = again;
  return cover(x) ? PIPER_OK : nomem(err);
}
