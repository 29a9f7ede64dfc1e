/* Ranks that are alike: what plan_make says of every rank without its lists is what the lists say when
 * all of them are made, and lists made on demand are those that are made at once. */
#include "lib/plans.h"
#include "plan/plan_comm.h"
#include "random_data.h"

enum { TRIES = 600, BATCH = 48 };

/* Stages of a layer, some of them with experts, a tied parameter, or a loss of their own whose parameter
 * is as large as it happens to be. Some read the input and nothing else. */
static Graph *random_model(uint32_t n_stages) {
  Graph *g = model_new();
  const ValueId input = model_input(g, "x");
  ValueId h = input;
  const bool tied = random_int(0, 1);
  for (uint32_t i = 0; i < n_stages; i++) {
    char name[16], weight[24];
    model_enter(g, "PP");
    snprintf(name, sizeof name, "l%u", tied ? i / 2 : i);
    h = model_linear(g, name, h);
    if (random_int(0, 3) == 0) {
      snprintf(name, sizeof name, "moe%u", i);
      h = model_op(g, OP_ADD, NULL, h, model_moe(g, name, h, random_int(0, 1) ? 4 : 6));
    }
    const bool ends = i + 1 < n_stages && random_int(0, 4) == 0;
    if (ends || random_int(0, 1)) {
      snprintf(weight, sizeof weight, "wide%u", i);
      const ValueId wide =
          model_op(g, OP_LINEAR, weight, h, model_param(g, weight, random_int(1, 150)));
      model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, wide, MODEL_NONE));
    }
    if (i + 1 == n_stages) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(g, "PP");
    if (ends) h = input;
  }
  if (random_int(0, 4) == 0) g->params.at[1].frozen = true;
  return model_cut(g);
}

/* n ranks from 'first' on, in order or turned around. */
static void block(char *buf, size_t size, int first, int n, bool backwards) {
  size_t at = 0;
  buf[0] = '\0';
  for (int i = 0; i < n; i++)
    at += (size_t)snprintf(buf + at, size - at, "%s%d", i > 0 ? "," : "",
                           backwards ? first + n - 1 - i : first + i);
}

/* Stages on n ranks for one microbatch, on n others for the other one; buckets of one parameter, of
 * which some have fewer elements than there are ranks. */
static void two_directions(TestStrategy *t, uint32_t n_stages, int n, uint8_t zero,
                           bool per_microbatch) {
  char filter[32], devices[64];
  strategy_split(t, "", "MB", 2);
  for (int mb = 0; mb < 2; mb++) {
    snprintf(filter, sizeof filter, "MB=%d", mb);
    block(devices, sizeof devices, n * mb, n, false);
    strategy_place(t, filter, devices);
  }
  block(devices, sizeof devices, 0, 2 * n, false);
  for (uint32_t i = 0; i < n_stages; i++) {
    snprintf(filter, sizeof filter, "PP=%u", i);
    Directive *x = strategy_replicate(t, filter, devices);
    x->bucket_bytes = random_int(0, 2) > 0 ? 1 : 1000;
    x->zero = zero;
    x->per_microbatch = per_microbatch;
  }
}

static void random_strategy(const Graph *g, TestStrategy *t, uint32_t n_stages) {
  static const int sizes[] = {1, 2, 3, 4, 6, 8};
  const int same = sizes[random_int(1, 5)], layout = random_int(0, 5);
  const uint8_t zero = (uint8_t)random_int(0, ZERO_PARAMS);
  const bool per_microbatch = random_int(0, 1), one_name = random_int(0, 4) == 0;
  char filter[32], name[32], devices[64];
  int first = 0, n = same;
  if (layout == 5) {
    two_directions(t, n_stages, same, zero, per_microbatch);
    return;
  }
  if (random_int(0, 4) > 0) strategy_split(t, "", "MB", random_int(1, 3));
  if (random_int(0, 4) == 0) {
    snprintf(filter, sizeof filter, "PP=%d", random_int(0, (int)n_stages - 1));
    strategy_split(t, filter, "SUB", 2);
  }
  for (uint32_t i = 0; i < n_stages; i++) {
    snprintf(filter, sizeof filter, "PP=%u", i);
    if (layout == 2) n = sizes[random_int(0, 5)];       /* unequal neighbours */
    if (layout == 3 && i > 0) first = random_int(0, 4); /* sets that overlap */
    block(devices, sizeof devices, first, n, random_int(0, 6) == 0);
    if (layout != 1 || i % 2 == 1) first += n; /* 1: two stages on each set */
    strategy_place(t, filter, devices);
    snprintf(name, sizeof name, "moe%u.gate.weight", i);
    if (graph_find_param(g, name).i != 0 && n % 2 == 0 && random_int(0, 2) > 0) {
      char experts[40];
      snprintf(experts, sizeof experts, "PP=%u EP=*", i);
      strategy_shard(t, experts, devices, random_int(0, 1) ? 2 : n == 8 ? 2 : (uint32_t)n);
    }
    if (n == 1) continue;
    Directive *x = strategy_replicate(t, filter, devices);
    if (one_name) x->reduce_stream = x->gather_stream = "pp_stream";
    x->zero = zero;
    x->per_microbatch = per_microbatch;
    x->prefetch = (uint32_t)random_int(0, 2);
    x->keep_bytes = random_int(0, 1) ? 0 : 1 << 20;
  }
}

