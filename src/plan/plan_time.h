/* plan_time.h - when the nodes of a plan run, in virtual time, with every wait of its instructions. */
#ifndef PIPER_PLAN_PLAN_TIME_H
#define PIPER_PLAN_PLAN_TIME_H

#include "plan/plan.h"

/* The lists of all ranks have been made (plan_lists). Seconds from the start of a step, by NodeId (room for dag->n): from the first start on any rank to the last
 * end. 0 to 0: the node has no instruction, or the plan knows no costs. */
PiperStatus plan_node_times(const Plan *plan, double *start, double *end, PiperErr *err);

#endif
