/* pass_place - every node gets its devices, and what crosses between devices a TRANSFER.
 *
 * requires  compute nodes only
 * ensures   every node has a device set; all passes of a chunk and microbatch have the same one;
 *           samples divide evenly over it. A VALUE or GRAD edge u -> v of which some part moves to
 *           another rank is u -> TRANSFER -> v; one TRANSFER serves all readers that need the same
 *           samples on the same devices. Every other data edge stays on its rank
 * breaks    compute nodes only
 * on error  the DAG may be half rewritten: drop it
 *
 * Device j of a set works on the j-th equal part of its node's samples. What moves between two sets
 * of different size, or between microbatches of different size, is for each pair of devices the
 * intersection of their parts. A tensor without a batch axis has no parts: device j sends all of it
 * to device j, so both sets have to be of one size. */
#include "passes/pass.h"

#include <stdlib.h>

typedef struct Placer {
  Dag *d;
  const Strategy *s;
  uint32_t *by;     /* by node: 1 + index of the directive that placed it */
  uint32_t *stream; /* by node: of the transfers that leave it */
  bool *named;      /* by node: a directive named that stream */
} Placer;

static const char *line_of(const Placer *p, uint32_t node) {
  return p->by[node] == 0 ? "?" : p->s->at[p->by[node] - 1].line;
}

static PiperStatus place_one(Placer *p, const FilterIndex *index, uint32_t i, U32Vec *nodes,
                             PiperErr *err) {
  Dag *d = p->d;
  const Directive *x = &p->s->at[i];
  uint32_t devs;
  TRY(directive_devices(d, x, &devs, err));
  TRY(directive_nodes(index, x, nodes, err));
  const uint32_t stream = intern_id(d->names, x->stream != NULL ? x->stream : "pp_stream");
  if (stream == 0) return err_nomem(err, "place");
  for (size_t k = 0; k < nodes->n; k++) {
    const uint32_t n = nodes->at[k];
    char label[TEXT], here[TEXT], there[TEXT];
    if (d->devs[n] != 0 && d->devs[n] != devs) {
      dag_label(d, (NodeId){n}, label, sizeof label);
      devices_text(d, devs, here, sizeof here);
      devices_text(d, d->devs[n], there, sizeof there);
      return directive_fail(err, x, "%s is placed on %s here and on %s at %s", label, here, there,
                            line_of(p, n));
    }
    if (x->stream != NULL && p->named[n] && p->stream[n] != stream) {
      dag_label(d, (NodeId){n}, label, sizeof label);
      return directive_fail(err, x,
                            "transfers from %s are on stream \"%s\" here and on \"%s\" at %s",
                            label, x->stream, intern_text(d->names, p->stream[n]), line_of(p, n));
    }
    if (d->devs[n] == 0 || x->stream != NULL) {
      p->by[n] = i + 1;
      p->stream[n] = stream;
      p->named[n] = x->stream != NULL;
    }
    d->devs[n] = devs;
  }
  return PIPER_OK;
}

/* Of a chunk outside every scope. */
static bool is_outside(const Dag *d, ChunkId c) {
  const uint32_t scope = graph_chunk(d->graph, c)->scope;
  return d->graph->scope_first.at[scope] == d->graph->scope_first.at[scope + 1];
}

/* Every node placed, and its samples divide over its devices. */
static PiperStatus check_nodes(const Placer *p, const Directive *first_place, PiperErr *err) {
  const Dag *d = p->d;
  for (uint32_t n = 1; n < d->n; n++) {
    if (d->devs[n] == 0) {
      char label[TEXT], chunk[TEXT];
      dag_label(d, (NodeId){n}, label, sizeof label);
      chunk_text(d, (ChunkId){d->chunk[n]}, chunk, sizeof chunk);
      return directive_fail(err, first_place,
                            "%s is on no device: no place directive matches %s "
                            "of the %s; where there is a place directive, each node needs one%s",
                            label, PASS_NAME[d->pass[n]], chunk,
                            is_outside(d, (ChunkId){d->chunk[n]})
                                ? " (a filter { PP = false } matches what is outside of stages)"
                                : "");
    }
    const int64_t samples = d->hi[n] - d->lo[n];
    const uint32_t size = devsets_size(d->devsets, d->devs[n]);
    if (samples % size != 0) {
      char devs[TEXT];
      devices_text(d, d->devs[n], devs, sizeof devs);
      return directive_fail(err, &p->s->at[p->by[n] - 1],
                            "%lld sample%s%s cannot be divided equally "
                            "over %s",
                            (long long)samples, samples == 1 ? "" : "s",
                            samples < d->batch ? " of a microbatch" : "", devs);
    }
  }
  return PIPER_OK;
}

