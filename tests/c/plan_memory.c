/* The memory that schedules take, and what the planner does with it. */
#include "lib/plans.h"
#include "random_data.h"

/* Without what kernels work in, which is large beside the tensors of these models. */
static uint64_t tensor_bytes(const RankPlan *r) { return r->arena_bytes - r->scratch_bytes; }

/* Arena without the model's inputs, which grow with the batch. */
static uint64_t working_bytes(const RankPlan *r) {
  uint64_t inputs = 0;
  for (size_t k = 0; k < r->buffers.n; k++)
    if (r->buffers.at[k].role == BUFFER_INPUT) inputs += (r->buffers.at[k].bytes + 63) / 64 * 64;
  return tensor_bytes(r) - inputs;
}

/* The most of that which is alive at once, without regard to pieces. */
static uint64_t live_bytes(const RankPlan *r) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    uint64_t live = 0;
    for (size_t k = 0; k < r->buffers.n; k++) {
      const Buffer *b = &r->buffers.at[k];
      if (b->role == BUFFER_SCRATCH) continue;
      if (b->whole_step || (b->first <= i && i <= b->last)) live += (b->bytes + 63) / 64 * 64;
    }
    if (live > most) most = live;
  }
  return most;
}

/* A model with something to save: stages of three layers with relus between them. */
static Graph *deep_model(int n_stages) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x");
  for (int i = 0; i < n_stages; i++) {
    char name[16];
    model_enter(g, "PP");
    for (int k = 0; k < 3; k++) {
      snprintf(name, sizeof name, "l%d.%d", i, k);
      h = model_op(g, OP_RELU, NULL, model_linear(g, name, h), MODEL_NONE);
    }
    if (i + 1 == n_stages) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(g, "PP");
  }
  return model_cut(g);
}

enum { STAGES = 4, SAMPLES = 32 };

static Plan *scheduled(const Graph *g, int n_mb, bool halves, bool one_stream) {
  TestStrategy t = {0};
  plans_1f1b(&t, STAGES, n_mb, halves);
  Plan *p = plans_must(
      g, &t,
      (PlanSpec){.batch = SAMPLES * n_mb, .scheduled = true, .options.single_stream = one_stream});
  strategy_clear(&t);
  return p;
}

static void growth(const Graph *g) {
  for (int halves = 0; halves < 2; halves++) {
    Plan *few = scheduled(g, 2 * STAGES, halves, false),
         *many = scheduled(g, 16 * STAGES, halves, false);
    bool equal = true;
    for (uint32_t r = 0; r < STAGES; r++) {
      diag("rank %u: %llu bytes with 8 microbatches, %llu with 64", r,
           (unsigned long long)working_bytes(&few->ranks[r]),
           (unsigned long long)working_bytes(&many->ranks[r]));
      equal &= working_bytes(&few->ranks[r]) == working_bytes(&many->ranks[r]);
    }
    ok(equal, "1F1B%s: eight times the microbatches take no more memory",
       halves ? ", backward in halves" : "");
    ok(working_bytes(&many->ranks[0]) > working_bytes(&many->ranks[STAGES - 1]),
       "early stages hold more microbatches than late ones");
    plan_free(few);
    plan_free(many);
  }
}

static void pieces(const Graph *g) {
  for (int streams = 0; streams < 2; streams++) {
    uint64_t arena = 0, live = 0;
    Plan *p = scheduled(g, 6 * STAGES, true, streams == 0);
    for (uint32_t r = 0; r < STAGES; r++) {
      arena += tensor_bytes(&p->ranks[r]);
      live += live_bytes(&p->ranks[r]);
    }
    diag("%s: %llu bytes, %llu alive at once", streams ? "streams" : "one stream",
         (unsigned long long)arena, (unsigned long long)live);
    if (streams)
      ok(arena <= live * 5 / 4,
         "streams: a buffer more for each that receives is all that is added");
    else is_int(arena, live, "one stream: not a byte more than what is alive at once");
    plan_free(p);
  }
}

static void limit(const Graph *g) {
  TestStrategy t = {0};
  plans_1f1b(&t, STAGES, 6 * STAGES, true);
  PlanSpec x = {.batch = SAMPLES * 6 * STAGES, .scheduled = true};
  Plan *p = plans_must(g, &t, x);
  const uint64_t large = p->ranks[1].arena_bytes, live = live_bytes(&p->ranks[1]);
  x.options.memory_limit = large;
  Plan *same = plans_must(g, &t, x);
  is_int(same->ranks[1].arena_bytes, large, "a plan within the limit stays as it is");
  x.options.memory_limit = large - 1;
  Plan *tight = plans_must(g, &t, x);
  ok(tight->ranks[1].arena_bytes < large, "above the limit, waits take the place of memory");
  diag("%llu bytes, %llu with a limit, %llu alive at once",
       (unsigned long long)tensor_bytes(&p->ranks[1]),
       (unsigned long long)tensor_bytes(&tight->ranks[1]), (unsigned long long)live);
  is_int(plan_verify(tight, NULL, NULL), PIPER_OK, "and the plan is proved");
  plan_free(p);
  plan_free(same);
  plan_free(tight);
  strategy_clear(&t);
}

