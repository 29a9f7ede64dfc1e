/* pass_zero - an ALL_GATHER for each pass that reads parameters which are divided in its group.
 *
 * requires  buckets, and every order of compute nodes that a directive asks for
 * ensures   a compute node whose program reads such a bucket gets it from one ALL_GATHER over its
 *           group. One gather serves several neighbouring uses of a bucket on the same devices where
 *           nothing is gained by dropping it in between. A gather follows, by a temporal edge, the
 *           compute node that lies 'prefetch' + 1 before its first use
 * breaks    nothing
 * on error  the DAG may be half rewritten: drop it
 *
 * What lies between two uses is known only from an order of all compute nodes. Where directives leave
 * it open, it is the one that list scheduling gives without the gathers, and temporal edges keep it.
 *
 * Dropping a bucket between two uses gains something only if more is alive at the peak otherwise. For
 * each device set what its compute nodes keep alive is added up, in their order: values, gradients,
 * what backward passes need, workspaces, accumulated gradients, and the gathered buckets, each from
 * 'prefetch' before its first use to its last. Pairs of neighbouring uses are then joined, those with
 * the least in between first, as long as nothing gets above the peak without joining, or above that
 * by more than the bucket's keep_bytes. (What plan_mem makes of it differs by what transfers and
 * reductions hold while they are under way.) */
#include "base/hash.h"
#include "ir/bucket.h"
#include "ir/cost.h"
#include "ir/global_order.h"
#include "passes/pass.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* A compute node that has something to do, in its device set's sequence. */
typedef struct Step {
  uint32_t node, program;
  uint32_t use_first, n_uses; /* what it reads of divided buckets: into 'uses' */
} Step;

/* A bucket that the step at 'at' reads; the gather that brings it begins or ends here. */
typedef struct Use {
  uint32_t bucket, group;
  uint32_t parts; /* of experts that are spread: as many devices share the buckets of a step */
  uint32_t at;    /* index of its step */
  uint32_t next;  /* the bucket's next use in the sequence; NONE */
  bool joined;    /* the gather of this use serves the next one as well */
  NodeId gather;
} Use;

/* Two neighbouring uses with something in between. */
typedef struct Gap {
  uint32_t use;
  uint32_t lo, hi; /* steps [lo, hi) that joining adds the bucket to */
} Gap;

/* Bytes that are alive from a step on to another. */
typedef struct Life {
  uint64_t key[3];
  uint32_t first, last;
  uint64_t bytes;
} Life;

typedef struct Zero {
  Dag *d;
  Programs *programs;
  size_t float_bytes;
  uint32_t *order, n_order;
  uint32_t *reads; /* by node: 1 + its program, if it has something to do */
  /* Of the device set at hand: */
  VEC(Step) steps;
  VEC(Use) uses;
  uint32_t *last_use; /* by bucket: 1 + index into uses */
  VEC(Gap) gaps;
  VEC(Life) lives;
  uint32_t *slots, n_slots; /* hash table of lives */
  uint64_t *alive;          /* by step: bytes */
  PiperErr *err;
} Zero;

static PiperStatus nomem(const Zero *w) { return err_nomem(w->err, "zero"); }

static uint64_t bucket_bytes(const Zero *w, uint32_t b) {
  return (uint64_t)w->d->buckets.at[b].elements * w->float_bytes;
}

/* Of one device; those of experts that are spread are taken to be alike. */
static uint64_t use_bytes(const Zero *w, const Use *use) {
  return bucket_bytes(w, use->bucket) / use->parts;
}

/* ---- the order of compute nodes -------------------------------------------------------------- */

static PiperStatus find_order(Zero *w, const PassOptions *opt) {
  const Dag *d = w->d;
  const CostTable *table = opt->cost != NULL ? opt->cost : &COST_CPU;
  double *seconds = calloc(d->n, sizeof *seconds);
  GlobalOrder order = {0};
  if (seconds == NULL) return nomem(w);
  for (uint32_t n = 1; n < d->n; n++) /* norms and updates come after all that matters here */
    if (d->kind[n] == NODE_COMPUTE || NODE_KIND_COMMUNICATES[d->kind[n]])
      seconds[n] = cost_node(table, w->programs, d, (NodeId){n});
  const PiperStatus st = global_order(d, seconds, opt->order_rule, &order, w->err);
  free(seconds);
  w->order = order.order;
  w->n_order = order.n;
  free(order.start);
  return st;
}

/* Programs of a node: of experts that are spread, one for each part. */
static uint32_t parts_of(const Dag *d, uint32_t n) { return d->parts[n] > 1 ? d->parts[n] : 1; }

