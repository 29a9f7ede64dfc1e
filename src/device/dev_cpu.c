/* The CPU device. A stream is a flat list of commands, recorded once and replayed in each step.
 *
 * Compute streams are threads, each with a team that helps it (team.h). Communication streams are state machines without one: see
 * dev_cpu.h. A stream that something was done for is "poked". Poking a compute stream wakes its
 * thread if it is parked. Poking a communication stream adds a ticket; who adds the first one owns
 * the stream, moves it on as far as it goes, and gives it up only if no ticket came meanwhile. So
 * nobody waits for the owner, and no poke is lost.
 *
 * Counters only grow, and nothing is reset between steps: an event holds the number of the last
 * step that recorded it, an op the number of steps that completed it; to wait is to wait until a
 * counter has reached the present step.
 *
 * A thread that waits takes pieces of work from the hub's board, spins for a while, then parks; it
 * parks at once when there are more threads to run than cores. Correctness needs no helper: a
 * poke comes after the change it tells of, and the subscribers of each counter are known when the
 * step is captured. */
#include "device/dev_cpu.h"

#include "base/cores.h"
#include "base/vec.h"
#include "device/ops_cpu.h"
#include "device/team.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BOARD_SLOTS 8
#define DRAIN_WORKS 8

/* Work of fewer pieces is done before a parked thread would be awake. */
#define WAKE_PIECES 8

typedef struct CpuStream CpuStream;
typedef struct CpuDevice CpuDevice;

typedef struct CpuEvent {
  DeviceEvent base;
  atomic_ullong step;  /* the last one that recorded it */
  bool recorded;       /* while capturing */
  VEC(CpuStream *) waiting; /* streams that wait for it in each step */
} CpuEvent;

typedef enum CmdKind { CMD_RUN, CMD_OP, CMD_RECORD, CMD_WAIT } CmdKind;

typedef struct Cmd {
  CmdKind kind;
  uint32_t label; /* RUN, OP */
  union {
    const KernelRun *run;
    CpuOp *op;
    CpuEvent *event;
  } as;
} Cmd;

struct CpuStream {
  DeviceStream base;
  CpuDevice *dev;
  char *name;
  DeviceStreamKind kind;
  VEC(Cmd) cmds;

  /* Written by the thread of a compute stream, or by the owner of a communication stream. */
  atomic_ullong step;   /* the last one that it began */
  atomic_uint cursor;   /* command it is at */
  atomic_bool begun;    /* that command has started: RUN, OP */
  atomic_ullong progress;

  /* Communication. */
  atomic_uint tickets;
  CpuStream *link;      /* in its owner's drain */

  /* Compute. */
  OpsCpu cpu;           /* of one that computes; the team is owned */
  pthread_t thread;
  bool started;
  Parking parking;
};

struct CpuDevice {
  Device base;
  DeviceConfig cfg;
  struct DeviceHub *hub;
  VEC(CpuStream *) streams;
  VEC(CpuEvent *) events;
  VEC(void *) blocks;
  VEC(uint64_t) block_bytes;
  uint64_t allocated;
  bool capturing, captured;
  atomic_bool halted;
  _Alignas(CACHE_LINE) atomic_ullong launched; /* steps */
  atomic_ullong finished;
  atomic_uint running;  /* streams that are not through with the step */
};

struct DeviceHub {
  Crowd crowd;
  pthread_mutex_t mutex;
  pthread_cond_t cond;     /* a device finished, or must stop */
  atomic_int host_waits;
  VEC(CpuDevice *) devices; /* grows while devices are opened, by the host */
  _Alignas(CACHE_LINE) _Atomic(CpuWork *) board[BOARD_SLOTS];
};

struct CpuDrain {
  DeviceHub *hub;
  CpuStream *streams; /* owned by this thread, to be moved on */
  CpuWork *works[DRAIN_WORKS]; /* started by this thread; pieces may be left */
  int n_works;
};

static bool stopping(const CpuDevice *dev) {
  return atomic_load(dev->cfg.stop) != 0 || atomic_load(&dev->halted);
}

