/* plan_lower - the DAG in its global order becomes the list of a rank.
 *
 * Every node gives instructions to the ranks of its device set, in the global order. What is common to
 * all ranks is found once (plan_lower_begin): programs, streams, and for each device set the nodes that
 * are on it. Then a rank is lowered alone, from the lists of the sets that it is in:
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
#include "base/interrupt.h"
#include "ir/bucket.h"
#include "plan/clock.h"
#include "plan/pieces.h"

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
  uint32_t n_sets; /* device sets of nodes are below it; lowering makes more */
  U32Vec set_first,
      set_places; /* by device set: where the nodes that are on it, on either side, stand
                                   in the order; ascending */
  U32Vec rank_first,
      rank_sets;          /* by index of the rank: device sets that it is in, and that have nodes */
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
  uint32_t serial;             /* counts the ranks that were lowered */
  uint32_t *pos;               /* by device set: the rank's position; NONE */
  U32Vec places, merged, runs; /* scratch: of the rank's nodes in the order */
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
      full_written; /* by node: the serial of the last rank that wrote gradients for it to reduce */
  uint32_t *first_instr;  /* by node; only where 'later' is not empty */
  U32Vec order;           /* scratch */
  BucketCallVec calls;    /* scratch */
  PieceVec pieces;        /* scratch */
} Lower;

static PiperStatus nomem(Lower *w) { return err_nomem(w->err, "the plan"); }

/* ---- programs and what they bind ------------------------------------------------------------- */

static uint64_t value_bytes_per_sample(const Lower *w, ValueId v) {
  return value_sample_bytes(w->plan->graph, v, w->plan->options.dtype);
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
  Plan *plan = w->plan;
  const DevSets *sets = w->dag->devsets;
  const uint32_t n = plan->n_ranks;
  if (n == 0 || n != devsets_size(sets, plan->world))
    return err_set(w->err, PIPER_EBUG, "lower: no node has a device");
  if (plan->ranks != NULL) return PIPER_OK; /* begun once more */
  plan->ranks = calloc(n, sizeof *plan->ranks);
  if (plan->ranks == NULL) return nomem(w);
  for (uint32_t i = 0; i < n; i++) {
    plan->ranks[i].rank = devsets_ranks(sets, plan->world)[i];
    plan->ranks[i].like = i;
  }
  return PIPER_OK;
}

/* '*works': some rank has something to do for it. */
static PiperStatus look_at_node(Lower *w, uint32_t n, bool *works) {
  const Dag *d = w->dag;
  const uint32_t n_devs = devsets_size(d->devsets, d->devs[n]);
  uint8_t carries = 0;
  *works = false;
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
    break;
  case NODE_JOIN:
  case NODE_NONE:
  case NODE_KIND_COUNT:
    return PIPER_OK;
  }
  if (carries != 0 && d->stream[n] == 0)
    return err_set(w->err, PIPER_EBUG, "lower: node %u has no stream", n);
  w->carries[d->stream[n]] |= carries;
  *works = true;
  return PIPER_OK;
}

/* The place of a node, for its device sets; in the second round, where the numbers are known. */
static void deal(Lower *w, uint32_t place, bool counting) {
  const Dag *d = w->dag;
  const uint32_t n = w->plan->order[place];
  const uint32_t on[2] = {d->devs[n], d->kind[n] == NODE_TRANSFER ? d->src_devs[n] : d->devs[n]};
  for (int k = 0; k < (on[0] == on[1] ? 1 : 2); k++) {
    if (counting) w->set_first.at[on[k] + 1]++;
    else w->set_places.at[w->set_first.at[on[k]]++] = place;
  }
}

/* Counts become ends, or after filling what they were: where each list begins. */
static void sum_up(U32Vec *first) {
  for (size_t i = 1; i < first->n; i++) first->at[i] += first->at[i - 1];
}

static void shift_back(U32Vec *first) {
  for (size_t i = first->n - 1; i > 0; i--) first->at[i] = first->at[i - 1];
  first->at[0] = 0;
}

static bool fill_zero(U32Vec *v, size_t n) {
  if (!vec_reserve(v, n)) return false;
  memset(v->at, 0, n * sizeof *v->at);
  v->n = n;
  return true;
}

