/* plan_overlap.h - what of a plan's communication hides behind compute, and what keeps the rest from it.
 *
 * In virtual time (plan_time.h), on the lists that run. A communication instruction runs from when all
 * that take part in it can begin until it ends; the time that it waits for others before is not its own.
 * Of that time the part counts as hidden in which the compute stream of the same rank runs something. So
 * each rank that takes part in a collective counts, and both sides of a transfer.
 *
 * Why an operation is exposed on a rank is told by the first of these that holds:
 *   - it began later than its data was there, by half of what is exposed or more. What held it up is the
 *     last thing that it waited for: what was before it in its queue (STREAM), a temporal edge (ORDER),
 *     memory that was in use until then (MEMORY), or another rank that was not there yet (RANK);
 *   - the compute that follows the gap on the rank did not wait for its data but for something else: for
 *     other communication (DATA), which is behind this operation in its queue (STREAM), for memory (MEMORY),
 *     or by a temporal edge (ORDER);
 *   - that compute needs it. If other compute of the rank was ready when the gap began, it stands later
 *     in the list: behind a temporal edge (ORDER), or just because the global order has it so (LIST).
 *     Otherwise there was nothing else to do (DATA);
 *   - no compute follows (END). */
#ifndef PIPER_PLAN_PLAN_OVERLAP_H
#define PIPER_PLAN_PLAN_OVERLAP_H

#include "plan/plan.h"

/* All communication of one kind on streams of one name. */
typedef struct OverlapRow {
  uint8_t kind;       /* InstrKind; both sides of transfers are SENDs here */
  const char *stream; /* the plan's; of a channel "pp_stream/F/0>1" the first ... */
  uint32_t stream_n;  /* ... characters: "pp_stream" */
  uint64_t calls;     /* instructions: of all ranks */
  double seconds, hidden;
} OverlapRow;

typedef enum OverlapCause {
  OVERLAP_DATA, OVERLAP_ORDER, OVERLAP_STREAM, OVERLAP_MEMORY, OVERLAP_RANK, OVERLAP_LIST, OVERLAP_END,
  OVERLAP_CAUSE_COUNT
} OverlapCause;
extern const char *const OVERLAP_CAUSE_NAME[OVERLAP_CAUSE_COUNT]; /* "data", "order", ... */

/* One operation, on the rank where most of it is exposed. */
typedef struct OverlapExposed {
  uint32_t rank, instr;    /* index of the rank; of its list */
  double seconds, exposed; /* on that rank */
  double late;             /* by how much it began after its data was there */
  uint8_t cause;           /* OverlapCause */
  uint32_t waiting;        /* instruction of the rank: the compute after the gap; UINT32_MAX: none */
  uint32_t blocker_rank, blocker; /* what held up the operation, or 'waiting', or (ORDER, LIST) the compute
                                     that was ready but is later in the list; UINT32_MAX: nothing */
  bool blocks_start;       /* it held up the operation itself */
  uint32_t line;           /* ORDER: of the temporal edge; STREAM: of the blocker's node; 0: neither */
} OverlapExposed;

enum { OVERLAP_WORST = 32 };

typedef struct Overlap {
  VEC(OverlapRow) rows;    /* in the order of first use, rank by rank */
  OverlapExposed worst[OVERLAP_WORST]; /* most exposed first; ties by node */
  uint32_t n_worst;
} Overlap;

/* In place of what 'out' holds ({0}: nothing). A plan without node_seconds has no rows. */
PiperStatus plan_overlap(const Plan *plan, Overlap *out, PiperErr *err);
void plan_overlap_free(Overlap *o); /* {0} is fine */

/* "0F1/2 (train.lua:12)", by dag_name: an instruction of the rank with that index, without the rank. */
void plan_overlap_label(const Plan *plan, uint32_t rank, uint32_t instr, char *buf, size_t n);
/* "it began 12 us after its data was there, behind all_reduce .. 0-1 on stream dp_stream (a.lua:12)": the
 * sentence about o, cut off where it does not fit. */
void plan_overlap_why(const Plan *plan, const OverlapExposed *o, char *buf, size_t n);

#endif
