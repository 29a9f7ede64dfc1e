/* global_order.h - one topological order of the whole DAG by list scheduling (design 4.3). */
#ifndef PIPER_IR_GLOBAL_ORDER_H
#define PIPER_IR_GLOBAL_ORDER_H

#include "ir/dag.h"

typedef enum OrderRule {
  ORDER_BEST,          /* both are tried, the one with the shorter virtual time is kept */
  ORDER_CRITICAL_PATH, /* longest remaining path first; ready backward before forward on a tie */
  ORDER_DOWNSTREAM,    /* most downstream nodes first (the paper's rule) */
} OrderRule;

typedef struct GlobalOrder {
  uint32_t *order;     /* malloc'ed: n NodeIds */
  uint32_t n;
  double *start;       /* malloc'ed: by NodeId, when it starts in virtual time */
  OrderRule rule;      /* the one kept */
  double seconds[3];   /* virtual step time by rule; 0 where not tried */
  double apart_seconds; /* with the members of each group one after another; 0: no group has several, or
                           one of them waits for a later one */
} GlobalOrder;

/* Where groups have several members each rule is tried in three ways, and the fastest is kept: as it is,
 * with the exchanges of members first, and with members one after another (order_members.h). So overlap
 * is never slower than none.
 *
 * seconds[i]: cost of node i. Each (rank, stream channel) runs one node at a time; a collective
 * occupies its stream on all its ranks, a transfer its channel on both sides. Without 'order'
 * directives a ready backward goes before any forward on the same device. Cycle: PIPER_EUSER. */
PiperStatus global_order(const Dag *d, const double *seconds, OrderRule rule, GlobalOrder *out,
                         PiperErr *err);
void global_order_free(GlobalOrder *o); /* {0} is fine */

#endif