static void figures(const Graph *g) {
  Plan *p = scheduled(g, STAGES, false, false);
  const RankPlan *r = &p->ranks[1];
  uint64_t sum = 0;
  for (int c = 0; c < MEM_COUNT; c++) sum += r->at_peak[c];
  is_int(sum, r->arena_bytes, "the categories add up to the arena");
  is_int(r->at_peak[MEM_PARAMS], 3 * 64, "parameters: three layers of 4 x 4 floats");
  is_int(r->at_peak[MEM_GRADS], 3 * 64, "gradients as many");
  is_int(r->at_peak[MEM_OPTIMIZER], 0, "sgd without momentum has no state");
  plan_free(p);
  TestStrategy t = {0};
  plans_1f1b(&t, STAGES, STAGES, false);
  p = plans_must(
      g, &t,
      (PlanSpec){.batch = 64, .options = {.dtype = DT_F64, .optimizer.kind = OPTIMIZER_ADAMW}});
  is_int(p->ranks[1].at_peak[MEM_OPTIMIZER], 2 * 3 * 128,
         "adamw has two values a parameter, in f64");
  strategy_clear(&t);
  plan_free(p);
}

/* Layers of any width. */
static Graph *uneven_model(int n_stages) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x");
  int width = 4;
  for (int i = 0; i < n_stages; i++) {
    model_enter(g, "PP");
    for (int k = random_int(1, 4); k > 0; k--) {
      PiperErr err = {0};
      ValueId w;
      char name[32];
      const int out = random_int(1, 64);
      snprintf(name, sizeof name, "l%d.%d", i, k);
      const ParamSpec spec = {.name = name, .shape = {.rank = 2, .dim = {out, width}}};
      model_enter(g, "LAYER");
      model_must(graph_add_param(g, &spec, 0, &w, &err), &err);
      h = model_op(g, OP_RELU, NULL, model_op(g, OP_LINEAR, NULL, h, w), MODEL_NONE);
      model_leave(g, "LAYER");
      width = out;
    }
    if (i + 1 == n_stages) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(g, "PP");
  }
  return model_cut(g);
}

static void uneven(void) {
  double sum = 0, worst = 0;
  int n = 0, wrong = 0;
  for (int i = 0; i < 60; i++) {
    const int n_stages = random_int(2, 5), n_mb = random_int(2, 12);
    Graph *g = uneven_model(n_stages);
    TestStrategy t = {0};
    plans_1f1b(&t, n_stages, n_mb, random_int(0, 1));
    PlanSpec x = {.batch = 16 * n_mb, .scheduled = true, .options.memory_limit = 1};
    x.options.single_stream = random_int(0, 1);
    Plan *p = plans_must(g, &t, x);
    PiperErr err = {0};
    if (plan_verify(p, NULL, &err) != PIPER_OK && wrong++ == 0) diag("%s", err.text);
    for (uint32_t r = 0; r < p->n_ranks; r++) {
      const double ratio = (double)tensor_bytes(&p->ranks[r]) / (double)live_bytes(&p->ranks[r]);
      if (ratio > worst) worst = ratio;
      sum += ratio;
      n++;
    }
    plan_free(p);
    strategy_clear(&t);
    graph_free(g);
  }
  diag("arenas are %.3f of what is alive at once, %.3f at worst", sum / n, worst);
  is_int(wrong, 0, "layers of any width: every plan is proved");
  ok(sum / n < 1.03, "under a limit, arenas are hardly larger than what is alive at once");
}

/* Kernels work in the arena, too. */
static void scratch(const Graph *g) {
  Plan *p = scheduled(g, STAGES, false, false);
  is_int(p->ranks[0].scratch_bytes, OP_SCRATCH_BYTES, "products have a space to work in");
  is_int(p->ranks[0].scratch_offset % 64, 0, "which is aligned");
  plan_free(p);
  TestStrategy t = {0};
  plans_1f1b(&t, STAGES, STAGES, false);
  p = plans_must(g, &t, (PlanSpec){.batch = 64, .options.threads_per_rank = 3});
  is_int(p->ranks[0].scratch_bytes, 3 * OP_SCRATCH_BYTES, "each thread of a rank has its own");
  plan_free(p);
  Graph *sum = model_new();
  model_loss(sum, model_op(sum, OP_SUM_SQUARES, NULL,
                           model_op(sum, OP_RELU, NULL, model_input(sum, "x"), MODEL_NONE),
                           MODEL_NONE));
  model_cut(sum);
  strategy_clear(&t);
  p = plans_must(sum, &t, (PlanSpec){.batch = 64});
  is_int(p->ranks[0].scratch_bytes, 0, "a model without products needs none");
  ok(p->ranks[0].arena_bytes < OP_SCRATCH_BYTES, "and has none");
  plan_free(p);
  graph_free(sum);
}

int main(void) {
  random_start();
  Graph *g = deep_model(STAGES);
  growth(g);
  pieces(g);
  limit(g);
  figures(g);
  uneven();
  scratch(g);
  graph_free(g);
  return done_testing();
}
