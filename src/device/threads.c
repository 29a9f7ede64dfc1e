#define _GNU_SOURCE /* pthread_setname_np */
#include "device/threads.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define SPIN_NS 50000 /* waking a sleeping core takes 44 us, so it pays to spin about as long */
#define SPIN_TURNS 40 /* without asking the kernel: some 1.5 us */
#define YIELD_EVERY 16 /* turns from then on: asking takes as long as several of them */

PiperStatus thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name,
                         PiperErr *err) {
  static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
  sigset_t block, before;
  sigfillset(&block);
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&block, own[i]);
  pthread_sigmask(SIG_SETMASK, &block, &before);
  const int failure = pthread_create(thread, NULL, run, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failure != 0) return err_set(err, PIPER_EIO, "no thread for %s: %s", name, strerror(failure));
  pthread_setname_np(*thread, name);
  return PIPER_OK;
}

void parking_init(Parking *p) {
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->cond, NULL);
  atomic_init(&p->parked, false);
  p->wake = false;
}

void parking_destroy(Parking *p) {
  pthread_cond_destroy(&p->cond);
  pthread_mutex_destroy(&p->mutex);
}

void park(Parking *p, Crowd *crowd, bool (*over)(void *), void *ctx) {
  pthread_mutex_lock(&p->mutex);
  atomic_fetch_sub(&crowd->runnable, 1);
  atomic_fetch_add(&crowd->n_parked, 1);
  atomic_store(&p->parked, true);
  while (!p->wake && !over(ctx)) pthread_cond_wait(&p->cond, &p->mutex);
  atomic_store(&p->parked, false);
  p->wake = false;
  atomic_fetch_sub(&crowd->n_parked, 1);
  atomic_fetch_add(&crowd->runnable, 1);
  pthread_mutex_unlock(&p->mutex);
}

void unpark(Parking *p) {
  pthread_mutex_lock(&p->mutex);
  p->wake = true;
  pthread_mutex_unlock(&p->mutex);
  pthread_cond_signal(&p->cond);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

bool spin(unsigned turn, uint64_t *begin) {
  if (turn < SPIN_TURNS || turn % YIELD_EVERY != SPIN_TURNS % YIELD_EVERY) {
    cpu_relax();
    return true;
  }
  if (turn == SPIN_TURNS) *begin = now_ns();
  sched_yield();
  return now_ns() - *begin < SPIN_NS;
}
