/* explain.h - why nodes of a plan are as they are: which directives made them, where and when they run, what
 * they wait for and what waits for them. */
#ifndef PIPER_COMPILE_EXPLAIN_H
#define PIPER_COMPILE_EXPLAIN_H

#include "passes/directive.h"
#include "plan/plan.h"

/* A node as plan_actions writes it: "0B1", or "0B1/2" for one chunk of several; a stage of -1 is "-". */
typedef struct ExplainAction {
  int32_t stage;
  uint32_t pass, mb;
  uint32_t chunk; /* 0: any */
} ExplainAction;
bool explain_parse_action(const char *text, ExplainAction *out); /* false: it is none */

/* All computing nodes that the filter selects (or, where 'action' is not NULL, that it names), in
 * the order in which they run. 'strategy' is that of the plan.
 * *out is malloc'ed, the caller's; its last line has no newline. A filter that matches nothing is PIPER_EUSER. */
PiperStatus plan_explain(const Plan *plan, const Strategy *strategy, const Filter *filter,
                         const ExplainAction *action, char **out, PiperErr *err);

#endif
