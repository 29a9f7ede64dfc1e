/* compare.h - how far two runs of one model are apart (plan:check_equivalence, design 5.8). */
#ifndef PIPER_RUNTIME_COMPARE_H
#define PIPER_RUNTIME_COMPARE_H

#include "runtime/job.h"

typedef enum CompareWhat { COMPARE_PARAMS, COMPARE_GRADS } CompareWhat;

typedef struct Difference {
  double worst;     /* largest relative error of any element of any parameter */
  ParamId param;    /* where; 0: every element is equal */
} Difference;

/* Relative to the largest entry of the parameter (or gradient) in 'b', never less than 1e-3 of the
 * largest of all of them. An element that is not a number in one run counts as infinitely far. Both
 * jobs run plans of 'graph', which may differ in everything else. */
PiperStatus compare_jobs(const Graph *graph, Job *a, Job *b, CompareWhat what, Difference *out,
                         PiperErr *err);

#endif
