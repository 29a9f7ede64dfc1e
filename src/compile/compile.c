#include "compile/compile.h"

#include "base/bytes.h"
#include "base/cores.h"
#include "base/interrupt.h"
#include "ir/cost.h"
#include "plan/plan_lower.h"
#include "plan/plan_verify.h"

#include <stdio.h>
#include <stdlib.h>

/* All ranks are of this machine. */
static uint32_t share_of_cores(const Plan *plan) {
  const uint32_t share = plan->n_ranks > 0 ? (uint32_t)cores_available() / plan->n_ranks : 1;
  return share > 1 ? share : 1;
}

/* Each rank's busy time: the nodes of a device set are added up before they go to its ranks. */
static PiperStatus find_busy(Plan *plan, PiperErr *err) {
  const Dag *d = plan->dag;
  const uint32_t n_sets = devsets_count(d->devsets);
  double *of_set = calloc(n_sets, sizeof *of_set);
  plan->busy_seconds = calloc(plan->n_ranks, sizeof *plan->busy_seconds);
  if (of_set == NULL || plan->busy_seconds == NULL) {
    free(of_set);
    return err_nomem(err, "compile");
  }
  for (uint32_t n = 1; n < d->n; n++)
    if (!NODE_KIND_COMMUNICATES[d->kind[n]]) of_set[d->devs[n]] += plan->node_seconds[n];
  for (uint32_t s = 1; s < n_sets; s++) {
    const int32_t *ranks = devsets_ranks(d->devsets, s);
    for (uint32_t j = 0; of_set[s] > 0 && j < devsets_size(d->devsets, s); j++)
      plan->busy_seconds[devsets_position(d->devsets, plan->world, ranks[j])] += of_set[s];
  }
  free(of_set);
  return PIPER_OK;
}

/* Seconds of each node, one global order from them, and each rank's share of busy time. */
static PiperStatus choose_order(Plan *plan, OrderRule rule, PiperErr *err) {
  const Dag *d = plan->dag;
  static const char *const RULE[] = {"", "critical_path", "downstream"};
  double *seconds = calloc(d->n, sizeof *seconds);
  if (seconds == NULL) return err_nomem(err, "compile");
  plan->node_seconds = seconds;
  for (uint32_t n = 1; n < d->n; n++) {
    TRY(interrupt_check_at(n, err));
    seconds[n] = cost_node(&COST_CPU, plan->programs, d, (NodeId){n});
  }
  GlobalOrder order = {0};
  PiperStatus st = global_order(d, seconds, rule, &order, err);
  if (st == PIPER_OK) {
    plan->order = order.order;
    plan->node_start = order.start;
    plan->n_order = order.n;
    plan->order_rule = RULE[order.rule];
    plan->predicted_seconds = order.seconds[order.rule];
    plan->predicted_rule[0] = order.seconds[ORDER_CRITICAL_PATH];
    plan->apart_seconds = order.apart_seconds;
    plan->predicted_rule[1] = order.seconds[ORDER_DOWNSTREAM];
  }
  if (st == PIPER_OK) st = find_busy(plan, err);
  return st;
}

/* With what the plan keeps whose parameters this one uses. */
static uint64_t needed_bytes(const RankPlan *r) { return r->arena_bytes + r->shared_bytes; }

/* What makes the largest category smaller. Of workspace the scratch space of kernels is fixed, and is
 * most of it in small models: no directive changes it. */
static void remedy(const RankPlan *r, uint32_t threads, char *buf, size_t n) {
  int largest = 0;
  for (int c = 1; c < MEM_COUNT; c++)
    if (r->at_peak[c] > r->at_peak[largest]) largest = c;
  switch (largest) {
  case MEM_PARAMS:
  case MEM_GRADS:
  case MEM_OPTIMIZER:
    snprintf(buf, n,
             "more pipeline stages leave fewer parameters on each rank, and %s = true in replicate a "
             "share of them",
             largest == MEM_PARAMS  ? "shard_params"
             : largest == MEM_GRADS ? "shard_grads"
                                    : "shard_optimizer");
    return;
  case MEM_WORKSPACE:
    if (r->scratch_bytes * 2 < r->at_peak[MEM_WORKSPACE])
      snprintf(buf, n, "more microbatches or a smaller batch need less workspace for temporary values");
    else if (threads > 1)
      snprintf(buf, n,
               "fewer threads_per_rank need less workspace: kernels take %s for each of %u threads",
               bytes_text(r->scratch_bytes / threads).text, threads);
    else
      snprintf(buf, n,
               "kernels take %s of workspace whatever the model is: a larger memory_limit helps",
               bytes_text(r->scratch_bytes).text);
    return;
  case MEM_COMM:
    snprintf(buf, n, "more microbatches or a smaller batch make what is received smaller");
    return;
  default:
    snprintf(buf, n,
             "more microbatches, a smaller batch or a 1F1B schedule hold fewer activations, and "
             "recompute keeps less of each");
  }
}

