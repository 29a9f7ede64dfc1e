/* plan_lower - the DAG in its global order becomes each rank's list.
 *
 * Every node gives instructions to the ranks of its device set, in the global order; one pass over
 * the order deals the nodes out, then each rank is lowered alone:
 *
 *   1. instructions, with the bytes that each touches named by (tensor, samples), or (bucket, elements);
 *   2. buffers: all intervals of samples of one tensor on the rank, joined where they overlap. So a
 *      slice is a part of the buffer it is cut from, pieces that are put together are written in
 *      place, whoever writes them, and nothing is ever copied on a rank. A tensor without a batch
 *      axis has a buffer for each interval of samples that it was computed from;
 *   3. waits, for accesses of common bytes from two streams of which one writes.
 *
 * Pieces of a TRANSFER are sent and received in one order of (source, destination) on all ranks.
 * With that, ranks whose streams are one queue cannot wait for each other in a circle, also where a
 * rank both sends and receives.
 *
 * Time: O(instructions + accesses), times the streams of a rank for the vector clocks. */
#include "plan/plan_lower.h"

#include "base/hash.h"
#include "ir/bucket.h"
#include "plan/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* A node's work for one rank: the rank's positions in the node's device sets, or NONE. */
typedef struct Item {
  uint32_t node, pos, src_pos;
} Item;

/* A binding of a program with what does not depend on the instruction. */
typedef struct Bound {
  uint8_t role; /* BufferRole */
  bool write;
  uint32_t id, slot; /* as in Buffer */
  uint64_t bytes;
  uint64_t per_sample; /* bytes; 0: not batched */
} Bound;

/* One tensor on one interval of samples, on the rank at hand. */
typedef struct Entry {
  uint8_t role;
  bool received;
  uint32_t id, slot;
  int64_t lo, hi;
  uint64_t bytes, per_sample;
  uint32_t next;   /* of the same tensor; NONE */
  uint32_t joined; /* first entry of its buffer */
  uint32_t buffer;
} Entry;

/* An earlier access of a buffer that a later one may still have to wait for. */
typedef struct Past {
  uint32_t instr, next;
  bool write;
  uint64_t lo, hi;
} Past;

/* What a stream name carries, anywhere in the DAG. */
enum { CARRIES_TRANSFERS = 1, CARRIES_COLLECTIVES = 2, CARRIES_COMPUTE = 4 };

typedef struct StreamKey {
  uint32_t name;
  char direction; /* 'F', 'B': a channel from rank a to rank b; 0: one queue */
  int32_t from, to;
} StreamKey;

typedef VEC(Item) ItemVec;

/* A compute node's gradients of a bucket go to the collective 'node', or its parameters come from it. */
typedef struct Link {
  uint32_t bucket, node;
  bool params;
} Link;

/* What the rank at hand keeps of a bucket; all of it empty where it does not hold it. */
typedef struct Kept {
  bool held;
  Share params, grads, updated;
} Kept;

/* Where shares of so many elements among so many members stand in Plan.shares; 'bucket' where they are
 * those that the members update, 0 otherwise. */
typedef struct ShareTable {
  int64_t count;
  uint32_t n, bucket;
  uint64_t first;
} ShareTable;

typedef struct Lower {
  Plan *plan;
  Dag *dag;
  PiperErr *err;
  size_t float_bytes;
  ItemVec *items;         /* by index of the rank */
  uint32_t *rank_index;   /* by rank */
  uint32_t *node_program; /* by node; 0: nothing to run */
  uint8_t *carries;       /* by interned stream name */
  uint32_t compute_name, n_tensors;
  VEC(Bound) bounds;
  U32Vec program_bounds;     /* by program: 1 + its first bound; 0: not looked up yet */
  U32Vec later_first, later; /* temporal edges with a communicating end: by node, their sources */
  U32Vec link_first;         /* by node, into links; empty: there are none */
  VEC(Link) links;
  VEC(ShareTable) tables; /* element 0 unused */
  uint32_t *table_slots, n_table_slots;

  /* Of the rank at hand, emptied for each. */
  RankPlan *rank;
  uint32_t rank_number; /* 1 + its index */
  VEC(Entry) entries;
  uint32_t *slots, n_slots; /* hash table of entries: 1 + index */
  VEC(uint32_t) heads;      /* by tensor, then by input: 1 + its last entry; 0: none */
  U32Vec touched;           /* indices into heads */
  VEC(Past) past;
  U32Vec past_head; /* by buffer */
  VEC(StreamKey) keys;
  Kept *kept;             /* by bucket */
  uint8_t *grads_written; /* by bucket: the gradients kept */
  uint32_t *
      full_written; /* by node: the number of the last rank that wrote gradients for it to reduce */
  uint32_t *first_instr;  /* by node; only where 'later' is not empty */
  U32Vec order;           /* scratch */
  BucketCallVec calls;    /* scratch */
} Lower;

static PiperStatus nomem(Lower *w) { return err_nomem(w->err, "the plan"); }

/* ---- programs and what they bind ------------------------------------------------------------- */

static uint64_t value_bytes_per_sample(const Lower *w, ValueId v) {
  const Value *value = graph_value(w->plan->graph, v);
  if (!value->shape.batched) return 0;
  return (uint64_t)shape_elements_per_sample(&value->shape) *
         dtype_bytes(dtype_concrete(value->dtype, w->plan->options.dtype));
}

/* A value or gradient without a batch axis. */
static uint64_t value_bytes(const Lower *w, ValueId v) {
  const Value *value = graph_value(w->plan->graph, v);
  return (uint64_t)shape_elements_per_sample(&value->shape) *
         dtype_bytes(dtype_concrete(value->dtype, w->plan->options.dtype));
}

/* 'parts': that the experts of the program are spread over. */
static PiperStatus bind(Lower *w, const Binding *b, ChunkId chunk, uint32_t parts, Bound *out) {
  *out = (Bound){.write = (b->access & BIND_WRITE) != 0, .bytes = b->bytes, .id = chunk.i};
  switch ((BindKind)b->kind) {
  case BIND_WORKSPACE:
    out->role = BUFFER_WORKSPACE;
    return PIPER_OK;
  case BIND_SAVED_I:
    out->role = BUFFER_SAVED_I;
    return PIPER_OK;
  case BIND_SAVED_W:
    out->role = BUFFER_SAVED_W;
    return PIPER_OK;
  case BIND_KEPT:
    out->role = BUFFER_KEPT;
    return PIPER_OK;
  case BIND_METRICS:
    out->role = BUFFER_METRICS, out->id = 0;
    return PIPER_OK;
  case BIND_COUNTS:
    out->role = BUFFER_COUNTS, out->id = b->chunk.i;
    return PIPER_OK;
  case BIND_PARAM:
    out->role = BUFFER_PARAMS, out->id = b->bucket.i;
    return PIPER_OK;
  case BIND_PGRAD:
    out->role = BUFFER_GRADS, out->id = b->bucket.i;
    return PIPER_OK;
  case BIND_STATE:
    out->role = BUFFER_STATE, out->id = b->bucket.i, out->slot = b->slot;
    return PIPER_OK;
  case BIND_INPUT:
    out->role = BUFFER_INPUT;
    out->id = graph_value(w->plan->graph, b->value)->input;
    out->per_sample = value_bytes_per_sample(w, b->value);
    return PIPER_OK;
  case BIND_VALUE:
  case BIND_GRAD: {
    const bool grad = b->kind == BIND_GRAD;
    const Tensor t = {.kind = grad ? TENSOR_GRAD : TENSOR_VALUE,
                      .value = b->value,
                      .chunk = grad ? b->chunk : (ChunkId){0},
                      .spread = parts > 1};
    out->role = grad ? BUFFER_GRAD : BUFFER_VALUE;
    out->id = dag_tensor(w->dag, t).i;
    out->per_sample = value_bytes_per_sample(w, b->value) / (parts > 1 ? parts : 1);
    return out->id != 0 ? PIPER_OK : nomem(w);
  }
  }
  return err_set(w->err, PIPER_EBUG, "lower: a program has a binding of an unknown kind %d",
                 b->kind);
}

