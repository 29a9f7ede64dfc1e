/* The host's side: opens the ranks, launches a step on all of them, waits. While it waits it looks
 * for Ctrl-C and for a step that has come to a halt.
 *
 * The first failure wins, whoever finds it: it is written down, the stop flag is set, and every
 * device is told to look at it. Nothing else has to be undone: a job that failed only closes. */
#include "runtime/job.h"

#include "base/interrupt.h"
#include "device/cpu_isa.h"
#include "runtime/exec.h"
#include "runtime/hooks.h"
#include "runtime/params.h"
#include "runtime/watchdog.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOK_MS 50 /* how often the host looks around while a step runs */

struct Job {
  const Plan *plan;
  Hooks hooks;
  DeviceHub *device_hub;
  CommHub *comm_hub;
  RankExec *ranks; /* plan->n_ranks */
  Job *trains;     /* whose parameters are used; NULL: its own */
  Params params;
  int64_t step;    /* the present or last one */
  atomic_int stop;
  pthread_mutex_t lock;
  PiperErr failure; /* by lock, while code is PIPER_OK; afterwards it stays */
};

/* ---- failures ----------------------------------------------------------------------------------- */

static void job_stop(Job *job, PiperStatus code, const char *text) {
  pthread_mutex_lock(&job->lock);
  if (job->failure.code == PIPER_OK) err_set(&job->failure, code, "%s", text);
  pthread_mutex_unlock(&job->lock);
  atomic_store(&job->stop, 1);
  for (uint32_t r = 0; r < job->plan->n_ranks; r++) {
    RankExec *x = &job->ranks[r];
    if (x->comm != NULL) x->comm->ops->abort(x->comm);
    if (x->device != NULL) x->device->ops->abort(x->device);
  }
}

/* What messages call a step. */
static const char *step_word(const Job *job) {
  return job->plan->dag->forward_only ? "evaluation batch" : "step";
}

/* DeviceConfig.fail: "rank 3, step 12, 1F3 (train.lua:12): loss is nan". */
static void rank_failed(void *ctx, int32_t rank, uint32_t label, const PiperErr *err) {
  RankExec *x = ctx;
  PiperErr full = {PIPER_OK, ""};
  char instr[256], prefix[32];
  const char *node = instr;
  plan_instr_label(x->plan, x->rank, label, instr, sizeof instr);
  snprintf(prefix, sizeof prefix, "rank %d, ", (int)rank);
  if (strncmp(instr, prefix, strlen(prefix)) == 0) node += strlen(prefix);
  err_set(&full, err->code, "rank %d, %s %lld, %s: %s", (int)rank, step_word(x->job),
          (long long)x->job->step, node, err->text);
  job_stop(x->job, full.code, full.text);
}

/* DeviceConfig.before. */
static PiperStatus rank_before(void *ctx, int32_t rank, uint32_t label, PiperErr *err) {
  RankExec *x = ctx;
  return hooks_before(&x->job->hooks, rank, label, x->fault_instr, x->job->step, &x->job->stop,
                      err);
}

static PiperStatus check_alive(Job *job, PiperErr *err) {
  PiperStatus st;
  pthread_mutex_lock(&job->lock);
  st = job->failure.code;
  if (st != PIPER_OK) err_set(err, st, "%s", job->failure.text);
  pthread_mutex_unlock(&job->lock);
  return st;
}

/* ---- life ------------------------------------------------------------------------------------------ */

static PiperStatus poison(RankExec *x, PiperErr *err) {
  unsigned char nan[4096]; /* all ones is a NaN in f32 and f64 */
  const uint64_t bytes = x->rank->arena_bytes;
  memset(nan, 0xff, sizeof nan);
  for (uint64_t at = 0; at < bytes; at += sizeof nan) {
    const uint64_t n = bytes - at < sizeof nan ? bytes - at : sizeof nan;
    TRY(x->device->ops->copy_in(x->device, x->arena + at, nan, n, err));
  }
  return PIPER_OK;
}

/* The same rank of the job that trains; NULL: there is none. */
static const RankExec *rank_beside(const Job *job, int32_t rank) {
  const Job *trains = job->trains;
  for (uint32_t r = 0; trains != NULL && r < trains->plan->n_ranks; r++)
    if (trains->ranks[r].rank->rank == rank) return &trains->ranks[r];
  return NULL;
}

