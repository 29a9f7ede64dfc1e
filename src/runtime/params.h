/* params.h - parameters and gradients of a job as whole tensors of doubles. No step is under way. */
#ifndef PIPER_RUNTIME_PARAMS_H
#define PIPER_RUNTIME_PARAMS_H

#include "runtime/exec.h"

typedef struct Params {
  const Plan *plan;
  RankExec *ranks;  /* plan->n_ranks of them */
  double **unused;  /* by ParamId: values of a parameter that no chunk uses; otherwise NULL */
} Params;

/* Gives every parameter its initial value, a function of seed, name and element alone, and zeroes
 * the optimizer state. On failure params_close cleans up. */
PiperStatus params_open(Params *p, const Plan *plan, RankExec *ranks, uint64_t seed, PiperErr *err);
void params_close(Params *p); /* zeros are fine */

PiperStatus params_get(const Params *p, ParamId id, double *values, PiperErr *err);
PiperStatus params_set(const Params *p, ParamId id, const double *values, PiperErr *err);
PiperStatus params_get_grad(const Params *p, ParamId id, double *values, PiperErr *err);
PiperStatus params_replicas_equal(const Params *p, PiperErr *err);

#endif
