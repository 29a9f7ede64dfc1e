/* plan_comm.h - what a plan communicates in a step: calls and bytes, by bucket, kind and stream. */
#ifndef PIPER_PLAN_PLAN_COMM_H
#define PIPER_PLAN_PLAN_COMM_H

#include "plan/plan.h"

typedef enum CommWhat {
  COMM_GRADS, COMM_PARAMS, /* of a bucket */
  COMM_METRICS, COMM_COUNTS,
  COMM_VALUES, COMM_VALUE_GRADS, /* transfers between stages */
  COMM_WHAT_COUNT
} CommWhat;
extern const char *const COMM_WHAT_NAME[COMM_WHAT_COUNT]; /* "gradients", "parameters", ... */

/* All calls that are alike in these. A collective is one call, however many ranks make it. */
typedef struct CommRow {
  uint8_t what;        /* CommWhat */
  uint8_t kind;        /* InstrKind; a transfer is a SEND */
  uint32_t bucket;     /* GRADS, PARAMS; otherwise 0 */
  const char *stream;  /* the plan's */
  uint32_t group;      /* device set of a collective; 0: a transfer */
  int32_t from, to;    /* of a transfer */
  uint64_t calls;
  uint64_t bytes;      /* of all calls: what is reduced or gathered, or sent */
} CommRow;
typedef VEC(CommRow) CommRows;

/* Buckets first, by number; then the rest by what it is; each by kind, stream and ranks. In place of
 * what 'out' holds. */
PiperStatus plan_communication(const Plan *plan, CommRows *out, PiperErr *err);
/* "layers.0.weight..": by the first parameter. */
void plan_bucket_name(const Plan *plan, uint32_t bucket, char *buf, size_t n);

#endif
