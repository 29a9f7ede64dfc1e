/* Ctrl-C while a plan is made: each long part of the way stops, and nothing is lost that was there. */
#include "base/interrupt.h"
#include "lib/plans.h"
#include "passes/pipeline.h"

int main(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  PiperErr err = {0};
  plans_1f1b(&t, 2, 4, false);
  const Strategy s = strategy_of(&t);
  const PassOptions passes = {.float_bytes = 4};
  Dag *d = NULL;
  interrupt_request();
  is_int(passes_run(g, 4, &s, &passes, &d, &err), PIPER_ESTOP, "the passes");
  is_str(err.text, "interrupted", "and say so");
  interrupt_clear();

  Plan *p = plans_prepared(g, &t, (PlanSpec){.batch = 4, .scheduled = true}, &err);
  if (p == NULL || plan_find_world(p, &err) != PIPER_OK) bail(err.text);
  double *seconds = calloc(p->dag->n, sizeof *seconds);
  GlobalOrder order = {0};
  interrupt_request();
  err = (PiperErr){0};
  is_int(global_order(p->dag, seconds, ORDER_BEST, &order, &err), PIPER_ESTOP, "the global order");
  is_int(plan_make(p, &err), PIPER_ESTOP, "lowering and memory");
  interrupt_clear();
  err = (PiperErr){0};
  is_int(plan_make(p, &err), PIPER_OK, "which can be done once more");
  interrupt_request();
  is_int(plan_verify(p, NULL, &err), PIPER_ESTOP, "the proof");
  interrupt_clear();
  err = (PiperErr){0};
  is_int(plan_verify(p, NULL, &err), PIPER_OK, "likewise");
  free(seconds);
  plan_free(p);
  strategy_clear(&t);
  graph_free(g);
  return done_testing();
}
