/* order_sets.h - which queues nodes of a DAG occupy, in a form that does not grow with the ranks.
 *
 * A queue is the compute stream of a rank, a named stream of a rank, or the channel of a stream
 * from one rank to another in one direction. The queues of a node are its set; nodes with the same
 * queues share one set. Queues that are in exactly the same sets cannot be told apart and form one
 * atom: 256 data-parallel ranks that do everything together are one atom, not 256. */
#ifndef PIPER_IR_ORDER_SETS_H
#define PIPER_IR_ORDER_SETS_H

#include "ir/dag.h"

typedef struct OrderSets {
  uint32_t *set;                  /* by node; 0: it occupies nothing (a JOIN, one without devices) */
  uint32_t n_sets, n_atoms;       /* set 0 included */
  uint32_t *atom_first, *atoms;   /* of set s: atoms[atom_first[s] .. atom_first[s + 1] - 1] */
  uint32_t *set_first, *sets;     /* of atom a likewise: the sets that it is in, ascending */
} OrderSets;

PiperStatus order_sets_new(const Dag *d, OrderSets *out, PiperErr *err);
void order_sets_free(OrderSets *s); /* {0} is fine */

#endif
