/* Directive replicate: buckets, reductions, updates. */
#include "lib/passes.h"

/* The buckets, and the nodes that are not compute, from the DAG's text. Lines of the text are long:
 * stream and script line are left out, as are tags. */
static const char *state(const Graph *g, int64_t batch, const TestStrategy *t, bool clip) {
  static char text[8192];
  char *to = text;
  for (const char *p = passes_text(g, batch, t, "replicate", clip), *end; *p != '\0'; p = end) {
    end = p + strcspn(p, "\n");
    if (*end == '\n') end++;
    const char *kind = p + strspn(p, "0123456789");
    if (strncmp(p, "dag", 3) == 0 || strncmp(kind, " compute ", 9) == 0 ||
        strncmp(kind, " transfer ", 10) == 0)
      continue;
    for (const char *q = p; q < end; q++) {
      if (strncmp(q, " line=", 6) == 0 || strncmp(q, " stream=", 8) == 0) {
        q++;
        while (q[1] != ' ' && q[1] != '\n') q++;
        continue;
      }
      *to++ = *q;
    }
  }
  *to = '\0';
  return text;
}

static void one_device(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 2);
  strategy_order(&t, "PP=0 MB=0 PASS=BI; PP=0 MB=0 PASS=BW");
  is_str(state(g, 4, &t, false),
         "bucket 1 [l0.weight] chunk=1 trained holders=0 reduce_stream=dp_stream\n"
         "bucket 2 [l1.weight] chunk=2 trained holders=0 reduce_stream=dp_stream\n"
         "10 all_reduce tensor=metrics devs=0 <- 2:metrics, 6:metrics, 11:metrics, 13:metrics\n"
         "11 norm bucket=1 devs=0 <- 8:bucket(1), 9:bucket(1)\n"
         "12 update bucket=1 devs=0 <- 8:bucket(1), 9:bucket(1)\n"
         "13 norm bucket=2 devs=0 <- 3:bucket(2), 7:bucket(2)\n"
         "14 update bucket=2 devs=0 <- 3:bucket(2), 7:bucket(2)\n",
         "one holder: every B, or BW, feeds norm and update directly");
  strategy_clear(&t);
  is_str(state(g, 4, &t, true),
         "bucket 1 [l0.weight] chunk=1 trained holders=0 reduce_stream=dp_stream\n"
         "bucket 2 [l1.weight] chunk=2 trained holders=0 reduce_stream=dp_stream\n"
         "5 all_reduce tensor=metrics devs=0 <- 2:metrics, 6:metrics, 8:metrics\n"
         "6 norm bucket=1 devs=0 <- 4:bucket(1)\n"
         "7 update bucket=1 devs=0 <- 4:bucket(1), 5:metrics\n"
         "8 norm bucket=2 devs=0 <- 3:bucket(2)\n"
         "9 update bucket=2 devs=0 <- 3:bucket(2), 5:metrics\n",
         "clipping: every update waits for the norm of all");
  graph_free(g);
}

