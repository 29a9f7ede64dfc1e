/* params.h - parameters and gradients of a job as whole tensors of doubles. No step is under way. */
#ifndef PIPER_RUNTIME_PARAMS_H
#define PIPER_RUNTIME_PARAMS_H

#include "runtime/exec.h"

typedef struct Params {
  const Plan *plan;
  RankExec *ranks;  /* plan->n_ranks of them */
} Params;

/* Gives every parameter its initial value, a function of seed, name and element alone, and zeroes
 * the optimizer state. */
PiperStatus params_init(const Params *p, uint64_t seed, PiperErr *err);

PiperStatus params_get(const Params *p, ParamId id, double *values, PiperErr *err);
PiperStatus params_set(const Params *p, ParamId id, const double *values, PiperErr *err);
PiperStatus params_get_grad(const Params *p, ParamId id, double *values, PiperErr *err);
PiperStatus params_replicas_equal(const Params *p, PiperErr *err);

#endif
