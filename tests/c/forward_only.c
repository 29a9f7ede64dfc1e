/* Plans that evaluate: what is left of a strategy, what the proofs notice, and where their memory lies. What
 * they compute: tests/lua/evaluate.lua. */
#include "ir/dag_text.h"
#include "ir/dag_verify.h"
#include "lib/jobs.h"
#include "lib/passes.h"
#include "plan/plan_verify.h"

#include <malloc.h>

static PiperErr err;

/* The DAG's text after the last pass. */
static char *forward_text(const Graph *g, const TestStrategy *t) {
  char *text = NULL;
  Dag *d = NULL;
  const Strategy s = strategy_of(t);
  const PassOptions opt = {.float_bytes = 4, .forward_only = true, .verify = true,
                           .dump_after = "order", .dump = &text};
  err = (PiperErr){0};
  if (passes_run(g, 4, &s, &opt, &d, &err) != PIPER_OK) bail(err.text);
  dag_free(d);
  return text;
}

/* Directives of all kinds, about F, about B, about both. */
static void strategy(TestStrategy *t) {
  strategy_split(t, "", "MB", 2);
  strategy_place(t, "PP=0 PASS=F", "0");
  strategy_place(t, "PP=0 PASS=B", "0");
  strategy_place(t, "PP=1", "1,2");
  strategy_replicate(t, "PP=1", "1,2")->zero = ZERO_GRADS;
  strategy_add(t, DIRECTIVE_RECOMPUTE, "PP=0");
  strategy_order(t, "PP=0 PASS=F MB=1;PP=0 PASS=F MB=0;PP=0 PASS=B MB=0|PP=0 PASS=B MB=1");
  strategy_order(t, "PP=1 MB=0 PASS=B;PP=1 MB=1 PASS=B");
  strategy_order(t, "PP=1 MB=1 PASS=F;PP=1 MB=0 PASS=F|PP=1 MB=1 PASS=B");
}

static void directives(const Graph *g) {
  TestStrategy t = {0};
  strategy(&t);
  char *text = forward_text(g, &t);
  is_str(text,
         "dag batch=4 dims=1 forward_only\n"
         "bucket 1 [l0.weight] chunk=1 trained holders=0 reduce_stream=dp_stream line=\"m.lua:1\"\n"
         "bucket 2 [l1.weight] chunk=2 trained holders=1-2 replicated zero=2 reduce_stream=dp_stream "
         "gather_stream=ag_stream line=\"t.lua:5\"\n"
         "1 compute F chunk=1 samples=0:2 devs=0 stream=default_stream tags={MB=0,PP=0} order=1 "
         "group=2 line=\"m.lua:1\" <- 3~\"t.lua:7\"\n"
         "2 compute F chunk=2 samples=0:2 devs=1-2 stream=default_stream tags={MB=0,PP=1} order=2 "
         "group=2 line=\"m.lua:2\" <- 5:v3, 4~\"t.lua:9\"\n"
         "3 compute F chunk=1 samples=2:4 devs=0 stream=default_stream tags={MB=1,PP=0} mb=1 order=1 "
         "group=1 line=\"m.lua:1\"\n"
         "4 compute F chunk=2 samples=2:4 devs=1-2 stream=default_stream tags={MB=1,PP=1} mb=1 "
         "order=2 group=1 line=\"m.lua:2\" <- 6:v3\n"
         "5 transfer F tensor=v3 src_samples=0:2 src_devs=0 samples=0:2 devs=1-2 stream=pp_stream "
         "tags={MB=0,PP=1} line=\"m.lua:2\" <- 1:v3\n"
         "6 transfer F tensor=v3 src_samples=2:4 src_devs=0 samples=2:4 devs=1-2 stream=pp_stream "
         "tags={MB=1,PP=1} mb=1 line=\"m.lua:2\" <- 3:v3\n"
         "7 all_reduce tensor=metrics devs=0-2 stream=dp_stream line=\"m.lua:4\" "
         "<- 2:metrics, 4:metrics\n",
         "forward passes, their transfers, and of the directives what is about them");
  Dag *d = NULL;
  char *again = NULL;
  if (dag_parse(g, text, &d, &err) != PIPER_OK || dag_print(d, &again, &err) != PIPER_OK)
    bail(err.text);
  is_str(again, text, "the text is read as it was printed");
  d->pass[2] = PASS_B;
  is_int(dag_verify(d, DAG_BUILT, &err), PIPER_EBUG, "another pass");
  is_str(err.text, "1B0 (node 2) is in a DAG of forward passes only", "is out of place");
  dag_free(d);
  free(text), free(again);
  strategy_clear(&t);
}

/* Of a plan of jobs.h. */
static Plan *evaluation_of(const Plan *trains, const Layout *l) {
  Plan *p = NULL;
  Layout forward = *l;
  forward.trains = trains;
  p = jobs_plan(trains->graph, &forward);
  return p;
}