static PiperStatus deal_nodes(Lower *w) {
  const Plan *plan = w->plan;
  bool *works = malloc(plan->n_order + 1);
  PiperStatus st = works != NULL ? PIPER_OK : nomem(w);
  for (uint32_t k = 0; st == PIPER_OK && k < plan->n_order; k++) {
    st = interrupt_check_at(k, w->err);
    if (st == PIPER_OK) st = look_at_node(w, plan->order[k], &works[k]);
  }
  w->n_sets = devsets_count(w->dag->devsets);
  if (st == PIPER_OK && !fill_zero(&w->set_first, w->n_sets + 1)) st = nomem(w);
  for (uint32_t k = 0; st == PIPER_OK && k < plan->n_order; k++)
    if (works[k]) deal(w, k, true);
  if (st == PIPER_OK) {
    sum_up(&w->set_first);
    if (!fill_zero(&w->set_places, w->set_first.at[w->n_sets] + 1)) st = nomem(w);
  }
  for (uint32_t k = 0; st == PIPER_OK && k < plan->n_order; k++)
    if (works[k]) deal(w, k, false);
  if (st == PIPER_OK) shift_back(&w->set_first);
  free(works);
  return st;
}

/* Of each rank the device sets that have nodes. */
static PiperStatus deal_sets(Lower *w) {
  const Plan *plan = w->plan;
  const DevSets *sets = w->dag->devsets;
  if (!fill_zero(&w->rank_first, plan->n_ranks + 1)) return nomem(w);
  for (int filling = 0; filling < 2; filling++) {
    for (uint32_t s = 1; s < w->n_sets; s++) {
      if (w->set_first.at[s] == w->set_first.at[s + 1]) continue;
      for (uint32_t j = 0; j < devsets_size(sets, s); j++) {
        const int32_t at = devsets_position(sets, plan->world, devsets_ranks(sets, s)[j]);
        if (at < 0) return err_set(w->err, PIPER_EBUG, "lower: a rank outside the world");
        if (!filling) w->rank_first.at[at + 1]++;
        else w->rank_sets.at[w->rank_first.at[at]++] = s;
      }
    }
    if (filling) break;
    sum_up(&w->rank_first);
    if (!fill_zero(&w->rank_sets, w->rank_first.at[plan->n_ranks] + 1)) return nomem(w);
  }
  shift_back(&w->rank_first);
  return PIPER_OK;
}

/* Two ascending runs become one; what is in both is there once. */
static bool merge_runs(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b, U32Vec *out) {
  if (!vec_reserve(out, n_a + n_b)) return false;
  size_t i = 0, j = 0, n = out->n;
  while (i < n_a || j < n_b) {
    const bool from_a = j == n_b || (i < n_a && a[i] <= b[j]);
    if (from_a && j < n_b && a[i] == b[j]) j++;
    out->at[n++] = from_a ? a[i++] : b[j++];
  }
  out->n = n;
  return true;
}