static PiperStatus find_programs(Zero *w) {
  const Dag *d = w->d;
  w->reads = calloc(d->n, sizeof *w->reads);
  if (w->reads == NULL) return nomem(w);
  for (uint32_t n = 1; n < d->n; n++) {
    if (d->kind[n] != NODE_COMPUTE) continue;
    for (uint32_t part = 0; part < parts_of(d, n); part++) {
      uint32_t id;
      TRY(programs_node(w->programs, (NodeId){n}, part, &id, w->err));
      if (programs_at(w->programs, id)->n_calls > 0) w->reads[n] = id;
    }
  }
  return PIPER_OK;
}

static PiperStatus add_program_uses(Zero *w, uint32_t at, uint32_t part) {
  const Dag *d = w->d;
  const NodeId n = {w->steps.at[at].node};
  uint32_t id;
  TRY(programs_node(w->programs, n, part, &id, w->err));
  const Program *p = programs_at(w->programs, id);
  for (uint32_t k = 0; k < p->n_bindings; k++) {
    const Binding *b = &p->bindings[k];
    if (b->kind != BIND_PARAM || d->buckets.at[b->bucket.i].zero != ZERO_PARAMS) continue;
    const BucketPlace place = bucket_place(d, b->bucket, bucket_first_user(d, b->bucket, n));
    if (place.group == BUCKET_NOT_HELD || place.size == 1) continue;
    uint32_t *last = &w->last_use[b->bucket.i];
    if (*last != 0) w->uses.at[*last - 1].next = (uint32_t)w->uses.n;
    const Use use = {.bucket = b->bucket.i,
                     .group = place.group,
                     .parts = parts_of(d, n.i),
                     .at = at,
                     .next = NONE};
    if (!vec_push(&w->uses, use)) return nomem(w);
    *last = (uint32_t)w->uses.n;
  }
  return PIPER_OK;
}

static PiperStatus add_uses(Zero *w, uint32_t at) {
  Step *step = &w->steps.at[at];
  step->use_first = (uint32_t)w->uses.n;
  for (uint32_t part = 0; part < parts_of(w->d, step->node); part++)
    TRY(add_program_uses(w, at, part));
  step->n_uses = (uint32_t)w->uses.n - step->use_first;
  return PIPER_OK;
}

/* ---- what is alive --------------------------------------------------------------------------- */

static uint32_t *life_slot(const Zero *w, const uint64_t key[3]) {
  uint32_t i = (uint32_t)hash_of(key, 3 * sizeof *key) & (w->n_slots - 1);
  while (w->slots[i] != 0 && memcmp(w->lives.at[w->slots[i] - 1].key, key, 3 * sizeof *key) != 0)
    i = (i + 1) & (w->n_slots - 1);
  return &w->slots[i];
}

/* The buffer of this name is alive at a step, and between that and others. */
static PiperStatus live(Zero *w, const uint64_t key[3], uint32_t at, uint64_t bytes) {
  if (2 * (w->lives.n + 1) > w->n_slots) {
    const uint32_t n = w->n_slots == 0 ? 256 : 2 * w->n_slots;
    uint32_t *slots = calloc(n, sizeof *slots);
    if (slots == NULL) return nomem(w);
    free(w->slots);
    w->slots = slots;
    w->n_slots = n;
    for (uint32_t k = 0; k < w->lives.n; k++) *life_slot(w, w->lives.at[k].key) = k + 1;
  }
  uint32_t *slot = life_slot(w, key);
  if (*slot == 0) {
    const Life x = {{key[0], key[1], key[2]}, at, at, bytes};
    if (!vec_push(&w->lives, x)) return nomem(w);
    *slot = (uint32_t)w->lives.n;
    return PIPER_OK;
  }
  Life *x = &w->lives.at[*slot - 1];
  x->last = at;
  if (x->bytes < bytes) x->bytes = bytes;
  return PIPER_OK;
}

static PiperStatus live_bindings(Zero *w, uint32_t at) {
  const Dag *d = w->d;
  const Step *step = &w->steps.at[at];
  const uint32_t n = step->node;
  const Program *p = programs_at(w->programs, step->program);
  for (uint32_t k = 0; k < p->n_bindings; k++) {
    const Binding *b = &p->bindings[k];
    uint64_t key[3] = {b->kind, (uint64_t)d->lo[n] << 32 ^ (uint64_t)d->hi[n], 0};
    uint64_t bytes = b->bytes;
    switch ((BindKind)b->kind) {
    case BIND_WORKSPACE:
      key[2] = at;
      break;
    case BIND_SAVED_I:
    case BIND_SAVED_W:
    case BIND_KEPT:
      key[2] = d->chunk[n];
      break;
    case BIND_VALUE:
    case BIND_GRAD:
      key[2] = (uint64_t)b->value.i << 32 | b->chunk.i;
      break;
    case BIND_PGRAD:
      if (!bucket_sums_apart(&d->buckets.at[b->bucket.i])) continue;
      bytes = bucket_bytes(w, b->bucket.i);
      key[1] = d->buckets.at[b->bucket.i].per_microbatch ? 1 + (uint64_t)at : 0;
      key[2] = b->bucket.i;
      break;
    case BIND_INPUT:
    case BIND_PARAM:
    case BIND_STATE:
    case BIND_METRICS:
    case BIND_COUNTS:
      continue;
    }
    TRY(live(w, key, at, bytes));
  }
  return PIPER_OK;
}

