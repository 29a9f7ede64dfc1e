/* order_members.h - members of overlapped groups: what list scheduling knows about them.
 *
 * A group whose members may overlap has work of several members on one compute stream, each with
 * exchanges of its own between its chunks. Two ways to run it are derived from an order of urgency:
 *
 *   exchanges first   a node's place among those of its group is decided by the exchange that it releases,
 *                     as in Johnson's rule for two machines: first those that compute for less time than
 *                     that exchange takes, the shortest first, so that communication is under way early;
 *                     then the others, longest exchange first, so that compute is left to hide it. What
 *                     a node computes and releases is that of the chain from it to the next exchange of its
 *                     member. Ties, and all against nodes of other groups, stay as they were.
 *   one after another members do not overlap: each begins when the one before it in the directive has
 *                     ended. What this takes is what the overlap is worth, and it is kept where list
 *                     scheduling, which looks no further ahead, does worse. */
#ifndef PIPER_IR_ORDER_MEMBERS_H
#define PIPER_IR_ORDER_MEMBERS_H

#include "ir/dag.h"
#include "ir/order_priority.h"

typedef struct OrderMembers {
  uint32_t n;         /* members are 1 .. n - 1, group after group, each group's in the directive's order;
                         0: no group has several */
  uint32_t *of;       /* by node; 0: in no such group */
  uint32_t *first, *nodes; /* of member m: nodes[first[m]] .. nodes[first[m + 1] - 1], by id */
  bool *follows;      /* by member: the one before it is of the same group */
  double *lead, *exchange; /* by node: seconds until, and of, the exchange that it releases */
} OrderMembers;

PiperStatus order_members_new(const Dag *d, const Successors *g, const double *seconds,
                              OrderMembers *out, PiperErr *err);
void order_members_free(OrderMembers *m); /* {0} is fine */

/* Deals the ranks of urgency (by node; 'at': the nodes by rank) that a group's nodes have out among them
 * again, by the exchanges they release. false: out of memory. */
bool order_members_by_exchange(const OrderMembers *m, uint32_t *at, uint32_t *rank);

#endif
