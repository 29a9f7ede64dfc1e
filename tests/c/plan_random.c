/* Random models under random strategies in random orders: plan_verify proves what plan_lower and
 * plan_place_memory make of them. */
#include "lib/plans.h"
#include "random_data.h"

enum { TRIES = 600, BATCH = 24 };

/* Stages of one or two layers with skip connections, a tied or frozen parameter here and there, a
 * stage without parameters or with experts, a loss of its own or several. */
static Graph *random_model(uint32_t *n_stages) {
  Graph *g = model_new();
  ValueId h[8] = {model_input(g, "x")};
  uint32_t n = 1;
  const uint32_t stages = (uint32_t)random_int(1, 6);
  const bool tied = random_int(0, 2) == 0, losses = random_int(0, 3) == 0;
  ValueId scalar = MODEL_NONE; /* a sum over samples that travels from stage to stage */
  for (uint32_t i = 0; i < stages; i++) {
    char name[16];
    model_enter(g, "PP");
    ValueId y = h[n - 1];
    if (random_int(0, 3) == 0) y = model_op(g, OP_ADD, NULL, y, h[random_int(0, (int)n - 1)]);
    if (random_int(0, 4) > 0 || i == 0) {
      snprintf(name, sizeof name, "l%u", tied && i > 0 && random_int(0, 1) ? 0 : i);
      y = model_linear(g, name, y);
    }
    if (random_int(0, 4) == 0) {
      snprintf(name, sizeof name, "moe%u", i);
      y = model_op(g, OP_ADD, NULL, y, model_moe(g, name, y, random_int(0, 2) > 0 ? 4 : 6));
    }
    if (random_int(0, 1)) y = model_op(g, OP_RELU, NULL, y, MODEL_NONE);
    if (random_int(0, 3) == 0) y = model_op(g, OP_MUL, NULL, y, h[n - 1]);
    if (i + 1 == stages || losses) {
      const ValueId sum = model_op(g, OP_SUM_SQUARES, NULL, y, MODEL_NONE);
      if (random_int(0, 1) == 0 || i + 1 == stages) {
        model_loss(g, scalar.i != 0 ? model_op(g, OP_ADD, NULL, scalar, sum) : sum);
        scalar = MODEL_NONE;
      } else {
        scalar = scalar.i != 0 ? model_op(g, OP_ADD, NULL, scalar, sum) : sum;
      }
    }
    model_leave(g, "PP");
    if (n < 8) h[n++] = y;
    else h[7] = y;
  }
  if (stages > 1 && random_int(0, 3) == 0) g->params.at[1].frozen = true;
  *n_stages = stages;
  return model_cut(g);
}

static void random_devices(char *buf, size_t size, uint32_t n_ranks) {
  static const int sizes[] = {1, 1, 1, 2, 2, 3, 4};
  int ranks[8], n = sizes[random_int(0, 6)];
  size_t at = 0;
  for (uint32_t i = 0; i < n_ranks; i++) ranks[i] = (int)i;
  if (n > (int)n_ranks) n = (int)n_ranks;
  for (int i = 0; i < n; i++) {
    const int k = random_int(i, (int)n_ranks - 1), t = ranks[k];
    ranks[k] = ranks[i];
    ranks[i] = t;
    at += (size_t)snprintf(buf + at, size - at, "%s%d", i > 0 ? "," : "", ranks[i]);
  }
}

static const char *random_name(const char *usual) {
  static const char *const names[] = {"shared", "default_stream", "other"};
  return random_int(0, 3) > 0 ? usual : names[random_int(0, 2)];
}

/* The experts of the stage, if it has any, in groups of some size. */
static void random_shard(const Graph *g, TestStrategy *t, uint32_t stage, const char *devices) {
  const size_t n = (strlen(devices) + 1) / 2;
  char name[32], filter[32];
  snprintf(name, sizeof name, "moe%u.gate.weight", stage);
  if (graph_find_param(g, name).i == 0 || random_int(0, 3) == 0) return;
  snprintf(filter, sizeof filter, "PP=%u EP=*", stage);
  const size_t size = random_int(0, 2) == 0 ? 1 : n;
  strategy_shard(t, filter, devices, (uint32_t)(n == 4 && random_int(0, 1) ? 2 : size))->stream =
      random_name("ep_stream");
}