static PiperStatus bind_program(Lower *w, uint32_t program, ChunkId chunk, uint32_t parts) {
  while (w->program_bounds.n <= program)
    if (!vec_push(&w->program_bounds, 0)) return nomem(w);
  if (w->program_bounds.at[program] != 0) return PIPER_OK;
  const Program *p = programs_at(w->plan->programs, program);
  w->program_bounds.at[program] = 1 + (uint32_t)w->bounds.n;
  for (uint32_t i = 0; i < p->n_bindings; i++) {
    Bound b;
    TRY(bind(w, &p->bindings[i], chunk, parts, &b));
    if (!vec_push(&w->bounds, b)) return nomem(w);
  }
  return PIPER_OK;
}

/* Of spread experts there is a program for each part, and node_program has the last that does
 * something. */
static PiperStatus compute_program(Lower *w, uint32_t n) {
  const Dag *d = w->dag;
  const ChunkId chunk = {d->chunk[n]};
  uint32_t id;
  if (d->kind[n] == NODE_COUNT) {
    const int64_t samples = (d->hi[n] - d->lo[n]) / devsets_size(d->devsets, d->devs[n]);
    TRY(programs_targets(w->plan->programs, chunk, samples, &id, w->err));
    if (programs_at(w->plan->programs, id)->n_calls == 0) return PIPER_OK;
    w->node_program[n] = id;
    return bind_program(w, id, chunk, 0);
  }
  const uint32_t parts = d->parts[n] > 1 ? d->parts[n] : 1;
  for (uint32_t part = 0; part < parts; part++) {
    TRY(programs_node(w->plan->programs, (NodeId){n}, part, &id, w->err));
    if (programs_at(w->plan->programs, id)->n_calls == 0) continue;
    w->node_program[n] = id;
    TRY(bind_program(w, id, chunk, d->parts[n]));
  }
  return PIPER_OK;
}

/* ---- dealing the nodes out ------------------------------------------------------------------- */

static PiperStatus prepare_ranks(Lower *w) {
  const DevSets *sets = w->dag->devsets;
  const uint32_t world = w->plan->world, n = w->plan->n_ranks;
  if (n == 0 || n != devsets_size(sets, world))
    return err_set(w->err, PIPER_EBUG, "lower: no node has a device");
  const int32_t *ranks = devsets_ranks(sets, world);
  w->plan->ranks = calloc(n, sizeof *w->plan->ranks);
  w->items = calloc(n, sizeof *w->items);
  w->rank_index = calloc((size_t)ranks[n - 1] + 1, sizeof *w->rank_index);
  if (w->plan->ranks == NULL || w->items == NULL || w->rank_index == NULL) return nomem(w);
  for (uint32_t i = 0; i < n; i++) {
    w->plan->ranks[i].rank = ranks[i];
    w->rank_index[ranks[i]] = i;
  }
  return PIPER_OK;
}

static bool deal(Lower *w, uint32_t node, int32_t rank, uint32_t pos, uint32_t src_pos) {
  ItemVec *items = &w->items[w->rank_index[rank]];
  Item *last = items->n > 0 ? &items->at[items->n - 1] : NULL;
  if (last != NULL && last->node == node) { /* both sides of a TRANSFER */
    if (pos != NONE) last->pos = pos;
    if (src_pos != NONE) last->src_pos = src_pos;
    return true;
  }
  return vec_push(items, ((Item){node, pos, src_pos}));
}

static PiperStatus deal_node(Lower *w, uint32_t n) {
  const Dag *d = w->dag;
  const uint32_t n_devs = devsets_size(d->devsets, d->devs[n]);
  uint8_t carries = 0;
  switch ((NodeKind)d->kind[n]) {
  case NODE_COMPUTE:
  case NODE_COUNT:
    if (n_devs == 0) return err_set(w->err, PIPER_EBUG, "lower: node %u has no device", n);
    TRY(compute_program(w, n));
    if (w->node_program[n] == 0) return PIPER_OK;
    break;
  case NODE_NORM:
  case NODE_UPDATE: /* which program depends on the rank */
    if (n_devs == 0) return err_set(w->err, PIPER_EBUG, "lower: node %u has no device", n);
    break;
  case NODE_ALL_REDUCE:
  case NODE_REDUCE_SCATTER:
  case NODE_ALL_GATHER:
  case NODE_ALL_TO_ALL:
    if (n_devs < 2) return PIPER_OK;
    carries = CARRIES_COLLECTIVES;
    break;
  case NODE_TRANSFER:
    carries = CARRIES_TRANSFERS;
    for (uint32_t j = 0; j < devsets_size(d->devsets, d->src_devs[n]); j++)
      if (!deal(w, n, devsets_ranks(d->devsets, d->src_devs[n])[j], NONE, j)) return nomem(w);
    break;
  case NODE_JOIN:
  case NODE_NONE:
  case NODE_KIND_COUNT:
    return PIPER_OK;
  }
  if (carries != 0 && d->stream[n] == 0)
    return err_set(w->err, PIPER_EBUG, "lower: node %u has no stream", n);
  w->carries[d->stream[n]] |= carries;
  for (uint32_t j = 0; j < n_devs; j++)
    if (!deal(w, n, devsets_ranks(d->devsets, d->devs[n])[j], j, NONE)) return nomem(w);
  return PIPER_OK;
}

/* Temporal edges between compute nodes hold by the order of their stream. */
static PiperStatus collect_temporal(Lower *w) {
  const Dag *d = w->dag;
  uint32_t n = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (size_t e = 1; e < d->edges.n; e++) {
      const Edge *edge = &d->edges.at[e];
      if (edge->src == 0 || edge->kind != EDGE_TEMPORAL) continue;
      if (!NODE_KIND_COMMUNICATES[d->kind[edge->src]] &&
          !NODE_KIND_COMMUNICATES[d->kind[edge->dst]])
        continue;
      if (pass == 0) n++, w->later_first.at[edge->dst + 1]++;
      else w->later.at[w->later_first.at[edge->dst]++] = edge->src;
    }
    if (n == 0) {
      vec_free(&w->later_first);
      return PIPER_OK;
    }
    if (pass == 1) break;
    for (uint32_t i = 0; i < d->n; i++) w->later_first.at[i + 1] += w->later_first.at[i];
    if (!vec_reserve(&w->later, n)) return nomem(w);
    w->later.n = n;
  }
  for (uint32_t i = d->n; i > 0; i--) w->later_first.at[i] = w->later_first.at[i - 1];
  w->later_first.at[0] = 0;
  w->first_instr = malloc(d->n * sizeof *w->first_instr);
  return w->first_instr != NULL ? PIPER_OK : nomem(w);
}

/* Is this edge a link, and of which compute node? Gradients that are summed where they are kept need
 * none, nor do parameters that are kept whole. */
static bool link_of(const Dag *d, const Edge *e, uint32_t *of, Link *out) {
  if (e->src == 0 || e->kind != EDGE_DATA) return false;
  const Tensor *t = &d->tensors.at[e->tensor];
  if (t->kind == TENSOR_PARAMS && d->kind[e->dst] == NODE_COMPUTE) {
    *of = e->dst;
    *out = (Link){t->bucket.i, e->src, true};
    return true;
  }
  if (t->kind != TENSOR_BUCKET || d->kind[e->src] != NODE_COMPUTE ||
      !NODE_KIND_COMMUNICATES[d->kind[e->dst]] || bucket_node_joins(d, (NodeId){e->dst}) ||
      !bucket_sums_apart(&d->buckets.at[t->bucket.i]))
    return false;
  *of = e->src;
  *out = (Link){t->bucket.i, e->dst, false};
  return true;
}

