/* dag_verify.h - every invariant of the DAG, a sentence each, after each pass. */
#ifndef PIPER_IR_DAG_VERIFY_H
#define PIPER_IR_DAG_VERIFY_H

#include "ir/dag.h"

/* The stages passed so far. */
enum {
  DAG_BUILT = 1,
  DAG_PLACED = 2,
  DAG_BUCKETED = 4,
  DAG_ORDERED = 8,
  DAG_COUNTED = 16,
  DAG_GATHERED = 32
};

/* PIPER_EBUG with the sentence and the nodes where one does not hold: "1F0 (node 3) does not get
 * value 4 of sample 8". The DAG may be anything that dag_add_* or dag_parse made. The invariants
 * stand at the top of dag_verify.c and dag_verify_buckets.c. O((nodes + edges) log). */
PiperStatus dag_verify(const Dag *d, unsigned stages, PiperErr *err);

#endif
