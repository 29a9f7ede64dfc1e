/* The first step of the proof, and the frame around all of them. */
#include "plan/verify.h"

#include "base/interrupt.h"
#include "ir/bucket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  MAX_KEPT_BYTES = 1 << 30, /* of lists that the proof leaves for a run */
  PROOF_BYTES = 100         /* of the steps' tables, an instruction; about */
};

Label verify_label(const Verifier *v, uint32_t rank_index, uint32_t instr) {
  Label l;
  plan_instr_label(v->plan, &v->plan->ranks[rank_index], instr, l.text, sizeof l.text);
  return l;
}

Label verify_buffer(const Verifier *v, uint32_t rank_index, uint32_t buffer) {
  Label l;
  plan_buffer_label(v->plan, &v->plan->ranks[rank_index], buffer, l.text, sizeof l.text);
  return l;
}

PiperStatus verify_fault(Verifier *v, const char *fmt, ...) {
  char text[PIPER_ERR_TEXT];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return err_set(v->err, PIPER_EBUG, "plan: %s", text);
}

PiperStatus verify_nomem(Verifier *v) { return err_nomem(v->err, "the proof of the plan"); }

/* ---- buffers --------------------------------------------------------------------------------- */

static bool known_id(const Plan *p, const Buffer *b) {
  switch ((BufferRole)b->role) {
  case BUFFER_PARAMS:
  case BUFFER_GRADS:
  case BUFFER_STATE:
  case BUFFER_FULL_PARAMS:
  case BUFFER_FULL_GRADS:
    return b->id > 0 && b->id < p->dag->buckets.n;
  case BUFFER_INPUT:
    return b->id < p->graph->inputs.n;
  case BUFFER_VALUE:
  case BUFFER_GRAD:
    return b->id > 0 && b->id < p->dag->tensors.n &&
           p->dag->tensors.at[b->id].kind == (b->role == BUFFER_VALUE ? TENSOR_VALUE : TENSOR_GRAD);
  case BUFFER_SAVED_I:
  case BUFFER_SAVED_W:
  case BUFFER_KEPT:
  case BUFFER_WORKSPACE:
  case BUFFER_COUNTS:
    return b->id < p->graph->chunks.n;
  case BUFFER_STEP:
  case BUFFER_METRICS:
  case BUFFER_SCRATCH:
    return true;
  }
  return false;
}

typedef struct Extent {
  uint64_t lo, hi;
  uint32_t buffer;
} Extent;