static PiperStatus collect_links(Lower *w) {
  const Dag *d = w->dag;
  bool any = false;
  uint32_t of, n = 0;
  Link link;
  for (uint32_t b = 1; b < d->buckets.n; b++)
    any = any || bucket_sums_apart(&d->buckets.at[b]); /* ZERO_PARAMS does, too */
  if (!any) return PIPER_OK;
  for (uint32_t i = 0; i <= d->n; i++)
    if (!vec_push(&w->link_first, 0)) return nomem(w);
  for (size_t e = 1; e < d->edges.n; e++)
    if (link_of(d, &d->edges.at[e], &of, &link)) w->link_first.at[of + 1]++, n++;
  for (uint32_t i = 0; i < d->n; i++) w->link_first.at[i + 1] += w->link_first.at[i];
  if (!vec_reserve(&w->links, n)) return nomem(w);
  w->links.n = n;
  for (size_t e = 1; e < d->edges.n; e++)
    if (link_of(d, &d->edges.at[e], &of, &link)) w->links.at[w->link_first.at[of]++] = link;
  for (uint32_t i = d->n; i > 0; i--) w->link_first.at[i] = w->link_first.at[i - 1];
  w->link_first.at[0] = 0;
  return PIPER_OK;
}

/* The collective that a compute node's gradients (or parameters) of the bucket go to; 0: none. */
static uint32_t linked(const Lower *w, uint32_t node, uint32_t bucket, bool params) {
  if (w->link_first.n == 0) return 0;
  for (uint32_t k = w->link_first.at[node]; k < w->link_first.at[node + 1]; k++)
    if (w->links.at[k].bucket == bucket && w->links.at[k].params == params)
      return w->links.at[k].node;
  return 0;
}

/* ---- one rank: instructions ------------------------------------------------------------------ */

static uint32_t entry_hash(uint8_t role, uint32_t id, uint32_t slot, int64_t lo, int64_t hi) {
  uint64_t h = ((uint64_t)id << 8 | role) * UINT64_C(0x9e3779b97f4a7c15);
  h = (h ^ (uint64_t)lo ^ slot) * UINT64_C(0xff51afd7ed558ccd);
  h = (h ^ h >> 32 ^ (uint64_t)hi) * UINT64_C(0xc4ceb9fe1a85ec53);
  return (uint32_t)(h >> 32);
}

static bool grow_slots(Lower *w) {
  const uint32_t n = w->n_slots == 0 ? 1024 : w->n_slots * 2;
  uint32_t *slots = calloc(n, sizeof *slots);
  if (slots == NULL) return false;
  free(w->slots);
  w->slots = slots;
  w->n_slots = n;
  for (uint32_t k = 0; k < w->entries.n; k++) {
    const Entry *e = &w->entries.at[k];
    if (e->role == BUFFER_WORKSPACE) continue;
    uint32_t i = entry_hash(e->role, e->id, e->slot, e->lo, e->hi) & (n - 1);
    while (slots[i] != 0) i = (i + 1) & (n - 1);
    slots[i] = k + 1;
  }
  return true;
}

static bool add_entry(Lower *w, const Entry *e) {
  if (w->entries.n >= NONE - 1 || !vec_push(&w->entries, *e)) return false;
  const uint32_t k = (uint32_t)w->entries.n - 1;
  Entry *added = &w->entries.at[k];
  added->next = NONE;
  added->joined = k;
  if (e->per_sample == 0) return true;
  const uint32_t head = e->role == BUFFER_INPUT ? w->n_tensors + e->id : e->id;
  while (w->heads.n <= head)
    if (!vec_push(&w->heads, 0)) return false;
  if (w->heads.at[head] == 0) {
    if (!vec_push(&w->touched, head)) return false;
  } else {
    added->next = w->heads.at[head] - 1;
  }
  w->heads.at[head] = k + 1;
  return true;
}

/* The entry's index; NONE: out of memory. Samples of a workspace do not matter: each is new. */
static uint32_t entry(Lower *w, const Entry *want) {
  if (want->role == BUFFER_WORKSPACE) return add_entry(w, want) ? (uint32_t)w->entries.n - 1 : NONE;
  if (2 * (w->entries.n + 1) > w->n_slots && !grow_slots(w)) return NONE;
  uint32_t i = entry_hash(want->role, want->id, want->slot, want->lo, want->hi) & (w->n_slots - 1);
  for (; w->slots[i] != 0; i = (i + 1) & (w->n_slots - 1)) {
    Entry *e = &w->entries.at[w->slots[i] - 1];
    if (e->id != want->id || e->lo != want->lo || e->hi != want->hi || e->role != want->role ||
        e->slot != want->slot)
      continue;
    if (e->bytes < want->bytes) e->bytes = want->bytes;
    return w->slots[i] - 1;
  }
  if (!add_entry(w, want)) return NONE;
  w->slots[i] = (uint32_t)w->entries.n;
  return w->slots[i] - 1;
}

/* Bytes [lo, hi) of the entry; of a batched one its samples, until the buffers are known. */
static PiperStatus access_part(Lower *w, const Entry *e, bool write, uint64_t lo, uint64_t hi) {
  const uint32_t k = entry(w, e);
  const bool batched = e->per_sample > 0;
  const Access a = {.buffer = k,
                    .write = write,
                    .lo = batched ? (uint64_t)e->lo : lo,
                    .hi = batched ? (uint64_t)e->hi : hi};
  if (k == NONE || !vec_push(&w->rank->accesses, a)) return nomem(w);
  return PIPER_OK;
}

static PiperStatus access(Lower *w, const Entry *e, bool write, uint64_t bytes) {
  return access_part(w, e, write, 0, bytes);
}

static bool whole_step(BufferRole role) {
  return role == BUFFER_PARAMS || role == BUFFER_GRADS || role == BUFFER_STATE ||
         role == BUFFER_INPUT || role == BUFFER_STEP || role == BUFFER_METRICS ||
         role == BUFFER_COUNTS || role == BUFFER_SCRATCH;
}

static Entry bucket_entry(const Lower *w, BufferRole role, uint32_t bucket, uint32_t slot,
                          Share elements) {
  return (Entry){.role = (uint8_t)role,
                 .id = bucket,
                 .slot = slot,
                 .lo = elements.lo,
                 .hi = elements.hi,
                 .bytes = (uint64_t)share_size(elements) * w->float_bytes};
}

/* What the rank keeps. */
static Entry kept_entry(const Lower *w, BufferRole role, uint32_t bucket, uint32_t slot) {
  const Kept *k = &w->kept[bucket];
  return bucket_entry(w, role, bucket, slot,
                      role == BUFFER_PARAMS  ? k->params
                      : role == BUFFER_GRADS ? k->grads
                                             : k->updated);
}

/* All of a bucket, for one collective. */
static Entry full_entry(const Lower *w, BufferRole role, uint32_t bucket, uint32_t node) {
  return bucket_entry(w, role, bucket, node, (Share){0, w->dag->buckets.at[bucket].elements});
}

/* An access of elements of a bucket's entry. */
static PiperStatus access_elements(Lower *w, const Entry *e, bool write, Share elements) {
  return access_part(w, e, write, (uint64_t)(elements.lo - e->lo) * w->float_bytes,
                     (uint64_t)(elements.hi - e->lo) * w->float_bytes);
}

static uint64_t counts_bytes(const Lower *w, uint32_t chunk) {
  return graph_chunk(w->plan->graph, (ChunkId){chunk})->n_counts * sizeof(double);
}

static uint64_t metrics_bytes(const Lower *w) {
  return graph_n_metrics(w->plan->graph) * sizeof(double);
}

/* What the rank holds whether an instruction touches it or not. */
static PiperStatus add_state(Lower *w) {
  const Dag *d = w->dag;
  const int32_t rank = w->rank->rank;
  const uint32_t n_slots = optimizer_n_slots(&w->plan->options.optimizer);
  for (uint32_t b = 1; b < d->buckets.n; b++) {
    const uint32_t holders = d->buckets.at[b].holders;
    w->kept[b] = (Kept){0};
    if (holders == 0 || devsets_position(d->devsets, holders, rank) < 0) continue;
    w->kept[b] = (Kept){.held = true,
                        .params = bucket_params_kept(d, (BucketId){b}, rank),
                        .grads = bucket_grads_kept(d, (BucketId){b}, rank),
                        .updated = bucket_updated(d, (BucketId){b}, rank)};
  }
  for (int role = BUFFER_PARAMS; role <= BUFFER_STATE; role++)
    for (uint32_t b = 1; b < d->buckets.n; b++) {
      const bool trained = d->buckets.at[b].trained && !d->forward_only;
      if (!w->kept[b].held || (role != BUFFER_PARAMS && !trained)) continue;
      for (uint32_t s = 0; s < (role == BUFFER_STATE ? n_slots : 1); s++) {
        const Entry e = kept_entry(w, (BufferRole)role, b, s);
        if (entry(w, &e) == NONE) return nomem(w);
      }
    }
  const Entry step = {.role = BUFFER_STEP, .bytes = sizeof(StepBlock)};
  const Entry metrics = {.role = BUFFER_METRICS, .bytes = metrics_bytes(w)};
  return entry(w, &step) != NONE && entry(w, &metrics) != NONE ? PIPER_OK : nomem(w);
}

