/* A run is handed to each worker that has a piece in a cache line of the worker's own, which ends with
 * the run's number, and done when that worker has put the same number into another line. A worker that
 * has no piece is not told. Which thread does what follows from the numbers alone; with
 * pieces of one size nothing would be gained by handing them out as threads become free. */
#include "device/team.h"

#include <stdlib.h>

#define APART (2 * CACHE_LINE) /* processors fetch lines in pairs */

typedef struct Worker {
  Team *team;
  uint32_t index; /* from 1 */
  pthread_t thread;
  bool started;
  Parking parking;
  /* The run, written by the caller while the worker is in none. */
  _Alignas(APART) TeamPiece *piece;
  void *arg;
  uint32_t n_pieces;
  atomic_uint run;                       /* number of the last one it was given */
  _Alignas(APART) atomic_uint done; /* number of the last one it has finished */
} Worker;

struct Team {
  /* What workers look at while they wait: nobody writes it meanwhile. */
  uint32_t n_threads;
  Crowd *crowd;
  atomic_bool quit;
  Worker *workers; /* n_threads - 1 */
  /* The caller's. */
  _Alignas(APART) Parking parking;
  unsigned run;    /* number of the present or last one */
};

uint32_t team_threads(const Team *team) { return team != NULL ? team->n_threads : 1; }

/* What the two sides wait for. */
typedef struct Wait {
  const atomic_uint *word;
  unsigned value;          /* that the word is to leave, or to reach */
  const atomic_bool *quit; /* NULL: does not matter */
} Wait;

static bool has_left(void *ctx) {
  const Wait *w = ctx;
  return atomic_load(w->word) != w->value || atomic_load(w->quit);
}

static bool has_reached(void *ctx) {
  const Wait *w = ctx;
  return atomic_load(w->word) == w->value;
}

/* ---- workers ----------------------------------------------------------------------------------- */

static void await_run(Worker *w, unsigned last) {
  Team *team = w->team;
  Wait wait = {&w->run, last, &team->quit};
  uint64_t begin = 0;
  for (unsigned turn = 0; !has_left(&wait); turn++) {
    if (crowded(team->crowd) || !spin(turn, &begin)) {
      park(&w->parking, team->crowd, has_left, &wait);
      turn = 0;
    }
  }
}

static void *worker_thread(void *arg) {
  Worker *w = arg;
  Team *team = w->team;
  for (unsigned last = 0;;) {
    await_run(w, last);
    if (atomic_load(&team->quit)) break;
    last = atomic_load(&w->run);
    for (uint32_t i = w->index; i < w->n_pieces; i += team->n_threads) w->piece(w->arg, i, w->index);
    atomic_store(&w->done, last);
    if (is_parked(&team->parking)) unpark(&team->parking);
  }
  atomic_fetch_sub(&team->crowd->runnable, 1);
  return NULL;
}

/* ---- the caller -------------------------------------------------------------------------------- */

static void await_done(Team *team, const Worker *w) {
  Wait wait = {&w->done, team->run, NULL};
  uint64_t begin = 0;
  for (unsigned turn = 0; !has_reached(&wait); turn++) {
    if (!spin(turn, &begin)) {
      park(&team->parking, team->crowd, has_reached, &wait);
      turn = 0;
    }
  }
}

void team_run(Team *team, uint32_t n_pieces, TeamPiece *piece, void *arg) {
  if (team == NULL || team->n_threads == 1 || n_pieces <= 1) {
    for (uint32_t i = 0; i < n_pieces; i++) piece(arg, i, 0);
    return;
  }
  const uint32_t n_workers = (n_pieces < team->n_threads ? n_pieces : team->n_threads) - 1;
  team->run++;
  for (uint32_t i = 0; i < n_workers; i++) {
    Worker *w = &team->workers[i];
    w->piece = piece;
    w->arg = arg;
    w->n_pieces = n_pieces;
    atomic_store(&w->run, team->run);
    if (is_parked(&w->parking)) unpark(&w->parking);
  }
  for (uint32_t i = 0; i < n_pieces; i += team->n_threads) piece(arg, i, 0);
  for (uint32_t i = 0; i < n_workers; i++) await_done(team, &team->workers[i]);
}

/* ---- life -------------------------------------------------------------------------------------- */

static PiperStatus worker_start(Team *team, uint32_t i, const char *name, PiperErr *err) {
  Worker *w = &team->workers[i];
  atomic_fetch_add(&team->crowd->runnable, 1);
  const PiperStatus st = thread_start(&w->thread, worker_thread, w, name, err);
  w->started = st == PIPER_OK;
  if (!w->started) atomic_fetch_sub(&team->crowd->runnable, 1);
  return st;
}

PiperStatus team_new(uint32_t n_threads, Crowd *crowd, const char *name, Team **out, PiperErr *err) {
  const size_t n_workers = n_threads - 1;
  Team *team = aligned_alloc(APART, sizeof *team);
  Worker *workers = aligned_alloc(APART, (n_workers + 1) * sizeof *workers);
  if (team == NULL || workers == NULL) {
    free(team);
    free(workers);
    return err_nomem(err, "threads");
  }
  *team = (Team){.n_threads = n_threads, .crowd = crowd, .workers = workers};
  parking_init(&team->parking);
  for (uint32_t i = 0; i < n_workers; i++) {
    Worker *w = &team->workers[i];
    *w = (Worker){.team = team, .index = i + 1};
    parking_init(&w->parking);
  }
  for (uint32_t i = 0; i < n_workers; i++) {
    const PiperStatus st = worker_start(team, i, name, err);
    if (st == PIPER_OK) continue;
    team_free(team);
    return st;
  }
  *out = team;
  return PIPER_OK;
}

void team_free(Team *team) {
  if (team == NULL) return;
  atomic_store(&team->quit, true);
  for (uint32_t i = 0; i + 1 < team->n_threads; i++) {
    Worker *w = &team->workers[i];
    if (is_parked(&w->parking)) unpark(&w->parking);
    if (w->started) pthread_join(w->thread, NULL);
    parking_destroy(&w->parking);
  }
  parking_destroy(&team->parking);
  free(team->workers);
  free(team);
}
