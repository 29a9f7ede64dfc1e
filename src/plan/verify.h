/* verify.h - what the steps of plan_verify share. Each may rely on what those before it proved:
 * ranges, then meetings, then races, then counts and updates.
 *
 * Instructions have a number in the whole plan (first[rank index] + index in the rank's list). An
 * event is what completes at once: a RUN alone, a SEND with its RECV, a collective on all its
 * members. */
#ifndef PIPER_PLAN_VERIFY_H
#define PIPER_PLAN_VERIFY_H

#include "plan/plan_verify.h"

typedef struct Verifier {
  const Plan *plan;
  PiperErr *err;
  PlanProof proof;
  uint32_t *first;   /* by rank index, and the end */
  uint32_t *rank_of; /* by instruction: rank index */
  /* verify_meetings */
  uint32_t n_events;
  uint32_t *event;                  /* by instruction */
  uint32_t *member_first, *members; /* by event: its instructions */
  uint32_t *next;                   /* by instruction: the next one of its stream; UINT32_MAX */
  uint32_t *waiter_first, *waiters; /* by instruction: those that wait for it */
  uint32_t *place;                  /* by event: in one order in which all can complete */
  uint32_t *sorted;                 /* the instructions of each rank in that order, rank after rank,
                                        as indices in the rank's list: from first[rank index] on */
} Verifier;

typedef struct Label {
  char text[256];
} Label;
Label verify_label(const Verifier *v, uint32_t rank_index, uint32_t instr);
Label verify_buffer(const Verifier *v, uint32_t rank_index, uint32_t buffer);
PiperStatus verify_fault(Verifier *v, const char *fmt, ...) PIPER_PRINTF(2, 3); /* PIPER_EBUG */
PiperStatus verify_nomem(Verifier *v);

/* Ids and ranges in bounds; accesses are those of the programs, inside buffers inside arenas; every
 * RUN does what its node says, on the node's samples. */
PiperStatus verify_ranges(Verifier *v);
/* SENDs and RECVs match one to one, collectives on all members, and nothing waits in a circle. */
PiperStatus verify_meetings(Verifier *v);
/* Conflicting accesses to common bytes are ordered; what is read was written before. */
PiperStatus verify_races(Verifier *v);
/* What is divided by a count of targets has it of each sample once, and summed over all ranks. */
PiperStatus verify_counts(Verifier *v);
/* Every gradient has each sample once, and is complete and summed before its one update. */
PiperStatus verify_updates(Verifier *v);

#endif