static void plans(void) {
  Graph *g = jobs_graph(2);
  const Layout l = {.stages = 2, .devices = 2, .microbatches = 3};
  Plan *p = jobs_plan(g, &l), *e = evaluation_of(p, &l);
  err = (PiperErr){0};
  is_int(plan_verify(e, NULL, &err), PIPER_OK, "the plan is proved");
  bool there = true, params = false;
  for (uint32_t r = 0; r < e->n_ranks; r++) {
    const RankPlan *x = &e->ranks[r], *y = &p->ranks[r];
    for (size_t k = 0; k < x->buffers.n; k++) {
      const Buffer *b = &x->buffers.at[k];
      there &= b->role != BUFFER_GRADS && b->role != BUFFER_STATE;
      if (b->role != BUFFER_PARAMS) continue;
      bool found = false;
      for (size_t i = 0; i < y->buffers.n; i++)
        found |= y->buffers.at[i].role == BUFFER_PARAMS &&
                 y->buffers.at[i].offset == b->offset - x->arena_bytes;
      params |= found;
      there &= found;
    }
    there &= x->shared_bytes == y->kept_bytes && x->at_peak[MEM_PARAMS] == 0;
  }
  ok(there && params, "parameters are those of the other plan; there are no gradients and no state");
  RankPlan *r = &e->ranks[0];
  for (size_t k = 0; k < r->accesses.n; k++)
    if (r->buffers.at[r->accesses.at[k].buffer].role == BUFFER_PARAMS) r->accesses.at[k].write = true;
  is_int(plan_verify(e, NULL, &err), PIPER_EBUG, "a plan that would change parameters");
  is_str(err.text, "plan: rank 0, 0F0 (train.lua:7) binds the wrong access: parameters of w0", "is refused");
  plan_free(e);

  /* Other buckets than those. */
  CompileOptions o = {.batch = JOBS_BATCH, .plan = {.dtype = DT_F32}, .trains = p};
  char *dump;
  err = (PiperErr){0};
  e = NULL;
  is_int(compile_plan(g, &(Strategy){0}, &o, &e, &dump, &err), PIPER_EBUG, "another strategy");
  is_str(err.text, "rank 0 does not keep the parameters that the other plan keeps there",
         "does not find its parameters");
  plan_free(p);
  graph_free(g);
}

static void jobs(void) {
  Graph *g = jobs_graph(2);
  const Layout l = {.stages = 2, .devices = 2, .microbatches = 3};
  Plan *p = jobs_plan(g, &l), *e = evaluation_of(p, &l);
  Job *job = jobs_open(p), *forward = NULL;
  double step[3], loss[3], param[JOBS_WIDTH * JOBS_WIDTH], after[JOBS_WIDTH * JOBS_WIDTH];
  jobs_need(jobs_step(job, 1, step, &err), &err);
  jobs_need(job_get_param(job, (ParamId){1}, param, &err), &err);
  const struct mallinfo2 before = mallinfo2();
  jobs_need(job_open(e, &(JobConfig){.trains = job}, &forward, &err), &err);
  const struct mallinfo2 now = mallinfo2();
  uint64_t bytes[MEM_COUNT], sum = 0;
  job_memory(forward, 0, bytes);
  for (int c = 0; c < MEM_COUNT; c++) sum += bytes[c];
  diag("%.0f bytes more", (double)(now.uordblks + now.hblkhd) - (double)(before.uordblks + before.hblkhd));
  if (now.uordblks == 0) skip("the allocator does not say");
  else
    ok(now.uordblks + now.hblkhd < before.uordblks + before.hblkhd + 256 * 1024,
       "evaluation works in the memory of the step");
  is_int(sum, 0, "and says so");
  jobs_need(jobs_step(forward, 2, loss, &err), &err);
  job_close(forward);
  jobs_need(job_get_param(job, (ParamId){1}, after, &err), &err);
  ok(memcmp(param, after, sizeof param) == 0, "parameters stay");
  jobs_need(jobs_step(job, 2, step, &err), &err);
  is_near(loss[0], step[0], 0, "the loss of the next step");
  err = (PiperErr){0};
  ok(job_open(e, &(JobConfig){0}, &forward, &err) == PIPER_EBUG, "without the other job there are no parameters");
  err = (PiperErr){0};
  ok(job_open(p, &(JobConfig){.trains = job}, &forward, &err) == PIPER_EBUG, "a plan that trains has its own");
  job_close(job);
  plan_free(e);
  plan_free(p);
  graph_free(g);
}

int main(void) {
  Graph *g = model_chain(2);
  directives(g);
  graph_free(g);
  plans();
  jobs();
  return done_testing();
}
