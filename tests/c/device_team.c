/* A stream's team: who does which piece, runs one after the other, workers that have gone to sleep. */
#include "device/team.h"

#include <time.h>

#include "tap.h"

enum { MOST = 100 };

static Crowd crowd = {.n_cores = 2};

typedef struct Seen {
  int times[MOST];
  uint32_t thread[MOST];
} Seen;

static Team *team_of(uint32_t n) {
  PiperErr err = {0};
  Team *team = NULL;
  if (team_new(n, &crowd, "piper test", &team, &err) != PIPER_OK) bail(err.text);
  return team;
}

static void note(void *arg, uint32_t piece, uint32_t thread) {
  Seen *seen = arg;
  seen->times[piece]++;
  seen->thread[piece] = thread;
}

static void test_pieces(void) {
  static const uint32_t COUNTS[] = {0, 1, 2, 3, 4, 5, 7, 100};
  for (uint32_t threads = 1; threads <= 4; threads++) {
    Team *team = team_of(threads);
    bool once = true, placed = true;
    for (size_t c = 0; c < sizeof COUNTS / sizeof *COUNTS; c++) {
      Seen seen = {{0}, {0}};
      team_run(team, COUNTS[c], note, &seen);
      for (uint32_t i = 0; i < MOST; i++) {
        once = once && seen.times[i] == (i < COUNTS[c]);
        placed = placed && (i >= COUNTS[c] || seen.thread[i] == i % threads);
      }
    }
    ok(once, "%d threads do each piece once", (int)threads);
    ok(placed, "and piece i is thread i %% %d's", (int)threads);
    is_int(team_threads(team), threads, "so many threads there are");
    team_free(team);
  }
  Seen seen = {{0}, {0}};
  team_run(NULL, 3, note, &seen);
  ok(seen.times[0] == 1 && seen.times[1] == 1 && seen.times[2] == 1 && seen.thread[2] == 0,
     "no team is the calling thread alone");
  is_int(team_threads(NULL), 1, "which is one thread");
}

/* Each run reads what another thread wrote in the run before. */
typedef struct Ring {
  long value[2][8];
  int from;
} Ring;

static void pass_on(void *arg, uint32_t piece, uint32_t thread) {
  Ring *r = arg;
  (void)thread;
  r->value[1 - r->from][piece] = r->value[r->from][(piece + 1) % 8] + 1;
}

static void test_many_runs(void) {
  for (uint32_t threads = 2; threads <= 8; threads *= 2) { /* 4 and 8: more than the cores */
    const int n = threads <= 2 ? 20000 : 500;
    Team *team = team_of(threads);
    Ring r = {{{0}}, 0};
    bool right = true;
    for (int i = 0; i < n; i++) {
      team_run(team, 8, pass_on, &r);
      r.from = 1 - r.from;
    }
    for (int i = 0; i < 8; i++) right = right && r.value[r.from][i] == n;
    ok(right, "%d threads: a run sees all that the one before has written", (int)threads);
    team_free(team);
  }
}

static void nap(long us) { nanosleep(&(struct timespec){0, us * 1000}, NULL); }

static void test_sleep(void) {
  Team *team = team_of(3);
  Ring r = {{{0}}, 0};
  for (int i = 0; i < 30; i++) {
    nap(i * 10); /* around the time after which workers park */
    team_run(team, 8, pass_on, &r);
    r.from = 1 - r.from;
  }
  ok(r.value[r.from][0] == 30 && r.value[r.from][7] == 30, "runs wake workers that have parked");
  int left = -1;
  for (int i = 0; i < 1000 && (left = atomic_load(&crowd.runnable)) != 0; i++) nap(1000);
  is_int(left, 0, "and workers that have nothing to do sleep");
  is_int(atomic_load(&crowd.n_parked), 2, "both of them");
  team_free(team);
}

static void test_life(void) {
  for (int i = 0; i < 50; i++) {
    Team *team = team_of(1 + (uint32_t)i % 4);
    if (i % 3 == 0) nap(100);
    team_free(team);
  }
  team_free(NULL);
  is_int(atomic_load(&crowd.runnable), 0, "a team that is freed leaves no thread behind");
}

int main(void) {
  test_pieces();
  test_many_runs();
  test_sleep();
  test_life();
  return done_testing();
}
