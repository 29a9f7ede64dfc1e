/* What the waits for reused memory cost: against a clock that knows nothing of any order, and lets every
 * instruction end as early as all the others allow, until nothing changes. */
#include "lib/plans.h"
#include "random_data.h"

#include <math.h>

/* The instruction of rank b that x, the i-th of rank a, meets; NULL: none there. */
static const Instr *partner(const Plan *p, uint32_t a, uint32_t i, uint32_t b, uint32_t *index) {
  const RankPlan *from = &p->ranks[a], *to = &p->ranks[b];
  const Instr *x = &from->instrs.at[i];
  const char *name = from->streams.at[x->stream].name;
  uint32_t k = 0;
  for (uint32_t j = 0; j < i; j++) {
    const Instr *y = &from->instrs.at[j];
    k += y->kind == x->kind && y->stream == x->stream && y->peer == x->peer && y->group == x->group;
  }
  for (uint32_t j = 0; j < to->instrs.n; j++) {
    const Instr *y = &to->instrs.at[j];
    const bool meets =
        strcmp(to->streams.at[y->stream].name, name) == 0 &&
        (x->kind == INSTR_SEND
             ? y->kind == INSTR_RECV && y->peer == from->rank && x->peer == to->rank
             : y->kind == x->kind && y->group == x->group);
    if (meets && k-- == 0) {
      *index = j;
      return y;
    }
  }
  return NULL;
}

static double begins(const Plan *p, double *const *end, uint32_t r, uint32_t i, bool added) {
  const RankPlan *rank = &p->ranks[r];
  const Instr *x = &rank->instrs.at[i];
  double at = 0;
  for (uint32_t j = 0; j < i; j++)
    if (rank->instrs.at[j].stream == x->stream) at = fmax(at, end[r][j]);
  for (uint32_t k = 0; k < x->n_waits - (added ? 0 : x->n_added); k++)
    at = fmax(at, end[r][rank->waits.at[x->wait_first + k]]);
  return at;
}

static double step_time(const Plan *p, bool added) {
  double *end[12], last = 0;
  for (uint32_t r = 0; r < p->n_ranks; r++) end[r] = calloc(p->ranks[r].instrs.n, sizeof **end);
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t r = 0; r < p->n_ranks; r++)
      for (uint32_t i = 0; i < p->ranks[r].instrs.n; i++) {
        const Instr *x = &p->ranks[r].instrs.at[i];
        if (x->kind == INSTR_RECV) continue; /* with its SEND */
        double at = begins(p, end, r, i, added);
        uint32_t j;
        for (uint32_t b = 0; b < p->n_ranks && x->kind != INSTR_RUN; b++)
          if (b != r && partner(p, r, i, b, &j) != NULL) at = fmax(at, begins(p, end, b, j, added));
        at += p->node_seconds[x->node];
        last = fmax(last, at);
        if (at > end[r][i]) end[r][i] = at, changed = true;
        for (uint32_t b = 0; b < p->n_ranks && x->kind == INSTR_SEND; b++)
          if (b != r && partner(p, r, i, b, &j) != NULL && at > end[b][j])
            end[b][j] = at, changed = true;
      }
  }
  for (uint32_t r = 0; r < p->n_ranks; r++) free(end[r]);
  return last;
}

/* Layers of different width: pieces and waits. */
static Graph *model(int n_stages) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x");
  for (int i = 0; i < n_stages; i++) {
    char name[32];
    model_enter(g, "PP");
    for (int k = 0, n = random_int(1, 3); k < n; k++) {
      snprintf(name, sizeof name, "l%d.%d", i, k);
      h = model_op(g, OP_RELU, NULL, model_linear(g, name, h), MODEL_NONE);
    }
    if (i + 1 == n_stages) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(g, "PP");
  }
  return model_cut(g);
}

int main(void) {
  random_start();
  int wrong = 0, cost = 0, none = 0, groups = 0, alike = 0;
  for (int round = 0; round < 60; round++) {
    PiperErr err = {0};
    const int n_stages = random_int(1, 3), n_mb = random_int(1, 5);
    Graph *g = model(n_stages);
    TestStrategy t = {0};
    const bool replicas = random_int(0, 1);
    if (replicas) { /* each stage on 1, 2 or 4 ranks of its own, or one rank a stage */
      int first = 0;
      strategy_split(&t, "", "MB", n_mb);
      for (int s = 0; s < n_stages; s++) {
        const int n = 1 << random_int(0, 2);
        char filter[32], devs[32];
        snprintf(filter, sizeof filter, "PP=%d", s);
        for (int k = 0, at = 0; k < n; k++)
          at += snprintf(devs + at, sizeof devs - (size_t)at, "%s%d", k > 0 ? "," : "", first + k);
        first += n;
        strategy_place(&t, filter, devs);
        if (n > 1) strategy_replicate(&t, filter, devs)->zero = (uint8_t)random_int(0, 2);
      }
    } else {
      plans_1f1b(&t, n_stages, n_mb, random_int(0, 1));
    }
    PlanSpec x = {.batch = 4 * n_mb, .scheduled = true};
    x.options.single_stream = random_int(0, 2) == 0;
    x.options.memory_limit = (uint64_t)random_int(0, 1);
    Plan *p = plans_must(g, &t, x);
    p->node_seconds = calloc(p->dag->n, sizeof *p->node_seconds);
    for (uint32_t n = 1; n < p->dag->n; n++) p->node_seconds[n] = random_int(0, 9);
    bool known;
    if (plan_find_wait_cost(p, &known, &err) != PIPER_OK) bail(err.text);
    const double want = step_time(p, true) - step_time(p, false);
    if (p->waits_seconds != want && wrong++ == 0)
      diag("round %d: %g instead of %g", round, p->waits_seconds, want);
    /* Likewise where ranks that are alike share lists. */
    Plan *q = plans_prepared(g, &t, x, &err);
    if (plan_find_world(q, &err) != PIPER_OK || plan_make(q, &err) != PIPER_OK) bail(err.text);
    q->node_seconds = malloc(q->dag->n * sizeof *q->node_seconds);
    memcpy(q->node_seconds, p->node_seconds, q->dag->n * sizeof *q->node_seconds);
    for (uint32_t r = 0; r < q->n_ranks; r++) alike += q->ranks[r].like != r;
    if (plan_find_wait_cost(q, &known, &err) != PIPER_OK) bail(err.text);
    if (q->waits_seconds != want && wrong++ == 0)
      diag("round %d: %g instead of %g by classes", round, q->waits_seconds, want);
    plan_free(q);
    cost += want > 0;
    none += want == 0;
    groups += replicas;
    plan_free(p);
    strategy_clear(&t);
    graph_free(g);
  }
  is_int(wrong, 0, "the cost is the difference between steps with the waits and without");
  diag("%d plans with a cost, %d without; %d with replicas", cost, none, groups);
  ok(cost > 0 && none > 0 && groups > 0 && alike > 0, "all came up");
  return done_testing();
}