/* What only the thread or owner of a stream writes, and others only look at. */
static uint64_t step_of(const CpuStream *s) {
  return atomic_load_explicit(&s->step, memory_order_relaxed);
}

static void stream_made_progress(CpuStream *s) {
  atomic_store_explicit(&s->progress,
                        atomic_load_explicit(&s->progress, memory_order_relaxed) + 1,
                        memory_order_relaxed);
}

static void stream_at(CpuStream *s, uint32_t cursor) {
  atomic_store_explicit(&s->begun, false, memory_order_relaxed);
  atomic_store_explicit(&s->cursor, cursor, memory_order_relaxed);
  stream_made_progress(s);
}

/* ---- poking -------------------------------------------------------------------------------------- */

static void poke(CpuStream *s, CpuDrain *d) {
  if (s->kind == DEVICE_STREAM_COMPUTE) {
    if (is_parked(&s->parking)) unpark(&s->parking);
  } else if (atomic_fetch_add(&s->tickets, 1) == 0) {
    s->link = d->streams;
    d->streams = s;
  }
}

static void event_record(CpuEvent *e, uint64_t step, CpuDrain *d) {
  atomic_store(&e->step, step);
  for (size_t i = 0; i < e->waiting.n; i++) poke(e->waiting.at[i], d);
}

void cpu_op_done(CpuOp *op, CpuDrain *d) {
  atomic_fetch_add(&op->done, 1);
  poke((CpuStream *)op->stream, d);
}

/* A stream is through with the step; the last one of a device tells the host. */
static void stream_finished(CpuStream *s) {
  CpuDevice *dev = s->dev;
  DeviceHub *hub = dev->hub;
  const uint64_t step = step_of(s);
  if (atomic_fetch_sub(&dev->running, 1) != 1) return;
  atomic_store(&dev->finished, step);
  if (atomic_load(&hub->host_waits) == 0) return;
  pthread_mutex_lock(&hub->mutex);
  pthread_cond_broadcast(&hub->cond);
  pthread_mutex_unlock(&hub->mutex);
}

/* The instruction at the cursor begins; false: it failed, and the job stops. */
static bool instruction_begins(CpuStream *s, uint32_t label) {
  const DeviceConfig *cfg = &s->dev->cfg;
  PiperErr err;
  atomic_store_explicit(&s->begun, true, memory_order_relaxed);
  if (cfg->before == NULL) return true;
  err.code = PIPER_OK;
  err.text[0] = '\0';
  if (cfg->before(cfg->ctx, cfg->rank, label, &err) == PIPER_OK) return true;
  cfg->fail(cfg->ctx, cfg->rank, label, &err);
  return false;
}

/* ---- communication streams ------------------------------------------------------------------------ */

/* As far as it goes: until it is blocked, at the end of the last step launched, or stopped. */
static void queue_advance(CpuStream *s, CpuDrain *d) {
  CpuDevice *dev = s->dev;
  uint64_t step = step_of(s);
  uint32_t at = atomic_load_explicit(&s->cursor, memory_order_relaxed);
  while (!stopping(dev)) {
    if (at == s->cmds.n || step == 0) {
      if (step == atomic_load(&dev->launched)) return;
      at = 0;
      stream_at(s, at);
      atomic_store_explicit(&s->step, ++step, memory_order_relaxed);
    }
    if (at < s->cmds.n) {
      const Cmd *cmd = &s->cmds.at[at];
      switch (cmd->kind) {
      case CMD_WAIT:
        if (atomic_load(&cmd->as.event->step) < step) return;
        break;
      case CMD_RECORD:
        event_record(cmd->as.event, step, d);
        break;
      default: /* CMD_OP; RUN was refused while capturing */
        if (!atomic_load_explicit(&s->begun, memory_order_relaxed)) {
          if (!instruction_begins(s, cmd->label)) return;
          cmd->as.op->arrive(cmd->as.op, d);
        }
        if (atomic_load(&cmd->as.op->done) < step) return;
        break;
      }
      stream_at(s, ++at);
    }
    if (at == s->cmds.n) stream_finished(s);
  }
}

