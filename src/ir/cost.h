/* cost.h - seconds a node takes: a built-in table for each kind of device. */
#ifndef PIPER_IR_COST_H
#define PIPER_IR_COST_H

#include "ir/program.h"

typedef struct CostTable {
  const char *name;         /* "cpu" */
  double flops_per_second, bytes_per_second; /* one device: roofline */
  double launch_seconds;    /* a compute node, however small */
  double link_latency, link_bytes_per_second;
} CostTable;

extern const CostTable COST_CPU;

/* On one device of the node's set (parts are equal). TRANSFER and collectives: latency + bytes over
 * bandwidth, by the algorithm's factor. A node with nothing to do costs nothing. Programs are built
 * as needed; one that cannot be built counts as 0 (lowering reports it). */
double cost_node(const CostTable *t, Programs *programs, const Dag *d, NodeId n);

#endif
