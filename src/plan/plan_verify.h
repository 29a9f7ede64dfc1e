/* plan_verify.h - proves a finished plan from itself alone: no deadlock, no race, nothing reused too
 * early. */
#ifndef PIPER_PLAN_PLAN_VERIFY_H
#define PIPER_PLAN_PLAN_VERIFY_H

#include "plan/plan.h"

typedef struct PlanProof {
  uint64_t instrs, pairs, collectives; /* what was looked at */
  uint64_t conflicts;                  /* pairs of accesses proved ordered */
} PlanProof;

/* PIPER_EBUG naming the instructions, ranks and script lines of the first fault. Makes the lists of all
 * ranks (plan_lists); where those that were not there are many, they are dropped again. */
PiperStatus plan_verify(const Plan *plan, PlanProof *proof, PiperErr *err);
/* About how much memory it takes, besides what the plan has. */
uint64_t plan_verify_bytes(const Plan *plan);

#endif
