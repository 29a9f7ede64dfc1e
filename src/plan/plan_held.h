/* plan_held.h - for how many actions a rank holds activations at once: the "peak" of a schedule, counted on
 * the plan's instructions. */
#ifndef PIPER_PLAN_PLAN_HELD_H
#define PIPER_PLAN_PLAN_HELD_H

#include "plan/plan.h"

/* The most pairs of stage and microbatch of which the rank at 'index' of plan->ranks holds anything from one pass to another, in *most:
 * a buffer that two of their passes touch, from the first touch to the last. The stage is the PP index of a
 * chunk, as in plan_actions. What lives all the time, such as inputs, does not count. */
PiperStatus plan_held(const Plan *plan, uint32_t index, uint32_t *most, PiperErr *err);

#endif