/* Move on a stream that this thread owns, and give it up. */
static void stream_advance(CpuStream *s, CpuDrain *d) {
  unsigned seen;
  do {
    seen = atomic_load(&s->tickets);
    queue_advance(s, d);
  } while (!atomic_compare_exchange_strong(&s->tickets, &seen, 0));
}

/* ---- work in pieces -------------------------------------------------------------------------------- */

void cpu_work_init(CpuWork *w, void (*piece)(CpuWork *, uint32_t),
                   void (*finish)(CpuWork *, CpuDrain *), uint32_t n_pieces) {
  w->piece = piece;
  w->finish = finish;
  w->n_pieces = n_pieces;
  atomic_init(&w->next, n_pieces); /* nothing to take */
  atomic_init(&w->done, 0);
  w->slot = -1;
}

/* Take one piece; false: none is left. Whoever takes the last one first takes the work off the board,
 * since after that piece the work may be started again.
 *
 * A thread that saw the work on the board may come here late. If the work is over it finds no piece;
 * if it was started again meanwhile it takes a piece like anyone else. */
static bool work_step(CpuWork *w, CpuDrain *d) {
  uint32_t i;
  if (atomic_load_explicit(&w->next, memory_order_relaxed) >= w->n_pieces) return false;
  i = atomic_fetch_add(&w->next, 1);
  if (i >= w->n_pieces) return false;
  if (i + 1 == w->n_pieces && w->slot >= 0) atomic_store(&d->hub->board[w->slot], NULL);
  w->piece(w, i);
  if (atomic_fetch_add(&w->done, 1) + 1 == w->n_pieces) w->finish(w, d);
  return true;
}

/* Large work: a parked thread is worth its waking if a core is free. */
static void wake_helper(DeviceHub *hub) {
  Crowd *crowd = &hub->crowd;
  if (atomic_load(&crowd->n_parked) == 0 || atomic_load(&crowd->runnable) >= crowd->n_cores) return;
  for (size_t i = 0; i < hub->devices.n; i++) {
    const CpuDevice *dev = hub->devices.at[i];
    for (size_t j = 0; j < dev->streams.n; j++) {
      CpuStream *s = dev->streams.at[j];
      if (s->kind == DEVICE_STREAM_COMPUTE && is_parked(&s->parking)) {
        unpark(&s->parking);
        return;
      }
    }
  }
}

void cpu_work_start(CpuWork *w, CpuDrain *d) {
  w->slot = -1;
  atomic_store_explicit(&w->done, 0, memory_order_relaxed);
  /* On the board while 'next' still says that nothing is left: what others read of it after taking
   * a piece is complete before they can take one. */
  for (int i = 0; w->n_pieces > 1 && i < BOARD_SLOTS; i++) {
    CpuWork *none = NULL;
    if (atomic_compare_exchange_strong(&d->hub->board[i], &none, w)) {
      w->slot = i;
      break;
    }
  }
  atomic_store(&w->next, 0);
  if (w->slot >= 0 && w->n_pieces >= WAKE_PIECES) wake_helper(d->hub);
  if (d->n_works < DRAIN_WORKS) {
    d->works[d->n_works++] = w;
  } else {
    while (work_step(w, d)) continue;
  }
}

/* Until nothing is left that this thread answers for: streams first, since those are quick. */
static void drain(CpuDrain *d) {
  for (;;) {
    if (d->streams != NULL) {
      CpuStream *s = d->streams;
      d->streams = s->link;
      stream_advance(s, d);
    } else if (d->n_works > 0) {
      if (!work_step(d->works[d->n_works - 1], d)) d->n_works--;
    } else {
      return;
    }
  }
}

/* One piece from the board; false: there is none. */
static bool help(DeviceHub *hub) {
  for (int i = 0; i < BOARD_SLOTS; i++) {
    CpuWork *w = atomic_load(&hub->board[i]);
    CpuDrain d = {.hub = hub};
    if (w != NULL && work_step(w, &d)) {
      drain(&d);
      return true;
    }
  }
  return false;
}

