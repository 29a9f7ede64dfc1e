/* The last step of the proof: the gradients of every trained bucket.
 *
 * On each holder, in the order that the third step proved: first all contributions (the first of
 * them writes, or zeros do where there are none), then, if there are several holders, one reduction
 * over all of them, then one update. Over all ranks the contributions of a chunk to a bucket take
 * every sample of the batch exactly once. */
#include "plan/verify.h"

#include "ir/grad_flow.h"

#include <stdio.h>
#include <stdlib.h>

#define NONE UINT32_MAX

typedef struct Sum { /* of one bucket on one rank */
  uint32_t contributions, zeroed, reduced, updated;
  uint32_t closed; /* 1 + the instruction that reduced or used the sum; 0: none yet */
} Sum;

typedef struct Contribution {
  uint32_t bucket, chunk, rank_index, instr;
  int64_t lo, hi;
} Contribution;

typedef struct Updates {
  Verifier *v;
  Sum *sums; /* by rank index, then bucket */
  VEC(Contribution) all;
} Updates;

static const char *bucket_name(const Plan *p, uint32_t bucket, Label *l) {
  const Bucket *b = &p->dag->buckets.at[bucket];
  const ParamId first = {p->dag->bucket_params.at[b->param_first]};
  snprintf(l->text, sizeof l->text, "%s%s",
           graph_name(p->graph, graph_param(p->graph, first)->name), b->n_params > 1 ? ".." : "");
  return l->text;
}

static Sum *sum_of(const Updates *u, uint32_t rank_index, uint32_t bucket) {
  return &u->sums[(size_t)rank_index * u->v->plan->dag->buckets.n + bucket];
}

static PiperStatus contribute(Updates *u, uint32_t r, uint32_t i, uint32_t bucket, bool writes) {
  Verifier *v = u->v;
  const Dag *d = v->plan->dag;
  const Instr *x = &v->plan->ranks[r].instrs.at[i];
  Sum *s = sum_of(u, r, bucket);
  const bool zeros = d->kind[x->node] != NODE_COMPUTE;
  Label name;
  if (s->closed != 0)
    return verify_fault(v, "%s contributes to the gradients of %s after %s",
                        verify_label(v, r, i).text, bucket_name(v->plan, bucket, &name),
                        verify_label(v, r, s->closed - 1).text);
  const bool first = s->contributions + s->zeroed == 0;
  if (zeros ? !first : first != writes)
    return verify_fault(v, "%s %s the gradients of %s, which %s", verify_label(v, r, i).text,
                        zeros || writes ? "overwrites" : "adds to",
                        bucket_name(v->plan, bucket, &name),
                        first ? "nothing has begun" : "others have begun");
  if (zeros) {
    s->zeroed++;
    return PIPER_OK;
  }
  s->contributions++;
  const int32_t pos = devsets_position(d->devsets, d->devs[x->node], v->plan->ranks[r].rank);
  const uint32_t n = devsets_size(d->devsets, d->devs[x->node]);
  const Contribution c = {.bucket = bucket,
                          .chunk = d->chunk[x->node],
                          .rank_index = r,
                          .instr = i,
                          .lo = part_lo(d->lo[x->node], d->hi[x->node], (uint32_t)pos, n),
                          .hi = part_lo(d->lo[x->node], d->hi[x->node], (uint32_t)pos + 1, n)};
  return vec_push(&u->all, c) ? PIPER_OK : verify_nomem(v);
}

