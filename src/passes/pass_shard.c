/* pass_shard - the experts of matched chunks over the devices of each group, with an ALL_TO_ALL before
 * and after them.
 *
 * requires  every node placed
 * ensures   a matched node has 'parts' set, the devices of a group; its device set is one group or
 *           several of the directive, one after the other. Where a group has several devices, what
 *           enters and leaves the node is spread, and goes through an ALL_TO_ALL each, on the node's
 *           devices and samples. A chunk's nodes are all spread, over equally many parts, or none is
 * breaks    nothing
 * on error  the DAG may be half rewritten: drop it
 *
 * The devices of a group are neighbours in the device set, so their samples are an interval, too:
 * each takes all of it, for its own part of the experts. To the nodes beside it the chunk looks as
 * before: samples j of n on device j. Only blocks of tokens enter and leave experts (nn.moe), one
 * tensor each way. */
#include "ir/grad_flow.h"
#include "passes/pass.h"

#include <stdlib.h>
#include <string.h>

typedef struct Sharder {
  Dag *d;
  const Strategy *s;
  uint32_t *by;              /* by node: 1 + index of the directive; 0: none */
  uint32_t *stream;          /* by node */
  uint32_t *entry, *leaving; /* by node: its ALL_TO_ALLs; 0: none yet */
} Sharder;

static const char *stream_of(const Directive *x) {
  return x->stream != NULL ? x->stream : "ep_stream";
}

static PiperStatus check(Sharder *w, const Directive *x, PiperErr *err) {
  uint32_t devs;
  TRY(directive_devices(w->d, x, &devs, err)); /* each once */
  if (x->filter.passes != 0)
    return directive_fail(err, x,
                          "experts are spread for all passes alike: leave PASS out of the filter");
  if (x->group_size == 0 || x->n_devices % x->group_size != 0)
    return directive_fail(err, x, "the groups of devices are not of one size");
  return PIPER_OK;
}

/* The node's devices are groups of the directive, one after the other. */
static bool is_groups(const Directive *x, const int32_t *ranks, uint32_t n) {
  uint32_t at = 0;
  while (at < x->n_devices && x->devices[at] != ranks[0]) at += x->group_size;
  if (n % x->group_size != 0 || at + n > x->n_devices) return false;
  return memcmp(x->devices + at, ranks, n * sizeof *ranks) == 0;
}

static bool among(const int32_t *list, uint32_t n, int32_t rank) {
  for (uint32_t i = 0; i < n; i++)
    if (list[i] == rank) return true;
  return false;
}

static PiperStatus wrong_devices(const Sharder *w, const Directive *x, uint32_t n, PiperErr *err) {
  const Dag *d = w->d;
  const uint32_t size = devsets_size(d->devsets, d->devs[n]);
  const int32_t *ranks = devsets_ranks(d->devsets, d->devs[n]);
  char chunk[TEXT], here[TEXT], there[TEXT];
  chunk_text(d, (ChunkId){d->chunk[n]}, chunk, sizeof chunk);
  devices_text(d, d->devs[n], here, sizeof here);
  devices_text(d, devsets_id(w->d->devsets, x->devices, x->n_devices), there, sizeof there);
  bool all = true;
  for (uint32_t j = 0; j < size; j++) all = all && among(x->devices, x->n_devices, ranks[j]);
  if (!all)
    return directive_fail(err, x, "the %s is placed on %s, but its experts are spread over %s",
                          chunk, here, there);
  return directive_fail(err, x,
                        "the %s is placed on %s, which are not groups of %s in the same order: "
                        "neighbours in the placement make a group of %u",
                        chunk, here, there, x->group_size);
}