/* ---- compute streams ------------------------------------------------------------------------------- */

typedef struct CounterWait {
  const CpuDevice *dev;
  const atomic_ullong *counter;
  uint64_t target;
} CounterWait;

static bool wait_over(void *ctx) {
  const CounterWait *w = ctx;
  return atomic_load(w->counter) >= w->target || stopping(w->dev);
}

/* Until the counter has reached 'target', of which this stream is told; false: the job stops. */
static bool wait_for(CpuStream *s, const atomic_ullong *counter, uint64_t target) {
  DeviceHub *hub = s->dev->hub;
  CounterWait wait = {s->dev, counter, target};
  uint64_t begin = 0;
  for (unsigned turn = 0;; turn++) {
    if (stopping(s->dev)) return false;
    if (atomic_load(counter) >= target) return true;
    if (help(hub)) {
      turn = 0;
    } else if (crowded(&hub->crowd) || !spin(turn, &begin)) {
      park(&s->parking, &hub->crowd, wait_over, &wait);
      turn = 0;
    }
  }
}

/* Call by call, so that a stop is seen soon. */
static bool run_calls(CpuStream *s, const KernelRun *run, uint32_t label) {
  KernelRun one = *run;
  PiperErr err;
  err.code = PIPER_OK;
  err.text[0] = '\0';
  one.n_calls = 1;
  for (uint32_t i = 0; i < run->n_calls; i++) {
    if (stopping(s->dev)) return false;
    one.calls = run->calls + i;
    if (ops_cpu_run(&one, &s->cpu, &err) != PIPER_OK) {
      s->dev->cfg.fail(s->dev->cfg.ctx, s->dev->cfg.rank, label, &err);
      return false;
    }
    stream_made_progress(s);
  }
  return true;
}

static bool command(CpuStream *s, const Cmd *cmd, uint64_t step) {
  CpuDrain d = {.hub = s->dev->hub};
  switch (cmd->kind) {
  case CMD_RUN:
    return instruction_begins(s, cmd->label) && run_calls(s, cmd->as.run, cmd->label);
  case CMD_WAIT:
    return wait_for(s, &cmd->as.event->step, step);
  case CMD_RECORD:
    event_record(cmd->as.event, step, &d);
    drain(&d);
    return true;
  case CMD_OP:
    if (!instruction_begins(s, cmd->label)) return false;
    cmd->as.op->arrive(cmd->as.op, &d);
    drain(&d);
    return wait_for(s, &cmd->as.op->done, step);
  }
  return false;
}

/* A launch lets communication streams begin the step; nothing else does if they wait for nothing. */
static void poke_queues(CpuDevice *dev) {
  CpuDrain d = {.hub = dev->hub};
  for (size_t i = 0; i < dev->streams.n; i++) {
    if (dev->streams.at[i]->kind == DEVICE_STREAM_COMM) poke(dev->streams.at[i], &d);
  }
  drain(&d);
}

static CpuStream *first_compute(const CpuDevice *dev) {
  for (size_t i = 0; i < dev->streams.n; i++) {
    if (dev->streams.at[i]->kind == DEVICE_STREAM_COMPUTE) return dev->streams.at[i];
  }
  return NULL;
}

static void *stream_thread(void *arg) {
  CpuStream *s = arg;
  const bool leads = s == first_compute(s->dev);
  for (uint64_t step = 1; wait_for(s, &s->dev->launched, step); step++) {
    stream_at(s, 0);
    atomic_store_explicit(&s->step, step, memory_order_relaxed);
    if (leads) poke_queues(s->dev);
    for (uint32_t at = 0; at < s->cmds.n; stream_at(s, ++at)) {
      if (stopping(s->dev) || !command(s, &s->cmds.at[at], step)) goto out;
    }
    stream_finished(s);
  }
out:
  atomic_fetch_sub(&s->dev->hub->crowd.runnable, 1);
  return NULL;
}

