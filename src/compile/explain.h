/* explain.h - why nodes of a plan are as they are: which directives made them, where and when they run, what
 * they wait for and what waits for them. */
#ifndef PIPER_COMPILE_EXPLAIN_H
#define PIPER_COMPILE_EXPLAIN_H

#include "passes/directive.h"
#include "plan/plan.h"

/* All computing nodes that the filter selects, in the order in which they run. 'strategy' is that of the plan.
 * *out is malloc'ed, the caller's; its last line has no newline. A filter that matches nothing is PIPER_EUSER. */
PiperStatus plan_explain(const Plan *plan, const Strategy *strategy, const Filter *filter, char **out,
                         PiperErr *err);

#endif
