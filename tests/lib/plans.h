/* plans.h - plans for tests, from a model and a strategy, through the whole way. The global order is
 * a random one unless 'scheduled': nothing may rely on what the list scheduler happens to do. */
#ifndef PIPER_TESTS_PLANS_H
#define PIPER_TESTS_PLANS_H

#include "base/rng.h"
#include "ir/cost.h"
#include "ir/global_order.h"
#include "ir/topo.h"
#include "lib/models.h"
#include "lib/strategies.h"
#include "plan/plan_lower.h"
#include "plan/plan_verify.h"

#include "tap.h"

/* The order of the list scheduler by these seconds, which the plan keeps; NULL: by the built-in table,
 * and it keeps none. */
static inline void plans_schedule(Plan *p, double (*seconds_of)(const Dag *, uint32_t)) {
  PiperErr err = {0};
  GlobalOrder order = {0};
  double *seconds = calloc(p->dag->n, sizeof *seconds);
  if (seconds == NULL) bail("no memory");
  for (uint32_t i = 1; i < p->dag->n; i++)
    seconds[i] = seconds_of != NULL ? seconds_of(p->dag, i)
                                    : cost_node(&COST_CPU, p->programs, p->dag, (NodeId){i});
  if (global_order(p->dag, seconds, ORDER_BEST, &order, &err) != PIPER_OK) bail(err.text);
  p->order = order.order;
  p->n_order = order.n;
  if (seconds_of == NULL) {
    free(order.start), free(seconds);
    return;
  }
  p->node_start = order.start;
  p->node_seconds = seconds;
  p->predicted_seconds = order.seconds[order.rule];
  p->apart_seconds = order.apart_seconds;
}

/* Any topological order: a random ready node is next. Seed 0: the oldest. */
static inline void plans_order(Plan *p, uint64_t seed) {
  const Dag *d = p->dag;
  Adjacency a;
  PiperErr err = {0};
  uint32_t *needs = calloc(d->n, sizeof *needs), *ready = malloc(d->n * sizeof *ready);
  uint32_t first = 0, n_ready = 0;
  p->order = malloc(d->n * sizeof *p->order);
  if (needs == NULL || ready == NULL || p->order == NULL) bail("no memory");
  if (adjacency_new(d, &a, &err) != PIPER_OK) bail(err.text);
  for (uint32_t i = 1; i < d->n; i++) {
    needs[i] = a.in_first[i + 1] - a.in_first[i];
    if (needs[i] == 0) ready[n_ready++] = i;
  }
  p->n_order = 0;
  while (first < n_ready) {
    if (seed != 0) {
      const uint64_t left = n_ready - first;
      const uint32_t k = first + (uint32_t)(rng_uniform(seed, 1, p->n_order) * (double)left);
      const uint32_t t = ready[k];
      ready[k] = ready[first];
      ready[first] = t;
    }
    const uint32_t i = ready[first++];
    p->order[p->n_order++] = i;
    for (uint32_t k = a.out_first[i]; k < a.out_first[i + 1]; k++) {
      const uint32_t j = d->edges.at[a.out_edge[k]].dst;
      if (--needs[j] == 0) ready[n_ready++] = j;
    }
  }
  if (p->n_order != d->n - 1) bail("the DAG has a cycle");
  adjacency_free(&a);
  free(needs);
  free(ready);
}

typedef struct PlanSpec {
  int64_t batch;
  PlanOptions options; /* dtype 0: f32, optimizer 0: sgd */
  bool scheduled;      /* the order of the list scheduler, not a random one */
  double (*seconds)(const Dag *d, uint32_t node); /* of nodes, for 'scheduled' */
  uint64_t order_seed; /* of a random one; 0: the oldest node first */
} PlanSpec;

/* With its DAG, programs and order. NULL: the strategy is not legal, and err says why. Any other
 * failure ends the test program. */