static PiperStatus stream(Lower *w, uint32_t name, char direction, int32_t from, int32_t to,
                          uint32_t *out) {
  if (w->plan->options.single_stream) name = 0;
  if (w->plan->options.single_stream || (w->carries[name] & ~CARRIES_TRANSFERS) != 0)
    direction = 0, from = to = 0;
  for (uint32_t i = 0; i < w->keys.n; i++) {
    const StreamKey *k = &w->keys.at[i];
    if (k->name != name || k->direction != direction || k->from != from || k->to != to) continue;
    *out = i;
    return PIPER_OK;
  }
  const char *base = name != 0 ? intern_text(w->dag->names, name) : "all";
  const size_t size = strlen(base) + 32;
  char *text = arena_alloc(w->plan->arena, size, 1);
  if (text == NULL) return nomem(w);
  if (direction != 0) snprintf(text, size, "%s/%c/%d>%d", base, direction, from, to);
  else snprintf(text, size, "%s", base);
  const bool compute = name == 0 || (w->carries[name] & CARRIES_COMPUTE) != 0;
  const PlanStream s = {.name = text, .kind = compute ? STREAM_COMPUTE : STREAM_COMM};
  if (!vec_push(&w->keys, ((StreamKey){name, direction, from, to})) ||
      !vec_push(&w->rank->streams, s))
    return nomem(w);
  *out = (uint32_t)w->keys.n - 1;
  return PIPER_OK;
}

/* Working space of the rank's kernels: its instructions run one after the other, so one for all. */
static PiperStatus add_scratch(Lower *w) {
  const RankPlan *r = w->rank;
  const uint32_t threads = w->plan->options.threads_per_rank;
  for (size_t i = 0; i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    if (x->kind != INSTR_RUN || !programs_at(w->plan->programs, x->program)->scratch) continue;
    const Entry e = {.role = BUFFER_SCRATCH,
                     .bytes = OP_SCRATCH_BYTES * (threads > 0 ? threads : 1)};
    return entry(w, &e) != NONE ? PIPER_OK : nomem(w);
  }
  return PIPER_OK;
}

/* An instruction that has no accesses yet. */
static PiperStatus begin(Lower *w, Instr i) {
  RankPlan *r = w->rank;
  if (w->first_instr != NULL && (r->instrs.n == 0 || r->instrs.at[r->instrs.n - 1].node != i.node))
    w->first_instr[i.node] = (uint32_t)r->instrs.n;
  i.access_first = (uint32_t)r->accesses.n;
  if (r->instrs.n >= NONE - 1 || r->accesses.n >= NONE - 64 || !vec_push(&r->instrs, i))
    return nomem(w);
  return PIPER_OK;
}

static void end(Lower *w) {
  Instr *i = &w->rank->instrs.at[w->rank->instrs.n - 1];
  i->n_accesses = (uint32_t)w->rank->accesses.n - i->access_first;
}

typedef struct Work {
  uint32_t node, program;
  int64_t lo, hi;    /* samples */
  const Entry *zero; /* not NULL: the program writes zeros there */
} Work;

/* A program's parameters, gradients or state of a bucket. '*is_first': nothing has written these
 * gradients before. */
static PiperStatus access_bucket(Lower *w, const Work *x, const Bound *b, bool *is_first) {
  const Dag *d = w->dag;
  const uint32_t bucket = b->id;
  const bool compute = d->kind[x->node] == NODE_COMPUTE, grads = b->role == BUFFER_GRADS;
  const Kept *kept = &w->kept[bucket];
  Entry e = kept_entry(w, (BufferRole)b->role, bucket, b->slot);
  Share elements = compute ? (Share){0, d->buckets.at[bucket].elements} : kept->updated;
  uint32_t node = 0;
  if (x->zero != NULL) {
    e = *x->zero;
    elements = (Share){e.lo, e.hi};
    node = e.role == BUFFER_FULL_GRADS ? e.slot : 0;
  } else if (compute && (grads ? b->write : share_size(kept->params) < elements.hi)) {
    node = linked(w, x->node, bucket, !grads);
    if (node != 0) e = full_entry(w, grads ? BUFFER_FULL_GRADS : BUFFER_FULL_PARAMS, bucket, node);
  }
  if (elements.lo < e.lo || elements.hi > e.hi) {
    char label[160];
    dag_label(d, (NodeId){x->node}, label, sizeof label);
    return err_set(w->err, PIPER_EBUG,
                   "lower: %s uses elements [%lld, %lld) of bucket %u, of which "
                   "rank %d has [%lld, %lld)",
                   label, (long long)elements.lo, (long long)elements.hi, bucket, w->rank->rank,
                   (long long)e.lo, (long long)e.hi);
  }
  if (grads && b->write) {
    *is_first = node != 0 ? w->full_written[node] != w->rank_number : !w->grads_written[bucket];
    if (node != 0) w->full_written[node] = w->rank_number;
    else w->grads_written[bucket] = 1;
  }
  const uint64_t lo = (uint64_t)(elements.lo - e.lo) * w->float_bytes;
  return access_part(w, &e, b->write, lo, lo + b->bytes);
}

static PiperStatus run(Lower *w, const Work *x) {
  RankPlan *r = w->rank;
  Instr i = {.kind = INSTR_RUN,
             .node = x->node,
             .program = x->program,
             .sample_lo = x->lo,
             .bind_first = (uint32_t)r->bind_offset.n};
  TRY(stream(w, w->compute_name, 0, 0, 0, &i.stream));
  TRY(begin(w, i));
  const uint32_t first = w->program_bounds.at[x->program] - 1;
  const uint32_t n = programs_at(w->plan->programs, x->program)->n_bindings;
  for (uint32_t k = first; k < first + n; k++) {
    const Bound *b = &w->bounds.at[k];
    bool is_first = false;
    if (buffer_is_of_bucket(b->role)) {
      TRY(access_bucket(w, x, b, &is_first));
    } else {
      Entry e = {.role = b->role,
                 .id = b->id,
                 .slot = b->slot,
                 .per_sample = b->per_sample,
                 .bytes = b->bytes};
      if (b->role == BUFFER_METRICS) e.bytes = metrics_bytes(w);
      else if (b->role == BUFFER_COUNTS) e.bytes = counts_bytes(w, b->id);
      else if (b->role != BUFFER_INPUT || b->per_sample > 0) e.lo = x->lo, e.hi = x->hi;
      TRY(access(w, &e, b->write, b->bytes));
    }
    if (!vec_push(&r->bind_offset, 0) || !vec_push(&r->bind_first_write, is_first)) return nomem(w);
  }
  end(w);
  return PIPER_OK;
}

/* Before gradients are read to which nothing on this rank contributes. */
static PiperStatus need_grads(Lower *w, uint32_t node, const Entry *grads) {
  const bool written = grads->role == BUFFER_FULL_GRADS
                           ? w->full_written[grads->slot] == w->rank_number
                           : w->grads_written[grads->id] != 0;
  if (written || grads->lo == grads->hi) return PIPER_OK;
  Work x = {.node = node, .zero = grads};
  TRY(programs_zero_grad(w->plan->programs, (BucketId){grads->id}, grads->hi - grads->lo,
                         &x.program, w->err));
  TRY(bind_program(w, x.program, (ChunkId){0}, 0));
  return run(w, &x);
}