static void several(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_place(&t, "PP=0", "3,1");
  strategy_place(&t, "PP=1", "2");
  strategy_replicate(&t, "PP=0", "1,3")->reduce_stream = "sums";
  is_str(state(g, 4, &t, false),
         "bucket 1 [l0.weight] chunk=1 trained holders=3,1 replicated reduce_stream=sums\n"
         "bucket 2 [l1.weight] chunk=2 trained holders=2 reduce_stream=dp_stream\n"
         "7 all_reduce tensor=metrics devs=1-3 <- 2:metrics, 9:metrics, 11:metrics\n"
         "8 all_reduce bucket=1 tensor=bucket(1) devs=3,1 <- 4:bucket(1)\n"
         "9 norm bucket=1 devs=3 <- 8:bucket(1)\n"
         "10 update bucket=1 devs=3,1 <- 8:bucket(1)\n"
         "11 norm bucket=2 devs=2 <- 3:bucket(2)\n"
         "12 update bucket=2 devs=2 <- 3:bucket(2)\n",
         "several holders: one reduction, a norm on the first, an update on each");
  ok(strstr(passes_text(g, 4, &t, "replicate", false),
            "8 all_reduce bucket=1 tensor=bucket(1) devs=3,1 stream=sums line=\"t.lua:3\"") != NULL,
     "on the directive's stream, from its line");
  strategy_clear(&t);
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1");
  strategy_replicate(&t, "PP=1", "0,1");
  ok(strstr(state(g, 4, &t, false),
            "bucket 2 [l1.weight] chunk=2 trained holders=0-1 replicated") != NULL,
     "two directives that say the same");
  strategy_clear(&t);
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "PP=0 MB=0", "0");
  strategy_place(&t, "PP=0 MB=1", "1");
  strategy_place(&t, "PP=1 MB=0", "1");
  strategy_place(&t, "PP=1 MB=1", "0");
  is_str(state(g, 4, &t, false),
         "bucket 1 [l0.weight] chunk=1 trained holders=0-1 reduce_stream=dp_stream\n"
         "bucket 2 [l1.weight] chunk=2 trained holders=0-1 reduce_stream=dp_stream\n"
         "13 all_reduce tensor=metrics devs=0-1 <- 2:metrics, 6:metrics, 15:metrics, 18:metrics\n"
         "14 all_reduce bucket=1 tensor=bucket(1) devs=0-1 <- 4:bucket(1), 8:bucket(1)\n"
         "15 norm bucket=1 devs=0 <- 14:bucket(1)\n"
         "16 update bucket=1 devs=0-1 <- 14:bucket(1)\n"
         "17 all_reduce bucket=2 tensor=bucket(2) devs=0-1 <- 3:bucket(2), 7:bucket(2)\n"
         "18 norm bucket=2 devs=0 <- 17:bucket(2)\n"
         "19 update bucket=2 devs=0-1 <- 17:bucket(2)\n",
         "microbatches on different devices are joined without being asked");
  strategy_clear(&t);
  graph_free(g);
}

/* PP=0 uses w twice, once in a branch that no loss reads; PP=1 uses it too, with "f" frozen and "n"
 * in a branch of its own that no loss reads; PP=2 uses w only in such a branch. */
static Graph *model_tied(void) {
  Graph *g = model_new();
  const ValueId x = model_input(g, "x");
  model_enter(g, "PP");
  const ValueId w = model_param(g, "w", 4);
  const ValueId a = model_op(g, OP_LINEAR, NULL, x, w);
  model_op(g, OP_RELU, NULL, model_op(g, OP_LINEAR, NULL, x, w), MODEL_NONE);
  model_leave(g, "PP");
  model_enter(g, "PP");
  const ValueId b = model_op(g, OP_LINEAR, NULL, a, w);
  const ValueId c = model_linear(g, "f", b);
  graph_param(g, graph_find_param(g, "f.weight"))->frozen = true;
  model_linear(g, "n", b);
  model_leave(g, "PP");
  model_enter(g, "PP");
  model_op(g, OP_LINEAR, NULL, c, w);
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, c, MODEL_NONE));
  model_leave(g, "PP");
  return model_cut(g);
}

static void tied(void) {
  Graph *g = model_tied();
  TestStrategy t = {0};
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "1");
  strategy_place(&t, "PP=2", "2");
  is_str(
      state(g, 4, &t, false),
      "bucket 1 [f.weight n.weight] chunk=2 holders=1 reduce_stream=dp_stream\n"
      "bucket 2 [w] trained holders=0-2 reduce_stream=dp_stream\n"
      "11 all_reduce tensor=metrics devs=0-2 <- 3:metrics, 13:metrics\n"
      "12 all_reduce bucket=2 tensor=bucket(2) devs=0-2 <- 6:bucket(2), 5:bucket(2)\n"
      "13 norm bucket=2 devs=0 <- 12:bucket(2)\n"
      "14 update bucket=2 devs=0-2 <- 3~\"m.lua:1\", 12:bucket(2)\n",
      "a tied parameter is one bucket; who only reads it precedes its update; untrained ones are "
      "apart");
  strategy_clear(&t);
  strategy_place(&t, "PP=0,2", "0,1");
  strategy_place(&t, "PP=1", "2,3");
  strategy_replicate(&t, "PP=0", "0,1");
  strategy_replicate(&t, "PP=1", "2,3")->reduce_stream = "other";
  passes_fail(g, 4, &t,
              "t.lua:1: place: the chunk { PP = 2 } (m.lua:7) trains \"w\" on devices 0-1, but "
              "nothing keeps it the same there: add a replicate directive that matches this chunk, "
              "with these devices");
  strategy_place(&t, "PP=0,2", "0,1");
  strategy_place(&t, "PP=1", "2,3");
  strategy_replicate(&t, "PP=1", "2,3")->reduce_stream = "other";
  strategy_replicate(&t, "PP=0,2", "0,1");
  ok(strstr(state(g, 4, &t, false),
            "bucket 2 [w] trained holders=0-3 replicated reduce_stream=dp_stream\n") != NULL,
     "a tied parameter follows the directive of its first chunk");
  strategy_clear(&t);
  graph_free(g);
}