static PiperStatus mark_node(Sharder *w, uint32_t i, uint32_t n, uint32_t stream, PiperErr *err) {
  Dag *d = w->d;
  const Directive *x = &w->s->at[i];
  const Chunk *c = graph_chunk(d->graph, (ChunkId){d->chunk[n]});
  char chunk[TEXT];
  if (c->n_experts == 0) {
    chunk_text(d, (ChunkId){d->chunk[n]}, chunk, sizeof chunk);
    return directive_fail(err, x,
                          "the %s has no experts: those of nn.moe are in a scope EP of their own, "
                          "which { EP = \"*\" } matches",
                          chunk);
  }
  if (!is_groups(x, devsets_ranks(d->devsets, d->devs[n]), devsets_size(d->devsets, d->devs[n])))
    return wrong_devices(w, x, n, err);
  if (c->n_experts % x->group_size != 0) {
    chunk_text(d, (ChunkId){d->chunk[n]}, chunk, sizeof chunk);
    return directive_fail(err, x, "the %lld experts of the %s do not divide over %u devices",
                          (long long)c->n_experts, chunk, x->group_size);
  }
  if (w->by[n] != 0) {
    const Directive *y = &w->s->at[w->by[n] - 1];
    chunk_text(d, (ChunkId){d->chunk[n]}, chunk, sizeof chunk);
    if (x->group_size != y->group_size)
      return directive_fail(err, x, "the %s is spread over %u device%s here and over %u at %s",
                            chunk, x->group_size, x->group_size == 1 ? "" : "s", y->group_size,
                            y->line);
    if (w->stream[n] != stream)
      return directive_fail(err, x, "the %s exchanges tokens on \"%s\" here and on \"%s\" at %s",
                            chunk, stream_of(x), stream_of(y), y->line);
  }
  w->by[n] = i + 1;
  w->stream[n] = stream;
  d->parts[n] = x->group_size;
  return PIPER_OK;
}

static PiperStatus mark_one(Sharder *w, const FilterIndex *index, uint32_t i, U32Vec *nodes,
                            PiperErr *err) {
  const Directive *x = &w->s->at[i];
  TRY(check(w, x, err));
  TRY(directive_nodes(index, x, nodes, err));
  const uint32_t stream = intern_id(w->d->names, stream_of(x));
  if (stream == 0) return err_nomem(err, "shard");
  for (size_t k = 0; k < nodes->n; k++) TRY(mark_node(w, i, nodes->at[k], stream, err));
  return PIPER_OK;
}

/* All nodes of a chunk, over equally many parts, or none; no parameter belongs to two parts. */
static PiperStatus check_chunks(const Sharder *w, PiperErr *err) {
  const Dag *d = w->d;
  uint32_t *first = calloc((size_t)graph_n_chunks(d->graph) + 1, sizeof *first);
  PiperStatus st = first == NULL ? err_nomem(err, "shard") : PIPER_OK;
  for (uint32_t n = 1; st == PIPER_OK && n < d->n; n++) {
    if (d->kind[n] != NODE_COMPUTE) continue;
    const uint32_t c = d->chunk[n], f = first[c] != 0 ? first[c] : n;
    first[c] = f;
    if ((w->by[n] != 0) == (w->by[f] != 0) && d->parts[n] == d->parts[f]) continue;
    char chunk[TEXT], a[TEXT], b[TEXT];
    const Directive *x = &w->s->at[(w->by[n] != 0 ? w->by[n] : w->by[f]) - 1];
    chunk_text(d, (ChunkId){c}, chunk, sizeof chunk);
    dag_label(d, (NodeId){w->by[n] != 0 ? f : n}, a, sizeof a);
    dag_label(d, (NodeId){w->by[n] != 0 ? n : f}, b, sizeof b);
    if ((w->by[n] != 0) != (w->by[f] != 0))
      st = directive_fail(err, x,
                          "the filter matches only a part of the %s and not its %s: all "
                          "microbatches of a chunk are spread, or none",
                          chunk, a);
    else
      st = directive_fail(err, x, "%s of the %s is spread over %u device%s, %s over %u (%s)", b,
                          chunk, d->parts[n], d->parts[n] == 1 ? "" : "s", a, d->parts[f],
                          w->s->at[w->by[f] - 1].line);
  }
  for (uint32_t c = 1; st == PIPER_OK && c <= graph_n_chunks(d->graph); c++) {
    const Chunk *chunk = graph_chunk(d->graph, (ChunkId){c});
    if (first[c] == 0 || d->parts[first[c]] < 2) continue;
    for (uint32_t i = 0; st == PIPER_OK && i < chunk->n_params; i++) {
      const ParamId p = {d->graph->chunk_params.at[chunk->param_first + i]};
      if (graph_param_expert(d->graph, (ChunkId){c}, p) >= 0) continue;
      st = directive_fail(err, &w->s->at[w->by[first[c]] - 1],
                          "parameter \"%s\" is of several experts, which cannot be spread",
                          graph_name(d->graph, graph_param(d->graph, p)->name));
    }
  }
  free(first);
  return st;
}

