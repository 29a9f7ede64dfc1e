/* compile.h - the only place that goes the whole way from a traced model to a plan. */
#ifndef PIPER_COMPILE_COMPILE_H
#define PIPER_COMPILE_COMPILE_H

#include "passes/pipeline.h"
#include "plan/plan.h"

typedef struct CompileOptions {
  int64_t batch;          /* samples a step, >= 1 */
  PlanOptions plan;       /* threads_per_rank 0: the cores divided by the ranks, at least 1 */
  OrderRule order_rule;
  uint64_t memory_limit;  /* bytes a rank; 0: none */
  const Plan *trains;     /* not NULL: the plan evaluates the model with the parameters of that one, which
                             has the same strategy, dtype and batch: forward passes only. No optimizer */
  bool verify;            /* dag_verify after each pass, plan_verify at the end */
  UserPasses user;        /* passes of the user's; {0}: none */
  const char *dump_after; /* name of a pass; NULL: none */
  DumpForm dump_form;
  const Filter *dump_filter; /* as in PassOptions */
} CompileOptions;

/* 'graph' is cut and outlives the plan. *out is the caller's (plan_free). *dump: malloc'ed text of
 * the DAG after the pass named, or NULL; the caller frees it, also after a failure. */
PiperStatus compile_plan(const Graph *graph, const Strategy *strategy, const CompileOptions *options,
                         Plan **out, char **dump, PiperErr *err);

#endif