/* The first step at which what a use needs is gathered. */
static uint32_t begin_of(const Zero *w, const Use *use) {
  const uint32_t prefetch = w->d->buckets.at[use->bucket].prefetch;
  return use->at > prefetch ? use->at - prefetch : 0;
}

static PiperStatus add_up(Zero *w) {
  const uint32_t n = (uint32_t)w->steps.n;
  free(w->alive);
  w->alive = calloc((size_t)n + 1, sizeof *w->alive);
  if (w->alive == NULL) return nomem(w);
  w->lives.n = 0;
  if (w->n_slots > 0) memset(w->slots, 0, w->n_slots * sizeof *w->slots);
  for (uint32_t at = 0; at < n; at++) TRY(live_bindings(w, at));
  for (size_t k = 0; k < w->lives.n; k++) { /* differences, modulo 2^64 */
    w->alive[w->lives.at[k].first] += w->lives.at[k].bytes;
    w->alive[w->lives.at[k].last + 1] -= w->lives.at[k].bytes;
  }
  for (size_t u = 0; u < w->uses.n; u++) {
    const Use *use = &w->uses.at[u];
    uint32_t end = use->at + 1;
    if (use->next != NONE && begin_of(w, &w->uses.at[use->next]) < end)
      end = begin_of(w, &w->uses.at[use->next]); /* there it is counted for the next use */
    w->alive[begin_of(w, use)] += use_bytes(w, use);
    w->alive[end] -= use_bytes(w, use);
  }
  for (uint32_t at = 0; at < n; at++) w->alive[at + 1] += w->alive[at];
  return PIPER_OK;
}

/* ---- joining uses ---------------------------------------------------------------------------- */

static int by_length(const void *a, const void *b) {
  const Gap *x = a, *y = b;
  if (x->hi - x->lo != y->hi - y->lo) return x->hi - x->lo < y->hi - y->lo ? -1 : 1;
  return (x->use > y->use) - (x->use < y->use);
}