/* Fills 'places' with those of the rank's nodes, ascending: the lists of its sets, merged two by two. */
static PiperStatus find_places(Lower *w, uint32_t index) {
  w->places.n = w->runs.n = 0;
  for (uint32_t k = w->rank_first.at[index]; k < w->rank_first.at[index + 1]; k++) {
    const uint32_t s = w->rank_sets.at[k], first = w->set_first.at[s];
    const size_t n = w->set_first.at[s + 1] - first;
    if (!vec_push(&w->runs, (uint32_t)w->places.n) || !vec_reserve(&w->places, n)) return nomem(w);
    memcpy(w->places.at + w->places.n, w->set_places.at + first, n * sizeof *w->places.at);
    w->places.n += n;
  }
  if (!vec_push(&w->runs, (uint32_t)w->places.n)) return nomem(w);
  while (w->runs.n > 2) {
    size_t n_runs = 0;
    w->merged.n = 0;
    for (size_t k = 0; k + 1 < w->runs.n; k += 2) {
      const uint32_t a = w->runs.at[k], b = w->runs.at[k + 1];
      const uint32_t end = k + 2 < w->runs.n ? w->runs.at[k + 2] : b;
      const uint32_t begin = (uint32_t)w->merged.n;
      if (!merge_runs(w->places.at + a, b - a, w->places.at + b, end - b, &w->merged))
        return nomem(w);
      w->runs.at[n_runs++] = begin;
    }
    w->runs.at[n_runs++] = (uint32_t)w->merged.n;
    w->runs.n = n_runs;
    const U32Vec t = w->places;
    w->places = w->merged;
    w->merged = t;
  }
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

uint32_t plan_stream(Plan *plan, uint32_t name, char direction, int32_t from, int32_t to) {
  const Lower *w = plan->lowering;
  if (plan->options.single_stream) return intern_id(w->dag->names, "all");
  if ((w->carries[name] & ~CARRIES_TRANSFERS) != 0 || direction == 0) return name;
  char few[128], *text = few;
  const char *base = intern_text(w->dag->names, name);
  const size_t size = strlen(base) + 32;
  if (size > sizeof few && (text = malloc(size)) == NULL) return 0;
  snprintf(text, size, "%s/%c/%d>%d", base, direction, from, to);
  const uint32_t id = intern_id(w->dag->names, text);
  if (text != few) free(text);
  return id;
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
  const uint32_t text = plan_stream(w->plan, name, direction, from, to);
  if (text == 0) return nomem(w);
  const bool compute = name == 0 || (w->carries[name] & CARRIES_COMPUTE) != 0;
  const PlanStream s = {.name = intern_text(w->dag->names, text),
                        .kind = compute ? STREAM_COMPUTE : STREAM_COMM};
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
    *is_first = node != 0 ? w->full_written[node] != w->serial : !w->grads_written[bucket];
    if (node != 0) w->full_written[node] = w->serial;
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
  const bool written = grads->role == BUFFER_FULL_GRADS ? w->full_written[grads->slot] == w->serial
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
  const NodeShare all = dag_share(d, (NodeId){n}, x->pos);
  Exchange exchange;
  if (!node_exchange(d, (NodeId){n}, w->plan->options.dtype, &exchange))
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
  Instr i = {.kind = INSTR_ALL_TO_ALL,
             .node = n,
             .dtype = (uint8_t)w->plan->options.dtype,
             .group = node_exchange_group(w->dag, (NodeId){n}, x->pos / parts),
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

static PiperStatus lower_piece(Lower *w, uint32_t n, const Piece *x) {
  const Dag *d = w->dag;
  const Tensor *t = &d->tensors.at[d->tensor[n]];
  const bool grad = t->kind == TENSOR_GRAD, send = x->from == w->rank->rank;
  Entry e = {.role = grad ? BUFFER_GRAD : BUFFER_VALUE,
             .id = d->tensor[n],
             .lo = x->lo,
             .hi = x->hi,
             .per_sample = value_bytes_per_sample(w, t->value)};
  if (e.per_sample == 0)
    e.bytes = value_whole_bytes(w->plan->graph, t->value, w->plan->options.dtype);
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

static PiperStatus lower_transfer(Lower *w, const Item *x) {
  const Dag *d = w->dag;
  const NodeId n = {x->node};
  if (!transfer_possible(d, n)) {
    char label[160];
    dag_label(d, n, label, sizeof label);
    return err_set(w->err, PIPER_EUSER,
                   "%s: %s: a value without a batch axis has no parts, so the chunks that compute "
                   "and read it need as many devices and microbatches as each other",
                   dag_line(d, d->line[n.i]), label);
  }
  if (!transfer_pieces(d, n, x->src_pos, x->pos, &w->pieces)) return nomem(w);
  for (size_t k = 0; k < w->pieces.n; k++) TRY(lower_piece(w, n.i, &w->pieces.at[k]));
  return PIPER_OK;
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

static PiperStatus lower_nodes(Lower *w) {
  const Dag *d = w->dag;
  for (size_t k = 0; k < w->places.n; k++) {
    TRY(interrupt_check_at(k, w->err));
    const uint32_t n = w->plan->order[w->places.at[k]];
    const bool transfer = d->kind[n] == NODE_TRANSFER;
    const Item x = {n, w->pos[d->devs[n]], transfer ? w->pos[d->src_devs[n]] : NONE};
    TRY(lower_item(w, &x));
  }
  return PIPER_OK;
}

static void set_positions(Lower *w, uint32_t index, bool none) {
  for (uint32_t k = w->rank_first.at[index]; k < w->rank_first.at[index + 1]; k++) {
    const uint32_t s = w->rank_sets.at[k];
    w->pos[s] = none ? NONE : (uint32_t)devsets_position(w->dag->devsets, s, w->rank->rank);
  }
}

static PiperStatus lower_rank(Lower *w, uint32_t index) {
  w->rank = &w->plan->ranks[index];
  w->serial++;
  w->entries.n = 0;
  w->keys.n = 0;
  for (size_t i = 0; i < w->touched.n; i++) w->heads.at[w->touched.at[i]] = 0;
  w->touched.n = 0;
  if (w->n_slots > 0) memset(w->slots, 0, w->n_slots * sizeof *w->slots);
  memset(w->grads_written, 0, w->dag->buckets.n);
  if (w->first_instr != NULL) memset(w->first_instr, 0xff, w->dag->n * sizeof *w->first_instr);
  TRY(add_state(w));
  TRY(find_places(w, index));
  set_positions(w, index, false);
  const PiperStatus st = lower_nodes(w);
  set_positions(w, index, true);
  TRY(st);
  TRY(add_scratch(w));
  TRY(make_buffers(w));
  return make_waits(w);
}

static PiperStatus begin_all(Lower *w) {
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
  TRY(deal_nodes(w));
  TRY(deal_sets(w));
  w->pos = malloc((w->n_sets + 1) * sizeof *w->pos);
  if (w->pos == NULL) return nomem(w);
  memset(w->pos, 0xff, (w->n_sets + 1) * sizeof *w->pos);
  w->n_tensors = (uint32_t)w->dag->tensors.n; /* the programs have interned theirs */
  for (uint32_t i = 0; i <= w->dag->n; i++)
    if (!vec_push(&w->later_first, 0)) return nomem(w);
  TRY(collect_temporal(w));
  return collect_links(w);
}

PiperStatus plan_lower_begin(Plan *plan, PiperErr *err) {
  plan_lower_end(plan);
  Lower *w = calloc(1, sizeof *w);
  if (w == NULL) return err_nomem(err, "the plan");
  w->plan = plan;
  w->dag = plan->dag;
  w->err = err;
  w->float_bytes = dtype_bytes(plan->options.dtype);
  plan->lowering = w;
  if (plan->arena == NULL && (plan->arena = arena_new()) == NULL) return nomem(w);
  return begin_all(w);
}

PiperStatus plan_lower_rank(Plan *plan, uint32_t index, PiperErr *err) {
  TRY(interrupt_check(err));
  plan->lowering->err = err;
  return lower_rank(plan->lowering, index);
}

void plan_lower_end(Plan *plan) {
  Lower *w = plan->lowering;
  plan->lowering = NULL;
  if (w == NULL) return;
  free(w->node_program), free(w->carries), free(w->pos);
  free(w->slots), free(w->grads_written), free(w->full_written), free(w->kept);
  free(w->first_instr), free(w->table_slots);
  vec_free(&w->set_first), vec_free(&w->set_places), vec_free(&w->rank_first);
  vec_free(&w->rank_sets), vec_free(&w->places), vec_free(&w->merged), vec_free(&w->runs);
  vec_free(&w->tables), vec_free(&w->links), vec_free(&w->link_first);
  vec_free(&w->calls), vec_free(&w->pieces);
  vec_free(&w->bounds), vec_free(&w->program_bounds), vec_free(&w->later_first),
      vec_free(&w->later);
  vec_free(&w->entries), vec_free(&w->heads), vec_free(&w->touched), vec_free(&w->past);
  vec_free(&w->past_head), vec_free(&w->keys), vec_free(&w->order);
  free(w);
}

PiperStatus plan_lower(Plan *plan, PiperErr *err) {
  TRY(plan_lower_begin(plan, err));
  for (uint32_t i = 0; i < plan->n_ranks; i++) TRY(plan_lower_rank(plan, i, err));
  return PIPER_OK;
}
