/* plan_time - a step in virtual time; and how much longer it takes for the waits that reused memory has
 * added.
 *
 * An instruction begins when the one before it in its stream and those that it waits for have ended;
 * a pair or a collective begins when all its members can. Nodes are taken in the global order, and
 * the pieces of a TRANSFER in their one order (plan_lower.c): then all that an instruction comes after
 * was taken before it. */
#include "plan/plan_time.h"

#include "plan/plan_lower.h"

#include <stdlib.h>
#include <string.h>

typedef struct RankTime {
  const RankPlan *rank;
  double *end;          /* by instruction */
  double *stream;       /* by stream: when its last instruction ended */
  uint32_t first, next; /* instructions of the node at hand: [first, next) */
} RankTime;

typedef struct Timing {
  const Plan *plan;
  RankTime *ranks;               /* by index */
  bool added;                    /* the waits of the memory planner count */
  double last;                   /* end of the step */
  double *node_start, *node_end; /* by node, both or none: of its instructions on all ranks */
} Timing;

static double ready(const Timing *t, const RankTime *r, uint32_t i) {
  const Instr *x = &r->rank->instrs.at[i];
  const uint32_t n = t->added ? x->n_waits : x->n_waits - x->n_added;
  double at = r->stream[x->stream];
  for (uint32_t k = 0; k < n; k++) {
    const double end = r->end[r->rank->waits.at[x->wait_first + k]];
    if (end > at) at = end;
  }
  return at;
}

static void finish(Timing *t, RankTime *r, uint32_t i, double end) {
  const uint32_t n = r->rank->instrs.at[i].node;
  r->end[i] = r->stream[r->rank->instrs.at[i].stream] = end;
  if (end > t->last) t->last = end;
  if (t->node_end == NULL) return;
  const double start = end - t->plan->node_seconds[n];
  if (t->node_end[n] == 0 || start < t->node_start[n]) t->node_start[n] = start > 0 ? start : 0;
  if (end > t->node_end[n]) t->node_end[n] = end;
}

static RankTime *rank_at(const Timing *t, int32_t rank) {
  const int32_t at = devsets_position(t->plan->dag->devsets, t->plan->world, rank);
  return &t->ranks[at];
}

/* The node's instructions of each rank of the set, those that have no peer taken at once. */
static void take_node(Timing *t, uint32_t node, uint32_t devs, double seconds) {
  const DevSets *sets = t->plan->dag->devsets;
  for (uint32_t j = 0; j < devsets_size(sets, devs); j++) {
    RankTime *r = rank_at(t, devsets_ranks(sets, devs)[j]);
    const InstrVec *instrs = &r->rank->instrs;
    if (r->next < instrs->n && instrs->at[r->next].node == node) r->first = r->next;
    for (; r->next < instrs->n && instrs->at[r->next].node == node; r->next++)
      if (instrs->at[r->next].kind == INSTR_RUN)
        finish(t, r, r->next, ready(t, r, r->next) + seconds);
  }
}

static uint32_t find_recv(const RankTime *to, uint32_t node, int32_t from) {
  for (uint32_t i = to->first; i < to->next; i++) {
    const Instr *x = &to->rank->instrs.at[i];
    if (x->node == node && x->kind == INSTR_RECV && x->peer == from && to->end[i] < 0) return i;
  }
  return UINT32_MAX;
}

static void take_pieces(Timing *t, uint32_t node, double seconds) {
  const Dag *d = t->plan->dag;
  for (uint32_t j = 0; j < devsets_size(d->devsets, d->src_devs[node]); j++) {
    RankTime *from = rank_at(t, devsets_ranks(d->devsets, d->src_devs[node])[j]);
    for (uint32_t i = from->first; i < from->next; i++) {
      const Instr *x = &from->rank->instrs.at[i];
      if (x->node != node || x->kind != INSTR_SEND) continue;
      RankTime *to = rank_at(t, x->peer);
      const uint32_t k = find_recv(to, node, from->rank->rank);
      double at = ready(t, from, i);
      if (k != UINT32_MAX && ready(t, to, k) > at) at = ready(t, to, k);
      finish(t, from, i, at + seconds);
      if (k != UINT32_MAX) finish(t, to, k, at + seconds);
    }
  }
}

