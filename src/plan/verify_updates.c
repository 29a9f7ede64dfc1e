/* The last step of the proof: gradients and parameters of every bucket, element by element.
 *
 * Events are taken in the order that the second step found, in which all can complete; the third
 * showed that conflicting accesses keep to it. Of each buffer of a bucket it is known what its
 * elements hold: of gradients how many contributions, and the sum of a number drawn for each (equal
 * sums are of the same contributions, as certain as 64 bits are); of parameters how often they were
 * updated. Elements with one history are one piece.
 *
 * On each rank the first contribution to a buffer writes, or zeros do where there is none, and later
 * ones add, until it is reduced. NORM and UPDATE find every contribution of every rank in each of
 * their elements, once; the norm counts each element once over all ranks. Compute nodes read whole
 * buckets, not updated yet; after the step whatever a rank keeps is updated once. Over all ranks the
 * contributions of a chunk to a bucket take every sample of the batch exactly once. */
#include "plan/verify.h"

#include "ir/bucket.h"
#include "ir/grad_flow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

typedef struct What {
  bool known;     /* gradients: begun; parameters: there */
  uint64_t count; /* contributions; updates */
  uint64_t mark;  /* sum of the contributions' numbers */
} What;

typedef struct Piece {
  int64_t lo, hi;
  What what;
} Piece;
typedef VEC(Piece) PieceVec;

typedef struct Holding { /* a buffer of a bucket on one rank */
  PieceVec pieces;
  uint32_t
      closed; /* gradients: 1 + the instruction of the rank that reduced or used them; 0: none */
} Holding;

typedef struct Contribution {
  uint32_t bucket, chunk, rank_index, instr;
  int64_t lo, hi;
} Contribution;

typedef struct Norm {
  uint32_t bucket;
  Share share;
} Norm;

typedef struct Updates {
  Verifier *v;
  uint64_t element_bytes;
  uint32_t *buffer_first; /* by rank index: its buffers, in 'holding_of' */
  uint32_t *holding_of;   /* index into holdings; NONE */
  VEC(Holding) holdings;
  What *total; /* by bucket: all contributions */
  VEC(Contribution) all;
  VEC(Norm) norms;
  PieceVec scratch, sum;
  VEC(int64_t) cuts;
} Updates;