static PiperStatus open_rank(Job *job, uint32_t index, PiperErr *err) {
  RankExec *x = &job->ranks[index];
  const RankPlan *rank = &job->plan->ranks[index];
  const DeviceConfig cfg = {
      .rank = rank->rank,
      .n_threads = job->plan->options.threads_per_rank,
      .hub = job->device_hub,
      .stop = &job->stop,
      .fail = rank_failed,
      .before = hooks_active(&job->hooks) ? rank_before : NULL,
      .ctx = x,
  };
  x->job = job;
  x->fault_instr = hooks_fault_instr(&job->hooks, job->plan, rank);
  TRY(exec_open(x, job->plan, rank, &DEVICE_CPU, &cfg, job->comm_hub, &COMM_LOCAL,
                rank_beside(job, rank->rank), err));
  return job->hooks.poison ? poison(x, err) : PIPER_OK;
}

static PiperStatus open_all(Job *job, const JobConfig *cfg, PiperErr *err) {
  const uint32_t n = job->plan->n_ranks;
  TRY(hooks_read(&job->hooks, err));
  const KernelTable *table; /* PIPER_ISA: told here, not at the first op of some rank */
  TRY(cpu_isa_select(&table, err));
  if (cfg->faults_exist) TRY(hooks_check_fault(&job->hooks, job->plan, err));
  if (cfg->watchdog_seconds != 0) {
    job->hooks.watchdog_seconds = cfg->watchdog_seconds > 0 ? cfg->watchdog_seconds : 0;
  }
  TRY(DEVICE_CPU.hub_open(&job->device_hub, err));
  TRY(COMM_LOCAL.hub_open(&job->comm_hub, err));
  for (uint32_t r = 0; r < n; r++) TRY(open_rank(job, r, err));
  for (uint32_t r = 0; r < n; r++) {
    TRY(job->ranks[r].comm->ops->connect(job->ranks[r].comm, err));
  }
  job->params = (Params){job->plan, job->ranks};
  if (job->trains == NULL) TRY(params_init(&job->params, cfg->seed, err));
  for (uint32_t r = 0; r < n; r++) TRY(exec_capture(&job->ranks[r], err));
  return PIPER_OK;
}

PiperStatus job_open(const Plan *plan, const JobConfig *cfg, Job **out, PiperErr *err) {
  PiperStatus st;
  if (plan->trains != (cfg->trains != NULL ? cfg->trains->plan : NULL))
    return err_set(err, PIPER_EBUG, "job: not the plan whose parameters this one uses");
  if (cfg->trains != NULL) TRY(check_alive(cfg->trains, err));
  TRY(plan_lists(plan, err));
  Job *job = calloc(1, sizeof *job);
  if (job == NULL) return err_nomem(err, "job");
  job->plan = plan;
  job->trains = cfg->trains;
  pthread_mutex_init(&job->lock, NULL);
  job->ranks = calloc((size_t)plan->n_ranks + 1, sizeof *job->ranks);
  st = job->ranks != NULL ? open_all(job, cfg, err) : err_nomem(err, "job");
  if (st != PIPER_OK) {
    job_close(job);
    return st;
  }
  *out = job;
  return PIPER_OK;
}

void job_close(Job *job) {
  if (job == NULL) return;
  atomic_store(&job->stop, 1);
  for (uint32_t r = 0; job->ranks != NULL && r < job->plan->n_ranks; r++) {
    Device *dev = job->ranks[r].device;
    if (dev != NULL) dev->ops->halt(dev);
  }
  for (uint32_t r = 0; job->ranks != NULL && r < job->plan->n_ranks; r++) {
    exec_close(&job->ranks[r]);
  }
  COMM_LOCAL.hub_close(job->comm_hub);
  DEVICE_CPU.hub_close(job->device_hub);
  free(job->ranks);
  pthread_mutex_destroy(&job->lock);
  free(job);
}

/* ---- a step ---------------------------------------------------------------------------------------- */

