/* dag_verify.h - every invariant of the DAG, a sentence each, after each pass. */
#ifndef PIPER_IR_DAG_VERIFY_H
#define PIPER_IR_DAG_VERIFY_H

#include "ir/dag.h"

enum { DAG_BUILT = 1, DAG_PLACED = 2, DAG_BUCKETED = 4, DAG_ORDERED = 8 }; /* stages passed so far */

/* PIPER_EBUG with the sentence and the nodes where one does not hold. O(nodes + edges). */
PiperStatus dag_verify(const Dag *d, unsigned stages, PiperErr *err);

#endif