static inline Plan *plans_prepared(const Graph *g, const TestStrategy *t, PlanSpec x,
                                   PiperErr *err) {
  if (x.options.dtype == DT_NONE) x.options.dtype = DT_F32;
  if (x.options.optimizer.kind == OPTIMIZER_NONE) x.options.optimizer.kind = OPTIMIZER_SGD;
  Plan *p = calloc(1, sizeof *p);
  if (p == NULL || (p->arena = arena_new()) == NULL) bail("no memory");
  p->graph = g;
  p->options = x.options;
  const PassOptions passes = {
      .float_bytes = dtype_bytes(x.options.dtype), .clip = x.options.clip_norm > 0, .verify = true};
  const Strategy s = strategy_of(t);
  if (passes_run(g, x.batch, &s, &passes, &p->dag, err) != PIPER_OK) {
    if (err->code != PIPER_EUSER) bail(err->text);
    plan_free(p);
    return NULL;
  }
  const ProgramSpec programs = {.dag = p->dag,
                                .dtype = x.options.dtype,
                                .optimizer = x.options.optimizer,
                                .clip_norm = x.options.clip_norm};
  if (programs_new(&programs, &p->programs, err) != PIPER_OK) bail(err->text);
  if (x.scheduled) plans_schedule(p, x.seconds);
  else plans_order(p, x.order_seed);
  return p;
}

/* Likewise; lowered. */
static inline Plan *plans_lowered(const Graph *g, const TestStrategy *t, PlanSpec x,
                                  PiperErr *err) {
  Plan *p = plans_prepared(g, t, x, err);
  if (p == NULL) return NULL;
  if (plan_find_world(p, err) != PIPER_OK || plan_lower(p, err) != PIPER_OK) bail(err->text);
  return p;
}

static inline Plan *plans_made(const Graph *g, const TestStrategy *t, PlanSpec x, PiperErr *err) {
  Plan *p = plans_lowered(g, t, x, err);
  if (p == NULL) return NULL;
  if (plan_place_memory(p, err) != PIPER_OK || plan_compute_digest(p, err) != PIPER_OK)
    bail(err->text);
  return p;
}

/* One that has to be legal. */
static inline Plan *plans_must(const Graph *g, const TestStrategy *t, PlanSpec x) {
  PiperErr err = {0};
  Plan *p = plans_made(g, t, x, &err);
  if (p == NULL) bail(err.text);
  return p;
}

static inline Filter plans_action(TestStrategy *t, int stage, int mb, Pass pass) {
  FilterTerm *terms = strategy_alloc(t, 2, sizeof *terms);
  int32_t *at = strategy_alloc(t, 2, sizeof *at);
  at[0] = mb;
  at[1] = stage;
  terms[0] = (FilterTerm){.tag = "MB", .indices = at, .n_indices = 1};
  terms[1] = (FilterTerm){.tag = "PP", .indices = at + 1, .n_indices = 1};
  return (Filter){terms, 2, 1u << pass};
}

/* 1F1B: split, placement of stage i on rank i, and its order; with 'halves' the backward pass is
 * split, each BW right after its BI. */
static inline void plans_1f1b(TestStrategy *t, int n_stages, int n_mb, bool halves) {
  strategy_split(t, "", "MB", n_mb)->schedule = 1;
  for (int stage = 0; stage < n_stages; stage++) {
    char filter[16], device[16];
    snprintf(filter, sizeof filter, "PP=%d", stage);
    snprintf(device, sizeof device, "%d", stage);
    strategy_place(t, filter, device);
    Filter *filters = strategy_alloc(t, (size_t)n_mb * 3, sizeof *filters);
    OrderGroup *groups = strategy_alloc(t, (size_t)n_mb * 3, sizeof *groups);
    const int warmup = n_stages - 1 - stage;
    uint32_t n = 0;
    for (int step = 0; step < n_mb + warmup; step++) {
      if (step < n_mb) filters[n++] = plans_action(t, stage, step, PASS_F);
      if (step < warmup) continue;
      filters[n++] = plans_action(t, stage, step - warmup, halves ? PASS_BI : PASS_B);
      if (halves) filters[n++] = plans_action(t, stage, step - warmup, PASS_BW);
    }
    for (uint32_t i = 0; i < n; i++) groups[i] = (OrderGroup){&filters[i], 1};
    Directive *x = strategy_add(t, DIRECTIVE_ORDER, "");
    x->groups = groups;
    x->n_groups = n;
    x->schedule = 1;
    x->rank_in_schedule = (uint32_t)stage;
  }
}

/* Index in the rank's list of the k-th instruction (from 0) of this kind and pass; bails when there
 * is none. pass 0: any. */
static inline uint32_t plans_instr(const Plan *p, int32_t rank, InstrKind kind, Pass pass,
                                   uint32_t k) {
  const RankPlan *r = plan_rank(p, rank);
  for (uint32_t i = 0; r != NULL && i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    if (x->kind != kind || (pass != PASS_NONE && p->dag->pass[x->node] != pass)) continue;
    if (k-- == 0) return i;
  }
  bail("no such instruction");
  return 0;
}

#endif