/* What top -H and a debugger show of a device's threads. */
static const char *thread_name(const CpuDevice *dev, char buf[16]) {
  snprintf(buf, 16, "piper rank %d", (int)dev->cfg.rank);
  return buf;
}

static PiperStatus stream_start(CpuStream *s, PiperErr *err) {
  atomic_int *runnable = &s->dev->hub->crowd.runnable;
  char name[16];
  atomic_fetch_add(runnable, 1);
  const PiperStatus st =
      thread_start(&s->thread, stream_thread, s, thread_name(s->dev, name), err);
  s->started = st == PIPER_OK;
  if (!s->started) atomic_fetch_sub(runnable, 1);
  return st;
}

/* ---- the interface: memory --------------------------------------------------------------------------- */

static void *cpu_alloc(Device *base, uint64_t bytes) {
  CpuDevice *dev = (CpuDevice *)base;
  void *p = NULL;
  if (!vec_reserve(&dev->blocks, 1) || !vec_reserve(&dev->block_bytes, 1)) return NULL;
  if (bytes > SIZE_MAX / 2 || posix_memalign(&p, CACHE_LINE, bytes != 0 ? bytes : 1) != 0) {
    return NULL;
  }
  dev->blocks.at[dev->blocks.n++] = p;
  dev->block_bytes.at[dev->block_bytes.n++] = bytes;
  dev->allocated += bytes;
  return p;
}

static void cpu_free(Device *base, void *p) {
  CpuDevice *dev = (CpuDevice *)base;
  for (size_t i = 0; i < dev->blocks.n; i++) {
    if (p == NULL || dev->blocks.at[i] != p) continue;
    dev->allocated -= dev->block_bytes.at[i];
    dev->blocks.at[i] = dev->blocks.at[--dev->blocks.n];
    dev->block_bytes.at[i] = dev->block_bytes.at[--dev->block_bytes.n];
    free(p);
    return;
  }
}

static uint64_t cpu_allocated(const Device *base) { return ((const CpuDevice *)base)->allocated; }

static PiperStatus cpu_copy(Device *base, void *dst, const void *src, uint64_t bytes,
                            PiperErr *err) {
  (void)base;
  (void)err;
  if (bytes != 0) memcpy(dst, src, bytes);
  return PIPER_OK;
}

static PiperStatus cpu_zero(Device *base, void *dst, uint64_t bytes, PiperErr *err) {
  (void)base;
  (void)err;
  if (bytes != 0) memset(dst, 0, bytes);
  return PIPER_OK;
}

/* ---- the interface: recording ------------------------------------------------------------------------ */

static PiperStatus cpu_stream_new(Device *base, const char *name, DeviceStreamKind kind,
                                  DeviceStream **out, PiperErr *err) {
  CpuDevice *dev = (CpuDevice *)base;
  CpuStream *s;
  const size_t n = strlen(name) + 1;
  if (dev->capturing || dev->captured) {
    return err_set(err, PIPER_EBUG, "stream %s comes after capture_begin", name);
  }
  if (!vec_reserve(&dev->streams, 1)) return err_nomem(err, "stream");
  s = calloc(1, sizeof *s);
  if (s == NULL || (s->name = malloc(n)) == NULL) {
    free(s);
    return err_nomem(err, "stream");
  }
  memcpy(s->name, name, n);
  s->base.device = base;
  s->dev = dev;
  s->kind = kind;
  parking_init(&s->parking);
  dev->streams.at[dev->streams.n++] = s;
  *out = &s->base;
  return PIPER_OK;
}

static PiperStatus cpu_event_new(Device *base, DeviceEvent **out, PiperErr *err) {
  CpuDevice *dev = (CpuDevice *)base;
  CpuEvent *e;
  if (dev->capturing || dev->captured) {
    return err_set(err, PIPER_EBUG, "an event comes after capture_begin");
  }
  if (!vec_reserve(&dev->events, 1)) return err_nomem(err, "event");
  e = calloc(1, sizeof *e);
  if (e == NULL) return err_nomem(err, "event");
  e->base.device = base;
  dev->events.at[dev->events.n++] = e;
  *out = &e->base;
  return PIPER_OK;
}

