/* comm.c - communication between two ranks of one process.
 *
 *   make bench/comm && bench/comm
 *
 * all_reduce and transfer of 64 MiB and 1 MiB, over the time that two threads need to do the same to
 * such buffers directly, each one half; many in one step where they are small. Measured in turns, the
 * best of the rounds each, since the machine may be busy with other things. Then the latency of a hop, a record on one rank that lets the other rank's
 * compute stream go on, and of a small all_reduce, from long chains of them in one step. */
#define _GNU_SOURCE /* sched_setaffinity */
#include "lib/ranks.h"

#include <sched.h>

enum { ROUNDS = 15, CHAIN = 2000 };

static const int32_t BOTH[] = {0, 1}, BACK[] = {1, 0};
static PiperErr err;

#define NEED(call) ranks_need((call), &err)

static double best(const double *x) {
  double least = x[0];
  for (int i = 1; i < ROUNDS; i++) least = x[i] < least ? x[i] : least;
  return least;
}

static float *buffer(size_t n) {
  void *p = NULL;
  if (posix_memalign(&p, 64, n * sizeof(float)) != 0) bail("no memory");
  for (size_t i = 0; i < n; i++) ((float *)p)[i] = 0;
  return p;
}

/* ---- two threads, directly ----------------------------------------------------------------------- */

typedef struct Direct {
  float *a, *b;
  size_t n;
  int repeat;
  bool reduce;
  atomic_int ready, done[2]; /* halves finished, by thread */
} Direct;

typedef struct Half {
  Direct *d;
  int which;
} Half;

static void do_half(const Direct *d, int which) {
  float *restrict a = d->a + d->n / 2 * which, *restrict b = d->b + d->n / 2 * which;
  const size_t n = d->n / 2;
  if (!d->reduce) {
    memcpy(a, b, n * sizeof *a);
    return;
  }
  for (size_t at = 0; at + 512 <= n; at += 512) {
    for (size_t i = at; i < at + 512; i++) a[i] = b[i] = a[i] + b[i];
  }
}

/* Core 'which' of those that this program may use; -1: all of them again. */
static void pin(int which) {
  static cpu_set_t all;
  static bool known;
  cpu_set_t one;
  if (!known) sched_getaffinity(0, sizeof all, &all);
  known = true;
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && which >= 0; i++) {
    if (CPU_ISSET(i, &all) && which-- == 0) CPU_SET(i, &one);
  }
  sched_setaffinity(0, sizeof one, CPU_COUNT(&one) != 0 ? &one : &all);
}

/* In lockstep, as ranks are: each waits for the other's half. On a core each, which ranks have to
 * find for themselves. */
static void *direct_thread(void *arg) {
  Half *h = arg;
  Direct *d = h->d;
  pin(h->which);
  atomic_fetch_add(&d->ready, 1);
  while (atomic_load(&d->ready) < 2) continue;
  for (int i = 1; i <= d->repeat; i++) {
    do_half(d, h->which);
    atomic_store(&d->done[h->which], i);
    while (atomic_load(&d->done[1 - h->which]) < i) continue;
  }
  return NULL;
}

static double direct_seconds(Direct *d) {
  Half half[2] = {{d, 0}, {d, 1}};
  pthread_t thread;
  double begin;
  pin(-1);
  atomic_store(&d->ready, 0);
  atomic_store(&d->done[0], 0);
  atomic_store(&d->done[1], 0);
  if (pthread_create(&thread, NULL, direct_thread, &half[1]) != 0) bail("no thread");
  while (atomic_load(&d->ready) < 1) continue;
  pin(0);
  begin = ranks_seconds();
  direct_thread(&half[0]);
  begin = ranks_seconds() - begin;
  pthread_join(thread, NULL);
  pin(-1);
  return begin / d->repeat;
}

/* ---- ranks ------------------------------------------------------------------------------------------ */

typedef struct Pair {
  Ranks ranks;
  DeviceStream *compute[2], *queue[2];
  CommGroup *forth[2], *back[2];
} Pair;

static void pair_open(Pair *p) {
  ranks_open(&p->ranks, 2);
  for (int r = 0; r < 2; r++) {
    p->compute[r] = ranks_stream(&p->ranks, r, "default_stream", DEVICE_STREAM_COMPUTE);
    p->queue[r] = ranks_stream(&p->ranks, r, "comm", DEVICE_STREAM_COMM);
    p->forth[r] = ranks_group(&p->ranks, r, "g", BOTH, 2);
    p->back[r] = ranks_group(&p->ranks, r, "g", BACK, 2);
  }
}

static double step_seconds(Pair *p) {
  const double begin = ranks_seconds();
  ranks_step(&p->ranks);
  return ranks_seconds() - begin;
}

