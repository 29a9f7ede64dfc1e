/* slow_ranks.h - a plan at work in which every instruction takes a known time: it sleeps as long as its
 * node's seconds say, compute and communication alike, on any number of cores. Communication streams are
 * threads here, so that an operation under way holds up nothing else. Inputs and parameters are zero. */
#ifndef PIPER_TESTS_SLOW_RANKS_H
#define PIPER_TESTS_SLOW_RANKS_H

#include "plan/plan_overlap.h"
#include "runtime/exec.h"

#include <math.h>
#include <time.h>

#include "tap.h"

#define SLOW_MAX_RANKS 8

typedef struct SlowRank {
  struct SlowRanks *all;
  RankExec exec;
  double *begin, *end;   /* by instruction: of its sleep in the latest step, seconds */
  uint32_t *began;       /* instructions in the order in which they began in the latest step */
  atomic_uint n_began;
} SlowRank;

typedef struct SlowRanks {
  const Plan *plan;
  DeviceHub *hub;
  CommHub *comm_hub;
  SlowRank rank[SLOW_MAX_RANKS];
  DeviceOps ops;         /* the CPU's, but for streams */
  CommOps comm_ops;
  atomic_int stop;
  double unit;           /* what a second of the plan's takes */
  uint64_t seed;         /* not 0: half of them sleep instead, at random, ... */
  double longest;        /* ... up to so many seconds */
  uint64_t step;
} SlowRanks;

static inline double slow_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void slow_fail(void *ctx, int32_t rank, uint32_t label, const PiperErr *err) {
  SlowRank *x = ctx;
  diag("rank %d, instruction %u: %s", (int)rank, label, err->text);
  atomic_store(&x->all->stop, 1);
}

static inline PiperStatus slow_before(void *ctx, int32_t rank, uint32_t label, PiperErr *err) {
  SlowRank *x = ctx;
  const SlowRanks *all = x->all;
  (void)err;
  double seconds = all->unit * all->plan->node_seconds[x->exec.rank->instrs.at[label].node];
  if (all->seed != 0) seconds = all->longest * (2 * rng_uniform(all->seed + all->step, (uint64_t)rank, label) - 1);
  x->began[atomic_fetch_add(&x->n_began, 1)] = label;
  x->begin[label] = slow_now();
  const struct timespec t = {(time_t)seconds, (long)(fmod(seconds, 1) * 1e9)};
  if (seconds > 0) nanosleep(&t, NULL);
  x->end[label] = slow_now();
  return PIPER_OK;
}

/* A thread for each stream. */
static inline PiperStatus slow_stream(Device *dev, const char *name, DeviceStreamKind kind,
                                      DeviceStream **out, PiperErr *err) {
  (void)kind;
  return DEVICE_CPU.stream_new(dev, name, DEVICE_STREAM_COMPUTE, out, err);
}

static const DeviceOps *slow_ops_;

/* The device stays the CPU's for the communicator, which works with no other; then streams are made. */
static inline PiperStatus slow_comm(CommHub *hub, Device *device, Comm **out, PiperErr *err) {
  TRY(COMM_LOCAL.open(hub, device, out, err));
  device->ops = slow_ops_;
  return PIPER_OK;
}

static inline void slow_need(PiperStatus st, const PiperErr *err) {
  if (st != PIPER_OK) bail(err->text);
}