static void take_collective(Timing *t, uint32_t node, double seconds) {
  const Dag *d = t->plan->dag;
  const uint32_t n = devsets_size(d->devsets, d->devs[node]);
  double at = 0;
  for (int taking = 0; taking < 2; taking++)
    for (uint32_t j = 0; j < n; j++) {
      RankTime *r = rank_at(t, devsets_ranks(d->devsets, d->devs[node])[j]);
      for (uint32_t i = r->first; i < r->next; i++) {
        const Instr *x = &r->rank->instrs.at[i];
        if (x->node != node || !instr_is_collective(x->kind)) continue;
        if (taking) finish(t, r, i, at + seconds);
        else if (ready(t, r, i) > at) at = ready(t, r, i);
      }
    }
}

static double run_clock(Timing *t) {
  const Plan *plan = t->plan;
  const Dag *d = plan->dag;
  t->last = 0;
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    RankTime *x = &t->ranks[r];
    for (uint32_t i = 0; i < x->rank->instrs.n; i++) x->end[i] = -1;
    memset(x->stream, 0, x->rank->streams.n * sizeof *x->stream);
    x->first = x->next = 0;
  }
  for (uint32_t k = 0; k < plan->n_order; k++) {
    const uint32_t n = plan->order[k];
    const double seconds = plan->node_seconds[n];
    if (d->kind[n] == NODE_TRANSFER) take_node(t, n, d->src_devs[n], seconds);
    take_node(t, n, d->devs[n], seconds);
    if (d->kind[n] == NODE_TRANSFER) take_pieces(t, n, seconds);
    else if (NODE_KIND_COMMUNICATES[d->kind[n]]) take_collective(t, n, seconds);
  }
  return t->last;
}

static bool timing_new(Timing *t) {
  const Plan *plan = t->plan;
  bool held = (t->ranks = calloc(plan->n_ranks, sizeof *t->ranks)) != NULL;
  for (uint32_t r = 0; held && r < plan->n_ranks; r++) {
    RankTime *x = &t->ranks[r];
    x->rank = &plan->ranks[r];
    x->end = malloc((x->rank->instrs.n + 1) * sizeof *x->end);
    x->stream = malloc((x->rank->streams.n + 1) * sizeof *x->stream);
    held = x->end != NULL && x->stream != NULL;
  }
  return held;
}

static void timing_free(Timing *t) {
  for (uint32_t r = 0; t->ranks != NULL && r < t->plan->n_ranks; r++)
    free(t->ranks[r].end), free(t->ranks[r].stream);
  free(t->ranks);
}

PiperStatus plan_find_wait_cost(Plan *plan, PiperErr *err) {
  Timing t = {.plan = plan};
  uint32_t added = 0;
  plan->waits_seconds = 0;
  for (uint32_t r = 0; r < plan->n_ranks; r++) added += plan->ranks[r].waits_added;
  if (added == 0 || plan->node_seconds == NULL) return PIPER_OK;
  const bool held = timing_new(&t);
  if (held) {
    const double without = run_clock(&t);
    t.added = true;
    plan->waits_seconds = run_clock(&t) - without;
  }
  timing_free(&t);
  return held ? PIPER_OK : err_nomem(err, "compile");
}

PiperStatus plan_node_times(const Plan *plan, double *start, double *end, PiperErr *err) {
  Timing t = {.plan = plan, .added = true, .node_start = start, .node_end = end};
  memset(start, 0, plan->dag->n * sizeof *start);
  memset(end, 0, plan->dag->n * sizeof *end);
  if (plan->node_seconds == NULL) return PIPER_OK;
  const bool held = timing_new(&t);
  if (held) run_clock(&t);
  timing_free(&t);
  return held ? PIPER_OK : err_nomem(err, "the times of a plan");
}

PiperStatus plan_times_new(const Plan *plan, PlanTimes *out, PiperErr *err) {
  Timing t = {.plan = plan, .added = true};
  *out = (PlanTimes){.end = calloc(plan->n_ranks, sizeof *out->end)};
  if (out->end == NULL || !timing_new(&t)) {
    timing_free(&t);
    free(out->end);
    *out = (PlanTimes){0};
    return err_nomem(err, "the times of a plan");
  }
  out->seconds = run_clock(&t);
  out->n_ranks = plan->n_ranks;
  for (uint32_t r = 0; r < plan->n_ranks; r++) { /* handed over */
    out->end[r] = t.ranks[r].end;
    t.ranks[r].end = NULL;
  }
  timing_free(&t);
  return PIPER_OK;
}

void plan_times_free(PlanTimes *t) {
  for (uint32_t r = 0; r < t->n_ranks; r++) free(t->end[r]);
  free(t->end);
  *t = (PlanTimes){0};
}