static PiperStatus lower_compute(Lower *w, const Item *x) {
  const Dag *d = w->dag;
  const NodeId n = {x->node};
  const NodeShare s = dag_share(d, n, x->pos);
  Work work = {.node = n.i, .program = w->node_program[n.i], .lo = s.lo, .hi = s.hi};
  if (s.parts > 1) {
    TRY(programs_node(w->plan->programs, n, x->pos, &work.program, w->err));
    if (programs_at(w->plan->programs, work.program)->n_calls == 0) return PIPER_OK;
  }
  return run(w, &work);
}

static PiperStatus lower_bucket_run(Lower *w, const Item *x) {
  const Dag *d = w->dag;
  const BucketId b = {d->bucket[x->node]};
  const Share mine = w->kept[b.i].updated;
  Programs *p = w->plan->programs;
  Work work = {.node = x->node};
  TRY(d->kind[x->node] == NODE_NORM ? programs_norm(p, b, mine, &work.program, w->err)
                                    : programs_update(p, b, mine, &work.program, w->err));
  if (programs_at(p, work.program)->n_calls == 0) return PIPER_OK;
  TRY(bind_program(w, work.program, (ChunkId){0}, 0));
  const Entry grads = kept_entry(w, BUFFER_GRADS, b.i, 0);
  TRY(need_grads(w, x->node, &grads));
  return run(w, &work);
}

/* ---- collectives ---- */

static uint32_t *table_slot(const Lower *w, const ShareTable *t) {
  Hash h = HASH_START;
  hash_u64(&h, (uint64_t)t->count);
  hash_u32(&h, t->n);
  hash_u32(&h, t->bucket);
  uint32_t i = (uint32_t)hash_end(&h) & (w->n_table_slots - 1);
  for (;; i = (i + 1) & (w->n_table_slots - 1)) {
    const ShareTable *at = &w->tables.at[w->table_slots[i]];
    if (w->table_slots[i] == 0 ||
        (at->count == t->count && at->n == t->n && at->bucket == t->bucket))
      return &w->table_slots[i];
  }
}

static PiperStatus grow_tables(Lower *w) {
  if (w->tables.n == 0 && !vec_push(&w->tables, (ShareTable){0})) return nomem(w);
  if (2 * w->tables.n < w->n_table_slots) return PIPER_OK;
  const uint32_t n = w->n_table_slots == 0 ? 64 : 2 * w->n_table_slots;
  uint32_t *slots = calloc(n, sizeof *slots);
  if (slots == NULL) return nomem(w);
  free(w->table_slots);
  w->table_slots = slots;
  w->n_table_slots = n;
  for (uint32_t k = 1; k < w->tables.n; k++) *table_slot(w, &w->tables.at[k]) = k;
  return PIPER_OK;
}

/* Where the shares of a call's members stand. */
static PiperStatus share_table(Lower *w, BucketId b, const BucketCall *c, uint32_t *first) {
  Plan *plan = w->plan;
  ShareTable t = {.count = share_size(c->region),
                  .n = devsets_size(w->dag->devsets, c->group),
                  .bucket = c->by_update ? b.i : 0,
                  .first = plan->shares.n};
  TRY(grow_tables(w));
  uint32_t *slot = table_slot(w, &t);
  if (*slot == 0) {
    if (!vec_reserve(&plan->shares, t.n) || !vec_push(&w->tables, t)) return nomem(w);
    for (uint32_t j = 0; j < t.n; j++)
      plan->shares.at[plan->shares.n++] = bucket_call_share(w->dag, b, c, j);
    *slot = (uint32_t)w->tables.n - 1;
  }
  if (plan->shares.n > UINT32_MAX) return nomem(w);
  *first = (uint32_t)w->tables.at[*slot].first;
  return PIPER_OK;
}

static InstrKind collective_kind(NodeKind kind) {
  return kind == NODE_ALL_GATHER       ? INSTR_ALL_GATHER
         : kind == NODE_REDUCE_SCATTER ? INSTR_REDUCE_SCATTER
                                       : INSTR_ALL_REDUCE;
}

/* Of all ranks, or of those that run a chunk: f64. */
static PiperStatus lower_sums(Lower *w, uint32_t n) {
  const Tensor *t = &w->dag->tensors.at[w->dag->tensor[n]];
  const Entry e = t->kind == TENSOR_METRICS
                      ? (Entry){.role = BUFFER_METRICS, .bytes = metrics_bytes(w)}
                      : (Entry){.role = BUFFER_COUNTS,
                                .id = t->chunk.i,
                                .bytes = counts_bytes(w, t->chunk.i)};
  Instr i = {.kind = INSTR_ALL_REDUCE,
             .node = n,
             .group = w->dag->devs[n],
             .bytes = e.bytes,
             .dtype = DT_F64};
  TRY(stream(w, w->dag->stream[n], 0, 0, 0, &i.stream));
  TRY(begin(w, i));
  TRY(access(w, &e, true, e.bytes));
  end(w);
  return PIPER_OK;
}

/* A call between the bucket as it is kept and all of it: what is gathered goes to a buffer of its own,
 * what is reduced comes from one. */
static PiperStatus lower_full(Lower *w, uint32_t n, Instr i, Share mine) {
  const uint32_t bucket = w->dag->bucket[n];
  const bool gather = i.kind == INSTR_ALL_GATHER;
  const Entry full = full_entry(w, gather ? BUFFER_FULL_PARAMS : BUFFER_FULL_GRADS, bucket, n);
  const Entry kept = kept_entry(w, gather ? BUFFER_PARAMS : BUFFER_GRADS, bucket, 0);
  if (!gather) {
    TRY(need_grads(w, n, &full));
    i.adds = w->grads_written[bucket] != 0;
    w->grads_written[bucket] = 1;
  }
  TRY(begin(w, i));
  TRY(access(w, &full, true, full.bytes));
  TRY(access_elements(w, &kept, !gather, mine));
  end(w);
  return PIPER_OK;
}

/* A call on the bucket as it is kept, in place. */
static PiperStatus lower_in_place(Lower *w, uint32_t n, Instr i, const BucketCall *c) {
  const uint32_t bucket = w->dag->bucket[n];
  const bool params = w->dag->tensors.at[w->dag->tensor[n]].kind == TENSOR_PARAMS;
  const Entry kept = kept_entry(w, params ? BUFFER_PARAMS : BUFFER_GRADS, bucket, 0);
  if (!params) TRY(need_grads(w, n, &kept));
  TRY(begin(w, i));
  TRY(access_elements(w, &kept, true, c->region));
  end(w);
  return PIPER_OK;
}

static PiperStatus lower_call(Lower *w, uint32_t n, const BucketCall *c) {
  const Dag *d = w->dag;
  const BucketId b = {d->bucket[n]};
  const Bucket *bucket = &d->buckets.at[b.i];
  const bool params = d->tensors.at[d->tensor[n]].kind == TENSOR_PARAMS;
  const int32_t me = devsets_position(d->devsets, c->group, w->rank->rank);
  Instr i = {.kind = (uint8_t)collective_kind((NodeKind)d->kind[n]),
             .node = n,
             .group = c->group,
             .bytes = (uint64_t)share_size(c->region) * w->float_bytes,
             .dtype = (uint8_t)w->plan->options.dtype};
  TRY(stream(w, d->stream[n], 0, 0, 0, &i.stream));
  if (me < 0) return err_set(w->err, PIPER_EBUG, "lower: node %u is of other ranks", n);
  Share mine = c->region;
  if (i.kind != INSTR_ALL_REDUCE) {
    TRY(share_table(w, b, c, &i.share_first));
    const Share s = w->plan->shares.at[i.share_first + (uint32_t)me];
    mine = (Share){c->region.lo + s.lo, c->region.lo + s.hi};
    i.part = (uint64_t)s.lo * w->float_bytes; /* in place: plan_mem adds the offset */
  }
  if (bucket_node_joins(d, (NodeId){n})) return lower_in_place(w, n, i, c);
  const bool full = params ? bucket->zero == ZERO_PARAMS
                           : i.kind != INSTR_ALL_GATHER && bucket_sums_apart(bucket);
  return full ? lower_full(w, n, i, mine) : lower_in_place(w, n, i, c);
}

