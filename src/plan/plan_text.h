/* plan_text.h - a plan for human readers. Texts are malloc'ed; the caller frees them. Lines are at
 * most 100 columns wide in plan_table, and the last line of a text has no newline. Of more than 32
 * ranks those that have the same text share it, with their numbers in front. */
#ifndef PIPER_PLAN_PLAN_TEXT_H
#define PIPER_PLAN_PLAN_TEXT_H

#include "plan/plan.h"

PiperStatus plan_actions(const Plan *plan, char **out,
                         PiperErr *err); /* one line a rank, or group */
PiperStatus plan_table(const Plan *plan, char **out, PiperErr *err);   /* print(plan) */

#endif
