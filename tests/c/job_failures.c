/* One rank fails, hangs or is interrupted: all stop soon, with one message. */
#include "base/interrupt.h"
#include "lib/jobs.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const Layout TWO_BY_TWO = {.stages = 2, .devices = 2, .microbatches = 3};

typedef struct Setup {
  Graph *g;
  Plan *p;
  Job *job;
} Setup;

static Setup setup(const Layout *l) {
  Setup s = {.g = jobs_graph(l->stages)};
  s.p = jobs_plan(s.g, l);
  s.job = jobs_open(s.p);
  return s;
}

static void tear_down(Setup *s) {
  job_close(s->job);
  plan_free(s->p);
  graph_free(s->g);
}

static void fault(const char *value, int64_t step, const char *text) {
  PiperErr err = {PIPER_OK, ""}, again = {PIPER_OK, ""};
  PiperStatus st = PIPER_OK;
  double begin, v[JOBS_WIDTH * JOBS_WIDTH];
  setenv("PIPER_FAULT", value, 1);
  Setup s = setup(&TWO_BY_TWO);
  for (int64_t i = 1; i < step; i++) {
    st = jobs_step(s.job, i, NULL, &err);
    jobs_need(st, &err);
  }
  begin = seconds();
  st = jobs_step(s.job, step, NULL, &err);
  ok(st != PIPER_OK && seconds() - begin < 0.5, "PIPER_FAULT=%s ends the step", value);
  is_str(err.text, text, "with one message");
  ok(jobs_step(s.job, step + 1, NULL, &again) == st, "the next step fails in the same way");
  is_str(again.text, text, "and says the same");
  ok(job_get_param(s.job, (ParamId){1}, v, NULL) == st, "so does reading a parameter");
  tear_down(&s);
  ok(seconds() - begin < 1, "all threads have ended");
  unsetenv("PIPER_FAULT");
}

static void nan_loss(void) {
  PiperErr err = {PIPER_OK, ""};
  Setup s = setup(&TWO_BY_TWO);
  double w[JOBS_WIDTH * JOBS_WIDTH];
  for (int i = 0; i < JOBS_WIDTH * JOBS_WIDTH; i++) w[i] = (double)INFINITY;
  jobs_need(job_set_param(s.job, (ParamId){2}, w, &err), &err);
  is_int(jobs_step(s.job, 1, NULL, &err), PIPER_EUSER, "a loss that is not finite is an error");
  const char *tail = strstr(err.text, ": loss is ");
  ok(strncmp(err.text, "rank ", 5) == 0 && strstr(err.text, ", step 1, 1F") != NULL && tail != NULL,
     "which names rank, step and instruction: %s", err.text);
  tear_down(&s);
}

static void *interrupt_soon(void *arg) {
  (void)arg;
  nanosleep(&(struct timespec){0, 100000000}, NULL);
  interrupt_request();
  return NULL;
}

static void interrupted(void) {
  PiperErr err = {PIPER_OK, ""};
  pthread_t thread;
  setenv("PIPER_FAULT", "F:1:0:sleep:1000", 1);
  Setup s = setup(&TWO_BY_TWO);
  if (pthread_create(&thread, NULL, interrupt_soon, NULL) != 0) bail("no thread");
  const double begin = seconds();
  is_int(jobs_step(s.job, 1, NULL, &err), PIPER_ESTOP, "Ctrl-C ends a step");
  tear_down(&s);
  const double took = seconds() - begin;
  ok(took < 0.5, "within half a second, threads included");
  pthread_join(thread, NULL);
  interrupt_clear();
  unsetenv("PIPER_FAULT");
}

static void sleeping_rank(void) {
  PiperErr err = {PIPER_OK, ""};
  setenv("PIPER_FAULT", "B:2:1:sleep:1000", 1);
  setenv("PIPER_WATCHDOG", "0.3", 1);
  Setup s = setup(&(Layout){.stages = 2, .devices = 1, .microbatches = 2});
  jobs_need(jobs_step(s.job, 1, NULL, &err), &err);
  const double begin = seconds();
  ok(jobs_step(s.job, 2, NULL, &err) != PIPER_OK, "the watchdog ends a step that stands still");
  ok(seconds() - begin > 0.25 && seconds() - begin < 2, "after its time");
  ok(strncmp(err.text, "step 2: nothing has completed for 0.", 36) == 0, "it says so");
  ok(strstr(err.text, "the cause is rank 1, 1B0") != NULL &&
         strstr(err.text, ", which is at work\n") != NULL, "it names the cause");
  ok(strstr(err.text, "rank 0, recv from 1 of") != NULL && strstr(err.text, "waits for rank 1,") != NULL,
     "and who waits for whom");
  diag("%s", err.text);
  tear_down(&s);

  setenv("PIPER_FAULT", "F:1:0:sleep:0.6", 1);
  setenv("PIPER_WATCHDOG", "0", 1);
  s = setup(&(Layout){.stages = 2, .devices = 1, .microbatches = 2});
  ok(jobs_step(s.job, 1, NULL, &err) == PIPER_OK, "PIPER_WATCHDOG=0 waits as long as it takes");
  tear_down(&s);
  unsetenv("PIPER_FAULT");
  unsetenv("PIPER_WATCHDOG");
}