/* One chunk of parameters of 1, 2, 3, 9, 1 and 1 rows (16 bytes each). */
static void sizes(void) {
  Graph *g = model_new();
  static const int64_t rows[] = {1, 2, 3, 9, 1, 1};
  ValueId sum = MODEL_NONE;
  for (int i = 0; i < 6; i++) {
    char name[16];
    snprintf(name, sizeof name, "p%d", i);
    const ValueId y = model_op(g, OP_SUM_SQUARES, NULL, model_param(g, name, rows[i]), MODEL_NONE);
    sum = i == 0 ? y : model_op(g, OP_ADD, NULL, sum, y);
  }
  model_loss(g, sum);
  model_cut(g);
  static const struct {
    int64_t bytes;
    const char *want;
  } cases[] = {
      {48, "bucket 1 [p0 p1]\nbucket 2 [p2]\nbucket 3 [p3]\nbucket 4 [p4 p5]\n"},
      {47, "bucket 1 [p0]\nbucket 2 [p1]\nbucket 3 [p2]\nbucket 4 [p3]\nbucket 5 [p4 p5]\n"},
      {1, "bucket 1 [p0]\nbucket 2 [p1]\nbucket 3 [p2]\nbucket 4 [p3]\nbucket 5 [p4]\nbucket 6 "
          "[p5]\n"},
      {1 << 20, "bucket 1 [p0 p1 p2 p3 p4 p5]\n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    TestStrategy t = {0};
    strategy_place(&t, "", "0,1");
    strategy_replicate(&t, "", "0,1")->bucket_bytes = cases[i].bytes;
    char got[512], *to = got;
    for (const char *p = state(g, 4, &t, false); strncmp(p, "bucket", 6) == 0;
         p = strchr(p, '\n') + 1) {
      const size_t n = (size_t)(strchr(p, ']') + 1 - p);
      memcpy(to, p, n);
      to[n] = '\n';
      to += n + 1;
    }
    *to = '\0';
    is_str(got, cases[i].want, "buckets of at most %d bytes", (int)cases[i].bytes);
    strategy_clear(&t);
  }
  TestStrategy t = {0};
  ok(strncmp(state(g, 4, &t, false), "bucket 1 [p0 p1 p2 p3 p4 p5] ", 29) == 0,
     "without replicate a chunk has one bucket");
  graph_free(g);
}

/* One stage of one parameter, two microbatches, on devices 0 and 1. */
static const char *divided(const Graph *g, uint8_t zero, bool per_microbatch) {
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "", "0,1");
  Directive *x = strategy_replicate(&t, "", "0,1");
  x->zero = zero;
  x->per_microbatch = per_microbatch;
  const char *text = state(g, 4, &t, false);
  strategy_clear(&t);
  return text;
}