static StepBlock step_block(const Job *job, const JobStep *step) {
  const OptimizerSpec *o = &job->plan->options.optimizer;
  StepBlock b = {.step = step->step, .lr = step->lr, .seed = step->seed};
  b.bias_correction[0] = b.bias_correction[1] = 1;
  if (o->kind == OPTIMIZER_ADAMW) {
    b.bias_correction[0] = 1 - pow(o->beta1, (double)step->step);
    b.bias_correction[1] = 1 - pow(o->beta2, (double)step->step);
  }
  return b;
}

/* The samples that a rank's input buffers hold. */
static PiperStatus feed(const Job *job, const RankExec *x, const void *const *inputs,
                        PiperErr *err) {
  const Graph *g = job->plan->graph;
  for (size_t i = 0; i < x->rank->buffers.n; i++) {
    const Buffer *b = &x->rank->buffers.at[i];
    const Value *v;
    uint64_t row;
    if (b->role != BUFFER_INPUT) continue;
    v = graph_value(g, g->inputs.at[b->id].value);
    row = (uint64_t)shape_elements_per_sample(&v->shape) *
          dtype_bytes(dtype_concrete(v->dtype, job->plan->options.dtype));
    if (inputs == NULL || inputs[b->id] == NULL) {
      return err_set(err, PIPER_EBUG, "no data for the input %s",
                     graph_name(g, g->inputs.at[b->id].name));
    }
    TRY(x->device->ops->copy_in(x->device, x->arena + b->offset,
                                (const unsigned char *)inputs[b->id] + row * (uint64_t)b->lo,
                                row * (uint64_t)(b->hi - b->lo), err));
  }
  return PIPER_OK;
}

/* Sums that the step begins from nothing. */
static PiperStatus zero_sums(const Job *job, const RankExec *x, PiperErr *err) {
  const DeviceOps *dev = x->device->ops;
  for (size_t i = 0; i < x->rank->buffers.n; i++) {
    const Buffer *b = &x->rank->buffers.at[i];
    if (b->role == BUFFER_COUNTS)
      TRY(dev->zero(x->device, x->arena + b->offset, b->bytes, err));
  }
  return dev->zero(x->device, x->arena + x->rank->metrics_offset,
                   graph_n_metrics(job->plan->graph) * sizeof(double), err);
}