static PiperStatus cpu_capture_begin(Device *base, PiperErr *err) {
  CpuDevice *dev = (CpuDevice *)base;
  if (dev->capturing || dev->captured) return err_set(err, PIPER_EBUG, "captured twice");
  dev->capturing = true;
  return PIPER_OK;
}

static PiperStatus enqueue(CpuStream *s, Cmd cmd, PiperErr *err) {
  if (!s->dev->capturing) {
    return err_set(err, PIPER_EBUG, "stream %s: enqueued outside a capture", s->name);
  }
  return vec_push(&s->cmds, cmd) ? PIPER_OK : err_nomem(err, "stream");
}

static PiperStatus cpu_check(Device *base, const KernelCall *calls, uint32_t n_calls,
                             const uint64_t *base_bytes, uint32_t n_bases, PiperErr *err) {
  (void)base;
  return ops_cpu_check(calls, n_calls, base_bytes, n_bases, err);
}

/* What a stream needs that computes; once. */
static PiperStatus prepare_compute(CpuStream *s, PiperErr *err) {
  const uint32_t n_threads = s->dev->cfg.n_threads;
  Team *team = NULL;
  char name[16];
  if (s->cpu.table != NULL) return PIPER_OK;
  if (n_threads > 1)
    TRY(team_new(n_threads, &s->dev->hub->crowd, thread_name(s->dev, name), &team, err));
  return ops_cpu_init(&s->cpu, NULL, team, err);
}

static PiperStatus cpu_run(DeviceStream *base, const KernelRun *run, uint32_t label,
                           PiperErr *err) {
  CpuStream *s = (CpuStream *)base;
  if (s->kind != DEVICE_STREAM_COMPUTE) {
    return err_set(err, PIPER_EBUG, "stream %s: computation on a communication stream", s->name);
  }
  TRY(prepare_compute(s, err));
  return enqueue(s, (Cmd){.kind = CMD_RUN, .label = label, .as.run = run}, err);
}

PiperStatus cpu_op_enqueue(DeviceStream *base, CpuOp *op, uint32_t label, PiperErr *err) {
  op->stream = base;
  atomic_init(&op->done, 0);
  return enqueue((CpuStream *)base, (Cmd){.kind = CMD_OP, .label = label, .as.op = op}, err);
}

static PiperStatus cpu_record(DeviceStream *base, DeviceEvent *event, PiperErr *err) {
  CpuEvent *e = (CpuEvent *)event;
  if (e->recorded || event->device != base->device) {
    return err_set(err, PIPER_EBUG, "stream %s: event recorded twice, or of another device",
                   ((CpuStream *)base)->name);
  }
  e->recorded = true;
  return enqueue((CpuStream *)base, (Cmd){.kind = CMD_RECORD, .as.event = e}, err);
}

static PiperStatus cpu_wait(DeviceStream *base, DeviceEvent *event, PiperErr *err) {
  CpuStream *s = (CpuStream *)base;
  CpuEvent *e = (CpuEvent *)event;
  bool known = false;
  if (!e->recorded || event->device != base->device) {
    return err_set(err, PIPER_EBUG, "stream %s: waits for an event that nobody recorded", s->name);
  }
  for (size_t i = 0; i < e->waiting.n; i++) known = known || e->waiting.at[i] == s;
  if (!known && !vec_push(&e->waiting, s)) return err_nomem(err, "event");
  return enqueue(s, (Cmd){.kind = CMD_WAIT, .as.event = e}, err);
}

static PiperStatus cpu_capture_end(Device *base, PiperErr *err) {
  CpuDevice *dev = (CpuDevice *)base;
  if (!dev->capturing) return err_set(err, PIPER_EBUG, "capture_end without capture_begin");
  dev->capturing = false;
  dev->captured = true;
  for (size_t i = 0; i < dev->streams.n; i++) {
    if (dev->streams.at[i]->kind == DEVICE_STREAM_COMPUTE) {
      TRY(stream_start(dev->streams.at[i], err));
    }
  }
  return PIPER_OK;
}

