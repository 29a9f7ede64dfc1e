/* plan_text.h - a plan for human readers. Texts are malloc'ed; the caller frees them. Lines are at
 * most 100 columns wide in plan_table, and the last line of a text has no newline. */
#ifndef PIPER_PLAN_PLAN_TEXT_H
#define PIPER_PLAN_PLAN_TEXT_H

#include "plan/plan.h"

PiperStatus plan_actions(const Plan *plan, char **out, PiperErr *err); /* design 3.3, one line a rank */
PiperStatus plan_table(const Plan *plan, char **out, PiperErr *err);   /* print(plan) */

#endif