/* A plan that does not fit is refused before it runs. */
static PiperStatus check_limit(const Plan *plan, uint64_t limit, PiperErr *err) {
  if (limit == 0) return PIPER_OK;
  const RankPlan *worst = &plan->ranks[0];
  for (uint32_t r = 1; r < plan->n_ranks; r++)
    if (needed_bytes(&plan->ranks[r]) > needed_bytes(worst)) worst = &plan->ranks[r];
  if (needed_bytes(worst) <= limit) return PIPER_OK;
  char helps[160];
  remedy(worst, plan->options.threads_per_rank, helps, sizeof helps);
  return err_set(err, PIPER_EUSER,
                 "%s: rank %d needs %s and memory_limit is %s: params %s, grads %s, optimizer %s, "
                 "activations %s, comm %s, workspace %s; %s",
                 plan->trains != NULL ? "evaluate" : "compile", worst->rank,
                 bytes_text(needed_bytes(worst)).text, bytes_text(limit).text,
                 bytes_text(worst->at_peak[MEM_PARAMS]).text,
                 bytes_text(worst->at_peak[MEM_GRADS]).text,
                 bytes_text(worst->at_peak[MEM_OPTIMIZER]).text,
                 bytes_text(worst->at_peak[MEM_ACTIVATIONS]).text,
                 bytes_text(worst->at_peak[MEM_COMM]).text,
                 bytes_text(worst->at_peak[MEM_WORKSPACE]).text,
                 helps);
}

PiperStatus compile_plan(const Graph *graph, const Strategy *strategy, const CompileOptions *options,
                         Plan **out, char **dump, PiperErr *err) {
  *dump = NULL;
  Plan *plan = calloc(1, sizeof *plan);
  if (plan == NULL || (plan->arena = arena_new()) == NULL) {
    plan_free(plan);
    return err_nomem(err, "compile");
  }
  plan->graph = graph;
  plan->options = options->plan;
  plan->options.memory_limit = options->memory_limit;
  plan->trains = options->trains;
  const PassOptions passes = {
      .float_bytes = dtype_bytes(options->plan.dtype),
      .clip = options->plan.clip_norm > 0,
      .order_rule = options->order_rule,
      .forward_only = options->trains != NULL,
      .verify = options->verify,
      .user = options->user,
      .dump_after = options->dump_after,
      .dump_form = options->dump_form,
      .dump_filter = options->dump_filter,
      .dump = dump,
  };
  PiperStatus st = passes_run(graph, options->batch, strategy, &passes, &plan->dag, err);
  if (st != PIPER_OK) goto fail;
  const ProgramSpec programs = {
      .dag = plan->dag,
      .dtype = options->plan.dtype,
      .optimizer = options->plan.optimizer,
      .clip_norm = options->plan.clip_norm,
  };
  if ((st = programs_new(&programs, &plan->programs, err)) != PIPER_OK) goto fail;
  if ((st = plan_find_world(plan, err)) != PIPER_OK) goto fail;
  if (plan->options.threads_per_rank == 0) plan->options.threads_per_rank = share_of_cores(plan);
  if ((st = choose_order(plan, options->order_rule, err)) != PIPER_OK) goto fail;
  if ((st = plan_make(plan, err)) != PIPER_OK) goto fail;
  if ((st = check_limit(plan, options->memory_limit, err)) != PIPER_OK) goto fail;
  if ((st = plan_compute_digest(plan, err)) != PIPER_OK) goto fail;
  if (options->verify) {
    PlanProof proof;
    if ((st = plan_verify(plan, &proof, err)) != PIPER_OK) goto fail;
  }
  *out = plan;
  return PIPER_OK;
fail:
  plan_free(plan);
  return st;
}
