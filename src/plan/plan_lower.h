/* plan_lower.h - DAG and global order to each rank's instructions, buffers and waits. */
#ifndef PIPER_PLAN_PLAN_LOWER_H
#define PIPER_PLAN_PLAN_LOWER_H

#include "plan/plan.h"

/* Sets plan->world and n_ranks: every rank that some node of the DAG runs on. */
PiperStatus plan_find_world(Plan *plan, PiperErr *err);

/* plan_make.c: fills plan->ranks: the figures of every rank, and the lists of one for each class of
 * ranks that are alike, as long as they are not too large. */
PiperStatus plan_make(Plan *plan, PiperErr *err);

/* What all ranks have in common, from plan->dag, world, order, programs, options; and plan->ranks with
 * their numbers. */
PiperStatus plan_lower_begin(Plan *plan, PiperErr *err);
/* The lists of a rank that has none. Buffers get no offsets. */
PiperStatus plan_lower_rank(Plan *plan, uint32_t index, PiperErr *err);
void plan_lower_end(Plan *plan); /* frees what plan_lower_begin made, which is not needed to run */
/* After plan_lower_begin: the interned name of the stream on which ranks have what is on stream 'name';
 * of a transfer with its direction, 'F' or 'B', and its two ranks. 0: out of memory. */
uint32_t plan_stream(Plan *plan, uint32_t name, char direction, int32_t from, int32_t to);
/* plan_mem.c: gives each buffer of the rank its offset, adds waits where reuse needs them and nothing
 * implies them, resolves bindings to offsets, fills the figures. */
PiperStatus plan_place_rank(Plan *plan, uint32_t index, PiperErr *err);
/* Both for all ranks. */
PiperStatus plan_lower(Plan *plan, PiperErr *err);
PiperStatus plan_place_memory(Plan *plan, PiperErr *err);

/* plan_class.c: sets 'like' of every rank. */
PiperStatus plan_find_classes(Plan *plan, PiperErr *err);
/* The figures of a rank from those of the one that it is like. */
void plan_copy_figures(Plan *plan, uint32_t index);

/* plan_time.c: sets waits_seconds, from node_seconds. *known: it is known, and not just 0. */
PiperStatus plan_find_wait_cost(Plan *plan, bool *known, PiperErr *err);
/* plan_digest.c: a hash of all that decides the lists of every rank. */
PiperStatus plan_compute_digest(Plan *plan, PiperErr *err);

#endif