/* ---- the interface: running --------------------------------------------------------------------------- */

static PiperStatus cpu_launch(Device *base, PiperErr *err) {
  CpuDevice *dev = (CpuDevice *)base;
  const uint64_t step = atomic_load(&dev->launched) + 1;
  if (!dev->captured) return err_set(err, PIPER_EBUG, "launched without a capture");
  if (atomic_load(&dev->finished) + 1 != step) {
    return err_set(err, PIPER_EBUG, "launched while a step is under way");
  }
  atomic_store(&dev->running, (unsigned)dev->streams.n);
  if (dev->streams.n == 0) atomic_store(&dev->finished, step);
  atomic_store(&dev->launched, step);
  for (size_t i = 0; i < dev->streams.n; i++) {
    CpuStream *s = dev->streams.at[i];
    if (s->kind == DEVICE_STREAM_COMPUTE && is_parked(&s->parking)) unpark(&s->parking);
  }
  if (first_compute(dev) == NULL) poke_queues(dev);
  return PIPER_OK;
}

static PiperStatus cpu_sync(Device *base, int timeout_ms, bool *done, PiperErr *err) {
  CpuDevice *dev = (CpuDevice *)base;
  DeviceHub *hub = dev->hub;
  const uint64_t step = atomic_load(&dev->launched);
  uint64_t begin = 0;
  struct timespec until;
  (void)err;
  for (unsigned turn = 0;; turn++) {
    *done = atomic_load(&dev->finished) >= step;
    if (*done || stopping(dev) || timeout_ms <= 0) return PIPER_OK;
    if (atomic_load(&hub->crowd.runnable) >= hub->crowd.n_cores || !spin(turn, &begin)) break;
  }
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += timeout_ms / 1000;
  until.tv_nsec += timeout_ms % 1000 * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000L;
  }
  pthread_mutex_lock(&hub->mutex);
  atomic_fetch_add(&hub->host_waits, 1);
  while (atomic_load(&dev->finished) < step && !stopping(dev)) {
    if (pthread_cond_timedwait(&hub->cond, &hub->mutex, &until) == ETIMEDOUT) break;
  }
  atomic_fetch_sub(&hub->host_waits, 1);
  pthread_mutex_unlock(&hub->mutex);
  *done = atomic_load(&dev->finished) >= step;
  return PIPER_OK;
}

static uint64_t cpu_progress(const Device *base) {
  const CpuDevice *dev = (const CpuDevice *)base;
  uint64_t sum = 0;
  for (size_t i = 0; i < dev->streams.n; i++) {
    sum += atomic_load_explicit(&dev->streams.at[i]->progress, memory_order_relaxed);
  }
  return sum;
}

static uint32_t cpu_position(const DeviceStream *base, bool *begun) {
  const CpuStream *s = (const CpuStream *)base;
  const bool in_step = step_of(s) == atomic_load(&s->dev->launched);
  const uint32_t cursor =
      in_step ? atomic_load_explicit(&s->cursor, memory_order_relaxed) : 0;
  *begun = false;
  for (uint32_t i = cursor; i < s->cmds.n; i++) {
    const CmdKind kind = s->cmds.at[i].kind;
    if (kind != CMD_RUN && kind != CMD_OP) continue;
    *begun = in_step && i == cursor && atomic_load_explicit(&s->begun, memory_order_relaxed);
    return s->cmds.at[i].label;
  }
  return DEVICE_NO_LABEL;
}

static void cpu_abort(Device *base) {
  CpuDevice *dev = (CpuDevice *)base;
  for (size_t i = 0; i < dev->streams.n; i++) {
    CpuStream *s = dev->streams.at[i];
    if (s->kind == DEVICE_STREAM_COMPUTE && is_parked(&s->parking)) unpark(&s->parking);
  }
  pthread_mutex_lock(&dev->hub->mutex);
  pthread_cond_broadcast(&dev->hub->cond);
  pthread_mutex_unlock(&dev->hub->mutex);
}

