/* plan_time.h - when the nodes of a plan, and its instructions, run: in virtual time, with every wait of its
 * instructions. Makes the lists of the first rank of each class of ranks that are alike. */
#ifndef PIPER_PLAN_PLAN_TIME_H
#define PIPER_PLAN_PLAN_TIME_H

#include "plan/plan.h"

/* Seconds from the start of a step, by NodeId (room for dag->n): from the first start on any rank to the
 * last end. 0 to 0: the node has no instruction, or the plan knows no costs. */
PiperStatus plan_node_times(const Plan *plan, double *start, double *end, PiperErr *err);

typedef struct PlanTimes {
  uint32_t n_ranks;
  double **end;   /* by index of the rank, by instruction: when it ends, from the start of the step. It
                     began plan->node_seconds[its node] before */
  uint32_t *colour; /* by index of the rank: those of one colour share what 'end' points to */
  double seconds; /* the step: when the last one ends */
} PlanTimes;

/* plan->node_seconds is not NULL. */
PiperStatus plan_times_new(const Plan *plan, PlanTimes *out, PiperErr *err);
void plan_times_free(PlanTimes *t); /* {0} is fine */

#endif
