/* Jobs compute what one device computes, whatever the ranks, the order of events and the streams. */
#include "lib/jobs.h"

#include <malloc.h>
#include <math.h>

enum { STEPS = 2, STAGES = 4, N = JOBS_WIDTH * JOBS_WIDTH };

/* All that two runs can be compared by. */
typedef struct Trace {
  double metrics[STEPS][3], param[STEPS][STAGES][N], grad[STEPS][STAGES][N];
} Trace;

static PiperErr err;

static void run(const Graph *g, const Layout *l, Trace *t) {
  Plan *p = jobs_plan(g, l);
  Job *job = jobs_open(p);
  for (int s = 0; s < STEPS; s++) {
    jobs_need(jobs_step(job, s + 1, t->metrics[s], &err), &err);
    for (uint32_t i = 0; i < l->stages; i++) {
      jobs_need(job_get_grad(job, (ParamId){i + 1}, t->grad[s][i], &err), &err);
      jobs_need(job_get_param(job, (ParamId){i + 1}, t->param[s][i], &err), &err);
    }
    jobs_need(job_replicas_equal(job, &err), &err);
  }
  job_close(job);
  plan_free(p);
}

static void equal_to_one_device(uint32_t stages, const char *how, bool single) {
  static const uint32_t MICROBATCHES[] = {1, 2, 3, 4, 8};
  static Trace one, many;
  Graph *g = jobs_graph(stages);
  memset(&one, 0, sizeof one);
  memset(&many, 0, sizeof many);
  run(g, &(Layout){.stages = stages}, &one);
  ok(one.metrics[0][0] > 0 && one.metrics[1][0] > 0 && one.metrics[0][1] > 0,
     "%u stages on one device give a loss and a norm", stages);
  for (uint32_t devices = 1; devices <= 2; devices++) {
    bool same = true;
    for (size_t i = 0; i < sizeof MICROBATCHES / sizeof *MICROBATCHES; i++) {
      if (JOBS_BATCH / MICROBATCHES[i] % devices != 0) continue;
      const Layout l = {.stages = stages, .devices = devices, .microbatches = MICROBATCHES[i],
                        .single_stream = single};
      run(g, &l, &many);
      if (memcmp(&one, &many, sizeof one) == 0) continue;
      diag("%u microbatches: loss %.17g, one device has %.17g; norm %.17g, %.17g", l.microbatches,
           many.metrics[0][0], one.metrics[0][0], many.metrics[0][1], one.metrics[0][1]);
      same = false;
    }
    ok(same, "%u stages on %u devices each, 1 to 8 microbatches, equal one device bit for bit%s",
       stages, devices, how);
  }
  graph_free(g);
}

static void initial_values(InitKind init, const char *what) {
  Graph *g = jobs_graph_init(2, init);
  Plan *a = jobs_plan(g, &(Layout){.stages = 2});
  Plan *b = jobs_plan(g, &(Layout){.stages = 2, .devices = 2, .first_rank = 3, .stride = 2});
  Job *x = jobs_open(a), *y = jobs_open(b);
  double v[N], w[N];
  bool same = true;
  for (uint32_t i = 1; i < g->params.n; i++) {
    memset(v, 0, sizeof v);
    memset(w, 0, sizeof w);
    jobs_need(job_get_param(x, (ParamId){i}, v, &err), &err);
    jobs_need(job_get_param(y, (ParamId){i}, w, &err), &err);
    same = same && memcmp(v, w, sizeof v) == 0;
  }
  ok(same && v[0] != v[1], "%s depend on the seed and the name alone", what);
  job_close(x);
  job_close(y);
  plan_free(a);
  plan_free(b);
  graph_free(g);
}

static void parameters(void) {
  Graph *g = jobs_graph(2);
  Plan *p = jobs_plan(g, &(Layout){.stages = 2, .devices = 2, .first_rank = 3, .stride = 2});
  Job *job = jobs_open(p);
  double v[N], w[N], zero[N] = {0};
  const ParamId w1 = jobs_param(g, "w1"), frozen = jobs_param(g, "frozen");
  is_int(p->n_ranks, 4, "ranks 3, 5, 7, 9");
  jobs_need(job_get_param(job, w1, w, &err), &err);
  is_near(w[3], jobs_number(1, 3), 0, "exact initial values are as given");
  for (int i = 0; i < N; i++) v[i] = i;
  jobs_need(job_set_param(job, w1, v, &err), &err);
  jobs_need(job_get_param(job, w1, w, &err), &err);
  ok(memcmp(v, w, sizeof v) == 0, "a parameter that was set reads back");
  ok(job_replicas_equal(job, &err) == PIPER_OK, "the same on all its ranks");
  jobs_need(jobs_step(job, 1, NULL, &err), &err);
  jobs_need(job_get_grad(job, w1, w, &err), &err);
  ok(memcmp(w, zero, sizeof w) != 0, "it has a gradient");
  memset(w, 0, sizeof w);
  jobs_need(job_get_grad(job, frozen, w, &err), &err);
  ok(memcmp(w, zero, sizeof w) == 0, "that of a frozen one is zero");
  jobs_need(job_get_param(job, frozen, w, &err), &err);
  is_near(w[1], jobs_number(2, 1), 0, "and it has not moved");
  job_close(job);
  plan_free(p);
  graph_free(g);
}