static void cpu_halt(Device *base) {
  CpuDevice *dev = (CpuDevice *)base;
  atomic_store(&dev->halted, true);
  cpu_abort(base);
  for (size_t i = 0; i < dev->streams.n; i++) {
    if (dev->streams.at[i]->started) pthread_join(dev->streams.at[i]->thread, NULL);
    dev->streams.at[i]->started = false;
  }
}

/* ---- the interface: life ------------------------------------------------------------------------------ */

static PiperStatus cpu_hub_open(DeviceHub **out, PiperErr *err) {
  DeviceHub *hub = NULL;
  pthread_condattr_t attr;
  if (posix_memalign((void **)&hub, CACHE_LINE, sizeof *hub) != 0) return err_nomem(err, "hub");
  memset(hub, 0, sizeof *hub);
  hub->crowd.n_cores = cores_available();
  pthread_mutex_init(&hub->mutex, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&hub->cond, &attr);
  pthread_condattr_destroy(&attr);
  *out = hub;
  return PIPER_OK;
}

static void cpu_hub_close(DeviceHub *hub) {
  if (hub == NULL) return;
  pthread_cond_destroy(&hub->cond);
  pthread_mutex_destroy(&hub->mutex);
  vec_free(&hub->devices);
  free(hub);
}

static PiperStatus cpu_open(const DeviceConfig *cfg, Device **out, PiperErr *err) {
  CpuDevice *dev = NULL;
  if (!vec_reserve(&cfg->hub->devices, 1) ||
      posix_memalign((void **)&dev, CACHE_LINE, sizeof *dev) != 0) {
    return err_nomem(err, "device");
  }
  memset(dev, 0, sizeof *dev);
  dev->base.ops = &DEVICE_CPU;
  dev->base.rank = cfg->rank;
  dev->cfg = *cfg;
  dev->hub = cfg->hub;
  dev->hub->devices.at[dev->hub->devices.n++] = dev;
  *out = &dev->base;
  return PIPER_OK;
}

static void cpu_close(Device *base) {
  CpuDevice *dev = (CpuDevice *)base;
  if (dev == NULL) return;
  for (size_t i = 0; i < dev->hub->devices.n; i++) {
    if (dev->hub->devices.at[i] != dev) continue;
    dev->hub->devices.at[i] = dev->hub->devices.at[--dev->hub->devices.n];
    break;
  }
  for (size_t i = 0; i < dev->streams.n; i++) {
    CpuStream *s = dev->streams.at[i];
    team_free(s->cpu.team);
    parking_destroy(&s->parking);
    vec_free(&s->cmds);
    free(s->name);
    free(s);
  }
  for (size_t i = 0; i < dev->events.n; i++) {
    vec_free(&dev->events.at[i]->waiting);
    free(dev->events.at[i]);
  }
  for (size_t i = 0; i < dev->blocks.n; i++) free(dev->blocks.at[i]);
  vec_free(&dev->streams);
  vec_free(&dev->events);
  vec_free(&dev->blocks);
  vec_free(&dev->block_bytes);
  free(dev);
}

const DeviceOps DEVICE_CPU = {
    .name = "cpu",
    .hub_open = cpu_hub_open,
    .hub_close = cpu_hub_close,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .allocated = cpu_allocated,
    .stream_new = cpu_stream_new,
    .event_new = cpu_event_new,
    .copy_in = cpu_copy,
    .copy_out = cpu_copy,
    .zero = cpu_zero,
    .capture_begin = cpu_capture_begin,
    .capture_end = cpu_capture_end,
    .check = cpu_check,
    .run = cpu_run,
    .record = cpu_record,
    .wait = cpu_wait,
    .launch = cpu_launch,
    .sync = cpu_sync,
    .progress = cpu_progress,
    .position = cpu_position,
    .abort = cpu_abort,
    .halt = cpu_halt,
};