static int by_address(const void *a, const void *b) {
  const Extent *x = a, *y = b;
  if (x->lo != y->lo) return x->lo < y->lo ? -1 : 1;
  return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

/* What lives through the step has its bytes for itself. */
static PiperStatus check_whole_step(Verifier *v, uint32_t index, Extent *at) {
  const RankPlan *r = &v->plan->ranks[index];
  uint32_t n = 0;
  for (uint32_t k = 0; k < r->buffers.n; k++) {
    const Buffer *b = &r->buffers.at[k];
    if (b->whole_step && b->bytes > 0) at[n++] = (Extent){b->offset, b->offset + b->bytes, k};
  }
  if (n > 0) qsort(at, n, sizeof *at, by_address);
  for (uint32_t k = 1; k < n; k++)
    if (at[k - 1].hi > at[k].lo)
      return verify_fault(v, "rank %d: %s and %s overlap", r->rank,
                          verify_buffer(v, index, at[k - 1].buffer).text,
                          verify_buffer(v, index, at[k].buffer).text);
  for (uint32_t k = 0; k < r->buffers.n; k++) {
    const Buffer *b = &r->buffers.at[k];
    if (b->whole_step || b->bytes == 0) continue;
    uint32_t lo = 0, hi = n; /* the first whole-step buffer that ends behind b's start */
    while (lo < hi) {
      const uint32_t mid = (lo + hi) / 2;
      if (at[mid].hi > b->offset) hi = mid;
      else lo = mid + 1;
    }
    if (lo < n && at[lo].lo < b->offset + b->bytes)
      return verify_fault(v, "rank %d: %s lies on %s, which lives through the step", r->rank,
                          verify_buffer(v, index, k).text,
                          verify_buffer(v, index, at[lo].buffer).text);
  }
  return PIPER_OK;
}

/* A rank keeps of a bucket what ir/bucket.h says. */
static PiperStatus check_elements(Verifier *v, uint32_t index, uint32_t k) {
  const Plan *p = v->plan;
  const RankPlan *r = &p->ranks[index];
  const Buffer *b = &r->buffers.at[k];
  const BucketId id = {b->id};
  Share want = {0, p->dag->buckets.at[b->id].elements};
  if (bucket_place(p->dag, id, r->rank).group == BUCKET_NOT_HELD)
    return verify_fault(v, "rank %d has %s, a bucket that it does not hold", r->rank,
                        verify_buffer(v, index, k).text);
  if (b->role == BUFFER_PARAMS) want = bucket_params_kept(p->dag, id, r->rank);
  if (b->role == BUFFER_GRADS) want = bucket_grads_kept(p->dag, id, r->rank);
  if (b->role == BUFFER_STATE) want = bucket_updated(p->dag, id, r->rank);
  const uint64_t bytes = (uint64_t)share_size(want) * dtype_bytes(p->options.dtype);
  if (b->lo == want.lo && b->hi == want.hi && b->bytes == bytes) return PIPER_OK;
  return verify_fault(v,
                      "rank %d: %s has elements [%lld, %lld) in %llu bytes instead of "
                      "[%lld, %lld) in %llu",
                      r->rank, verify_buffer(v, index, k).text, (long long)b->lo, (long long)b->hi,
                      (unsigned long long)b->bytes, (long long)want.lo, (long long)want.hi,
                      (unsigned long long)bytes);
}

static PiperStatus check_buffers(Verifier *v, uint32_t index) {
  const RankPlan *r = &v->plan->ranks[index];
  for (uint32_t k = 0; k < r->buffers.n; k++) {
    const Buffer *b = &r->buffers.at[k];
    if (!known_id(v->plan, b) || b->category >= MEM_COUNT)
      return verify_fault(v, "rank %d: buffer %u is of no known kind", r->rank, k);
    const bool shared = r->shared_bytes > 0 && b->role == BUFFER_PARAMS;
    const uint64_t end = r->arena_bytes + (shared ? r->shared_bytes : 0);
    if (b->bytes > end || b->offset > end - b->bytes || (shared && b->offset < r->arena_bytes))
      return verify_fault(v, "rank %d: %s ends at byte %llu, outside the arena of %llu bytes",
                          r->rank, verify_buffer(v, index, k).text,
                          (unsigned long long)(b->offset + b->bytes),
                          (unsigned long long)r->arena_bytes);
    if (buffer_is_of_bucket(b->role)) TRY(check_elements(v, index, k));
    if ((b->role == BUFFER_STEP && b->offset != r->step_offset) ||
        (b->role == BUFFER_METRICS && b->offset != r->metrics_offset) ||
        (b->role == BUFFER_SCRATCH &&
         (b->offset != r->scratch_offset || b->bytes != r->scratch_bytes)))
      return verify_fault(v, "rank %d: the %s is not where the plan says", r->rank,
                          verify_buffer(v, index, k).text);
  }
  Extent *at = malloc((r->buffers.n + 1) * sizeof *at);
  if (at == NULL) return verify_nomem(v);
  const PiperStatus st = check_whole_step(v, index, at);
  free(at);
  return st;
}

/* ---- instructions ---------------------------------------------------------------------------- */

static bool in_range(uint64_t first, uint64_t n, uint64_t size) {
  return n <= size && first <= size - n;
}

static PiperStatus check_lists(Verifier *v, uint32_t index, uint32_t i) {
  const RankPlan *r = &v->plan->ranks[index];
  const Instr *x = &r->instrs.at[i];
  if (x->kind >= INSTR_KIND_COUNT || x->node == 0 || x->node >= v->plan->dag->n ||
      x->stream >= r->streams.n || !in_range(x->wait_first, x->n_waits, r->waits.n) ||
      !in_range(x->access_first, x->n_accesses, r->accesses.n))
    return verify_fault(v, "rank %d: instruction %u is malformed", r->rank, i);
  for (uint32_t k = x->wait_first; k < x->wait_first + x->n_waits; k++) {
    const uint32_t j = r->waits.at[k];
    if (j >= i)
      return verify_fault(v, "%s waits for an instruction that does not come before it",
                          verify_label(v, index, i).text);
    if (!r->instrs.at[j].signals)
      return verify_fault(v, "%s waits for %s, which signals nobody",
                          verify_label(v, index, i).text, verify_label(v, index, j).text);
  }
  for (uint32_t k = x->access_first; k < x->access_first + x->n_accesses; k++) {
    const Access *a = &r->accesses.at[k];
    if (a->buffer >= r->buffers.n)
      return verify_fault(v, "%s uses a buffer that is not there", verify_label(v, index, i).text);
    if (a->lo > a->hi || a->hi > r->buffers.at[a->buffer].bytes)
      return verify_fault(v, "%s uses bytes [%llu, %llu) of %s, which has %llu",
                          verify_label(v, index, i).text, (unsigned long long)a->lo,
                          (unsigned long long)a->hi, verify_buffer(v, index, a->buffer).text,
                          (unsigned long long)r->buffers.at[a->buffer].bytes);
  }
  return PIPER_OK;
}

/* The program that an instruction of a rank has to run; 0: no such instruction. */
static PiperStatus program_of(Verifier *v, int32_t rank, const Instr *x, uint32_t *id) {
  const Dag *d = v->plan->dag;
  Programs *p = v->plan->programs;
  const BucketId bucket = {d->bucket[x->node]};
  switch ((NodeKind)d->kind[x->node]) {
  case NODE_COMPUTE:
    return programs_node(p, (NodeId){x->node},
                         (uint32_t)devsets_position(d->devsets, d->devs[x->node], rank), id,
                         v->err);
  case NODE_COUNT: {
    const NodeShare s = dag_share(
        d, (NodeId){x->node}, (uint32_t)devsets_position(d->devsets, d->devs[x->node], rank));
    return programs_targets(p, (ChunkId){d->chunk[x->node]}, s.hi - s.lo, id, v->err);
  }
  case NODE_NORM:
    return programs_norm(p, bucket, bucket_updated(d, bucket, rank), id, v->err);
  case NODE_UPDATE:
    return programs_update(p, bucket, bucket_updated(d, bucket, rank), id, v->err);
  default:
    break;
  }
  *id = 0;
  return PIPER_OK;
}

static bool zeroes(const Program *p) {
  return p->n_bindings == 1 && p->bindings[0].kind == BIND_PGRAD &&
         p->bindings[0].access == BIND_WRITE;
}

/* 'spread': the program is of experts that are. */
static bool bound_to(const Plan *p, const Binding *b, ChunkId chunk, bool spread,
                     const Buffer *x) {
  switch ((BindKind)b->kind) {
  case BIND_WORKSPACE:
    return x->role == BUFFER_WORKSPACE;
  case BIND_SAVED_I:
    return x->role == BUFFER_SAVED_I && x->id == chunk.i;
  case BIND_SAVED_W:
    return x->role == BUFFER_SAVED_W && x->id == chunk.i;
  case BIND_KEPT:
    return x->role == BUFFER_KEPT && x->id == chunk.i;
  case BIND_METRICS:
    return x->role == BUFFER_METRICS;
  case BIND_COUNTS:
    return x->role == BUFFER_COUNTS && x->id == b->chunk.i;
  case BIND_PARAM:
    return (x->role == BUFFER_PARAMS || x->role == BUFFER_FULL_PARAMS) && x->id == b->bucket.i;
  case BIND_PGRAD:
    return (x->role == BUFFER_GRADS || x->role == BUFFER_FULL_GRADS) && x->id == b->bucket.i;
  case BIND_STATE:
    return x->role == BUFFER_STATE && x->id == b->bucket.i && x->slot == b->slot;
  case BIND_INPUT:
    return x->role == BUFFER_INPUT && x->id == graph_value(p->graph, b->value)->input;
  case BIND_VALUE:
    return x->role == BUFFER_VALUE && p->dag->tensors.at[x->id].value.i == b->value.i &&
           p->dag->tensors.at[x->id].spread == spread;
  case BIND_GRAD:
    return x->role == BUFFER_GRAD && p->dag->tensors.at[x->id].value.i == b->value.i &&
           p->dag->tensors.at[x->id].chunk.i == b->chunk.i &&
           p->dag->tensors.at[x->id].spread == spread;
  }
  return false;
}

/* What the binding names lies where the access says: samples [lo, hi), or elements of a bucket from
 * 'element' on. */
static bool right_samples(const Plan *p, const Binding *b, const Buffer *x, const Access *a,
                          int64_t lo, int64_t hi, int64_t element) {
  if (buffer_is_of_bucket(x->role))
    return x->lo <= element && a->lo == (uint64_t)(element - x->lo) * dtype_bytes(p->options.dtype);
  switch ((BindKind)b->kind) {
  case BIND_INPUT:
  case BIND_VALUE:
  case BIND_GRAD:
    if (graph_value(p->graph, b->value)->shape.batched) break;
    return b->kind == BIND_INPUT || (x->lo == lo && x->hi == hi);
  case BIND_SAVED_I:
  case BIND_SAVED_W:
  case BIND_KEPT:
    return x->lo == lo && x->hi == hi && a->lo == 0;
  default:
    return a->lo == 0;
  }
  const uint64_t per_sample = hi > lo ? b->bytes / (uint64_t)(hi - lo) : 0;
  return x->lo <= lo && hi <= x->hi && a->lo == (uint64_t)(lo - x->lo) * per_sample;
}

static PiperStatus check_run(Verifier *v, uint32_t index, uint32_t i) {
  const Plan *p = v->plan;
  const Dag *d = p->dag;
  const RankPlan *r = &p->ranks[index];
  const Instr *x = &r->instrs.at[i];
  if (x->program == 0 || x->program > programs_count(p->programs))
    return verify_fault(v, "%s runs a program that is not there", verify_label(v, index, i).text);
  const Program *program = programs_at(p->programs, x->program);
  NodeShare s = {0};
  const bool compute = d->kind[x->node] == NODE_COMPUTE;
  if (compute || d->kind[x->node] == NODE_COUNT) {
    const int32_t pos = devsets_position(d->devsets, d->devs[x->node], r->rank);
    if (pos < 0)
      return verify_fault(v, "%s is a node of other ranks", verify_label(v, index, i).text);
    s = dag_share(d, (NodeId){x->node}, (uint32_t)pos);
  }
  const int64_t lo = s.lo, hi = s.hi;
  if (compute || !zeroes(program)) {
    uint32_t id;
    TRY(program_of(v, r->rank, x, &id));
    if (id != x->program)
      return verify_fault(v, "%s runs the program of another node", verify_label(v, index, i).text);
  }
  if (x->sample_lo != lo)
    return verify_fault(v, "%s starts at sample %lld instead of %lld",
                        verify_label(v, index, i).text, (long long)x->sample_lo, (long long)lo);
  if (x->n_accesses != program->n_bindings ||
      !in_range(x->bind_first, x->n_accesses, r->bind_offset.n) ||
      r->bind_first_write.n != r->bind_offset.n)
    return verify_fault(v, "%s does not bind what its program needs",
                        verify_label(v, index, i).text);
  const BucketId bucket = {d->bucket[x->node]};
  const int64_t element = compute || bucket.i == 0
                              ? 0
                              : bucket_updated(d, bucket, r->rank).lo; /* that bindings begin at */
  for (uint32_t k = 0; k < x->n_accesses; k++) {
    const Binding *b = &program->bindings[k];
    const Access *a = &r->accesses.at[x->access_first + k];
    const Buffer *buffer = &r->buffers.at[a->buffer];
    const int64_t first = !compute && zeroes(program) ? buffer->lo : element;
    const bool bound = bound_to(p, b, (ChunkId){d->chunk[x->node]}, s.parts > 1, buffer);
    const char *what = !bound                                           ? "the wrong buffer"
                       : !right_samples(p, b, buffer, a, lo, hi, first)      ? "the wrong samples"
                       : a->write != ((b->access & BIND_WRITE) != 0)         ? "the wrong access"
                       : a->hi - a->lo != b->bytes                           ? "the wrong size"
                       : r->bind_offset.at[x->bind_first + k] != buffer->offset + a->lo
                           ? "the wrong address"
                           : NULL;
    if (what != NULL)
      return verify_fault(v, "%s binds %s: %s", verify_label(v, index, i).text, what,
                          verify_buffer(v, index, a->buffer).text);
  }
  return PIPER_OK;
}

/* The kernels of a rank have one working space, so one stream uses it: '*user' is the first
 * instruction that does. */
static PiperStatus check_scratch(Verifier *v, uint32_t index, uint32_t i, uint32_t *user) {
  const RankPlan *r = &v->plan->ranks[index];
  const uint32_t threads = v->plan->options.threads_per_rank;
  const Instr *x = &r->instrs.at[i];
  if (x->kind != INSTR_RUN || !programs_at(v->plan->programs, x->program)->scratch) return PIPER_OK;
  if (r->scratch_bytes < OP_SCRATCH_BYTES * (threads > 0 ? threads : 1))
    return verify_fault(v, "%s has no room for its kernels to work in",
                        verify_label(v, index, i).text);
  if (*user == UINT32_MAX) *user = i;
  if (x->stream == r->instrs.at[*user].stream) return PIPER_OK;
  return verify_fault(v, "%s and %s work in the same space, on two streams",
                      verify_label(v, index, *user).text, verify_label(v, index, i).text);
}

/* The second access of a collective: where the sum goes or the share comes from, if not in place. */
static PiperStatus check_part(Verifier *v, uint32_t index, uint32_t i, Share mine) {
  const Plan *p = v->plan;
  const RankPlan *r = &p->ranks[index];
  const Instr *x = &r->instrs.at[i];
  const uint64_t element = dtype_bytes(x->dtype);
  uint64_t at = x->offset + (uint64_t)mine.lo * element;
  if (x->n_accesses == 2) {
    const Access *a = &r->accesses.at[x->access_first + 1];
    const Buffer *b = &r->buffers.at[a->buffer];
    const Buffer *full = &r->buffers.at[r->accesses.at[x->access_first].buffer];
    at = b->offset + a->lo;
    const bool gather = x->kind == INSTR_ALL_GATHER;
    if (b->role != (gather ? BUFFER_PARAMS : BUFFER_GRADS) ||
        full->role != (gather ? BUFFER_FULL_PARAMS : BUFFER_FULL_GRADS) || b->id != full->id ||
        a->write == gather || a->hi - a->lo != (uint64_t)share_size(mine) * element ||
        b->lo + (int64_t)(a->lo / element) != mine.lo)
      return verify_fault(v, "%s has the wrong part of %s", verify_label(v, index, i).text,
                          verify_buffer(v, index, a->buffer).text);
  }
  if (x->part != at)
    return verify_fault(v, "%s has its part at the wrong address", verify_label(v, index, i).text);
  return PIPER_OK;
}

static PiperStatus check_collective(Verifier *v, uint32_t index, uint32_t i, const Buffer *b) {
  const Plan *p = v->plan;
  const RankPlan *r = &p->ranks[index];
  const Instr *x = &r->instrs.at[i];
  const DevSets *sets = p->dag->devsets;
  const int32_t me =
      x->group < devsets_count(sets) ? devsets_position(sets, x->group, r->rank) : -1;
  if (me < 0)
    return verify_fault(v, "%s is a collective of other ranks", verify_label(v, index, i).text);
  const bool sums = b->role == BUFFER_METRICS || b->role == BUFFER_COUNTS;
  if (!sums && !buffer_is_of_bucket(b->role))
    return verify_fault(v, "%s works on %s", verify_label(v, index, i).text,
                        verify_buffer(v, index, r->accesses.at[x->access_first].buffer).text);
  const DType dtype = sums ? DT_F64 : p->options.dtype;
  const uint64_t element = dtype_bytes(dtype);
  if (x->dtype != dtype || x->bytes % element != 0)
    return verify_fault(v, "%s has the wrong type", verify_label(v, index, i).text);
  Share mine = {0, (int64_t)(x->bytes / element)};
  if (x->kind != INSTR_ALL_REDUCE) {
    const uint32_t n = devsets_size(sets, x->group);
    if (!in_range(x->share_first, n, p->shares.n))
      return verify_fault(v, "%s has no shares", verify_label(v, index, i).text);
    mine = p->shares.at[x->share_first + (uint32_t)me];
    if (mine.lo < 0 || mine.lo > mine.hi || (uint64_t)mine.hi * element > x->bytes)
      return verify_fault(v, "%s has a share outside of what it is about",
                          verify_label(v, index, i).text);
  }
  return check_part(v, index, i, mine);
}

/* Samples [lo, hi) of a batched value or gradient are what the access touches, and what it should. */
static bool has_samples(const Buffer *b, const Access *a, int64_t lo, int64_t hi, uint64_t bytes) {
  const uint64_t per_sample = bytes / (uint64_t)(hi - lo);
  return b->lo <= lo && hi <= b->hi && a->lo == (uint64_t)(lo - b->lo) * per_sample &&
         a->hi == a->lo + bytes && b->bytes == (uint64_t)(b->hi - b->lo) * per_sample;
}

/* From the rank's own samples to those of its group, or back: the same tensor in both layouts. */
static PiperStatus check_exchange(Verifier *v, uint32_t index, uint32_t i) {
  const Plan *p = v->plan;
  const Dag *d = p->dag;
  const RankPlan *r = &p->ranks[index];
  const Instr *x = &r->instrs.at[i];
  const int32_t pos = devsets_position(d->devsets, d->devs[x->node], r->rank);
  if (d->kind[x->node] != NODE_ALL_TO_ALL || pos < 0 || d->parts[x->node] < 2 ||
      x->group >= devsets_count(d->devsets) ||
      devsets_size(d->devsets, x->group) != d->parts[x->node])
    return verify_fault(v, "%s is a collective of other ranks", verify_label(v, index, i).text);
  const uint32_t parts = d->parts[x->node], first = (uint32_t)pos / parts * parts;
  const int32_t *node_ranks = devsets_ranks(d->devsets, d->devs[x->node]);
  if (memcmp(devsets_ranks(d->devsets, x->group), node_ranks + first, parts * sizeof *node_ranks) != 0)
    return verify_fault(v, "%s is a collective of other ranks", verify_label(v, index, i).text);
  if (x->n_accesses != 2 || x->share_first >= p->exchanges.n)
    return verify_fault(v, "%s exchanges nothing", verify_label(v, index, i).text);
  const Exchange *e = &p->exchanges.at[x->share_first];
  const Access *a[2] = {&r->accesses.at[x->access_first], &r->accesses.at[x->access_first + 1]};
  const Buffer *b[2] = {&r->buffers.at[a[0]->buffer], &r->buffers.at[a[1]->buffer]};
  const Tensor *t[2];
  for (int k = 0; k < 2; k++) {
    if ((b[k]->role != BUFFER_VALUE && b[k]->role != BUFFER_GRAD) || a[k]->write != (k == 1))
      return verify_fault(v, "%s has the wrong access", verify_label(v, index, i).text);
    t[k] = &d->tensors.at[b[k]->id];
  }
  if (b[0]->id != d->tensor[x->node] || b[0]->role != b[1]->role ||
      t[0]->value.i != t[1]->value.i || t[0]->chunk.i != t[1]->chunk.i ||
      t[0]->spread == t[1]->spread || t[0]->spread == e->to_experts)
    return verify_fault(v, "%s exchanges %s for %s", verify_label(v, index, i).text,
                        verify_buffer(v, index, a[0]->buffer).text,
                        verify_buffer(v, index, a[1]->buffer).text);
  const NodeShare all = dag_share(d, (NodeId){x->node}, (uint32_t)pos);
  const uint32_t n = devsets_size(d->devsets, d->devs[x->node]);
  const int64_t lo = part_lo(d->lo[x->node], d->hi[x->node], (uint32_t)pos, n);
  const int64_t hi = part_lo(d->lo[x->node], d->hi[x->node], (uint32_t)pos + 1, n);
  const int own = e->to_experts ? 0 : 1; /* the side with the rank's own samples */
  const Shape *s = &graph_value(p->graph, t[0]->value)->shape;
  const uint64_t row = (uint64_t)s->dim[s->rank - 1] * dtype_bytes(p->options.dtype);
  if (e->samples != hi - lo || s->rank != 4 || e->blocks * parts != s->dim[1] ||
      e->row_bytes != row || e->block_bytes != row * (uint64_t)s->dim[2] ||
      exchange_bytes(e, parts) != x->bytes || !has_samples(b[own], a[own], lo, hi, x->bytes) ||
      !has_samples(b[1 - own], a[1 - own], all.lo, all.hi, x->bytes))
    return verify_fault(v, "%s exchanges the wrong samples", verify_label(v, index, i).text);
  if (x->offset != b[0]->offset + a[0]->lo || x->part != b[1]->offset + a[1]->lo)
    return verify_fault(v, "%s has the wrong address", verify_label(v, index, i).text);
  return PIPER_OK;
}

static PiperStatus check_comm(Verifier *v, uint32_t index, uint32_t i) {
  const Plan *p = v->plan;
  const RankPlan *r = &p->ranks[index];
  const Instr *x = &r->instrs.at[i];
  if (x->kind == INSTR_ALL_TO_ALL) return check_exchange(v, index, i);
  const bool collective = instr_is_collective(x->kind);
  if (x->n_accesses != 1 && !(collective && x->n_accesses == 2))
    return verify_fault(v, "%s has %u buffers instead of 1", verify_label(v, index, i).text,
                        x->n_accesses);
  const Access *a = &r->accesses.at[x->access_first];
  const Buffer *b = &r->buffers.at[a->buffer];
  if (x->offset != b->offset + a->lo || x->bytes != a->hi - a->lo)
    return verify_fault(v, "%s moves other bytes than those of %s", verify_label(v, index, i).text,
                        verify_buffer(v, index, a->buffer).text);
  if (a->write != (x->kind != INSTR_SEND))
    return verify_fault(v, "%s has the wrong access", verify_label(v, index, i).text);
  if (collective) return check_collective(v, index, i, b);
  if (x->peer == r->rank || plan_rank(p, x->peer) == NULL)
    return verify_fault(v, "%s has no such peer", verify_label(v, index, i).text);
  if (b->role != BUFFER_VALUE && b->role != BUFFER_GRAD)
    return verify_fault(v, "%s moves %s", verify_label(v, index, i).text,
                        verify_buffer(v, index, a->buffer).text);
  return PIPER_OK;
}

PiperStatus verify_ranges(Verifier *v) {
  const Plan *p = v->plan;
  for (uint32_t index = 0; index < p->n_ranks; index++) {
    TRY(interrupt_check(v->err));
    const RankPlan *r = &p->ranks[index];
    if (r->rank != devsets_ranks(p->dag->devsets, p->world)[index])
      return verify_fault(v, "rank %d is at the wrong place of the plan", r->rank);
    TRY(check_buffers(v, index));
    uint32_t user = UINT32_MAX;
    for (uint32_t i = 0; i < r->instrs.n; i++) {
      TRY(check_lists(v, index, i));
      TRY(r->instrs.at[i].kind == INSTR_RUN ? check_run(v, index, i) : check_comm(v, index, i));
      TRY(check_scratch(v, index, i, &user));
    }
    v->proof.instrs += r->instrs.n;
  }
  return PIPER_OK;
}

static PiperStatus verify(Verifier *v) {
  const Plan *plan = v->plan;
  uint64_t n = 0;
  TRY(plan_lists(plan, v->err));
  v->first = malloc((plan->n_ranks + 1) * sizeof *v->first);
  if (v->first == NULL) return verify_nomem(v);
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    v->first[r] = (uint32_t)n;
    n += plan->ranks[r].instrs.n;
  }
  v->first[plan->n_ranks] = (uint32_t)n;
  v->rank_of = malloc((n + 1) * sizeof *v->rank_of);
  if (n >= UINT32_MAX || v->rank_of == NULL) return verify_nomem(v);
  for (uint32_t r = 0; r < plan->n_ranks; r++)
    for (uint32_t i = v->first[r]; i < v->first[r + 1]; i++) v->rank_of[i] = r;
  TRY(verify_ranges(v));
  TRY(verify_meetings(v));
  TRY(verify_races(v));
  TRY(verify_counts(v));
  return verify_updates(v);
}