static void random_strategy(const Graph *g, TestStrategy *t, uint32_t n_stages) {
  const uint32_t n_ranks = (uint32_t)random_int(1, 5);
  char filter[32], devices[32];
  static const int parts[] = {1, 2, 3, 2, 6};
  const uint8_t zero = (uint8_t)random_int(0, ZERO_PARAMS);
  const bool per_microbatch = random_int(0, 1);
  if (random_int(0, 5) > 0) strategy_split(t, "", "MB", parts[random_int(0, 4)]);
  if (random_int(0, 2) == 0) {
    snprintf(filter, sizeof filter, "PP=%d", random_int(0, (int)n_stages - 1));
    strategy_split(t, random_int(0, 1) ? filter : "", "SUB", 2);
  }
  for (uint32_t i = 0; i < n_stages; i++) {
    snprintf(filter, sizeof filter, "PP=%u", i);
    random_devices(devices, sizeof devices, n_ranks);
    strategy_place(t, filter, devices)->stream = random_name("pp_stream");
    random_shard(g, t, i, devices);
    if (strchr(devices, ',') == NULL) continue;
    Directive *x = strategy_replicate(t, filter, devices);
    x->reduce_stream = random_name("dp_stream");
    x->gather_stream = random_name("ag_stream");
    x->zero = zero;
    x->per_microbatch = per_microbatch;
    x->prefetch = (uint32_t)random_int(0, 3);
    x->keep_bytes = random_int(0, 1) ? 0 : random_int(0, 4096);
  }
}

static PlanSpec random_spec(void) {
  PlanSpec x = {.batch = BATCH, .order_seed = 1 + (uint64_t)random_int(0, 1 << 30)};
  x.scheduled = random_int(0, 2) == 0;
  x.options.dtype = random_int(0, 1) ? DT_F32 : DT_F64;
  x.options.clip_norm = random_int(0, 1);
  x.options.single_stream = random_int(0, 3) == 0;
  x.options.optimizer.kind = random_int(0, 1) ? OPTIMIZER_SGD : OPTIMIZER_ADAMW;
  return x;
}

/* The sum of what is alive at each instruction, taken from the plan anew. */
static bool figures_hold(const Plan *p) {
  for (uint32_t k = 0; k < p->n_ranks; k++) {
    const RankPlan *r = &p->ranks[k];
    uint64_t sum = 0, end = 0, at_peak[MEM_COUNT] = {0};
    for (int c = 0; c < MEM_COUNT; c++) sum += r->at_peak[c];
    for (size_t b = 0; b < r->buffers.n; b++) {
      const Buffer *x = &r->buffers.at[b];
      if (x->offset + x->bytes > end) end = x->offset + x->bytes;
      if (x->offset % 64 != 0) return false;
      if (x->whole_step || (x->first <= r->peak_instr && r->peak_instr <= x->last))
        at_peak[x->category] += x->bytes;
    }
    if (sum != r->arena_bytes || end > r->arena_bytes || end + 64 <= r->arena_bytes) return false;
    for (int c = 0; c < MEM_COUNT; c++)
      if (c != MEM_WORKSPACE && at_peak[c] != r->at_peak[c]) return false;
  }
  return true;
}

static Plan *built(const Graph *g, const TestStrategy *t, PlanSpec x, PiperErr *err) {
  Plan *p = plans_made(g, t, x, err);
  if (p != NULL && (plan_verify(p, NULL, err) != PIPER_OK)) {
    plan_free(p);
    return NULL;
  }
  return p;
}

int main(void) {
  int legal = 0, wrong = 0, single = 0, waits = 0, exchanges = 0;
  random_start();
  for (int i = 0; i < TRIES && wrong < 3; i++) {
    uint32_t n_stages;
    Graph *g = random_model(&n_stages);
    TestStrategy t = {0};
    random_strategy(g, &t, n_stages);
    PiperErr err = {0};
    PlanSpec x = random_spec();
    Plan *p = built(g, &t, x, &err);
    if (err.code == PIPER_EUSER) goto next; /* this model cannot be trained like that */
    legal++;
    single += x.options.single_stream;
    if (p == NULL) {
      diag("try %d: %s", i, err.text);
      wrong++;
      goto next;
    }
    for (uint32_t r = 0; r < p->n_ranks; r++) waits += p->ranks[r].waits_added > 0;
    exchanges += p->exchanges.n > 0;
    const uint64_t digest = p->digest;
    if (!figures_hold(p)) {
      diag("try %d: the memory figures do not hold", i);
      wrong++;
    }
    plan_free(p);
    p = built(g, &t, x, &err);
    if (p == NULL || p->digest != digest) {
      diag("try %d: made twice, the plan differs", i);
      wrong++;
    }
    if (p != NULL) plan_free(p);
    x.options.single_stream = !x.options.single_stream;
    p = built(g, &t, x, &err);
    if (p == NULL || p->digest == digest) {
      diag("try %d: with all streams in one or not: %s", i, err.text);
      wrong++;
    }
  next:
    plan_free(p);
    strategy_clear(&t);
    graph_free(g);
  }
  diag("%d legal strategies, %d of them with one stream a rank, %d with experts that are spread; "
       "%d ranks wait for memory",
       legal, single, exchanges, waits);
  is_int(wrong, 0, "every plan is proved, adds up, and is the same when it is made again");
  ok(legal > TRIES / 4, "a fair part of the strategies is legal");
  ok(exchanges > TRIES / 40, "and some spread experts");
  ok(waits > 0, "some reuse of memory needs a wait");
  return done_testing();
}