static void levels(void) {
  Graph *g = model_chain(1);
  is_str(divided(g, ZERO_OPTIMIZER, false),
         "bucket 1 [l0.weight] chunk=1 trained holders=0-1 replicated zero=1 "
         "reduce_stream=dp_stream gather_stream=ag_stream\n"
         "5 all_reduce tensor=metrics devs=0-1 <- 1:metrics, 3:metrics, 7:metrics\n"
         "6 reduce_scatter bucket=1 tensor=bucket(1) devs=0-1 <- 2:bucket(1), 4:bucket(1)\n"
         "7 norm bucket=1 devs=0-1 <- 6:bucket(1)\n"
         "8 update bucket=1 devs=0-1 <- 6:bucket(1)\n"
         "9 all_gather bucket=1 tensor=params(1) devs=0-1 <- 8:params(1)\n",
         "shard_optimizer: each device gets its share of the sums, and all get the parameters");
  is_str(
      divided(g, ZERO_NONE, true),
      "bucket 1 [l0.weight] chunk=1 trained holders=0-1 replicated per_microbatch "
      "reduce_stream=dp_stream gather_stream=ag_stream\n"
      "5 all_reduce tensor=metrics devs=0-1 <- 1:metrics, 3:metrics, 8:metrics\n"
      "6 all_reduce B chunk=1 bucket=1 tensor=bucket(1) devs=0-1 tags={MB=0,PP=0} <- 2:bucket(1)\n"
      "7 all_reduce B chunk=1 bucket=1 tensor=bucket(1) devs=0-1 tags={MB=1,PP=0} mb=1 <- "
      "4:bucket(1)\n"
      "8 norm bucket=1 devs=0 <- 6:bucket(1), 7:bucket(1)\n"
      "9 update bucket=1 devs=0-1 <- 6:bucket(1), 7:bucket(1)\n",
      "by microbatch: a reduction after each backward pass");
  const char *const by_microbatch =
      "bucket 1 [l0.weight] chunk=1 trained holders=0-1 replicated zero=2 per_microbatch "
      "reduce_stream=dp_stream gather_stream=ag_stream\n"
      "5 all_reduce tensor=metrics devs=0-1 <- 1:metrics, 3:metrics, 8:metrics\n"
      "6 reduce_scatter B chunk=1 bucket=1 tensor=bucket(1) devs=0-1 tags={MB=0,PP=0} <- "
      "2:bucket(1)\n"
      "7 reduce_scatter B chunk=1 bucket=1 tensor=bucket(1) devs=0-1 tags={MB=1,PP=0} mb=1 <- "
      "4:bucket(1)\n"
      "8 norm bucket=1 devs=0-1 <- 6:bucket(1), 7:bucket(1)\n"
      "9 update bucket=1 devs=0-1 <- 6:bucket(1), 7:bucket(1)\n"
      "10 all_gather bucket=1 tensor=params(1) devs=0-1 <- 9:params(1)\n";
  is_str(divided(g, ZERO_GRADS, true), by_microbatch, "shard_grads by microbatch");
  is_str(divided(g, ZERO_OPTIMIZER, true), by_microbatch,
         "by microbatch, shard_optimizer keeps no more of the gradients than it updates");
  graph_free(g);
}

/* w is used on two device sets. */
static const char *joined(const Graph *g, const char *devices, uint8_t zero) {
  TestStrategy t = {0};
  strategy_place(&t, "PP=0", "0,1");
  strategy_place(&t, "PP=1", devices);
  for (int i = 0; i < 2; i++) {
    Directive *x = strategy_replicate(&t, i == 0 ? "PP=0" : "PP=1", i == 0 ? "0,1" : devices);
    x->zero = zero;
    x->per_microbatch = true;
  }
  const char *text = state(g, 12, &t, false);
  strategy_clear(&t);
  return text;
}