static void large(size_t n, bool reduce, int repeat) {
  Pair p;
  float *buf[2] = {buffer(n), buffer(n)};
  double ours[ROUNDS], direct[ROUNDS];
  Direct d = {.a = buffer(n), .b = buffer(n), .n = n, .reduce = reduce, .repeat = repeat};
  pair_open(&p);
  ranks_connect(&p.ranks);
  ranks_capture(&p.ranks);
  for (int r = 0; r < 2; r++) {
    DeviceStream *s = p.compute[r];
    for (int i = 0; i < repeat; i++) {
      if (reduce)
        NEED(COMM_LOCAL.all_reduce(p.forth[r], s, &(CommSum){buf[r], buf[r], false, n, DT_F32}, 0,
                                   &err));
      else if (r == 0) NEED(COMM_LOCAL.send(p.forth[r], s, buf[r], n * 4, 0, &err));
      else NEED(COMM_LOCAL.recv(p.forth[r], s, buf[r], n * 4, 0, &err));
    }
  }
  ranks_captured(&p.ranks);
  step_seconds(&p);
  for (int i = 0; i < ROUNDS; i++) {
    step_seconds(&p);
    ours[i] = step_seconds(&p) / repeat;
    nanosleep(&(struct timespec){0, 2000000}, NULL); /* until the ranks have parked */
    direct_seconds(&d);
    direct[i] = direct_seconds(&d);
  }
  printf("%-10s %6.0f KiB  %8.3f ms  %5.2f x direct (%.3f ms)\n", reduce ? "all_reduce" : "transfer",
         (double)n * 4 / 1024, best(ours) * 1e3, best(ours) / best(direct), best(direct) * 1e3);
  ranks_close(&p.ranks);
  free(buf[0]);
  free(buf[1]);
  free(d.a);
  free(d.b);
}

/* Rank 0's compute stream records, rank 1's goes on after a message of 4 bytes, and back. */
static void hops(bool single) {
  static float word[2];
  static DeviceEvent *made[2][CHAIN], *got[2][CHAIN];
  Pair p;
  double each[ROUNDS];
  pair_open(&p);
  ranks_connect(&p.ranks);
  for (int r = 0; r < 2; r++) {
    for (int k = 0; k < CHAIN; k++) {
      made[r][k] = ranks_event(&p.ranks, r);
      got[r][k] = ranks_event(&p.ranks, r);
    }
    if (single) p.queue[r] = p.compute[r];
  }
  ranks_capture(&p.ranks);
  for (uint32_t k = 0; k < CHAIN; k++) {
    const int from = k % 2, to = 1 - from;
    CommGroup **g = from == 0 ? p.forth : p.back;
    if (!single) {
      NEED(DEVICE_CPU.record(p.compute[from], made[from][k], &err));
      NEED(DEVICE_CPU.wait(p.queue[from], made[from][k], &err));
    }
    NEED(COMM_LOCAL.send(g[from], p.queue[from], &word[from], 4, k, &err));
    NEED(COMM_LOCAL.recv(g[to], p.queue[to], &word[to], 4, k, &err));
    if (!single) {
      NEED(DEVICE_CPU.record(p.queue[to], got[to][k], &err));
      NEED(DEVICE_CPU.wait(p.compute[to], got[to][k], &err));
    }
  }
  ranks_captured(&p.ranks);
  step_seconds(&p);
  for (int i = 0; i < ROUNDS; i++) each[i] = step_seconds(&p) / CHAIN;
  printf("hop between compute streams%s  %.2f us\n", single ? ", one stream a rank" : "",
         best(each) * 1e6);
  ranks_close(&p.ranks);
}

static void small_sums(void) {
  static float word[2];
  Pair p;
  double each[ROUNDS];
  pair_open(&p);
  ranks_connect(&p.ranks);
  ranks_capture(&p.ranks);
  for (uint32_t k = 0; k < CHAIN; k++) {
    for (int r = 0; r < 2; r++) {
      NEED(COMM_LOCAL.all_reduce(p.forth[r], p.compute[r],
                                 &(CommSum){&word[r], &word[r], false, 1, DT_F32}, k, &err));
    }
  }
  ranks_captured(&p.ranks);
  step_seconds(&p);
  for (int i = 0; i < ROUNDS; i++) each[i] = step_seconds(&p) / CHAIN;
  printf("all_reduce of 4 bytes between compute streams  %.2f us\n", best(each) * 1e6);
  ranks_close(&p.ranks);
}

static void empty_steps(void) {
  Pair p;
  double each[ROUNDS];
  pair_open(&p);
  ranks_connect(&p.ranks);
  ranks_capture(&p.ranks);
  ranks_captured(&p.ranks);
  for (int i = 0; i < ROUNDS; i++) each[i] = step_seconds(&p);
  printf("empty step of 2 ranks  %.1f us back to back\n", best(each) * 1e6);
  ranks_close(&p.ranks);
}

int main(void) {
  for (int reduce = 1; reduce >= 0; reduce--) {
    large((size_t)16 << 20, reduce != 0, 1);
    large((size_t)256 << 10, reduce != 0, 50);
  }
  hops(false);
  hops(true);
  small_sums();
  empty_steps();
  return 0;
}