static PiperStatus lower_collective(Lower *w, const Item *x) {
  const Dag *d = w->dag;
  const uint32_t n = x->node;
  const TensorKind kind = d->tensors.at[d->tensor[n]].kind;
  if (kind == TENSOR_METRICS || kind == TENSOR_COUNTS) return lower_sums(w, n);
  TRY(bucket_calls(w->dag, (NodeId){n}, w->rank->rank, &w->calls, w->err));
  for (size_t k = 0; k < w->calls.n; k++) TRY(lower_call(w, n, &w->calls.at[k]));
  return PIPER_OK;
}

/* The devices of the g-th group of an ALL_TO_ALL; 0: out of memory. */
static uint32_t exchange_group(Lower *w, uint32_t n, uint32_t g) {
  const Dag *d = w->dag;
  const uint32_t parts = d->parts[n];
  int32_t few[16], *ranks = parts <= 16 ? few : malloc(parts * sizeof *ranks);
  if (ranks == NULL) return 0; /* devsets_id may move the list it is given a part of */
  memcpy(ranks, devsets_ranks(d->devsets, d->devs[n]) + (size_t)g * parts, parts * sizeof *ranks);
  const uint32_t id = devsets_id(w->dag->devsets, ranks, parts);
  if (ranks != few) free(ranks);
  return id;
}

/* Where such an exchange stands in Plan.exchanges: there are few different ones. */
static PiperStatus exchange_index(Lower *w, const Exchange *x, uint32_t *out) {
  Plan *plan = w->plan;
  for (size_t i = plan->exchanges.n; i-- > 0;) {
    const Exchange *y = &plan->exchanges.at[i];
    *out = (uint32_t)i;
    if (y->samples == x->samples && y->blocks == x->blocks && y->block_bytes == x->block_bytes &&
        y->row_bytes == x->row_bytes && y->to_experts == x->to_experts)
      return PIPER_OK;
  }
  *out = (uint32_t)plan->exchanges.n;
  return vec_push(&plan->exchanges, *x) ? PIPER_OK : nomem(w);
}

/* The rank's own samples with all experts on one side, those of its group with its part on the other. */
static PiperStatus lower_exchange(Lower *w, const Item *x) {
  const Dag *d = w->dag;
  const uint32_t n = x->node, size = devsets_size(d->devsets, d->devs[n]), parts = d->parts[n];
  const Tensor t = d->tensors.at[d->tensor[n]];
  const Shape *shape = &graph_value(w->plan->graph, t.value)->shape;
  const NodeShare all = dag_share(d, (NodeId){n}, x->pos);
  if (shape->rank != 4 || parts < 2 || shape->dim[1] % parts != 0)
    return err_set(w->err, PIPER_EBUG, "lower: node %u exchanges no blocks", n);
  Tensor other = t;
  other.spread = !t.spread;
  const TensorId to = dag_tensor(w->dag, other);
  const uint64_t per_sample = value_bytes_per_sample(w, t.value);
  const int64_t lo = part_lo(d->lo[n], d->hi[n], x->pos, size);
  const int64_t hi = part_lo(d->lo[n], d->hi[n], x->pos + 1, size);
  const uint8_t role = t.kind == TENSOR_GRAD ? BUFFER_GRAD : BUFFER_VALUE;
  const Entry own = {.role = role, .lo = lo, .hi = hi, .per_sample = per_sample};
  const Entry group = {.role = role, .lo = all.lo, .hi = all.hi, .per_sample = per_sample / parts};
  Entry read = t.spread ? group : own, write = t.spread ? own : group;
  read.id = d->tensor[n];
  write.id = to.i;
  const uint64_t row = (uint64_t)shape->dim[3] * w->float_bytes;
  const Exchange exchange = {.samples = hi - lo,
                             .blocks = shape->dim[1] / parts,
                             .block_bytes = row * (uint64_t)shape->dim[2],
                             .row_bytes = row,
                             .to_experts = !t.spread};
  Instr i = {.kind = INSTR_ALL_TO_ALL,
             .node = n,
             .dtype = (uint8_t)w->plan->options.dtype,
             .group = exchange_group(w, n, x->pos / parts),
             .bytes = exchange_bytes(&exchange, parts)};
  if (to.i == 0 || i.group == 0) return nomem(w);
  TRY(exchange_index(w, &exchange, &i.share_first));
  TRY(stream(w, d->stream[n], 0, 0, 0, &i.stream));
  TRY(begin(w, i));
  TRY(access(w, &read, false, 0));
  TRY(access(w, &write, true, 0));
  w->entries.at[w->rank->accesses.at[w->rank->accesses.n - 1].buffer].received = true;
  end(w);
  return PIPER_OK;
}

/* One piece of a TRANSFER between two ranks. */
typedef struct Piece {
  int32_t from, to;
  int64_t lo, hi; /* samples; those of the rank's own part where the tensor is not batched */
} Piece;

static PiperStatus lower_piece(Lower *w, uint32_t n, const Piece *x) {
  const Dag *d = w->dag;
  const Tensor *t = &d->tensors.at[d->tensor[n]];
  const bool grad = t->kind == TENSOR_GRAD, send = x->from == w->rank->rank;
  Entry e = {.role = grad ? BUFFER_GRAD : BUFFER_VALUE,
             .id = d->tensor[n],
             .lo = x->lo,
             .hi = x->hi,
             .per_sample = value_bytes_per_sample(w, t->value)};
  if (e.per_sample == 0) e.bytes = value_bytes(w, t->value);
  Instr i = {.kind = send ? INSTR_SEND : INSTR_RECV,
             .node = n,
             .peer = send ? x->to : x->from,
             .bytes = e.per_sample == 0 ? e.bytes : (uint64_t)(x->hi - x->lo) * e.per_sample};
  TRY(stream(w, d->stream[n], grad ? 'B' : 'F', x->from, x->to, &i.stream));
  TRY(begin(w, i));
  TRY(access(w, &e, !send, e.bytes));
  if (!send) w->entries.at[w->rank->accesses.at[w->rank->accesses.n - 1].buffer].received = true;
  end(w);
  return PIPER_OK;
}

/* Whole tensors: device j to device j. */
static PiperStatus lower_whole_transfer(Lower *w, const Item *x) {
  const Dag *d = w->dag;
  const uint32_t n = x->node, n_src = devsets_size(d->devsets, d->src_devs[n]),
                 n_dst = devsets_size(d->devsets, d->devs[n]);
  if (n_src != n_dst || d->lo[n] != d->src_lo[n] || d->hi[n] != d->src_hi[n]) {
    char label[160];
    dag_label(d, (NodeId){n}, label, sizeof label);
    return err_set(w->err, PIPER_EUSER,
                   "%s: %s: a value without a batch axis has no parts, so the chunks that compute "
                   "and read it need as many devices and microbatches as each other",
                   dag_line(d, d->line[n]), label);
  }
  const int32_t *src = devsets_ranks(d->devsets, d->src_devs[n]);
  const int32_t *dst = devsets_ranks(d->devsets, d->devs[n]);
  uint32_t js[2] = {x->src_pos, x->pos}; /* in one order of pieces everywhere */
  if (js[0] > js[1]) js[0] = x->pos, js[1] = x->src_pos;
  for (int k = 0; k < 2; k++) {
    const uint32_t j = js[k];
    if (j == NONE || src[j] == dst[j]) continue;
    const Piece p = {src[j], dst[j], part_lo(d->lo[n], d->hi[n], j, n_src),
                     part_lo(d->lo[n], d->hi[n], j + 1, n_src)};
    TRY(lower_piece(w, n, &p));
  }
  return PIPER_OK;
}

typedef struct Span {
  int64_t lo, hi;
} Span;

static Span part(int64_t lo, int64_t hi, uint32_t j, uint32_t n) {
  return (Span){part_lo(lo, hi, j, n), part_lo(lo, hi, j + 1, n)};
}