static void groups(void) {
  Graph *g = model_new();
  model_enter(g, "PP");
  const ValueId w = model_param(g, "w", 4);
  const ValueId a = model_op(g, OP_LINEAR, NULL, model_input(g, "x"), w);
  model_leave(g, "PP");
  model_enter(g, "PP");
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, model_op(g, OP_LINEAR, NULL, a, w), MODEL_NONE));
  model_leave(g, "PP");
  model_cut(g);
  is_str(
      joined(g, "2,3", ZERO_GRADS),
      "bucket 1 [w] trained holders=0-3 group=0-1 group=2-3 replicated zero=2 per_microbatch "
      "reduce_stream=dp_stream gather_stream=ag_stream\n"
      "7 all_reduce tensor=metrics devs=0-3 <- 2:metrics, 11:metrics\n"
      "8 reduce_scatter B chunk=1 bucket=1 tensor=bucket(1) devs=0-1 tags={PP=0} <- 4:bucket(1)\n"
      "9 reduce_scatter B chunk=2 bucket=1 tensor=bucket(1) devs=2-3 tags={PP=1} <- 3:bucket(1)\n"
      "10 reduce_scatter bucket=1 tensor=bucket(1) devs=0-3 <- 8:bucket(1), 9:bucket(1)\n"
      "11 norm bucket=1 devs=0-3 <- 10:bucket(1)\n"
      "12 update bucket=1 devs=0-3 <- 10:bucket(1)\n"
      "13 all_gather bucket=1 tensor=params(1) devs=0-3 <- 12:params(1)\n",
      "sets of one size: each is a group; joined, they divide the update");
  is_str(
      joined(g, "2,3,4", ZERO_GRADS),
      "bucket 1 [w] trained holders=0-4 group=0-1 group=2-4 replicated zero=2 per_microbatch "
      "reduce_stream=dp_stream gather_stream=ag_stream\n"
      "7 all_reduce tensor=metrics devs=0-4 <- 2:metrics, 11:metrics\n"
      "8 reduce_scatter B chunk=1 bucket=1 tensor=bucket(1) devs=0-1 tags={PP=0} <- 4:bucket(1)\n"
      "9 reduce_scatter B chunk=2 bucket=1 tensor=bucket(1) devs=2-4 tags={PP=1} <- 3:bucket(1)\n"
      "10 all_reduce bucket=1 tensor=bucket(1) devs=0-4 <- 8:bucket(1), 9:bucket(1)\n"
      "11 norm bucket=1 devs=0-1 <- 10:bucket(1)\n"
      "12 update bucket=1 devs=0-4 <- 10:bucket(1)\n"
      "13 all_gather bucket=1 tensor=params(1) devs=0-1 <- 12:params(1)\n"
      "14 all_gather bucket=1 tensor=params(1) devs=2-4 <- 12:params(1)\n",
      "sets of different size: each group updates all of it");
  is_str(joined(g, "2,3", ZERO_NONE),
         "bucket 1 [w] trained holders=0-3 group=0-1 group=2-3 replicated per_microbatch "
         "reduce_stream=dp_stream gather_stream=ag_stream\n"
         "7 all_reduce tensor=metrics devs=0-3 <- 2:metrics, 13:metrics\n"
         "8 all_reduce B chunk=1 bucket=1 tensor=bucket(1) devs=0-1 tags={PP=0} <- 4:bucket(1)\n"
         "9 all_reduce B chunk=2 bucket=1 tensor=bucket(1) devs=2-3 tags={PP=1} <- 3:bucket(1)\n"
         "10 all_reduce bucket=1 tensor=bucket(1) devs=0-3 <- 8:bucket(1), 9:bucket(1)\n"
         "11 all_gather bucket=1 tensor=bucket(1) devs=0-1 <- 10:bucket(1)\n"
         "12 all_gather bucket=1 tensor=bucket(1) devs=2-3 <- 10:bucket(1)\n"
         "13 norm bucket=1 devs=0 <- 10:bucket(1), 11:bucket(1), 12:bucket(1)\n"
         "14 update bucket=1 devs=0-3 <- 10:bucket(1), 11:bucket(1), 12:bucket(1)\n",
         "whole gradients: shares are joined, then gathered in each group");
  ok(strstr(joined(g, "1,2", ZERO_GRADS), "holders=0-2 replicated") != NULL,
     "sets with a device in common are one group");
  TestStrategy t = {0};
  strategy_place(&t, "PP=0", "0,1");
  strategy_place(&t, "PP=1", "2,3");
  strategy_replicate(&t, "PP=0", "0,1")->zero = ZERO_OPTIMIZER;
  strategy_replicate(&t, "PP=1", "2,3")->zero = ZERO_GRADS;
  passes_fail(g, 4, &t,
              "t.lua:4: replicate: the parameter \"w\", which several chunks use, has shard_grads "
              "here and shard_optimizer at t.lua:3");
  strategy_place(&t, "PP=0", "0,1");
  strategy_place(&t, "PP=1", "2,3");
  strategy_replicate(&t, "PP=0", "0,1");
  strategy_replicate(&t, "PP=1", "2,3")->per_microbatch = true;
  passes_fail(g, 4, &t,
              "t.lua:4: replicate: the parameter \"w\", which several chunks use, has reduce = "
              "\"microbatch\" here and \"step\" at t.lua:3");
  strategy_place(&t, "PP=0", "0,1");
  strategy_place(&t, "PP=1", "2");
  strategy_replicate(&t, "PP=0", "0,1")->zero = ZERO_GRADS;
  ok(strstr(state(g, 4, &t, false), "bucket 1 [w] trained holders=0-2 zero=2 ") != NULL,
     "who has no directive follows the others");
  strategy_clear(&t);
  graph_free(g);
}

