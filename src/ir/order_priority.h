/* order_priority.h - how urgent nodes are: the two rules of list scheduling (design 4.3). */
#ifndef PIPER_IR_ORDER_PRIORITY_H
#define PIPER_IR_ORDER_PRIORITY_H

#include "base/err.h"

#include <stdint.h>

/* A DAG's edges without their names: successors of node i are succ[first[i]] .. succ[first[i+1]-1]. */
typedef struct Successors {
  uint32_t n;            /* nodes are 1 .. n - 1 */
  uint32_t *first, *succ;
  uint32_t *n_preds;
  uint32_t *topo;        /* some topological order; all n - 1 nodes unless there is a cycle */
  uint32_t n_topo;
} Successors;

/* out[i]: seconds from the start of node i to the end of the DAG on its longest path. */
void priority_critical_path(const Successors *g, const double *seconds, double *out);
/* out[i]: nodes that cannot start before node i ends. Exact for some 10,000 nodes; for more it is
 * counted on a sample of them, evenly spread over the topological order, so that the time stays
 * linear. A node never has less than a successor of it. */
PiperStatus priority_downstream(const Successors *g, double *out, PiperErr *err);

#endif
