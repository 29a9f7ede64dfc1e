/* Counts of targets, in the order that the third step proved.
 *
 * A rank adds its own targets up, then, if several ranks do, one reduction joins all of them, and
 * only then are the counts read. Over all ranks each sample is counted once. */
#include "plan/verify.h"

#include <stdlib.h>

typedef struct Counting { /* of one chunk on one rank */
  uint32_t counted, reduced;
  uint32_t closed; /* 1 + the instruction that reduced or read the counts; 0: none yet */
  uint32_t group;  /* that reduced them */
} Counting;

typedef struct Counted {
  uint32_t chunk, rank_index, instr;
  int64_t lo, hi;
} Counted;

typedef struct Counts {
  Verifier *v;
  Counting *at; /* by rank index, then chunk */
  VEC(Counted) all;
} Counts;

static Counting *counting_of(const Counts *c, uint32_t rank_index, uint32_t chunk) {
  return &c->at[(size_t)rank_index * c->v->plan->graph->chunks.n + chunk];
}

static PiperStatus closed_already(Counts *c, uint32_t r, uint32_t i, const Counting *x) {
  return verify_fault(c->v, "%s comes after %s, which has summed or read the counts already",
                      verify_label(c->v, r, i).text, verify_label(c->v, r, x->closed - 1).text);
}

static PiperStatus add_samples(Counts *c, uint32_t r, uint32_t i, uint32_t chunk) {
  const Plan *p = c->v->plan;
  const Dag *d = p->dag;
  const uint32_t node = p->ranks[r].instrs.at[i].node, n = devsets_size(d->devsets, d->devs[node]);
  const uint32_t pos = (uint32_t)devsets_position(d->devsets, d->devs[node], p->ranks[r].rank);
  const Counted x = {.chunk = chunk,
                     .rank_index = r,
                     .instr = i,
                     .lo = part_lo(d->lo[node], d->hi[node], pos, n),
                     .hi = part_lo(d->lo[node], d->hi[node], pos + 1, n)};
  return vec_push(&c->all, x) ? PIPER_OK : verify_nomem(c->v);
}

static PiperStatus look(Counts *c, uint32_t r, uint32_t i) {
  Verifier *v = c->v;
  const RankPlan *rank = &v->plan->ranks[r];
  const Instr *x = &rank->instrs.at[i];
  for (uint32_t k = x->access_first; k < x->access_first + x->n_accesses; k++) {
    const Access *a = &rank->accesses.at[k];
    const Buffer *b = &rank->buffers.at[a->buffer];
    if (b->role != BUFFER_COUNTS) continue;
    Counting *count = counting_of(c, r, b->id);
    if (a->write && count->closed != 0) return closed_already(c, r, i, count);
    if (x->kind == INSTR_ALL_REDUCE) {
      count->reduced++;
      count->group = x->group;
    } else if (a->write) {
      count->counted++;
      TRY(add_samples(c, r, i, b->id));
      continue;
    }
    if (count->counted == 0)
      return verify_fault(v, "%s reads counts of targets that nothing has counted",
                          verify_label(v, r, i).text);
    count->closed = i + 1;
  }
  return PIPER_OK;
}

static int by_samples(const void *a, const void *b) {
  const Counted *x = a, *y = b;
  if (x->chunk != y->chunk) return x->chunk < y->chunk ? -1 : 1;
  if (x->lo != y->lo) return x->lo < y->lo ? -1 : 1;
  if (x->rank_index != y->rank_index) return x->rank_index < y->rank_index ? -1 : 1;
  return (x->instr > y->instr) - (x->instr < y->instr);
}

/* Targets [*at, ...) of this chunk: all samples of the batch, each once. */
static PiperStatus check_samples(Counts *c, uint32_t chunk, size_t *at) {
  Verifier *v = c->v;
  const int64_t batch = v->plan->dag->batch;
  const char *line =
      graph_name(v->plan->graph, graph_chunk(v->plan->graph, (ChunkId){chunk})->line);
  int64_t next = 0;
  for (; *at < c->all.n && c->all.at[*at].chunk == chunk; ++*at) {
    const Counted *x = &c->all.at[*at];
    if (x->lo < next)
      return verify_fault(v, "%s counts targets of samples [%lld, %lld) again",
                          verify_label(v, x->rank_index, x->instr).text, (long long)x->lo,
                          (long long)(x->hi < next ? x->hi : next));
    if (x->lo > next) break;
    next = x->hi;
  }
  if (next == batch) return PIPER_OK;
  return verify_fault(v, "nothing counts the targets of sample %lld for the chunk at %s",
                      (long long)next, line);
}

/* Several ranks count: each has joined one reduction over all of them. */
static PiperStatus check_joined(Counts *c, uint32_t chunk) {
  Verifier *v = c->v;
  const Plan *p = v->plan;
  uint32_t n = 0;
  for (uint32_t r = 0; r < p->n_ranks; r++) n += counting_of(c, r, chunk)->counted > 0;
  for (uint32_t r = 0; r < p->n_ranks && n > 1; r++) {
    const Counting *x = counting_of(c, r, chunk);
    if (x->counted == 0) continue;
    bool all = x->reduced == 1 && devsets_size(p->dag->devsets, x->group) == n;
    for (uint32_t s = 0; all && s < p->n_ranks; s++)
      all = counting_of(c, s, chunk)->counted == 0 ||
            devsets_position(p->dag->devsets, x->group, p->ranks[s].rank) >= 0;
    if (!all)
      return verify_fault(v, "rank %d divides by a count that is not that of all ranks",
                          p->ranks[r].rank);
  }
  return PIPER_OK;
}

PiperStatus verify_counts(Verifier *v) {
  const Plan *p = v->plan;
  const Graph *g = p->graph;
  Counts c = {.v = v};
  PiperStatus st = PIPER_OK;
  size_t at = 0;
  bool any = false;
  for (uint32_t k = 1; k < g->chunks.n; k++) any |= graph_chunk(g, (ChunkId){k})->n_counts > 0;
  if (!any) return PIPER_OK;
  c.at = calloc(p->n_ranks * g->chunks.n, sizeof *c.at);
  if (c.at == NULL) return verify_nomem(v);
  for (uint32_t r = 0; st == PIPER_OK && r < p->n_ranks; r++)
    for (uint32_t k = v->first[r]; st == PIPER_OK && k < v->first[r + 1]; k++)
      st = look(&c, r, v->sorted[k]);
  if (c.all.n > 0) qsort(c.all.at, c.all.n, sizeof *c.all.at, by_samples);
  for (uint32_t k = 1; st == PIPER_OK && k < g->chunks.n; k++) {
    if (graph_chunk(g, (ChunkId){k})->n_counts == 0) continue;
    st = check_samples(&c, k, &at);
    if (st == PIPER_OK) st = check_joined(&c, k);
  }
  free(c.at);
  vec_free(&c.all);
  return st;
}