/* Which of the n parts of [lo, hi) meet the span: [*first, *end). */
static void parts_meeting(int64_t lo, int64_t hi, uint32_t n, Span s, uint32_t *first,
                          uint32_t *end_) {
  *first = *end_ = 0;
  if (n == 0 || s.hi <= lo || s.lo >= hi || s.lo >= s.hi) return;
  const int64_t width = (hi - lo) / n;
  *first = s.lo <= lo ? 0 : (uint32_t)((s.lo - lo) / width);
  *end_ = s.hi >= hi ? n : (uint32_t)((s.hi - lo + width - 1) / width);
}

static PiperStatus lower_transfer(Lower *w, const Item *x) {
  const Dag *d = w->dag;
  const uint32_t n = x->node;
  const Tensor *t = &d->tensors.at[d->tensor[n]];
  if (!graph_value(d->graph, t->value)->shape.batched) return lower_whole_transfer(w, x);
  const uint32_t n_src = devsets_size(d->devsets, d->src_devs[n]),
                 n_dst = devsets_size(d->devsets, d->devs[n]);
  const int32_t *src = devsets_ranks(d->devsets, d->src_devs[n]);
  const int32_t *dst = devsets_ranks(d->devsets, d->devs[n]);
  uint32_t in = 0, in_end = 0, out = 0, out_end = 0;
  Span mine_in = {0, 0}, mine_out = {0, 0};
  if (x->pos != NONE) {
    mine_in = part(d->lo[n], d->hi[n], x->pos, n_dst);
    parts_meeting(d->src_lo[n], d->src_hi[n], n_src, mine_in, &in, &in_end);
  }
  if (x->src_pos != NONE) {
    mine_out = part(d->src_lo[n], d->src_hi[n], x->src_pos, n_src);
    parts_meeting(d->lo[n], d->hi[n], n_dst, mine_out, &out, &out_end);
  }
  /* By source, then destination: what earlier sources send, what this one sends, the rest. */
  for (int sent = 0;; sent = 1) {
    for (; in < in_end && (sent || in < x->src_pos); in++) {
      if (src[in] == dst[x->pos]) continue;
      const Span s = part(d->src_lo[n], d->src_hi[n], in, n_src);
      const Piece p = {src[in], dst[x->pos], s.lo > mine_in.lo ? s.lo : mine_in.lo,
                       s.hi < mine_in.hi ? s.hi : mine_in.hi};
      TRY(lower_piece(w, n, &p));
    }
    if (sent) return PIPER_OK;
    for (; out < out_end; out++) {
      if (dst[out] == src[x->src_pos]) continue;
      const Span s = part(d->lo[n], d->hi[n], out, n_dst);
      const Piece p = {src[x->src_pos], dst[out], s.lo > mine_out.lo ? s.lo : mine_out.lo,
                       s.hi < mine_out.hi ? s.hi : mine_out.hi};
      TRY(lower_piece(w, n, &p));
    }
  }
}

static PiperStatus lower_item(Lower *w, const Item *x) {
  switch ((NodeKind)w->dag->kind[x->node]) {
  case NODE_TRANSFER:
    return lower_transfer(w, x);
  case NODE_ALL_REDUCE:
  case NODE_REDUCE_SCATTER:
  case NODE_ALL_GATHER:
    return lower_collective(w, x);
  case NODE_ALL_TO_ALL:
    return lower_exchange(w, x);
  case NODE_COMPUTE:
  case NODE_COUNT:
    return lower_compute(w, x);
  case NODE_NORM:
  case NODE_UPDATE:
    return lower_bucket_run(w, x);
  case NODE_JOIN:
  case NODE_NONE:
  case NODE_KIND_COUNT:
    break;
  }
  return PIPER_OK;
}

/* ---- one rank: buffers ----------------------------------------------------------------------- */

static bool before(const Entry *a, const Entry *b) {
  return a->lo != b->lo ? a->lo < b->lo : a->hi < b->hi;
}

/* Merge sort of entry indices by samples: nearly always they come ordered, up or down. */
static void sort_entries(const Entry *at, uint32_t *k, uint32_t n, uint32_t *scratch) {
  bool up = true, down = true;
  for (uint32_t i = 1; i < n; i++) {
    if (before(&at[k[i]], &at[k[i - 1]])) up = false;
    else down = false;
  }
  if (up) return;
  if (down) {
    for (uint32_t i = 0; i < n / 2; i++) {
      const uint32_t t = k[i];
      k[i] = k[n - 1 - i];
      k[n - 1 - i] = t;
    }
    return;
  }
  const uint32_t half = n / 2;
  sort_entries(at, k, half, scratch);
  sort_entries(at, k + half, n - half, scratch);
  memcpy(scratch, k, half * sizeof *k);
  uint32_t a = 0, b = half, to = 0;
  while (a < half) k[to++] = b < n && before(&at[k[b]], &at[scratch[a]]) ? k[b++] : scratch[a++];
}

/* Intervals of one tensor that overlap share a buffer. */
static bool join_entries(Lower *w, uint32_t head) {
  Entry *at = w->entries.at;
  const uint32_t first = w->heads.at[head] - 1;
  if (at[first].next == NONE) return true;
  w->order.n = 0;
  for (uint32_t k = first; k != NONE; k = at[k].next)
    if (!vec_push(&w->order, k)) return false;
  const uint32_t n = (uint32_t)w->order.n;
  if (!vec_reserve(&w->order, n)) return false;
  uint32_t *k = w->order.at;
  sort_entries(at, k, n, k + n);
  for (uint32_t i = 0; i < n;) {
    int64_t hi = at[k[i]].hi;
    uint32_t j = i, least = k[i];
    for (; j < n && at[k[j]].lo < hi; j++) {
      if (at[k[j]].hi > hi) hi = at[k[j]].hi;
      if (k[j] < least) least = k[j];
    }
    for (; i < j; i++) at[k[i]].joined = least;
  }
  return true;
}

static MemCategory category(BufferRole role, bool received) {
  switch (role) {
  case BUFFER_PARAMS:
  case BUFFER_FULL_PARAMS:
    return MEM_PARAMS;
  case BUFFER_GRADS:
  case BUFFER_FULL_GRADS:
    return MEM_GRADS;
  case BUFFER_STATE:
    return MEM_OPTIMIZER;
  case BUFFER_INPUT:
  case BUFFER_SAVED_I:
  case BUFFER_SAVED_W:
  case BUFFER_KEPT:
    return MEM_ACTIVATIONS;
  case BUFFER_VALUE:
  case BUFFER_GRAD:
    return received ? MEM_COMM : MEM_ACTIVATIONS;
  case BUFFER_WORKSPACE:
  case BUFFER_STEP:
  case BUFFER_METRICS:
  case BUFFER_COUNTS:
  case BUFFER_SCRATCH:
    break;
  }
  return MEM_WORKSPACE;
}

static PiperStatus make_buffers(Lower *w) {
  RankPlan *r = w->rank;
  for (size_t i = 0; i < w->touched.n; i++)
    if (!join_entries(w, w->touched.at[i])) return nomem(w);
  if (!vec_reserve(&r->buffers, w->entries.n)) return nomem(w);
  for (uint32_t k = 0; k < w->entries.n; k++) {
    Entry *e = &w->entries.at[k];
    if (e->joined == k) {
      e->buffer = (uint32_t)r->buffers.n;
      r->buffers.at[r->buffers.n++] =
          (Buffer){.role = e->role,
                   .whole_step = whole_step((BufferRole)e->role),
                   .id = e->id,
                   .slot = e->slot,
                   .lo = e->lo,
                   .hi = e->hi,
                   .bytes = e->bytes,
                   .category = (uint8_t)category((BufferRole)e->role, e->received),
                   .first = NONE};
    } else {
      e->buffer = w->entries.at[e->joined].buffer;
    }
    Buffer *b = &r->buffers.at[e->buffer];
    if (e->lo < b->lo) b->lo = e->lo;
    if (e->hi > b->hi) b->hi = e->hi;
    if (e->received) b->category = (uint8_t)category((BufferRole)e->role, true);
    if (e->per_sample > 0) b->bytes = (uint64_t)(b->hi - b->lo) * e->per_sample;
  }
  for (size_t k = 0; k < r->accesses.n; k++) {
    Access *a = &r->accesses.at[k];
    const Entry *e = &w->entries.at[a->buffer];
    a->buffer = e->buffer;
    if (e->per_sample == 0) continue;
    const uint64_t lo = (uint64_t)r->buffers.at[e->buffer].lo;
    a->lo = (a->lo - lo) * e->per_sample;
    a->hi = (a->hi - lo) * e->per_sample;
  }
  return PIPER_OK;
}