/* ---- lists ----------------------------------------------------------------------------------------- */

static bool same_program(const Plan *p, uint32_t a, const Plan *q, uint32_t b) {
  const Program *x = programs_at(p->programs, a), *y = programs_at(q->programs, b);
  bool same = x->n_calls == y->n_calls && x->n_bindings == y->n_bindings && x->flops == y->flops;
  for (uint32_t k = 0; same && k < x->n_bindings; k++) {
    const Binding *m = &x->bindings[k], *n = &y->bindings[k];
    same = m->kind == n->kind && m->access == n->access && m->value.i == n->value.i &&
           m->bucket.i == n->bucket.i && m->bytes == n->bytes;
  }
  return same;
}

static bool same_group(const Plan *p, uint32_t a, const Plan *q, uint32_t b) {
  const uint32_t n = devsets_size(p->dag->devsets, a);
  return n == devsets_size(q->dag->devsets, b) &&
         memcmp(devsets_ranks(p->dag->devsets, a), devsets_ranks(q->dag->devsets, b),
                n * sizeof(int32_t)) == 0;
}

static bool same_instr(const Plan *p, const RankPlan *r, const Plan *q, const RankPlan *s,
                       uint32_t i) {
  const Instr *x = &r->instrs.at[i], *y = &s->instrs.at[i];
  if (x->kind != y->kind || x->node != y->node || x->stream != y->stream || x->adds != y->adds ||
      x->signals != y->signals || x->n_waits != y->n_waits || x->n_added != y->n_added ||
      x->n_accesses != y->n_accesses || x->bytes != y->bytes || x->offset != y->offset ||
      x->part != y->part || x->sample_lo != y->sample_lo || x->dtype != y->dtype)
    return false;
  for (uint32_t k = 0; k < x->n_waits; k++)
    if (r->waits.at[x->wait_first + k] != s->waits.at[y->wait_first + k]) return false;
  for (uint32_t k = 0; k < x->n_accesses; k++) {
    const Access *a = &r->accesses.at[x->access_first + k],
                 *b = &s->accesses.at[y->access_first + k];
    if (a->buffer != b->buffer || a->write != b->write || a->lo != b->lo || a->hi != b->hi)
      return false;
    if (x->kind == INSTR_RUN &&
        (r->bind_offset.at[x->bind_first + k] != s->bind_offset.at[y->bind_first + k] ||
         r->bind_first_write.at[x->bind_first + k] != s->bind_first_write.at[y->bind_first + k]))
      return false;
  }
  if (x->kind == INSTR_RUN) return same_program(p, x->program, q, y->program);
  if (!instr_is_collective(x->kind)) return x->peer == y->peer;
  if (!same_group(p, x->group, q, y->group)) return false;
  if (x->kind == INSTR_ALL_REDUCE) return true;
  if (x->kind == INSTR_ALL_TO_ALL) {
    const Exchange *m = &p->exchanges.at[x->share_first], *n = &q->exchanges.at[y->share_first];
    return m->samples == n->samples && m->blocks == n->blocks && m->block_bytes == n->block_bytes;
  }
  for (uint32_t k = 0; k < devsets_size(p->dag->devsets, x->group); k++) {
    const Share m = p->shares.at[x->share_first + k], n = q->shares.at[y->share_first + k];
    if (m.lo != n.lo || m.hi != n.hi) return false;
  }
  return true;
}