static PiperStatus look(Updates *u, uint32_t r, uint32_t i) {
  Verifier *v = u->v;
  const Plan *p = v->plan;
  const RankPlan *rank = &p->ranks[r];
  const Instr *x = &rank->instrs.at[i];
  bool updates = false;
  for (uint32_t k = 0; k < x->n_accesses; k++) {
    const Access *a = &rank->accesses.at[x->access_first + k];
    updates |= a->write && rank->buffers.at[a->buffer].role == BUFFER_PARAMS;
  }
  for (uint32_t k = 0; k < x->n_accesses; k++) {
    const Access *a = &rank->accesses.at[x->access_first + k];
    const Buffer *b = &rank->buffers.at[a->buffer];
    if (b->role != BUFFER_GRADS) continue;
    if (x->kind == INSTR_RUN && a->write) {
      TRY(contribute(u, r, i, b->id, rank->bind_first_write.at[x->bind_first + k] != 0));
      continue;
    }
    Sum *s = sum_of(u, r, b->id);
    Label name;
    if (s->contributions + s->zeroed == 0)
      return verify_fault(v, "%s reads the gradients of %s, which nothing has begun",
                          verify_label(v, r, i).text, bucket_name(p, b->id, &name));
    if (x->kind == INSTR_ALL_REDUCE) {
      const Bucket *bucket = &p->dag->buckets.at[b->id];
      const uint32_t n = devsets_size(p->dag->devsets, bucket->holders);
      bool all = devsets_size(p->dag->devsets, x->group) == n;
      for (uint32_t j = 0; all && j < n; j++)
        all = devsets_position(p->dag->devsets, x->group,
                               devsets_ranks(p->dag->devsets, bucket->holders)[j]) >= 0;
      if (!all)
        return verify_fault(v, "%s does not join all holders of %s", verify_label(v, r, i).text,
                            bucket_name(p, b->id, &name));
      if (s->closed != 0)
        return verify_fault(
            v, "%s comes after %s, which has summed or used the gradients of %s already",
            verify_label(v, r, i).text, verify_label(v, r, s->closed - 1).text,
            bucket_name(p, b->id, &name));
      s->reduced++;
    } else if (s->reduced == 0 &&
               devsets_size(p->dag->devsets, p->dag->buckets.at[b->id].holders) > 1) {
      return verify_fault(v,
                          "%s uses the gradients of %s before they are summed over their holders",
                          verify_label(v, r, i).text, bucket_name(p, b->id, &name));
    }
    s->updated += updates;
    s->closed = i + 1;
  }
  return PIPER_OK;
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

static PiperStatus check_holders(Updates *u) {
  const Plan *p = u->v->plan;
  const Dag *d = p->dag;
  const uint32_t updates = p->options.optimizer.kind != OPTIMIZER_NONE;
  for (uint32_t b = 1; b < d->buckets.n; b++) {
    Label name;
    if (!d->buckets.at[b].trained) continue;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
      const Sum *s = sum_of(u, r, b);
      const bool holds =
          devsets_position(d->devsets, d->buckets.at[b].holders, p->ranks[r].rank) >= 0;
      if (s->updated != (holds ? updates : 0))
        return verify_fault(u->v, "rank %d updates %s %u times instead of %u", p->ranks[r].rank,
                            bucket_name(p, b, &name), s->updated, holds ? updates : 0);
      if (!holds && s->contributions > 0)
        return verify_fault(u->v, "rank %d has gradients of %s, which it does not hold",
                            p->ranks[r].rank, bucket_name(p, b, &name));
    }
  }
  return PIPER_OK;
}

PiperStatus verify_updates(Verifier *v) {
  const Plan *p = v->plan;
  Updates u = {.v = v};
  PiperStatus st = PIPER_OK;
  u.sums = calloc(p->n_ranks * p->dag->buckets.n + 1, sizeof *u.sums);
  if (u.sums == NULL) return verify_nomem(v);
  for (uint32_t r = 0; st == PIPER_OK && r < p->n_ranks; r++)
    for (uint32_t g = v->first[r]; st == PIPER_OK && g < v->first[r + 1]; g++)
      st = look(&u, r, v->sorted[g]);
  if (st == PIPER_OK) st = check_all_samples(&u);
  if (st == PIPER_OK) st = check_holders(&u);
  free(u.sums);
  vec_free(&u.all);
  return st;
}