static const char *bucket_name(const Plan *p, uint32_t bucket, Label *l) {
  const Bucket *b = &p->dag->buckets.at[bucket];
  const ParamId first = {p->dag->bucket_params.at[b->param_first]};
  snprintf(l->text, sizeof l->text, "%s%s",
           graph_name(p->graph, graph_param(p->graph, first)->name), b->n_params > 1 ? ".." : "");
  return l->text;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool equal(What a, What b) {
  return a.known == b.known && a.count == b.count && a.mark == b.mark;
}

/* Behind the last piece, or as a part of it. */
static bool append(PieceVec *to, int64_t lo, int64_t hi, What what) {
  if (lo >= hi) return true;
  if (to->n > 0 && to->at[to->n - 1].hi == lo && equal(to->at[to->n - 1].what, what)) {
    to->at[to->n - 1].hi = hi;
    return true;
  }
  return vec_push(to, ((Piece){lo, hi, what}));
}

/* Elements [lo, hi) of 'h' become 'what', or that is added to what they hold. */
static bool put(Updates *u, Holding *h, int64_t lo, int64_t hi, What what, bool add) {
  PieceVec *to = &u->scratch;
  to->n = 0;
  for (size_t k = 0; k < h->pieces.n; k++) {
    const Piece *p = &h->pieces.at[k];
    const Share in = share_common((Share){p->lo, p->hi}, (Share){lo, hi});
    What now = what;
    if (add) now = (What){p->what.known, p->what.count + what.count, p->what.mark + what.mark};
    if (in.lo == in.hi) {
      if (!append(to, p->lo, p->hi, p->what)) return false;
    } else if (!append(to, p->lo, in.lo, p->what) || !append(to, in.lo, in.hi, now) ||
               !append(to, in.hi, p->hi, p->what)) {
      return false;
    }
  }
  const PieceVec old = h->pieces;
  h->pieces = *to;
  *to = old;
  return true;
}

/* The piece with element 'at'; NULL: it is not there. */
static const Piece *piece_at(const Holding *h, int64_t at) {
  for (size_t k = 0; k < h->pieces.n; k++)
    if (h->pieces.at[k].lo <= at && at < h->pieces.at[k].hi) return &h->pieces.at[k];
  return NULL;
}

/* ---- accesses -------------------------------------------------------------------------------- */

/* An access of a buffer of a bucket. */
typedef struct Touch {
  Holding *holding;
  const Buffer *buffer;
  int64_t lo, hi; /* elements */
} Touch;

static Touch touch(const Updates *u, uint32_t r, const Instr *x, uint32_t access) {
  const RankPlan *rank = &u->v->plan->ranks[r];
  const Access *a = &rank->accesses.at[x->access_first + access];
  const Buffer *b = &rank->buffers.at[a->buffer];
  const uint32_t h = u->holding_of[u->buffer_first[r] + a->buffer];
  return (Touch){h != NONE ? &u->holdings.at[h] : NULL, b,
                 b->lo + (int64_t)(a->lo / u->element_bytes),
                 b->lo + (int64_t)(a->hi / u->element_bytes)};
}

static PiperStatus closed(Updates *u, uint32_t r, uint32_t i, const Touch *t, const char *what) {
  Verifier *v = u->v;
  Label name;
  return verify_fault(v, "%s %s the gradients of %s after %s", verify_label(v, r, i).text, what,
                      bucket_name(v->plan, t->buffer->id, &name),
                      verify_label(v, r, t->holding->closed - 1).text);
}

static PiperStatus not_begun(Updates *u, uint32_t r, uint32_t i, const Touch *t, const char *what) {
  Verifier *v = u->v;
  Label name;
  return verify_fault(v, "%s %s the gradients of %s, which nothing has begun",
                      verify_label(v, r, i).text, what, bucket_name(v->plan, t->buffer->id, &name));
}

static uint64_t number_of(uint32_t instr) { /* splitmix64 */
  uint64_t z = ((uint64_t)instr + 1) * UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static PiperStatus contribute(Updates *u, uint32_t r, uint32_t i, uint32_t access) {
  Verifier *v = u->v;
  const Dag *d = v->plan->dag;
  const Instr *x = &v->plan->ranks[r].instrs.at[i];
  const Touch t = touch(u, r, x, access);
  const bool writes = v->plan->ranks[r].bind_first_write.at[x->bind_first + access] != 0;
  const bool zeros = d->kind[x->node] != NODE_COMPUTE;
  Label name;
  if (t.holding->closed != 0) return closed(u, r, i, &t, "contributes to");
  bool first = true;
  for (size_t k = 0; k < t.holding->pieces.n; k++) first &= !t.holding->pieces.at[k].what.known;
  if (zeros ? !first : first != writes) {
    if (first) return not_begun(u, r, i, &t, zeros || writes ? "overwrites" : "adds to");
    return verify_fault(v, "%s %s the gradients of %s, which others have begun",
                        verify_label(v, r, i).text, zeros || writes ? "overwrites" : "adds to",
                        bucket_name(v->plan, t.buffer->id, &name));
  }
  const What zero = {.known = true}, one = {true, 1, number_of(v->first[r] + i)};
  if (first && !put(u, t.holding, t.lo, t.hi, zero, false)) return verify_nomem(v);
  if (zeros) return PIPER_OK;
  if (!put(u, t.holding, t.lo, t.hi, one, true)) return verify_nomem(v);
  const int32_t pos = devsets_position(d->devsets, d->devs[x->node], v->plan->ranks[r].rank);
  const NodeShare s = dag_share(d, (NodeId){x->node}, (uint32_t)pos);
  const Contribution c = {.bucket = t.buffer->id,
                          .chunk = d->chunk[x->node],
                          .rank_index = r,
                          .instr = i,
                          .lo = s.lo,
                          .hi = s.hi};
  return vec_push(&u->all, c) ? PIPER_OK : verify_nomem(v);
}

/* NORM and UPDATE use sums of everything. */
static PiperStatus use_grads(Updates *u, uint32_t r, uint32_t i, uint32_t access) {
  Verifier *v = u->v;
  const Touch t = touch(u, r, &v->plan->ranks[r].instrs.at[i], access);
  const What *total = &u->total[t.buffer->id];
  Label name;
  for (int64_t at = t.lo; at < t.hi;) {
    const Piece *p = piece_at(t.holding, at);
    if (p == NULL || !p->what.known) return not_begun(u, r, i, &t, "uses");
    const bool alone =
        devsets_size(v->plan->dag->devsets, v->plan->dag->buckets.at[t.buffer->id].holders) == 1;
    if (p->what.count < total->count && alone) break; /* the one that comes later is found there */
    if (p->what.count < total->count)
      return verify_fault(v,
                          "%s uses the gradients of %s before they are summed over their holders",
                          verify_label(v, r, i).text, bucket_name(v->plan, t.buffer->id, &name));
    if (p->what.count != total->count || p->what.mark != total->mark)
      return verify_fault(v, "%s uses the gradients of %s, in which a contribution counts twice",
                          verify_label(v, r, i).text, bucket_name(v->plan, t.buffer->id, &name));
    at = p->hi;
  }
  t.holding->closed = i + 1;
  if (v->plan->dag->kind[v->plan->ranks[r].instrs.at[i].node] != NODE_NORM) return PIPER_OK;
  return vec_push(&u->norms, ((Norm){t.buffer->id, {t.lo, t.hi}})) ? PIPER_OK : verify_nomem(v);
}

static PiperStatus read_params(Updates *u, uint32_t r, uint32_t i, uint32_t access) {
  Verifier *v = u->v;
  const Touch t = touch(u, r, &v->plan->ranks[r].instrs.at[i], access);
  Label name;
  for (int64_t at = t.lo; at < t.hi;) {
    const Piece *p = piece_at(t.holding, at);
    if (p == NULL || !p->what.known || p->what.count > 0)
      return verify_fault(v, "%s reads parameters of %s, which are %s", verify_label(v, r, i).text,
                          bucket_name(v->plan, t.buffer->id, &name),
                          p == NULL || !p->what.known ? "not there" : "updated already");
    at = p->hi;
  }
  return PIPER_OK;
}

static PiperStatus look_at_run(Updates *u, uint32_t r, uint32_t i) {
  Verifier *v = u->v;
  const RankPlan *rank = &v->plan->ranks[r];
  const Instr *x = &rank->instrs.at[i];
  const What one = {.known = true, .count = 1};
  for (uint32_t k = 0; k < x->n_accesses; k++) {
    const Access *a = &rank->accesses.at[x->access_first + k];
    switch ((BufferRole)rank->buffers.at[a->buffer].role) {
    case BUFFER_GRADS:
    case BUFFER_FULL_GRADS:
      TRY(a->write ? contribute(u, r, i, k) : use_grads(u, r, i, k));
      break;
    case BUFFER_PARAMS:
    case BUFFER_FULL_PARAMS: {
      const Touch t = touch(u, r, x, k);
      if (!a->write) TRY(read_params(u, r, i, k));
      else if (!put(u, t.holding, t.lo, t.hi, one, true)) return verify_nomem(v);
      break;
    }
    default:
      break;
    }
  }
  return PIPER_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static const Instr *instr_at(const Updates *u, uint32_t g) {
  const uint32_t r = u->v->rank_of[g];
  return &u->v->plan->ranks[r].instrs.at[g - u->v->first[r]];
}

/* The ends of all members' pieces within the region. */
static bool find_cuts(Updates *u, const uint32_t *members, uint32_t n, Share region) {
  u->cuts.n = 0;
  if (!vec_push(&u->cuts, region.lo) || !vec_push(&u->cuts, region.hi)) return false;
  for (uint32_t m = 0; m < n; m++) {
    const Touch t = touch(u, u->v->rank_of[members[m]], instr_at(u, members[m]), 0);
    for (size_t k = 0; k < t.holding->pieces.n; k++) {
      const int64_t end = t.holding->pieces.at[k].hi;
      if (end > region.lo && end < region.hi && !vec_push(&u->cuts, end)) return false;
    }
  }
  if (u->cuts.n > 2) qsort(u->cuts.at, u->cuts.n, sizeof *u->cuts.at, ascending);
  return true;
}

/* What the members' regions hold together, into u->sum. */
static PiperStatus sum_members(Updates *u, const uint32_t *members, uint32_t n, Share region) {
  Verifier *v = u->v;
  u->sum.n = 0;
  if (!find_cuts(u, members, n, region)) return verify_nomem(v);
  for (size_t c = 0; c + 1 < u->cuts.n; c++) {
    What what = {.known = true};
    const int64_t lo = u->cuts.at[c], hi = u->cuts.at[c + 1];
    for (uint32_t m = 0; lo < hi && m < n; m++) {
      const uint32_t r = v->rank_of[members[m]], i = members[m] - v->first[r];
      const Touch t = touch(u, r, instr_at(u, members[m]), 0);
      const Piece *p = piece_at(t.holding, lo);
      if (p == NULL || !p->what.known) return not_begun(u, r, i, &t, "reads");
      what.count += p->what.count;
      what.mark += p->what.mark;
    }
    if (!append(&u->sum, lo, hi, what)) return verify_nomem(v);
  }
  return PIPER_OK;
}

/* A member takes the part 's' of the sum. */
static PiperStatus take_sum(Updates *u, uint32_t g, Share s) {
  Verifier *v = u->v;
  const uint32_t r = v->rank_of[g], i = g - v->first[r];
  const Instr *x = instr_at(u, g);
  const Touch from = touch(u, r, x, 0), to = touch(u, r, x, x->n_accesses - 1);
  const What nothing = {0};
  if (to.holding != from.holding && to.holding->closed != 0) return closed(u, r, i, &to, "adds to");
  if (!put(u, from.holding, from.lo, from.hi, nothing, false)) return verify_nomem(v);
  from.holding->closed = i + 1;
  for (size_t k = 0; k < u->sum.n; k++) {
    const Piece *p = &u->sum.at[k];
    const Share in = share_common((Share){p->lo, p->hi}, s);
    if (in.lo == in.hi) continue;
    const Piece *old = piece_at(to.holding, in.lo);
    if (x->adds && (old == NULL || !old->what.known)) return not_begun(u, r, i, &to, "adds to");
    if (!put(u, to.holding, in.lo, in.hi, p->what, x->adds)) return verify_nomem(v);
  }
  return PIPER_OK;
}

static int by_place(const void *a, const void *b) {
  const Piece *x = a, *y = b;
  return (x->lo > y->lo) - (x->lo < y->lo);
}

/* What member g puts in: its part of the region. */
static PiperStatus give_share(Updates *u, uint32_t g, Share s) {
  Verifier *v = u->v;
  const uint32_t r = v->rank_of[g];
  const Instr *x = instr_at(u, g);
  const Touch t = touch(u, r, x, x->n_accesses - 1);
  Label name;
  for (int64_t at = s.lo; at < s.hi;) {
    const Piece *p = piece_at(t.holding, at);
    if (p == NULL || !p->what.known)
      return verify_fault(v, "%s gathers what rank %d does not have of %s",
                          verify_label(v, r, g - v->first[r]).text, v->plan->ranks[r].rank,
                          bucket_name(v->plan, t.buffer->id, &name));
    const int64_t end = p->hi < s.hi ? p->hi : s.hi;
    if (!vec_push(&u->sum, ((Piece){at, end, p->what}))) return verify_nomem(v);
    at = end;
  }
  return PIPER_OK;
}

/* The part of the region [lo, ..) that is the member's share. */
static Share share_at(const Updates *u, uint32_t g, int64_t lo) {
  const Plan *p = u->v->plan;
  const Instr *x = instr_at(u, g);
  const int32_t rank = p->ranks[u->v->rank_of[g]].rank;
  const int32_t me = devsets_position(p->dag->devsets, x->group, rank);
  const Share s = p->shares.at[x->share_first + (uint32_t)me];
  return (Share){lo + s.lo, lo + s.hi};
}

static PiperStatus look_at_collective(Updates *u, const uint32_t *members, uint32_t n) {
  Verifier *v = u->v;
  const Instr *x = instr_at(u, members[0]);
  const Touch t = touch(u, v->rank_of[members[0]], x, 0);
  if (t.holding == NULL) return PIPER_OK; /* the metrics, blocks of experts */
  const Share region = {t.lo, t.hi};
  if (x->kind != INSTR_ALL_GATHER) {
    TRY(sum_members(u, members, n, region));
    for (uint32_t m = 0; m < n; m++)
      TRY(take_sum(u, members[m],
                   x->kind == INSTR_ALL_REDUCE ? region : share_at(u, members[m], region.lo)));
    return PIPER_OK;
  }
  u->sum.n = 0;
  for (uint32_t m = 0; m < n; m++)
    TRY(give_share(u, members[m], share_at(u, members[m], region.lo)));
  if (u->sum.n > 1) qsort(u->sum.at, u->sum.n, sizeof *u->sum.at, by_place);
  size_t kept = 0;
  for (size_t k = 1; k < u->sum.n; k++) {
    Piece *last = &u->sum.at[kept], *next = &u->sum.at[k];
    if (last->hi == next->lo && equal(last->what, next->what)) last->hi = next->hi;
    else u->sum.at[++kept] = *next;
  }
  if (u->sum.n > 0) u->sum.n = kept + 1;
  for (uint32_t m = 0; m < n; m++) {
    const Touch to = touch(u, v->rank_of[members[m]], instr_at(u, members[m]), 0);
    for (size_t k = 0; k < u->sum.n; k++)
      if (!put(u, to.holding, u->sum.at[k].lo, u->sum.at[k].hi, u->sum.at[k].what, false))
        return verify_nomem(v);
  }
  return PIPER_OK;
}

static PiperStatus look_at_events(Updates *u) {
  Verifier *v = u->v;
  PiperStatus st = PIPER_OK;
  uint32_t *in_order = malloc((v->n_events + 1) * sizeof *in_order);
  if (in_order == NULL) return verify_nomem(v);
  for (uint32_t e = 0; e < v->n_events; e++) in_order[v->place[e]] = e;
  for (uint32_t k = 0; st == PIPER_OK && k < v->n_events; k++) {
    const uint32_t first = v->member_first[in_order[k]], end = v->member_first[in_order[k] + 1];
    if (first == end) continue;
    const uint32_t g = v->members[first], r = v->rank_of[g];
    const unsigned kind = instr_at(u, g)->kind;
    if (kind == INSTR_RUN) st = look_at_run(u, r, g - v->first[r]);
    else if (instr_is_collective(kind)) st = look_at_collective(u, v->members + first, end - first);
  }
  free(in_order);
  return st;
}

/* ---- before and after ------------------------------------------------------------------------ */

/* Parameters are there and gradients are not. */
static PiperStatus begin(Updates *u) {
  Verifier *v = u->v;
  const Plan *p = v->plan;
  uint32_t n = 0;
  u->buffer_first = malloc((p->n_ranks + 1) * sizeof *u->buffer_first);
  if (u->buffer_first == NULL) return verify_nomem(v);
  for (uint32_t r = 0; r < p->n_ranks; r++) {
    u->buffer_first[r] = n;
    n += (uint32_t)p->ranks[r].buffers.n;
  }
  u->holding_of = malloc((n + 1) * sizeof *u->holding_of);
  u->total = calloc(p->dag->buckets.n, sizeof *u->total);
  if (u->holding_of == NULL || u->total == NULL) return verify_nomem(v);
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (uint32_t k = 0; k < p->ranks[r].buffers.n; k++) {
      const Buffer *b = &p->ranks[r].buffers.at[k];
      const What what = {.known = b->role == BUFFER_PARAMS};
      Holding h = {0};
      u->holding_of[u->buffer_first[r] + k] = NONE;
      if (!buffer_is_of_bucket(b->role) || b->role == BUFFER_STATE) continue;
      if (!vec_push(&u->holdings, h)) return verify_nomem(v);
      u->holding_of[u->buffer_first[r] + k] = (uint32_t)u->holdings.n - 1;
      if (!append(&u->holdings.at[u->holdings.n - 1].pieces, b->lo, b->hi, what))
        return verify_nomem(v);
    }
  return PIPER_OK;
}

/* What all contributions of a bucket amount to. */
static void find_totals(Updates *u) {
  const Plan *p = u->v->plan;
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (uint32_t i = 0; i < p->ranks[r].instrs.n; i++) {
      const Instr *x = &p->ranks[r].instrs.at[i];
      if (x->kind != INSTR_RUN || p->dag->kind[x->node] != NODE_COMPUTE) continue;
      for (uint32_t k = 0; k < x->n_accesses; k++) {
        const Access *a = &p->ranks[r].accesses.at[x->access_first + k];
        const Buffer *b = &p->ranks[r].buffers.at[a->buffer];
        if (!a->write || (b->role != BUFFER_GRADS && b->role != BUFFER_FULL_GRADS)) continue;
        u->total[b->id].count++;
        u->total[b->id].mark += number_of(u->v->first[r] + i);
      }
    }
}

static int by_samples(const void *a, const void *b) {
  const Contribution *x = a, *y = b;
  if (x->bucket != y->bucket) return x->bucket < y->bucket ? -1 : 1;
  if (x->chunk != y->chunk) return x->chunk < y->chunk ? -1 : 1;
  if (x->lo != y->lo) return x->lo < y->lo ? -1 : 1;
  if (x->rank_index != y->rank_index) return x->rank_index < y->rank_index ? -1 : 1;
  return (x->instr > y->instr) - (x->instr < y->instr);
}

static PiperStatus missing(Updates *u, uint32_t bucket, uint32_t chunk, int64_t lo, int64_t hi) {
  const Plan *p = u->v->plan;
  Label name;
  return verify_fault(
      u->v, "nothing contributes samples [%lld, %lld) of the chunk at %s to the gradients of %s",
      (long long)lo, (long long)hi,
      graph_name(p->graph, graph_chunk(p->graph, (ChunkId){chunk})->line),
      bucket_name(p, bucket, &name));
}

/* Contributions [*at, ...) of this bucket by this chunk: all samples, each once. */
static PiperStatus check_samples(Updates *u, uint32_t bucket, uint32_t chunk, size_t *at) {
  Verifier *v = u->v;
  int64_t next = 0;
  const Contribution *last = NULL;
  for (; *at < u->all.n; ++*at) {
    const Contribution *c = &u->all.at[*at];
    if (c->bucket != bucket || c->chunk != chunk) break;
    if (c->lo > next) return missing(u, bucket, chunk, next, c->lo);
    if (c->lo < next)
      return verify_fault(v, "%s and %s both contribute samples [%lld, %lld)",
                          verify_label(v, last->rank_index, last->instr).text,
                          verify_label(v, c->rank_index, c->instr).text, (long long)c->lo,
                          (long long)next);
    next = c->hi;
    last = c;
  }
  return next == v->plan->dag->batch ? PIPER_OK
                                     : missing(u, bucket, chunk, next, v->plan->dag->batch);
}

typedef struct Owed {
  uint32_t bucket, chunk;
} Owed;
typedef VEC(Owed) OwedVec;

static int by_bucket(const void *a, const void *b) {
  const Owed *x = a, *y = b;
  if (x->bucket != y->bucket) return x->bucket < y->bucket ? -1 : 1;
  return (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

/* Which chunks owe contributions to which buckets: as the model says, once each. */
static bool collect_owed(const Plan *p, OwedVec *out) {
  const Graph *g = p->graph;
  uint32_t *seen = calloc(p->dag->buckets.n, sizeof *seen); /* chunk that last owed this bucket */
  bool held = seen != NULL;
  for (uint32_t c = 1; held && c <= graph_n_chunks(g); c++)
    for (uint32_t o = graph_chunk(g, (ChunkId){c})->first_op;
         held && o < graph_chunk(g, (ChunkId){c})->end_op; o++)
      for (int wrt = 0; held && wrt < 3; wrt++) {
        const Op *op = graph_op(g, (OpId){o});
        uint32_t n;
        const uint32_t *params = graph_value_params(g, op->in[wrt], &n);
        for (uint32_t k = 0; held && k < n; k++) {
          if (!op_param_grad_flows(g, op, wrt, (ParamId){params[k]})) continue;
          const uint32_t bucket = p->dag->home[params[k]].bucket.i;
          if (seen[bucket] == c || !p->dag->buckets.at[bucket].trained) continue;
          seen[bucket] = c;
          held = vec_push(out, ((Owed){bucket, c}));
        }
      }
  free(seen);
  if (held && out->n > 0) qsort(out->at, out->n, sizeof *out->at, by_bucket);
  return held;
}

static PiperStatus check_all_samples(Updates *u) {
  OwedVec owed = {0};
  PiperStatus st = PIPER_OK;
  size_t at = 0;
  if (u->all.n > 0) qsort(u->all.at, u->all.n, sizeof *u->all.at, by_samples);
  if (!collect_owed(u->v->plan, &owed)) st = verify_nomem(u->v);
  for (size_t k = 0; st == PIPER_OK && k < owed.n; k++)
    st = check_samples(u, owed.at[k].bucket, owed.at[k].chunk, &at);
  if (st == PIPER_OK && at < u->all.n)
    st = verify_fault(u->v, "%s contributes to gradients that its chunk has none for",
                      verify_label(u->v, u->all.at[at].rank_index, u->all.at[at].instr).text);
  vec_free(&owed);
  return st;
}

/* Whatever a rank keeps of a trained bucket was updated once. */
static PiperStatus check_params(Updates *u) {
  const Plan *p = u->v->plan;
  const bool optimizer = p->options.optimizer.kind != OPTIMIZER_NONE;
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (uint32_t k = 0; k < p->ranks[r].buffers.n; k++) {
      const Buffer *b = &p->ranks[r].buffers.at[k];
      const Bucket *bucket = &p->dag->buckets.at[b->id];
      if (b->role != BUFFER_PARAMS) continue;
      const Holding *h = &u->holdings.at[u->holding_of[u->buffer_first[r] + k]];
      const uint64_t want = bucket->trained && optimizer;
      for (size_t i = 0; i < h->pieces.n; i++) {
        const Piece *x = &h->pieces.at[i];
        Label name;
        if (x->what.count == want) continue;
        if (bucket->zero == ZERO_NONE)
          return verify_fault(u->v, "rank %d updates %s %u times instead of %u", p->ranks[r].rank,
                              bucket_name(p, b->id, &name), (unsigned)x->what.count,
                              (unsigned)want);
        return verify_fault(u->v,
                            "rank %d ends the step with elements [%lld, %lld) of %s updated %u "
                            "times instead of %u",
                            p->ranks[r].rank, (long long)x->lo, (long long)x->hi,
                            bucket_name(p, b->id, &name), (unsigned)x->what.count, (unsigned)want);
      }
    }
  return PIPER_OK;
}

static int by_share(const void *a, const void *b) {
  const Norm *x = a, *y = b;
  if (x->bucket != y->bucket) return x->bucket < y->bucket ? -1 : 1;
  if (x->share.lo != y->share.lo) return x->share.lo < y->share.lo ? -1 : 1;
  return (x->share.hi > y->share.hi) - (x->share.hi < y->share.hi);
}

static PiperStatus check_norms(Updates *u) {
  const Dag *d = u->v->plan->dag;
  size_t k = 0;
  if (u->norms.n > 0) qsort(u->norms.at, u->norms.n, sizeof *u->norms.at, by_share);
  for (uint32_t b = 1; b < d->buckets.n; b++) {
    int64_t end = 0;
    Label name;
    if (!d->buckets.at[b].trained) continue;
    for (; k < u->norms.n && u->norms.at[k].bucket == b; k++) {
      if (u->norms.at[k].share.lo != end) break;
      end = u->norms.at[k].share.hi;
    }
    if (end != d->buckets.at[b].elements)
      return verify_fault(u->v, "the norm counts element %lld of %s not once", (long long)end,
                          bucket_name(u->v->plan, b, &name));
  }
  return PIPER_OK;
}

/* Evaluation leaves parameters as they are. */
static PiperStatus check_only_read(Verifier *v) {
  for (uint32_t r = 0; r < v->plan->n_ranks; r++) {
    const RankPlan *rank = &v->plan->ranks[r];
    for (uint32_t i = 0; i < rank->instrs.n; i++) {
      const Instr *x = &rank->instrs.at[i];
      for (uint32_t k = x->access_first; k < x->access_first + x->n_accesses; k++) {
        const Access *a = &rank->accesses.at[k];
        if (a->write && rank->buffers.at[a->buffer].role == BUFFER_PARAMS)
          return verify_fault(v, "%s writes %s, and nothing is trained here",
                              verify_label(v, r, i).text, verify_buffer(v, r, a->buffer).text);
      }
    }
  }
  return PIPER_OK;
}

PiperStatus verify_updates(Verifier *v) {
  if (v->plan->dag->forward_only) return check_only_read(v);
  Updates u = {.v = v, .element_bytes = dtype_bytes(v->plan->options.dtype)};
  PiperStatus st = begin(&u);
  if (st == PIPER_OK) find_totals(&u);
  if (st == PIPER_OK) st = look_at_events(&u);
  if (st == PIPER_OK) st = check_all_samples(&u);
  if (st == PIPER_OK) st = check_params(&u);
  if (st == PIPER_OK) st = check_norms(&u);
  for (size_t k = 0; k < u.holdings.n; k++) vec_free(&u.holdings.at[k].pieces);
  vec_free(&u.holdings), vec_free(&u.all), vec_free(&u.norms), vec_free(&u.scratch);
  vec_free(&u.sum), vec_free(&u.cuts);
  free(u.buffer_first), free(u.holding_of), free(u.total);
  return st;
}