static bool same_lists(const Plan *p, const Plan *q, uint32_t index) {
  const RankPlan *r = &p->ranks[index], *s = &q->ranks[index];
  bool same = r->instrs.n == s->instrs.n && r->buffers.n == s->buffers.n &&
              r->streams.n == s->streams.n && r->waits.n == s->waits.n &&
              r->step_offset == s->step_offset && r->metrics_offset == s->metrics_offset &&
              r->scratch_offset == s->scratch_offset && r->scratch_bytes == s->scratch_bytes;
  for (uint32_t i = 0; same && i < r->instrs.n; i++) same = same_instr(p, r, q, s, i);
  for (uint32_t k = 0; same && k < r->buffers.n; k++) {
    const Buffer *a = &r->buffers.at[k], *b = &s->buffers.at[k];
    same = a->role == b->role && a->category == b->category && a->offset == b->offset &&
           a->bytes == b->bytes && a->lo == b->lo && a->hi == b->hi && a->first == b->first &&
           a->last == b->last;
  }
  for (uint32_t k = 0; same && k < r->streams.n; k++)
    same = strcmp(r->streams.at[k].name, s->streams.at[k].name) == 0 &&
           r->streams.at[k].kind == s->streams.at[k].kind;
  return same;
}

/* 'moved' of collectives is that of the rank which this one is like. */
static bool same_figures(const RankPlan *r, const RankPlan *s) {
  for (int k = INSTR_RUN; k <= INSTR_RECV; k++)
    if (r->moved[k] != s->moved[k]) return false;
  return r->arena_bytes == s->arena_bytes && r->kept_bytes == s->kept_bytes &&
         memcmp(r->at_peak, s->at_peak, sizeof r->at_peak) == 0 && r->peak_instr == s->peak_instr &&
         memcmp(r->calls, s->calls, sizeof r->calls) == 0 && r->n_waits == s->n_waits &&
         r->waits_added == s->waits_added;
}

/* ---- communication --------------------------------------------------------------------------------- */

/* The row of such a call; NULL: none. */
static CommRow *row_of(const Plan *p, CommRows *rows, const RankPlan *r, const Instr *x) {
  for (size_t k = 0; k < rows->n; k++) {
    CommRow *row = &rows->at[k];
    if (row->kind != x->kind || strcmp(row->stream, r->streams.at[x->stream].name) != 0) continue;
    if (row->bucket != 0 && row->bucket != p->dag->bucket[x->node]) continue;
    if (instr_is_collective(x->kind) ? row->group != x->group
                                     : row->from != r->rank || row->to != x->peer)
      continue;
    const Tensor *t = &p->dag->tensors.at[p->dag->tensor[x->node]];
    const bool params = t->kind == TENSOR_PARAMS, grad = t->kind == TENSOR_GRAD;
    if (row->bucket != 0 ? (row->what == COMM_PARAMS) != params
                         : t->bucket.i != 0 || (row->what == COMM_VALUE_GRADS) != grad ||
                               (row->what == COMM_METRICS) != (t->kind == TENSOR_METRICS) ||
                               (row->what == COMM_COUNTS) != (t->kind == TENSOR_COUNTS))
      continue;
    return row;
  }
  return NULL;
}

/* The lists have just what the rows say. */
static bool communication_holds(const Plan *p) {
  CommRows rows = {0};
  bool holds = plan_communication(p, &rows, NULL) == PIPER_OK;
  for (uint32_t i = 0; holds && i < p->n_ranks; i++)
    for (uint32_t k = 0; holds && k < p->ranks[i].instrs.n; k++) {
      const RankPlan *r = &p->ranks[i];
      const Instr *x = &r->instrs.at[k];
      if (x->kind == INSTR_RUN || x->kind == INSTR_RECV) continue;
      if (instr_is_collective(x->kind) && devsets_ranks(p->dag->devsets, x->group)[0] != r->rank)
        continue;
      CommRow *row = row_of(p, &rows, r, x);
      holds = row != NULL && row->calls > 0 && row->bytes >= x->bytes;
      if (holds) row->calls--, row->bytes -= x->bytes;
    }
  for (size_t k = 0; holds && k < rows.n; k++)
    holds = rows.at[k].calls == 0 && rows.at[k].bytes == 0;
  vec_free(&rows);
  return holds;
}

/* ---- tests ----------------------------------------------------------------------------------------- */

static uint32_t n_other;

/* As a compilation does it. */
static Plan *made_by_class(const Graph *g, const TestStrategy *t, PlanSpec x) {
  PiperErr err = {0};
  Plan *p = plans_prepared(g, t, x, &err);
  if (p == NULL || plan_find_world(p, &err) != PIPER_OK || plan_make(p, &err) != PIPER_OK)
    bail(err.text);
  return p;
}

