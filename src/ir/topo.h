/* topo.h - derived facts of a DAG, always computed afresh. */
#ifndef PIPER_IR_TOPO_H
#define PIPER_IR_TOPO_H

#include "ir/dag.h"

/* Successor and predecessor lists in compressed form: the edges of node i leaving it are
 * out_edge[out_first[i]] .. out_edge[out_first[i+1] - 1], ascending by edge id. Removed edges are
 * in neither. */
typedef struct Adjacency {
  uint32_t *out_first, *out_edge, *in_first, *in_edge;
} Adjacency;
PiperStatus adjacency_new(const Dag *d, Adjacency *out, PiperErr *err);
void adjacency_free(Adjacency *a);

/* One topological order, smallest ready id first. 'order' has room for d->n entries; *n is how many
 * were written. When there is a cycle a short one is printed, label by label: PIPER_EUSER with the
 * script lines of its temporal edges, as in
 *   "train.lua:50: order: 1B0 is ordered before 2F1, but has to wait for it: 2F1 -> transfer relu.9 2F1
 *    2>3 -> .. -> 1B0 -> (order, train.lua:50) 2F1"
 * or PIPER_EBUG where all of its edges are data. */
PiperStatus topo_order(const Dag *d, const Adjacency *a, uint32_t *order, uint32_t *n, PiperErr *err);

#endif