static void errors(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_place(&t, "", "0,1");
  passes_fail(g, 4, &t,
              "t.lua:1: place: the chunk { PP = 0 } (m.lua:1) trains \"l0.weight\" on devices 0-1, "
              "but nothing keeps it the same there: add a replicate directive that matches this "
              "chunk, with these devices");
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,2");
  passes_fail(g, 4, &t,
              "t.lua:2: replicate: the chunk { PP = 0 } (m.lua:1) is placed on devices 0-1, "
              "but replicated over devices 0,2: give both directives the same devices");
  strategy_replicate(&t, "", "0,1");
  passes_fail(g, 4, &t,
              "t.lua:1: replicate: the chunk { PP = 0 } (m.lua:1) is placed on device 0, but "
              "replicated over devices 0-1: give both directives the same devices");
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "PASS=B", "0,1");
  passes_fail(g, 4, &t,
              "t.lua:2: replicate: the filter matches only a part of the chunk { PP = 0 } "
              "(m.lua:1) and not its 0F0: leave PASS and microbatches out");
  strategy_place(&t, "", "0,1");
  strategy_split(&t, "", "MB", 2);
  strategy_replicate(&t, "MB=0", "0,1");
  passes_fail(g, 4, &t,
              "t.lua:3: replicate: the filter matches only a part of the chunk { PP = 0 } "
              "(m.lua:1) and not its 0F1: leave PASS and microbatches out");
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1")->reduce_stream = "a";
  strategy_replicate(&t, "PP=1", "0,1");
  passes_fail(g, 4, &t,
              "t.lua:3: replicate: the chunk { PP = 1 } (m.lua:2) is reduced on "
              "\"dp_stream\" here and on \"a\" at t.lua:2");
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1")->bucket_bytes = 100;
  strategy_replicate(&t, "PP=1", "0,1")->bucket_bytes = 200;
  passes_fail(g, 4, &t,
              "t.lua:3: replicate: the chunk { PP = 1 } (m.lua:2) has buckets of 200 B "
              "here and of 100 B at t.lua:2");
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1")->zero = ZERO_OPTIMIZER;
  strategy_replicate(&t, "PP=1", "0,1");
  passes_fail(g, 4, &t,
              "t.lua:3: replicate: the chunk { PP = 1 } (m.lua:2) has no shard_ flag here and "
              "shard_optimizer at t.lua:2");
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1")->gather_stream = "a";
  strategy_replicate(&t, "PP=1", "0,1");
  passes_fail(g, 4, &t,
              "t.lua:3: replicate: the chunk { PP = 1 } (m.lua:2) is gathered on \"ag_stream\" "
              "here and on \"a\" at t.lua:2");
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1")->bucket_bytes = 0;
  passes_fail(g, 4, &t, "t.lua:2: replicate: bucket_size has to be more than nothing");
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,0");
  passes_fail(g, 4, &t, "t.lua:2: replicate: device 0 is listed twice");
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "PX=0", "0,1");
  passes_fail(g, 4, &t,
              "t.lua:2: replicate: filter { PX = 0 } matches nothing; there is no tag \"PX\" "
              "(did you mean \"PP\"?); the only tag is PP");
  graph_free(g);
}

int main(void) {
  one_device();
  several();
  tied();
  sizes();
  levels();
  groups();
  errors();
  return done_testing();
}
