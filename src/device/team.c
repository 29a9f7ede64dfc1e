/* A run is handed to each worker that has a piece by the run's number in a word of the worker's own,
 * and done when that worker has put the same number into another one. A worker that has no piece is
 * not told, and reads nothing of the run. Which thread does what follows from the numbers alone; with
 * pieces of one size nothing would be gained by handing them out as threads become free. */
#include "device/team.h"

#include <stdlib.h>

typedef struct Worker {
  Team *team;
  uint32_t index; /* from 1 */
  pthread_t thread;
  bool started;
  Parking parking;
  _Alignas(CACHE_LINE) atomic_uint run;  /* the last one it was given, by the team's caller */
  _Alignas(CACHE_LINE) atomic_uint done; /* the last one it has finished */
} Worker;

struct Team {
  uint32_t n_threads;
  Crowd *crowd;
  atomic_bool quit;
  Parking parking; /* the caller's */
  /* The run, written by the caller while no worker is in one. */
  unsigned run;
  uint32_t n_pieces;
  TeamPiece *piece;
  void *arg;
  Worker *workers; /* n_threads - 1 */
};

uint32_t team_threads(const Team *team) { return team != NULL ? team->n_threads : 1; }

/* A thread's pieces. */
static void do_pieces(Team *team, uint32_t thread) {
  for (uint32_t i = thread; i < team->n_pieces; i += team->n_threads) team->piece(team->arg, i, thread);
}

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
    do_pieces(team, w->index);
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
  team->n_pieces = n_pieces;
  team->piece = piece;
  team->arg = arg;
  for (uint32_t i = 0; i < n_workers; i++) {
    Worker *w = &team->workers[i];
    atomic_store(&w->run, team->run);
    if (is_parked(&w->parking)) unpark(&w->parking);
  }
  do_pieces(team, 0);
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
  Team *team = calloc(1, sizeof *team);
  void *workers = NULL;
  if (team == NULL || posix_memalign(&workers, CACHE_LINE, (n_workers + 1) * sizeof(Worker)) != 0) {
    free(team);
    return err_nomem(err, "threads");
  }
  team->n_threads = n_threads;
  team->crowd = crowd;
  team->workers = workers;
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