/* What F saves and BI keeps never leaves its device. */
static PiperStatus check_passes_together(const Placer *p, PiperErr *err) {
  const Dag *d = p->d;
  for (size_t i = 1; i < d->edges.n; i++) {
    const Edge *e = &d->edges.at[i];
    const TensorKind kind = d->tensors.at[e->tensor].kind;
    if ((kind != TENSOR_SAVED && kind != TENSOR_KEPT) || d->devs[e->src] == d->devs[e->dst])
      continue;
    const uint32_t a = p->by[e->src], b = p->by[e->dst];
    char src[TEXT], dst[TEXT], from[TEXT], to[TEXT];
    dag_label(d, (NodeId){e->src}, src, sizeof src);
    dag_label(d, (NodeId){e->dst}, dst, sizeof dst);
    devices_text(d, d->devs[e->src], from, sizeof from);
    devices_text(d, d->devs[e->dst], to, sizeof to);
    return directive_fail(err, &p->s->at[(a > b ? a : b) - 1],
                          "%s is on %s (%s), %s on %s (%s): all "
                          "passes of a chunk and microbatch have to be on the same devices",
                          src, from, line_of(p, e->src), dst, to, line_of(p, e->dst));
  }
  return PIPER_OK;
}

/* Some samples that a device of v needs are on another rank. Both lists of parts ascend, so one
 * walk along them meets every intersection. */
static bool batch_moves(const Dag *d, uint32_t u, uint32_t v) {
  const uint32_t na = devsets_size(d->devsets, d->devs[u]),
                 nb = devsets_size(d->devsets, d->devs[v]);
  const int32_t *a = devsets_ranks(d->devsets, d->devs[u]);
  const int32_t *b = devsets_ranks(d->devsets, d->devs[v]);
  for (uint32_t i = 0, j = 0; i < na && j < nb;) {
    const int64_t a_end = part_lo(d->lo[u], d->hi[u], i + 1, na);
    const int64_t b_end = part_lo(d->lo[v], d->hi[v], j + 1, nb);
    const int64_t a_lo = part_lo(d->lo[u], d->hi[u], i, na);
    const int64_t b_lo = part_lo(d->lo[v], d->hi[v], j, nb);
    if ((a_lo > b_lo ? a_lo : b_lo) < (a_end < b_end ? a_end : b_end) && a[i] != b[j]) return true;
    if (a_end <= b_end) i++;
    else j++;
  }
  return false;
}

static PiperStatus check_whole_moves(const Placer *p, const Edge *e, PiperErr *err) {
  const Dag *d = p->d;
  const uint32_t u = e->src, v = e->dst;
  if (devsets_size(d->devsets, d->devs[u]) == devsets_size(d->devsets, d->devs[v])) return PIPER_OK;
  const uint32_t a = p->by[u], b = p->by[v];
  char value[TEXT], from[TEXT], to[TEXT];
  value_text(d, d->tensors.at[e->tensor].value, value, sizeof value);
  devices_text(d, d->devs[u], from, sizeof from);
  devices_text(d, d->devs[v], to, sizeof to);
  return directive_fail(err, &p->s->at[(a > b ? a : b) - 1],
                        "%s has no batch axis, so it can move "
                        "only between equally many devices, not from %s (%s) to %s (%s): place both "
                        "on equally many, or compute it in the stage that reads it",
                        value, from, line_of(p, u), to, line_of(p, v));
}

/* ---- transfers ----------------------------------------------------------------------------------
 *
 * Found again by (u, tensor, devices and samples of the reader), in a hash table with open
 * addressing over the edges u -> TRANSFER. */

typedef struct Sent {
  uint32_t *slots; /* EdgeIds, 0 = free */
  uint32_t mask;
} Sent;

static uint32_t *sent_slot(const Dag *d, const Sent *sent, const Edge *e) {
  const uint32_t v = e->dst;
  uint64_t h = e->src;
  h = (h * 0x9e3779b97f4a7c15u) ^ e->tensor;
  h = (h * 0x9e3779b97f4a7c15u) ^ d->devs[v];
  h = (h * 0x9e3779b97f4a7c15u) ^ (uint64_t)d->lo[v];
  h = (h * 0x9e3779b97f4a7c15u) ^ (uint64_t)d->hi[v];
  h *= 0x9e3779b97f4a7c15u;
  for (uint32_t i = (uint32_t)(h >> 32) & sent->mask;; i = (i + 1) & sent->mask) {
    if (sent->slots[i] == 0) return &sent->slots[i];
    const Edge *f = &d->edges.at[sent->slots[i]];
    const uint32_t t = f->dst;
    if (f->src == e->src && f->tensor == e->tensor && d->devs[t] == d->devs[v] &&
        d->lo[t] == d->lo[v] && d->hi[t] == d->hi[v])
      return &sent->slots[i];
  }
}