/* Lists that were made for the proof and are many go again. */
static void drop_lists(const Plan *plan, const bool *made) {
  uint64_t bytes = 0;
  for (uint32_t r = 0; r < plan->n_ranks; r++) bytes += made[r] ? 0 : plan->ranks[r].list_bytes;
  for (uint32_t r = 0; bytes > MAX_KEPT_BYTES && r < plan->n_ranks; r++)
    if (!made[r]) plan_drop_lists(&plan->ranks[r]);
}

PiperStatus plan_verify(const Plan *plan, PlanProof *proof, PiperErr *err) {
  Verifier v = {.plan = plan, .err = err};
  bool *made = malloc(plan->n_ranks + 1);
  if (made == NULL) return verify_nomem(&v);
  for (uint32_t r = 0; r < plan->n_ranks; r++) made[r] = plan->ranks[r].made;
  const PiperStatus st = verify(&v);
  drop_lists(plan, made);
  free(made);
  free(v.first), free(v.rank_of), free(v.event), free(v.member_first), free(v.members);
  free(v.next), free(v.waiter_first), free(v.waiters), free(v.place), free(v.sorted);
  if (proof != NULL) *proof = v.proof;
  return st;
}

uint64_t plan_verify_bytes(const Plan *plan) {
  uint64_t bytes = 0;
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    const RankPlan *x = &plan->ranks[r];
    if (!x->made) bytes += x->list_bytes;
    for (int k = 0; k < INSTR_KIND_COUNT; k++) bytes += PROOF_BYTES * x->calls[k];
  }
  return bytes;
}