static PiperStatus join_uses(Zero *w) {
  uint64_t peak = 0;
  w->gaps.n = 0;
  for (uint32_t at = 0; at < w->steps.n; at++)
    if (w->alive[at] > peak) peak = w->alive[at];
  for (uint32_t u = 0; u < w->uses.n; u++) {
    Use *use = &w->uses.at[u];
    if (use->next == NONE) continue;
    const Gap gap = {u, use->at + 1, begin_of(w, &w->uses.at[use->next])};
    if (gap.hi <= gap.lo) use->joined = true; /* it is there anyway */
    else if (!vec_push(&w->gaps, gap)) return nomem(w);
  }
  if (w->gaps.n > 0) qsort(w->gaps.at, w->gaps.n, sizeof *w->gaps.at, by_length);
  for (size_t k = 0; k < w->gaps.n; k++) {
    const Gap *gap = &w->gaps.at[k];
    Use *use = &w->uses.at[gap->use];
    const uint64_t bytes = use_bytes(w, use);
    const uint64_t limit = peak + (uint64_t)w->d->buckets.at[use->bucket].keep_bytes;
    bool fits = true;
    for (uint32_t at = gap->lo; fits && at < gap->hi; at++) fits = w->alive[at] + bytes <= limit;
    if (!fits) continue;
    for (uint32_t at = gap->lo; at < gap->hi; at++) w->alive[at] += bytes;
    use->joined = true;
  }
  return PIPER_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* The gather that use 'u' is the first one of. */
static PiperStatus add_gather(Zero *w, uint32_t u) {
  Dag *d = w->d;
  const Use *use = &w->uses.at[u];
  const Bucket bucket = d->buckets.at[use->bucket];
  const uint32_t node = w->steps.at[use->at].node;
  const BucketId b = {use->bucket};
  const TensorId params = dag_tensor(d, (Tensor){.kind = TENSOR_PARAMS, .bucket = b});
  const NodeId n = dag_add_node(d, NODE_ALL_GATHER, bucket.line);
  if (n.i == 0 || params.i == 0) return nomem(w);
  d->bucket[n.i] = use->bucket;
  d->tensor[n.i] = params.i;
  d->devs[n.i] = bucket_group(d, b, use->group);
  d->stream[n.i] = bucket.gather_stream;
  d->chunk[n.i] = d->chunk[node];
  d->pass[n.i] = d->pass[node];
  d->mb[n.i] = d->mb[node];
  d->tags[n.i] = d->tags[node];
  if (use->at > bucket.prefetch) {
    const NodeId before = {w->steps.at[use->at - bucket.prefetch - 1].node};
    if (dag_add_temporal(d, before, n, bucket.line).i == 0) return nomem(w);
  }
  for (uint32_t k = u; k != NONE; k = w->uses.at[k].joined ? w->uses.at[k].next : NONE) {
    Use *served = &w->uses.at[k];
    served->gather = n;
    if (dag_add_edge(d, n, (NodeId){w->steps.at[served->at].node}, params).i == 0) return nomem(w);
  }
  return PIPER_OK;
}

/* Compute nodes whose order no directive says stay in the one found. */
static PiperStatus keep_order(Zero *w) {
  Dag *d = w->d;
  for (uint32_t at = 1; at < w->steps.n; at++) {
    const NodeId a = {w->steps.at[at - 1].node}, b = {w->steps.at[at].node};
    const bool ordered = d->order_of[a.i] != 0 && d->order_of[a.i] == d->order_of[b.i] &&
                         d->group[a.i] != d->group[b.i];
    if (!ordered && dag_add_temporal(d, a, b, d->line[b.i]).i == 0) return nomem(w);
  }
  return PIPER_OK;
}

/* The compute nodes on one device set. */
static PiperStatus gather_on(Zero *w, const uint32_t *nodes, uint32_t n) {
  w->steps.n = w->uses.n = 0;
  memset(w->last_use, 0, w->d->buckets.n * sizeof *w->last_use);
  for (uint32_t k = 0; k < n; k++) {
    if (!vec_push(&w->steps, ((Step){.node = nodes[k], .program = w->reads[nodes[k]]})))
      return nomem(w);
    TRY(add_uses(w, k));
  }
  if (w->uses.n == 0) return PIPER_OK;
  TRY(add_up(w));
  TRY(join_uses(w));
  for (uint32_t u = 0; u < w->uses.n; u++)
    if (w->uses.at[u].gather.i == 0) TRY(add_gather(w, u));
  return keep_order(w);
}

/* Device set after device set, each with its nodes in order. */
static PiperStatus gather_all(Zero *w) {
  const Dag *d = w->d;
  const uint32_t n_sets = devsets_count(d->devsets), n = d->n;
  uint32_t *first = calloc((size_t)n_sets + 1, sizeof *first);
  uint32_t *nodes = malloc(n * sizeof *nodes);
  w->last_use = calloc(d->buckets.n, sizeof *w->last_use);
  PiperStatus st = first == NULL || nodes == NULL || w->last_use == NULL ? nomem(w) : PIPER_OK;
  if (st == PIPER_OK) { /* counts become ends, filling makes them starts */
    for (uint32_t i = 1; i < n; i++)
      if (w->reads[i] != 0) first[d->devs[i]]++;
    for (uint32_t s = 1; s <= n_sets; s++) first[s] += first[s - 1];
    for (uint32_t k = w->n_order; k-- > 0;)
      if (w->reads[w->order[k]] != 0) nodes[--first[d->devs[w->order[k]]]] = w->order[k];
  }
  for (uint32_t s = 1; st == PIPER_OK && s < n_sets; s++)
    st = gather_on(w, nodes + first[s], first[s + 1] - first[s]);
  free(first);
  free(nodes);
  return st;
}

static bool any_divided(const Dag *d) {
  for (uint32_t b = 1; b < d->buckets.n; b++) {
    if (d->buckets.at[b].zero != ZERO_PARAMS) continue;
    for (uint32_t k = 0; k < bucket_n_groups(d, (BucketId){b}); k++)
      if (devsets_size(d->devsets, bucket_group(d, (BucketId){b}, k)) > 1) return true;
  }
  return false;
}

PiperStatus pass_zero(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  (void)s;
  if (!any_divided(d)) return PIPER_OK;
  Zero w = {.d = d, .float_bytes = opt->float_bytes, .err = err};
  const ProgramSpec spec = {.dag = d, .dtype = opt->float_bytes == 8 ? DT_F64 : DT_F32};
  PiperStatus st = programs_new(&spec, &w.programs, err);
  if (st == PIPER_OK) st = find_programs(&w);
  if (st == PIPER_OK) st = find_order(&w, opt);
  if (st == PIPER_OK) st = gather_all(&w);
  programs_free(w.programs);
  free(w.order), free(w.reads), free(w.last_use), free(w.slots), free(w.alive);
  vec_free(&w.steps), vec_free(&w.uses), vec_free(&w.gaps), vec_free(&w.lives);
  return st;
}