static bool add_transfer(Placer *p, Sent *sent, EdgeId id) {
  Dag *d = p->d;
  const Edge e = d->edges.at[id.i];
  const uint32_t u = e.src, v = e.dst;
  uint32_t *slot = sent_slot(d, sent, &e);
  if (*slot != 0) { /* it is on its way already */
    d->edges.at[id.i].src = d->edges.at[*slot].dst;
    return true;
  }
  const NodeId t = dag_add_node(d, NODE_TRANSFER, d->line[v]);
  if (t.i == 0) return false;
  d->pass[t.i] = d->tensors.at[e.tensor].kind == TENSOR_GRAD ? PASS_B : PASS_F;
  d->tensor[t.i] = e.tensor;
  d->devs[t.i] = d->devs[v];
  d->src_devs[t.i] = d->devs[u];
  d->lo[t.i] = d->lo[v];
  d->hi[t.i] = d->hi[v];
  d->src_lo[t.i] = d->lo[u];
  d->src_hi[t.i] = d->hi[u];
  d->stream[t.i] = p->stream[u];
  d->tags[t.i] = d->tags[v];
  d->mb[t.i] = d->mb[v];
  d->edges.at[id.i].dst = t.i;
  *slot = id.i;
  return dag_add_edge(d, t, (NodeId){v}, (TensorId){e.tensor}).i != 0;
}

static PiperStatus add_transfers(Placer *p, PiperErr *err) {
  Dag *d = p->d;
  const size_t n_edges = d->edges.n;
  Sent sent = {.mask = 63};
  while (sent.mask / 2 < n_edges) sent.mask = sent.mask * 2 + 1;
  sent.slots = calloc((size_t)sent.mask + 1, sizeof *sent.slots);
  PiperStatus st = sent.slots == NULL ? err_nomem(err, "place") : PIPER_OK;
  for (uint32_t i = 1; st == PIPER_OK && i < n_edges; i++) {
    const Edge e = d->edges.at[i];
    const Tensor *t = &d->tensors.at[e.tensor];
    if (t->kind != TENSOR_VALUE && t->kind != TENSOR_GRAD) continue;
    bool moves = d->devs[e.src] != d->devs[e.dst];
    if (graph_value(d->graph, t->value)->batch == BATCH_SPLIT) moves = batch_moves(d, e.src, e.dst);
    else st = check_whole_moves(p, &e, err);
    if (st == PIPER_OK && moves && !add_transfer(p, &sent, (EdgeId){i}))
      st = err_nomem(err, "place");
  }
  free(sent.slots);
  return st;
}

static PiperStatus place_nodes(Placer *p, PiperErr *err) {
  Dag *d = p->d;
  const Directive *first_place = NULL;
  for (uint32_t i = p->s->n; i-- > 0;)
    if (p->s->at[i].kind == DIRECTIVE_PLACE) first_place = &p->s->at[i];
  if (first_place == NULL) {
    const uint32_t zero = devsets_id(d->devsets, &(int32_t){0}, 1);
    if (zero == 0) return err_nomem(err, "place");
    for (uint32_t n = 1; n < d->n; n++) d->devs[n] = zero;
    return PIPER_OK;
  }
  FilterIndex *index;
  U32Vec nodes = {0};
  TRY(filter_index_new(d, &index, err));
  PiperStatus st = PIPER_OK;
  for (uint32_t i = 0; st == PIPER_OK && i < p->s->n; i++)
    if (p->s->at[i].kind == DIRECTIVE_PLACE) st = place_one(p, index, i, &nodes, err);
  filter_index_free(index);
  vec_free(&nodes);
  if (st == PIPER_OK) st = check_nodes(p, first_place, err);
  if (st == PIPER_OK) st = check_passes_together(p, err);
  if (st == PIPER_OK) st = add_transfers(p, err);
  return st;
}

PiperStatus pass_place(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  (void)opt;
  Placer p = {.d = d, .s = s};
  p.by = calloc(d->n, sizeof *p.by);
  p.stream = calloc(d->n, sizeof *p.stream);
  p.named = calloc(d->n, sizeof *p.named);
  const bool ok = p.by != NULL && p.stream != NULL && p.named != NULL;
  const PiperStatus st = ok ? place_nodes(&p, err) : err_nomem(err, "place");
  free(p.by);
  free(p.stream);
  free(p.named);
  return st;
}
