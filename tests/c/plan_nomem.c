/* A plan and all that is asked of it, with each allocation in turn failing. */
#include "nomem.h"

#include "compile/explain.h"
#include "ir/dag_draw.h"
#include "lib/plans.h"
#include "plan/plan_held.h"
#include "plan/plan_text.h"

enum { ACTIONS, TABLE, LIST, DOT, EXPLAIN, N_TEXTS };

static PiperStatus whole_way(Plan *p, const TestStrategy *t, char **texts, PiperErr *err) {
  TRY(plan_find_world(p, err));
  TRY(plan_make(p, err));
  TRY(plan_compute_digest(p, err));
  TRY(plan_verify(p, NULL, err));
  TRY(plan_actions(p, &texts[ACTIONS], err));
  TRY(plan_table(p, &texts[TABLE], err));
  uint32_t most;
  TRY(plan_held(p, 0, &most, err));
  TRY(dag_list(p->dag, NULL, 0, &texts[LIST], err));
  TRY(dag_dot(p->dag, NULL, &texts[DOT], err));
  const Strategy s = {t->at.at, (uint32_t)t->at.n};
  return plan_explain(p, &s, &(Filter){0}, NULL, &texts[EXPLAIN], err);
}

int main(void) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x");
  for (int stage = 0; stage < 3; stage++) {
    model_enter(g, "PP");
    h = stage == 1 ? model_moe(g, "moe", h, 2) : model_linear(g, stage == 0 ? "l0" : "l2", h);
    if (stage == 2) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(g, "PP");
  }
  model_cut(g);
  TestStrategy t = {0};
  bool clean = true, struck = true;
  long n = 0;
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "0,1");
  strategy_place(&t, "PP=2", "1");
  Directive *x = strategy_replicate(&t, "PP=1", "0,1");
  x->zero = ZERO_PARAMS;
  x->per_microbatch = true;
  strategy_shard(&t, "EP=*", "0,1", 2);
  strategy_order(&t, "MB=0 PP=2 PASS=F;MB=1 PP=2 PASS=F|MB=0 PP=2 PASS=B;MB=1 PP=2 PASS=B");
  for (; struck && clean; n++) {
    PiperErr err = {0};
    char *texts[N_TEXTS] = {NULL};
    /* The DAG, the programs and the order are made before; only the plan's own code is tried. */
    Plan *p = plans_prepared(
        g, &t, (PlanSpec){.batch = 8, .order_seed = 3, .options.memory_limit = 1}, &err);
    if (p == NULL) bail(err.text);
    nomem_at(n);
    const PiperStatus st = whole_way(p, &t, texts, &err);
    struck = nomem_struck();
    nomem_at(-1);
    clean = st == (struck ? PIPER_ENOMEM : PIPER_OK);
    if (!clean) diag("allocation %ld: status %d, %s", n, st, err.text);
    for (int k = 0; k < N_TEXTS; k++) free(texts[k]);
    plan_free(p);
  }
  diag("%ld allocations", n - 1);
  ok(clean, "each failing allocation is reported, and nothing else goes wrong");
  ok(n > 100, "there are many");
  strategy_clear(&t);
  graph_free(g);
  return done_testing();
}
