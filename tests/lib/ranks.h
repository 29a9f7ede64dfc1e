/* ranks.h - n ranks on CPU devices with a communicator each, for tests: what a job does, without a
 * plan. */
#ifndef PIPER_TESTS_RANKS_H
#define PIPER_TESTS_RANKS_H

#include "base/hash.h"
#include "comm/comm.h"

#include <pthread.h>
#include <time.h>

#include "tap.h"

#define RANKS_MAX 8

typedef struct Ranks {
  int n;
  DeviceHub *hub;
  CommHub *comm_hub;
  Device *dev[RANKS_MAX];
  Comm *comm[RANKS_MAX];
  atomic_int stop;
  pthread_mutex_t lock;
  int failed_rank;      /* by lock; -1: none */
  uint32_t failed_label;
  PiperErr failure;
  unsigned jitter_us;   /* before each instruction; 0: none */
  atomic_ullong step;
  int fault_rank;       /* fails at fault_label in fault_step; -1: none */
  uint32_t fault_label;
  uint64_t fault_step;
} Ranks;

static inline double ranks_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void ranks_need(PiperStatus st, const PiperErr *err) {
  if (st != PIPER_OK) bail(err->text);
}

static inline void ranks_fail(void *ctx, int32_t rank, uint32_t label, const PiperErr *err) {
  Ranks *t = ctx;
  pthread_mutex_lock(&t->lock);
  if (t->failed_rank < 0) {
    t->failed_rank = rank;
    t->failed_label = label;
    t->failure = *err;
  }
  pthread_mutex_unlock(&t->lock);
  atomic_store(&t->stop, 1);
  for (int r = 0; r < t->n; r++) t->dev[r]->ops->abort(t->dev[r]);
}

static inline PiperStatus ranks_before(void *ctx, int32_t rank, uint32_t label, PiperErr *err) {
  Ranks *t = ctx;
  const uint64_t step = atomic_load(&t->step);
  if (t->jitter_us != 0) {
    Hash h = HASH_START;
    hash_u32(&h, (uint32_t)rank);
    hash_u32(&h, label);
    hash_u64(&h, step);
    nanosleep(&(struct timespec){0, (long)(hash_end(&h) % t->jitter_us) * 1000}, NULL);
  }
  if (rank == t->fault_rank && label == t->fault_label && step == t->fault_step) {
    return err_set(err, PIPER_EUSER, "on demand");
  }
  return PIPER_OK;
}

static inline void ranks_open(Ranks *t, int n) {
  PiperErr err = {PIPER_OK, ""};
  *t = (Ranks){.n = n, .failed_rank = -1, .fault_rank = -1};
  pthread_mutex_init(&t->lock, NULL);
  ranks_need(DEVICE_CPU.hub_open(&t->hub, &err), &err);
  ranks_need(COMM_LOCAL.hub_open(&t->comm_hub, &err), &err);
  for (int r = 0; r < n; r++) {
    const DeviceConfig cfg = {.rank = r, .hub = t->hub, .stop = &t->stop, .fail = ranks_fail,
                              .before = ranks_before, .ctx = t};
    ranks_need(DEVICE_CPU.open(&cfg, &t->dev[r], &err), &err);
    ranks_need(COMM_LOCAL.open(t->comm_hub, t->dev[r], &t->comm[r], &err), &err);
  }
}

static inline void ranks_close(Ranks *t) {
  atomic_store(&t->stop, 1);
  for (int r = 0; r < t->n; r++) DEVICE_CPU.halt(t->dev[r]);
  for (int r = 0; r < t->n; r++) {
    COMM_LOCAL.close(t->comm[r]);
    DEVICE_CPU.close(t->dev[r]);
  }
  COMM_LOCAL.hub_close(t->comm_hub);
  DEVICE_CPU.hub_close(t->hub);
  pthread_mutex_destroy(&t->lock);
}

static inline DeviceStream *ranks_stream(Ranks *t, int r, const char *name, DeviceStreamKind kind) {
  PiperErr err = {PIPER_OK, ""};
  DeviceStream *s = NULL;
  ranks_need(DEVICE_CPU.stream_new(t->dev[r], name, kind, &s, &err), &err);
  return s;
}

static inline DeviceEvent *ranks_event(Ranks *t, int r) {
  PiperErr err = {PIPER_OK, ""};
  DeviceEvent *e = NULL;
  ranks_need(DEVICE_CPU.event_new(t->dev[r], &e, &err), &err);
  return e;
}

static inline CommGroup *ranks_group(Ranks *t, int r, const char *name, const int32_t *list,
                                     uint32_t n) {
  PiperErr err = {PIPER_OK, ""};
  CommGroup *g = NULL;
  ranks_need(COMM_LOCAL.group(t->comm[r], name, list, n, &g, &err), &err);
  return g;
}

static inline void ranks_connect(Ranks *t) {
  PiperErr err = {PIPER_OK, ""};
  for (int r = 0; r < t->n; r++) ranks_need(COMM_LOCAL.connect(t->comm[r], &err), &err);
}

static inline void ranks_capture(Ranks *t) {
  PiperErr err = {PIPER_OK, ""};
  for (int r = 0; r < t->n; r++) ranks_need(DEVICE_CPU.capture_begin(t->dev[r], &err), &err);
}

static inline void ranks_captured(Ranks *t) {
  PiperErr err = {PIPER_OK, ""};
  for (int r = 0; r < t->n; r++) ranks_need(DEVICE_CPU.capture_end(t->dev[r], &err), &err);
}

/* false: some rank failed. */
static inline bool ranks_step(Ranks *t) {
  PiperErr err = {PIPER_OK, ""};
  atomic_fetch_add(&t->step, 1);
  for (int r = 0; r < t->n; r++) ranks_need(DEVICE_CPU.launch(t->dev[r], &err), &err);
  for (int r = 0; r < t->n; r++) {
    for (bool done = false; !done;) {
      ranks_need(DEVICE_CPU.sync(t->dev[r], 50, &done, &err), &err);
      if (atomic_load(&t->stop) != 0) return false;
    }
  }
  return true;
}

/* dst (+)= src over n floats, as a program of one call on two bases. */
typedef struct Copy {
  KernelCall call;
  unsigned char *bases[2];
  uint8_t first[2];
  StepBlock step;
  KernelRun run;
} Copy;

static inline void copy_make(Copy *c, const float *src, float *dst, int64_t n, bool add) {
  *c = (Copy){0};
  c->call = (KernelCall){.op = OP_ACCUMULATE, .accumulate = add, .first_base = KERNEL_NO_BASE,
                         .n_args = 2};
  for (uint16_t i = 0; i < 2; i++) {
    c->call.args[i] = (KernelArg){.base = i, .dtype = DT_F32, .rank = 1, .dim = {n}};
  }
  c->bases[0] = (unsigned char *)src;
  c->bases[1] = (unsigned char *)dst;
  c->run = (KernelRun){.calls = &c->call, .n_calls = 1, .bases = c->bases, .first = c->first,
                       .step = &c->step};
}

#endif