/* ---- exchanges --------------------------------------------------------------------------------- */

static NodeId add_exchange(Sharder *w, uint32_t n, TensorId incoming) {
  Dag *d = w->d;
  const NodeId x = dag_add_node(d, NODE_ALL_TO_ALL, directive_line(d, &w->s->at[w->by[n] - 1]));
  if (x.i == 0 || d->line[x.i] == 0) return (NodeId){0};
  d->pass[x.i] = d->pass[n];
  d->chunk[x.i] = d->chunk[n];
  d->tensor[x.i] = incoming.i;
  d->devs[x.i] = d->devs[n];
  d->lo[x.i] = d->lo[n];
  d->hi[x.i] = d->hi[n];
  d->stream[x.i] = w->stream[n];
  d->tags[x.i] = d->tags[n];
  d->mb[x.i] = d->mb[n];
  d->parts[x.i] = d->parts[n];
  return x;
}

/* The edge enters node n, or leaves it: it gets, or is given by, an ALL_TO_ALL instead. */
static bool exchange(Sharder *w, EdgeId id, uint32_t n, bool enters) {
  Dag *d = w->d;
  const TensorId tensor = {d->edges.at[id.i].tensor};
  Tensor other = d->tensors.at[tensor.i];
  other.spread = true;
  const TensorId spread = dag_tensor(d, other);
  uint32_t *slot = enters ? &w->entry[n] : &w->leaving[n];
  if (spread.i == 0) return false;
  if (*slot == 0) {
    const NodeId x = add_exchange(w, n, enters ? tensor : spread);
    if (x.i == 0) return false;
    *slot = x.i;
    const NodeId node = {n};
    if (dag_add_edge(d, enters ? x : node, enters ? node : x, spread).i == 0) return false;
  }
  if (enters) d->edges.at[id.i].dst = *slot;
  else d->edges.at[id.i].src = *slot;
  return true;
}

static PiperStatus add_exchanges(Sharder *w, PiperErr *err) {
  Dag *d = w->d;
  const size_t n_edges = d->edges.n;
  const uint32_t n_nodes = d->n;
  for (uint32_t i = 1; i < n_edges; i++) {
    const Edge e = d->edges.at[i];
    const TensorKind kind = d->tensors.at[e.tensor].kind;
    if (e.src == 0 || e.kind != EDGE_DATA || (kind != TENSOR_VALUE && kind != TENSOR_GRAD))
      continue;
    const bool leaves = e.src < n_nodes && d->parts[e.src] > 1;
    const bool enters = e.dst < n_nodes && d->parts[e.dst] > 1;
    if (leaves && enters) return err_set(err, PIPER_EBUG, "shard: experts give to experts");
    if ((leaves && !exchange(w, (EdgeId){i}, e.src, false)) ||
        (enters && !exchange(w, (EdgeId){i}, e.dst, true)))
      return err_nomem(err, "shard");
  }
  return PIPER_OK;
}

static PiperStatus shard_all(Sharder *w, PiperErr *err) {
  FilterIndex *index;
  U32Vec nodes = {0};
  TRY(filter_index_new(w->d, &index, err));
  PiperStatus st = PIPER_OK;
  for (uint32_t i = 0; st == PIPER_OK && i < w->s->n; i++)
    if (w->s->at[i].kind == DIRECTIVE_SHARD) st = mark_one(w, index, i, &nodes, err);
  filter_index_free(index);
  vec_free(&nodes);
  if (st == PIPER_OK) st = check_chunks(w, err);
  if (st == PIPER_OK) st = add_exchanges(w, err);
  return st;
}

PiperStatus pass_shard(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  (void)opt;
  bool any = false;
  for (uint32_t i = 0; i < s->n; i++) any = any || s->at[i].kind == DIRECTIVE_SHARD;
  if (!any) return PIPER_OK;
  uint32_t *block = calloc((size_t)d->n * 4, sizeof *block);
  if (block == NULL) return err_nomem(err, "shard");
  Sharder w = {d, s, block, block + d->n, block + 2 * (size_t)d->n, block + 3 * (size_t)d->n};
  const PiperStatus st = shard_all(&w, err);
  free(block);
  return st;
}