/* A plan that was tampered with: rank 1 does not send its last message. */
static void no_counterpart(void) {
  PiperErr err = {PIPER_OK, ""};
  setenv("PIPER_WATCHDOG", "0.2", 1);
  Graph *g = jobs_graph(2);
  Plan *p = jobs_plan(g, &(Layout){.stages = 2, .devices = 1, .microbatches = 2});
  RankPlan *r = &p->ranks[1];
  size_t last = r->instrs.n;
  while (last > 0 && r->instrs.at[last - 1].kind != INSTR_SEND) last--;
  if (last == 0) bail("rank 1 sends nothing");
  for (size_t i = 0; i < r->waits.n; i++) {
    if (r->waits.at[i] > last - 1) r->waits.at[i]--;
    else if (r->waits.at[i] == last - 1) r->waits.at[i] = 0;
  }
  memmove(&r->instrs.at[last - 1], &r->instrs.at[last], (r->instrs.n - last) * sizeof *r->instrs.at);
  r->instrs.n--;
  Job *job = jobs_open(p);
  ok(jobs_step(job, 1, NULL, &err) != PIPER_OK, "a message that nobody sends is noticed");
  ok(strstr(err.text, "the cause is rank 0, recv from 1 of") != NULL &&
         strstr(err.text, "for which rank 1 has no counterpart") != NULL, "and named: %.200s",
     err.text);
  job_close(job);
  plan_free(p);
  graph_free(g);
  unsetenv("PIPER_WATCHDOG");
}

static void out_of_bounds(void) {
  PiperErr err = {PIPER_OK, ""};
  Graph *g = jobs_graph(2);
  Plan *p = jobs_plan(g, &(Layout){.stages = 2, .devices = 1});
  const JobConfig cfg = {0};
  Job *job = NULL;
  p->ranks[0].bind_offset.at[0] = p->ranks[0].arena_bytes;
  ok(job_open(p, &cfg, &job, &err) == PIPER_EBUG, "a buffer outside the arena is refused");
  diag("%s", err.text);
  plan_free(p);
  graph_free(g);
}

static void malformed(void) {
  static const char *const BAD[][2] = {
      {"PIPER_FAULT", "F"}, {"PIPER_FAULT", "X:1:0"}, {"PIPER_FAULT", "F:0:0"},
      {"PIPER_FAULT", "F:1:-1"}, {"PIPER_FAULT", "F:1:0:"}, {"PIPER_FAULT", "F:1:0:sleep:"},
      {"PIPER_FAULT", "F:1:0:sleep:1x"}, {"PIPER_FAULT", "F:1:0:nap:1"},
      {"PIPER_FAULT", "compute:1:0"}, {"PIPER_FAULT", "F:99999999999999999999:0"},
      {"PIPER_JITTER", ""}, {"PIPER_JITTER", "x"}, {"PIPER_JITTER", "1:"}, {"PIPER_JITTER", "1:2:3"},
      {"PIPER_JITTER", "1:-5"}, {"PIPER_WATCHDOG", ""}, {"PIPER_WATCHDOG", "-1"},
      {"PIPER_WATCHDOG", "1m"}, {"PIPER_WATCHDOG", "inf"}, {"PIPER_POISON", "yes"},
  };
  Graph *g = jobs_graph(1);
  Plan *p = jobs_plan(g, &(Layout){.stages = 1});
  const JobConfig cfg = {0};
  for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
    PiperErr err = {PIPER_OK, ""};
    Job *job = NULL;
    setenv(BAD[i][0], BAD[i][1], 1);
    ok(job_open(p, &cfg, &job, &err) == PIPER_EUSER && strncmp(err.text, "train: PIPER_", 13) == 0 &&
           strstr(err.text, BAD[i][0]) != NULL,
       "%s=%s is refused: %.40s", BAD[i][0], BAD[i][1], err.text);
    unsetenv(BAD[i][0]);
  }
  plan_free(p);
  graph_free(g);
}

int main(void) {
  fault("F:1:0", 1, "rank 0, step 1, 0F0 (train.lua:7): failed on demand (PIPER_FAULT)");
  fault("B:3:2", 3, "rank 2, step 3, 1B0 (train.lua:7): failed on demand (PIPER_FAULT)");
  nan_loss();
  interrupted();
  sleeping_rank();
  no_counterpart();
  out_of_bounds();
  malformed();
  return done_testing();
}
