/* job.h - a plan at work: its ranks, their memory, step after step.
 *
 * All ranks of the plan are threads of this process, on CPU devices. One thread calls; Lua never
 * meets the others. After a failure in a step every later call but job_close and job_memory returns
 * that failure. */
#ifndef PIPER_RUNTIME_JOB_H
#define PIPER_RUNTIME_JOB_H

#include "plan/plan.h"

typedef struct Job Job;

typedef struct JobConfig {
  uint64_t seed;           /* of the initial parameters */
  Job *trains;             /* of a plan with plan->trains: a job of that plan, whose parameters are used,
                              of the moment, and whose memory besides what it keeps. It makes no step
                              until this job is closed */
  double watchdog_seconds; /* a step in which nothing completes for so long is ended with a report;
                              0: PIPER_WATCHDOG from the environment, or 60; < 0: never */
  bool faults_exist;       /* PIPER_FAULT has to mean an instruction of this plan, else it is an error;
                              off for the plans that a run makes beside its own */
} JobConfig;

/* Environment, for tests; what cannot be read is an error of job_open:
 *   PIPER_WATCHDOG=<seconds>               0: off
 *   PIPER_JITTER=<seed>[:<max us>]         a random sleep (default at most 200 us) before every
 *                                          instruction, by seed, rank, instruction and step
 *   PIPER_FAULT=<pass>:<step>:<rank>[:sleep:<seconds>]
 *                                          the first instruction of that pass (F, B, BI, BW, or the
 *                                          kind of any other node: update, transfer, ...) of that
 *                                          rank fails in that step, or sleeps first
 *   PIPER_POISON=1                         all memory starts as NaN, so that nothing relies on zeros */

/* The plan stays the caller's and outlives the job. Parameters have their initial values, optimizer
 * state is zero, gradients are undefined until the first step. */
PiperStatus job_open(const Plan *plan, const JobConfig *cfg, Job **out, PiperErr *err);
/* Joins all threads, whatever happened before; NULL is fine. */
void job_close(Job *job);

typedef struct JobStep {
  int64_t step;              /* from 1 */
  double lr;
  uint64_t seed;             /* of what is random in a step */
  const void *const *inputs; /* by index into graph->inputs (element 0 unused): the rows of the whole
                                batch, row-major, in the plan's own type of the input; read during
                                the call. NULL: an input that no rank reads */
} JobStep;

/* Runs one step. metrics: graph_n_metrics numbers, the losses, the norm of the gradient and what
 * graph.h says besides; may be NULL. PIPER_ESTOP: interrupt_pending() became true. */
PiperStatus job_step(Job *job, const JobStep *step, double *metrics, PiperErr *err);

/* What the l-th loss (from 1) was divided by in the last step, where it is a multiple of a mean over targets
 * that were counted; < 0: it is not. */
PiperStatus job_loss_count(Job *job, uint32_t loss, double *out, PiperErr *err);

/* Whole tensors, row-major. Setting changes every copy. Gradients are those of the last step, before
 * the optimizer; zeros for a parameter that takes none. */
PiperStatus job_get_param(Job *job, ParamId p, double *values, PiperErr *err);
PiperStatus job_set_param(Job *job, ParamId p, const double *values, PiperErr *err);
PiperStatus job_get_grad(Job *job, ParamId p, double *values, PiperErr *err);

/* PIPER_EBUG, naming parameter and ranks, unless all copies of every parameter have equal bits. */
PiperStatus job_replicas_equal(Job *job, PiperErr *err);

/* Bytes that were allocated for a rank's data; false: the rank is not of this plan. They are one
 * block: the plan divides it into categories, and what it would not account for counts as
 * workspace. */
bool job_memory(const Job *job, int32_t rank, uint64_t out[MEM_COUNT]);

#endif