static PiperStatus prepare(Job *job, const JobStep *step, PiperErr *err) {
  const StepBlock block = step_block(job, step);
  for (uint32_t r = 0; r < job->plan->n_ranks; r++) {
    const RankExec *x = &job->ranks[r];
    TRY(feed(job, x, step->inputs, err));
    TRY(x->device->ops->copy_in(x->device, x->arena + x->rank->step_offset, &block, sizeof block,
                                err));
    TRY(zero_sums(job, x, err));
  }
  return PIPER_OK;
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void watchdog_bites(Job *job, double quiet) {
  char report[PIPER_ERR_TEXT], text[PIPER_ERR_TEXT];
  watchdog_report(job->plan, job->ranks, report, sizeof report - 128);
  snprintf(text, sizeof text, "%s %lld: nothing has completed for %.3g s; %.*s", step_word(job),
           (long long)job->step, quiet, (int)sizeof report - 128, report);
  job_stop(job, PIPER_EBUG, text);
}

typedef struct Watch {
  uint64_t progress;
  double since;
} Watch;

static void look_around(Job *job, Watch *watch) {
  const double now = seconds();
  uint64_t progress = 0;
  if (interrupt_pending()) {
    job_stop(job, PIPER_ESTOP, "interrupted");
    return;
  }
  for (uint32_t r = 0; r < job->plan->n_ranks; r++) {
    progress += job->ranks[r].device->ops->progress(job->ranks[r].device);
  }
  if (progress != watch->progress) {
    *watch = (Watch){progress, now};
  } else if (job->hooks.watchdog_seconds > 0 && now - watch->since >= job->hooks.watchdog_seconds) {
    watchdog_bites(job, now - watch->since);
  }
}

/* Until all ranks are done or the job has failed. */
static PiperStatus await(Job *job, PiperErr *err) {
  Watch watch = {0, seconds()};
  for (uint32_t r = 0; r < job->plan->n_ranks; r++) {
    Device *dev = job->ranks[r].device;
    bool done = false;
    while (!done) {
      TRY(dev->ops->sync(dev, LOOK_MS, &done, err));
      if (!done) {
        look_around(job, &watch);
        TRY(check_alive(job, err));
      }
    }
  }
  return check_alive(job, err);
}

PiperStatus job_step(Job *job, const JobStep *step, double *metrics, PiperErr *err) {
  const Graph *g = job->plan->graph;
  PiperErr own = {PIPER_OK, ""};
  PiperStatus st;
  TRY(check_alive(job, err));
  job->step = step->step;
  st = prepare(job, step, &own);
  for (uint32_t r = 0; st == PIPER_OK && r < job->plan->n_ranks; r++) {
    st = job->ranks[r].device->ops->launch(job->ranks[r].device, &own);
  }
  if (st == PIPER_OK) st = await(job, &own);
  if (st == PIPER_OK && metrics != NULL && job->plan->n_ranks != 0) {
    const RankExec *x = &job->ranks[0];
    st = x->device->ops->copy_out(x->device, metrics, x->arena + x->rank->metrics_offset,
                                  graph_n_metrics(g) * sizeof *metrics, &own);
    metrics[graph_metric_norm(g)] = sqrt(metrics[graph_metric_norm(g)]);
  }
  if (st == PIPER_OK) return PIPER_OK;
  job_stop(job, st, own.text);
  return check_alive(job, err);
}

/* The op whose multiple the loss is; NULL: it divides by no count, or is something else. */
static const Op *counted_op(const Graph *g, uint32_t loss) {
  ValueId v = g->losses.at[loss].value;
  while (graph_value(g, v)->kind == VALUE_OP) {
    const Op *op = graph_op(g, graph_value(g, v)->op);
    if (op->count != 0) return op;
    if (op->kind != OP_SCALE && op->kind != OP_RESHAPE) break;
    v = op->in[0];
  }
  return NULL;
}

PiperStatus job_loss_count(Job *job, uint32_t loss, double *out, PiperErr *err) {
  const Op *op = counted_op(job->plan->graph, loss);
  *out = -1;
  TRY(check_alive(job, err));
  for (uint32_t r = 0; op != NULL && r < job->plan->n_ranks; r++) {
    const RankExec *x = &job->ranks[r];
    for (size_t i = 0; i < x->rank->buffers.n; i++) {
      const Buffer *b = &x->rank->buffers.at[i];
      if (b->role != BUFFER_COUNTS || b->id != op->chunk.i) continue;
      return x->device->ops->copy_out(x->device, out,
                                      x->arena + b->offset + (op->count - 1) * sizeof *out,
                                      sizeof *out, err);
    }
  }
  return PIPER_OK;
}

/* ---- between steps ----------------------------------------------------------------------------------- */

PiperStatus job_get_param(Job *job, ParamId p, double *values, PiperErr *err) {
  TRY(check_alive(job, err));
  return params_get(&job->params, p, values, err);
}

PiperStatus job_set_param(Job *job, ParamId p, const double *values, PiperErr *err) {
  TRY(check_alive(job, err));
  return params_set(&job->params, p, values, err);
}

PiperStatus job_get_grad(Job *job, ParamId p, double *values, PiperErr *err) {
  TRY(check_alive(job, err));
  return params_get_grad(&job->params, p, values, err);
}

PiperStatus job_replicas_equal(Job *job, PiperErr *err) {
  TRY(check_alive(job, err));
  return params_replicas_equal(&job->params, err);
}

bool job_memory(const Job *job, int32_t rank, uint64_t out[MEM_COUNT]) {
  for (uint32_t r = 0; r < job->plan->n_ranks; r++) {
    const RankExec *x = &job->ranks[r];
    uint64_t planned = 0;
    if (x->rank->rank != rank) continue;
    for (int c = 0; c < MEM_COUNT; c++) planned += out[c] = x->rank->at_peak[c];
    out[MEM_WORKSPACE] += x->device->ops->allocated(x->device) - planned;
    return true;
  }
  for (int c = 0; c < MEM_COUNT; c++) out[c] = 0;
  return false;
}
