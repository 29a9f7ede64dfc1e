/* A step allocates nothing, and every allocation of job_open may fail. */
#include "lib/jobs.h"
#include "nomem.h"

#include <stdatomic.h>

/* Also what nomem.h does not count. */
int __real_posix_memalign(void **out, size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n) {
  return nomem_fails_() ? 12 : __real_posix_memalign(out, align, n);
}

/* No allocation is due during a step, so the first would fail the step. */
static void steps(const Layout *l, const char *how) {
  PiperErr err = {PIPER_OK, ""};
  Graph *g = jobs_graph(l->stages);
  Plan *p = jobs_plan(g, l);
  Job *job = jobs_open(p);
  double metrics[3]; /* the loss, the norm, what was dropped */
  bool struck = false;
  for (int i = 1; i <= 5; i++) {
    nomem_at(0);
    jobs_need(jobs_step(job, i, metrics, &err), &err);
    struck = struck || nomem_struck();
    nomem_at(-1);
  }
  ok(!struck, "five steps allocate nothing%s", how);
  job_close(job);
  plan_free(p);
  graph_free(g);
}

int main(void) {
  const Layout l = {.stages = 2, .devices = 2, .microbatches = 3};
  const JobConfig cfg = {0};
  steps(&l, "");
  steps(&(Layout){.stages = 2, .devices = 2, .microbatches = 3, .single_stream = true},
        ", in one stream a rank");
  Graph *g = jobs_graph(l.stages);
  Plan *p = jobs_plan(g, &l);
  bool clean = true, opened = false;
  long n = 0;
  for (; !opened; n++) {
    PiperErr err = {PIPER_OK, ""};
    Job *job = NULL;
    nomem_at(n);
    const PiperStatus st = job_open(p, &cfg, &job, &err);
    opened = !nomem_struck();
    nomem_at(-1);
    clean = clean && st == (opened ? PIPER_OK : PIPER_ENOMEM) && (st == PIPER_OK || err.text[0] != 0);
    job_close(job);
  }
  ok(clean, "each of the %ld allocations of job_open may fail", n - 1);
  plan_free(p);
  graph_free(g);
  return done_testing();
}
