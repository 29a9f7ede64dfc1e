/* plan_lower.h - DAG and global order to each rank's instructions, buffers and waits. */
#ifndef PIPER_PLAN_PLAN_LOWER_H
#define PIPER_PLAN_PLAN_LOWER_H

#include "plan/plan.h"

/* Sets plan->world and n_ranks: every rank that some node of the DAG runs on. */
PiperStatus plan_find_world(Plan *plan, PiperErr *err);
/* Fills plan->ranks from plan->dag, world, order, programs, options. Buffers get no offsets. */
PiperStatus plan_lower(Plan *plan, PiperErr *err);
/* plan_mem.c: gives each buffer its offset, adds waits where reuse needs them and nothing implies
 * them, resolves bindings to offsets, fills the memory figures. */
PiperStatus plan_place_memory(Plan *plan, PiperErr *err);
/* plan_time.c: sets waits_seconds, from node_seconds. */
PiperStatus plan_find_wait_cost(Plan *plan, PiperErr *err);
/* plan_digest.c: a hash of all that has to be equal on every rank. */
void plan_compute_digest(Plan *plan);

#endif