/* ---- one rank: waits ------------------------------------------------------------------------- */

/* Enters access 'a' of instruction i into its buffer's past; whatever it conflicts with goes to
 * 'deps'. Past accesses whose bytes this one covers, and that it comes after, are dropped: whoever
 * comes after this one comes after them. So a past stays about as short as the buffer has streams. */
static bool meet_past(Lower *w, uint32_t i, const Access *a, Deps *deps) {
  const Instr *instrs = w->rank->instrs.at;
  const uint32_t mine = instrs[i].stream;
  uint32_t *link = &w->past_head.at[a->buffer];
  while (*link != NONE) {
    Past *p = &w->past.at[*link];
    const uint32_t other = instrs[p->instr].stream;
    const bool conflict = p->lo < a->hi && a->lo < p->hi && (a->write || p->write);
    if (conflict && other != mine) deps_add(deps, other, p->instr);
    const bool covered =
        a->lo <= p->lo && p->hi <= a->hi && (a->write || (!p->write && other == mine));
    if (covered) *link = p->next;
    else link = &p->next;
  }
  const uint32_t head = w->past_head.at[a->buffer];
  const Past now = {.instr = i, .next = head, .write = a->write, .lo = a->lo, .hi = a->hi};
  w->past_head.at[a->buffer] = (uint32_t)w->past.n;
  return vec_push(&w->past, now);
}

static void add_temporal(const Lower *w, uint32_t i, Deps *deps) {
  const InstrVec *instrs = &w->rank->instrs;
  const uint32_t n = instrs->at[i].node;
  for (uint32_t k = w->later_first.at[n]; k < w->later_first.at[n + 1]; k++) {
    const uint32_t src = w->later.at[k];
    uint32_t j = w->first_instr[src]; /* of another rank, or unset, where the node is another */
    for (; j < i && instrs->at[j].node == src; j++)
      if (instrs->at[j].stream != instrs->at[i].stream) deps_add(deps, instrs->at[j].stream, j);
  }
}

static PiperStatus read_before_written(Lower *w, uint32_t i, const Buffer *b) {
  char label[256];
  plan_instr_label(w->plan, w->rank, i, label, sizeof label);
  return err_set(w->err, PIPER_EBUG,
                 "lower: %s reads samples [%lld, %lld) of %s that nothing "
                 "writes before",
                 label, (long long)b->lo, (long long)b->hi,
                 b->role == BUFFER_GRAD ? "a gradient" : "a value");
}

static PiperStatus make_waits(Lower *w) {
  RankPlan *r = w->rank;
  Clocks clocks = {0};
  Deps deps = {0};
  PiperStatus st = PIPER_OK;
  if (!clocks_new(&clocks, (uint32_t)r->streams.n, (uint32_t)r->instrs.n) ||
      !deps_new(&deps, (uint32_t)r->streams.n) || !vec_reserve(&w->past_head, r->buffers.n)) {
    st = nomem(w);
    goto out;
  }
  w->past.n = 0;
  for (uint32_t k = 0; k < r->buffers.n; k++) w->past_head.at[k] = NONE;
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    Instr *x = &r->instrs.at[i];
    clock_begin(&clocks, i, x->stream);
    for (uint32_t k = x->access_first; k < x->access_first + x->n_accesses; k++) {
      const Access *a = &r->accesses.at[k];
      Buffer *b = &r->buffers.at[a->buffer];
      if (b->first == NONE) b->first = i;
      b->last = i;
      if (b->first == i && !a->write && !b->whole_step) {
        st = read_before_written(w, i, b);
        goto out;
      }
      if (!meet_past(w, i, a, &deps)) st = nomem(w);
    }
    if (w->first_instr != NULL) add_temporal(w, i, &deps);
    x->wait_first = (uint32_t)r->waits.n;
    if (!deps_wait(&deps, &clocks, &r->waits)) st = nomem(w);
    if (st != PIPER_OK) goto out;
    x->n_waits = (uint32_t)r->waits.n - x->wait_first;
    for (uint32_t k = 0; k < x->n_waits; k++)
      r->instrs.at[r->waits.at[x->wait_first + k]].signals = true;
    clock_end(&clocks);
  }
out:
  clocks_free(&clocks);
  deps_free(&deps);
  return st;
}

/* ---- all ------------------------------------------------------------------------------------- */

static PiperStatus lower_rank(Lower *w, uint32_t index) {
  w->rank = &w->plan->ranks[index];
  w->rank_number = index + 1;
  w->entries.n = 0;
  w->keys.n = 0;
  for (size_t i = 0; i < w->touched.n; i++) w->heads.at[w->touched.at[i]] = 0;
  w->touched.n = 0;
  if (w->n_slots > 0) memset(w->slots, 0, w->n_slots * sizeof *w->slots);
  memset(w->grads_written, 0, w->dag->buckets.n);
  if (w->first_instr != NULL) memset(w->first_instr, 0xff, w->dag->n * sizeof *w->first_instr);
  TRY(add_state(w));
  for (size_t k = 0; k < w->items[index].n; k++) TRY(lower_item(w, &w->items[index].at[k]));
  TRY(add_scratch(w));
  TRY(make_buffers(w));
  return make_waits(w);
}

static PiperStatus lower_all(Lower *w) {
  Plan *plan = w->plan;
  w->compute_name = intern_id(w->dag->names, "default_stream");
  w->node_program = calloc(w->dag->n, sizeof *w->node_program);
  w->carries = calloc(intern_count(w->dag->names) + 1, sizeof *w->carries);
  w->grads_written = calloc(w->dag->buckets.n + 1, sizeof *w->grads_written);
  w->full_written = calloc(w->dag->n, sizeof *w->full_written);
  w->kept = calloc(w->dag->buckets.n, sizeof *w->kept);
  if (w->compute_name == 0 || w->node_program == NULL || w->carries == NULL ||
      w->grads_written == NULL || w->full_written == NULL || w->kept == NULL)
    return nomem(w);
  w->carries[w->compute_name] = CARRIES_COMPUTE;
  TRY(prepare_ranks(w));
  for (uint32_t k = 0; k < plan->n_order; k++) TRY(deal_node(w, plan->order[k]));
  w->n_tensors = (uint32_t)w->dag->tensors.n; /* the programs have interned theirs */
  for (uint32_t i = 0; i <= w->dag->n; i++)
    if (!vec_push(&w->later_first, 0)) return nomem(w);
  TRY(collect_temporal(w));
  TRY(collect_links(w));
  for (uint32_t i = 0; i < plan->n_ranks; i++) TRY(lower_rank(w, i));
  return PIPER_OK;
}

PiperStatus plan_lower(Plan *plan, PiperErr *err) {
  Lower w = {
      .plan = plan, .dag = plan->dag, .err = err, .float_bytes = dtype_bytes(plan->options.dtype)};
  if (plan->arena == NULL && (plan->arena = arena_new()) == NULL) return nomem(&w);
  const PiperStatus st = lower_all(&w);
  if (w.items != NULL)
    for (uint32_t i = 0; i < plan->n_ranks; i++) vec_free(&w.items[i]);
  free(w.items), free(w.rank_index), free(w.node_program), free(w.carries);
  free(w.slots), free(w.grads_written), free(w.full_written), free(w.kept), free(w.first_instr);
  free(w.table_slots), vec_free(&w.tables), vec_free(&w.links), vec_free(&w.link_first);
  vec_free(&w.calls);
  vec_free(&w.bounds), vec_free(&w.program_bounds), vec_free(&w.later_first), vec_free(&w.later);
  vec_free(&w.entries), vec_free(&w.heads), vec_free(&w.touched), vec_free(&w.past);
  vec_free(&w.past_head), vec_free(&w.keys), vec_free(&w.order);
  return st;
}
