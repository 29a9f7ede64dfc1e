/* threads.h - how the threads of a job start and wait for each other: they spin for a while, then
 * park.
 *
 * Parking loses no wake-up: the thread sets 'parked', then looks once more at what it waits for; the
 * other side changes that, then looks at 'parked'. All four are sequentially consistent, so one of
 * them sees the other's change. */
#ifndef PIPER_DEVICE_THREADS_H
#define PIPER_DEVICE_THREADS_H

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CACHE_LINE 64

/* Starts a thread that leaves signals to the main thread, except those that tell of a fault right
 * in it. The name has at most 15 characters. */
PiperStatus thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name,
                         PiperErr *err);

/* The threads of a job that compute, and the cores there are for them. */
typedef struct Crowd {
  int n_cores;
  _Alignas(CACHE_LINE) atomic_int runnable; /* that are not parked */
  atomic_int n_parked;
} Crowd;

/* More threads to run than cores: spinning would take a core from one that has work. */
static inline bool crowded(Crowd *c) { return atomic_load(&c->runnable) > c->n_cores; }

/* Where one thread sleeps. */
typedef struct Parking {
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  atomic_bool parked;
  bool wake; /* by mutex */
} Parking;

void parking_init(Parking *p);
void parking_destroy(Parking *p);
/* Sleep until 'over' says so or somebody wakes this thread, whichever happens first. */
void park(Parking *p, Crowd *crowd, bool (*over)(void *ctx), void *ctx);
/* After a change that a parked thread may wait for. */
static inline bool is_parked(Parking *p) { return atomic_load(&p->parked); }
void unpark(Parking *p);

/* One turn of a spin that began at '*begin' (set by an early turn; turns count from 0); false: it
 * has lasted long enough. Turns after the first few let the kernel run who is ready on this core: it
 * often wakes the thread that we wait for right here, though another core is idle, and would leave
 * it waiting while we spin. */
bool spin(unsigned turn, uint64_t *begin);

#endif