/* Another order, another limit: other lists have another digest. */
static bool digest_tells(const Graph *g, const TestStrategy *t, PlanSpec x, const Plan *p) {
  PiperErr err = {0};
  x.order_seed++;
  x.options.memory_limit = x.options.memory_limit == 0 ? 1 : 0;
  Plan *q = plans_made(g, t, x, &err);
  if (q == NULL) bail(err.text);
  bool same = p->n_ranks == q->n_ranks;
  for (uint32_t r = 0; same && r < p->n_ranks; r++) same = same_lists(p, q, r);
  const bool tells = same || p->digest != q->digest;
  n_other += !same;
  plan_free(q);
  return tells;
}

static void random_plans(void) {
  uint32_t legal = 0, n_alike = 0, n_ranks = 0, wrong = 0;
  for (int i = 0; i < TRIES && wrong < 3; i++) {
    const uint32_t n_stages = (uint32_t)random_int(1, 4);
    Graph *g = random_model(n_stages);
    TestStrategy t = {0};
    PiperErr err = {0};
    random_strategy(g, &t, n_stages);
    PlanSpec x = {.batch = BATCH, .order_seed = 1 + (uint64_t)random_int(0, 1 << 30)};
    x.scheduled = random_int(0, 1);
    x.options.dtype = random_int(0, 1) ? DT_F32 : DT_F64;
    x.options.clip_norm = random_int(0, 1);
    x.options.single_stream = random_int(0, 4) == 0;
    x.options.memory_limit = random_int(0, 2) == 0 ? (uint64_t)random_int(1, 20000) : 0;
    x.options.optimizer.kind = random_int(0, 1) ? OPTIMIZER_SGD : OPTIMIZER_ADAMW;
    Plan *all = plans_made(g, &t, x, &err);
    if (all != NULL) {
      Plan *some = made_by_class(g, &t, x);
      const char *what = NULL;
      legal++;
      n_ranks += some->n_ranks;
      for (uint32_t r = 0; what == NULL && r < all->n_ranks; r++) {
        const uint32_t like = some->ranks[r].like;
        n_alike += like != r;
        if (like > r || some->ranks[like].like != like) what = "is like no first rank of a class";
        if (some->ranks[r].made != (like == r)) what = "has lists, or none";
        if (!same_figures(&some->ranks[r], &all->ranks[r])) what = "has other figures";
        if (what != NULL) diag("try %d: rank %d %s", i, some->ranks[r].rank, what);
      }
      if (what == NULL && plan_lists(some, &err) != PIPER_OK) diag("%s", what = err.text);
      for (uint32_t r = 0; what == NULL && r < all->n_ranks; r++)
        if (!same_lists(all, some, r) || !same_figures(&some->ranks[r], &all->ranks[r])) {
          what = "has other lists";
          diag("try %d: rank %d %s", i, some->ranks[r].rank, what);
        }
      if (what == NULL && !communication_holds(all)) diag("try %d: %s", i, what = "communication");
      if (what == NULL && !digest_tells(g, &t, x, all)) diag("try %d: %s", i, what = "digest");
      wrong += what != NULL;
      plan_free(some);
    }
    plan_free(all);
    strategy_clear(&t);
    graph_free(g);
  }
  diag("%u legal strategies, %u ranks, %u of them like another one", legal, n_ranks, n_alike);
  is_int(wrong, 0, "figures of classes are those of every rank, and lists on demand those at once");
  ok(n_other > legal / 3,
     "in another order or with another limit lists are others, and so is the digest");
  ok(legal > TRIES / 3 && 4 * n_alike > n_ranks, "in a fair part of legal plans ranks are alike");
}

static uint32_t n_classes(const Plan *p) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < p->n_ranks; r++) n += p->ranks[r].like == r;
  return n;
}

static void replicas(void) {
  Graph *g = model_chain(4);
  TestStrategy t = {0};
  char filter[16], devices[64];
  strategy_split(&t, "", "MB", 2);
  for (int i = 0; i < 4; i++) {
    snprintf(filter, sizeof filter, "PP=%d", i);
    block(devices, sizeof devices, 6 * i, 6, false);
    strategy_place(&t, filter, devices);
    strategy_replicate(&t, filter, devices)->zero = ZERO_PARAMS;
  }
  Plan *p = made_by_class(g, &t, (PlanSpec){.batch = BATCH, .scheduled = true});
  is_int(n_classes(p), 4, "24 ranks of four stages with six replicas are four classes");
  plan_free(p);
  strategy_split(&t, "PP=1", "SUB", 2);
  p = made_by_class(g, &t, (PlanSpec){.batch = BATCH, .scheduled = true});
  ok(n_classes(p) > 4, "samples that are not divided alike make more");
  plan_free(p);
  strategy_clear(&t);
  graph_free(g);
}

int main(void) {
  random_start();
  replicas();
  random_plans();
  return done_testing();
}