/* The plan outlives it and has node_seconds. */
static inline void slow_open(SlowRanks *s, const Plan *plan) {
  PiperErr err = {0};
  *s = (SlowRanks){.plan = plan, .ops = DEVICE_CPU, .comm_ops = COMM_LOCAL, .unit = 1};
  s->comm_ops.open = slow_comm;
  s->ops.stream_new = slow_stream;
  slow_ops_ = &s->ops;
  if (plan->n_ranks > SLOW_MAX_RANKS) bail("too many ranks");
  slow_need(DEVICE_CPU.hub_open(&s->hub, &err), &err);
  slow_need(COMM_LOCAL.hub_open(&s->comm_hub, &err), &err);
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    SlowRank *x = &s->rank[r];
    const RankPlan *rank = &plan->ranks[r];
    const DeviceConfig cfg = {.rank = rank->rank, .n_threads = 1, .hub = s->hub, .stop = &s->stop,
                              .fail = slow_fail, .before = slow_before, .ctx = x};
    x->all = s;
    x->begin = calloc(rank->instrs.n + 1, sizeof *x->begin);
    x->end = calloc(rank->instrs.n + 1, sizeof *x->end);
    x->began = calloc(rank->instrs.n + 1, sizeof *x->began);
    if (x->begin == NULL || x->end == NULL || x->began == NULL) bail("no memory");
    slow_need(exec_open(&x->exec, plan, rank, &DEVICE_CPU, &cfg, s->comm_hub, &s->comm_ops, NULL, &err), &err);
    memset(x->exec.arena, 0, rank->arena_bytes);
  }
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    Comm *comm = s->rank[r].exec.comm;
    slow_need(comm->ops->connect(comm, &err), &err);
  }
  for (uint32_t r = 0; r < plan->n_ranks; r++) slow_need(exec_capture(&s->rank[r].exec, &err), &err);
}

/* One step; how long it takes. */
static inline double slow_step(SlowRanks *s) {
  PiperErr err = {0};
  const double begin = slow_now();
  s->step++;
  for (uint32_t r = 0; r < s->plan->n_ranks; r++) atomic_store(&s->rank[r].n_began, 0);
  for (uint32_t r = 0; r < s->plan->n_ranks; r++) {
    Device *dev = s->rank[r].exec.device;
    slow_need(dev->ops->launch(dev, &err), &err);
  }
  for (uint32_t r = 0; r < s->plan->n_ranks; r++) {
    Device *dev = s->rank[r].exec.device;
    for (bool done = false; !done && atomic_load(&s->stop) == 0;)
      slow_need(dev->ops->sync(dev, 100, &done, &err), &err);
  }
  if (atomic_load(&s->stop) != 0) bail("a rank failed");
  return slow_now() - begin;
}

/* Of the latest step's operations of a kind: seconds, and those in which their rank computes. */
static inline void slow_overlap(const SlowRanks *s, unsigned kind, double *seconds, double *hidden) {
  *seconds = *hidden = 0;
  for (uint32_t r = 0; r < s->plan->n_ranks; r++) {
    const SlowRank *x = &s->rank[r];
    const InstrVec *instrs = &x->exec.rank->instrs;
    for (size_t i = 0; i < instrs->n; i++) {
      if (instrs->at[i].kind != kind) continue;
      *seconds += x->end[i] - x->begin[i];
      for (size_t j = 0; j < instrs->n; j++) {
        if (instrs->at[j].kind != INSTR_RUN) continue;
        const double lo = fmax(x->begin[i], x->begin[j]), hi = fmin(x->end[i], x->end[j]);
        if (hi > lo) *hidden += hi - lo;
      }
    }
  }
}

static inline void slow_close(SlowRanks *s) {
  atomic_store(&s->stop, 1);
  for (uint32_t r = 0; r < s->plan->n_ranks; r++) s->rank[r].exec.device->ops->halt(s->rank[r].exec.device);
  for (uint32_t r = 0; r < s->plan->n_ranks; r++) {
    SlowRank *x = &s->rank[r];
    exec_close(&x->exec);
    free(x->begin), free(x->end), free(x->began);
  }
  COMM_LOCAL.hub_close(s->comm_hub);
  DEVICE_CPU.hub_close(s->hub);
}

/* The share of its exchanges that the plan hides. */
static inline double slow_planned(const Plan *p) {
  PiperErr err = {0};
  Overlap o = {0};
  double share = 0;
  if (plan_overlap(p, &o, &err) != PIPER_OK) bail(err.text);
  for (size_t k = 0; k < o.rows.n; k++)
    if (o.rows.at[k].kind == INSTR_ALL_TO_ALL) share = o.rows.at[k].hidden / o.rows.at[k].seconds;
  plan_overlap_free(&o);
  return share;
}

#endif