static void memory(void) {
  Graph *g = jobs_graph(2);
  Plan *p = jobs_plan(g, &(Layout){.stages = 2, .devices = 2, .microbatches = 3, .first_rank = 1});
  Job *job = jobs_open(p);
  bool same = true;
  uint64_t bytes[MEM_COUNT], sum;
  for (uint32_t r = 0; r < p->n_ranks; r++) {
    sum = 0;
    same = same && job_memory(job, p->ranks[r].rank, bytes);
    for (int c = 0; c < MEM_COUNT; c++) sum += bytes[c];
    same = same && sum == p->ranks[r].arena_bytes &&
           memcmp(bytes, p->ranks[r].at_peak, sizeof bytes) == 0;
  }
  ok(same, "what is allocated is what the plan says, to the byte");
  ok(!job_memory(job, 0, bytes), "a rank that the plan does not have");
  job_close(job);
  plan_free(p);
  graph_free(g);
}

/* What job_open takes from the heap, besides bookkeeping, is the arenas: no memory for data is hidden
 * from the plan. */
static void heap(void) {
  Graph *g = jobs_graph(2);
  Plan *p = jobs_plan(g, &(Layout){.stages = 2, .devices = 2, .microbatches = 3, .threads = 2});
  const struct mallinfo2 before = mallinfo2();
  Job *job = jobs_open(p);
  jobs_need(jobs_step(job, 1, NULL, &err), &err);
  const struct mallinfo2 now = mallinfo2();
  double taken = (double)(now.uordblks + now.hblkhd) - (double)(before.uordblks + before.hblkhd);
  for (uint32_t r = 0; r < p->n_ranks; r++) taken -= (double)p->ranks[r].arena_bytes;
  diag("%.0f bytes besides those of the plan", taken);
  if (now.uordblks == 0) skip("the allocator does not say");
  else ok(taken < 256 * 1024, "nothing large is allocated that the plan does not know");
  job_close(job);
  plan_free(p);
  graph_free(g);
}

static void adamw(void) {
  Graph *g = jobs_graph(2);
  const OptimizerSpec o = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
  const Layout l = {.stages = 2, .devices = 2, .microbatches = 2, .optimizer = o};
  Plan *p = jobs_plan(g, &l);
  Job *job = jobs_open(p);
  double before[N], grad[N], after[N], worst = 0;
  jobs_need(job_get_param(job, (ParamId){1}, before, &err), &err);
  jobs_need(jobs_step(job, 1, NULL, &err), &err);
  jobs_need(job_get_grad(job, (ParamId){1}, grad, &err), &err);
  jobs_need(job_get_param(job, (ParamId){1}, after, &err), &err);
  /* corrected for its bias the first step is lr * sign(gradient) */
  for (int i = 0; i < N; i++) {
    const double want = before[i] - 0.125 * grad[i] / (fabs(grad[i]) + 1e-8);
    worst = fmax(worst, fabs(after[i] - want));
  }
  is_near(worst, 0, 1e-9, "bias corrections reach the optimizer");
  job_close(job);
  plan_free(p);
  graph_free(g);
}

int main(void) {
  setenv("PIPER_POISON", "1", 1);
  for (uint32_t stages = 1; stages <= 4; stages *= 2) {
    equal_to_one_device(stages, "", false);
    equal_to_one_device(stages, ", in one stream a rank", true);
  }
  setenv("PIPER_JITTER", "5:100", 1);
  equal_to_one_device(2, ", with sleeps", false);
  equal_to_one_device(2, ", with sleeps in one stream", true);
  unsetenv("PIPER_JITTER");
  initial_values(INIT_VALUES, "exact initial values");
  initial_values(INIT_NORMAL, "normal ones");
  initial_values(INIT_UNIFORM, "uniform ones");
  parameters();
  memory();
  heap();
  adamw();
  return done_testing();
}
