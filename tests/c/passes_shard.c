/* Directive shard: experts over devices, exchanges around them, buckets for each part. What it
 * refuses: tests/lua/moe_errors.lua. */
#include "lib/passes.h"

/* Without streams, tags and script lines; lines that contain 'only'. */
static const char *text_of(const Graph *g, int64_t batch, const TestStrategy *t, const char *pass,
                           const char *only) {
  static const char *const hidden[] = {" line=", " stream=", " tags=", " reduce_stream="};
  static char text[8192], line[1024];
  char *to = text;
  for (const char *p = passes_text(g, batch, t, pass, false), *end; *p != '\0'; p = end) {
    end = p + strcspn(p, "\n");
    if (*end == '\n') end++;
    char *at = line;
    while (p < end) {
      size_t skip = 0;
      for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (strncmp(p, hidden[i], strlen(hidden[i])) == 0) skip = 1;
      if (skip != 0) skip += strcspn(p + 1, " \n");
      p += skip;
      if (skip == 0) *at++ = *p++;
    }
    *at = '\0';
    if (only == NULL || strstr(line, only) != NULL) to = stpcpy(to, line);
  }
  *to = '\0';
  return text;
}

/* Stages l0, y = x + moe(x), l2 and the loss; or only the second. */
static Graph *model(bool between) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x");
  if (between) {
    model_enter(g, "PP");
    h = model_linear(g, "l0", h);
    model_leave(g, "PP");
  }
  model_enter(g, "PP");
  h = model_op(g, OP_ADD, "sum", h, model_moe(g, "moe", h, 4));
  if (!between) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
  model_leave(g, "PP");
  if (between) {
    model_enter(g, "PP");
    h = model_linear(g, "l2", h);
    model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(g, "PP");
  }
  return model_cut(g);
}

static void one_group(void) {
  Graph *g = model(false);
  TestStrategy t = {0};
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "EP=false", "0,1");
  strategy_shard(&t, "EP=*", "0,1", 2);
  is_str(
      text_of(g, 4, &t, "shard", NULL),
      "dag batch=4 dims=0\n"
      "1 compute F chunk=1 samples=0:4 devs=0-1\n"
      "2 compute F chunk=2 samples=0:4 devs=0-1 parts=2 <- 7:v12/e\n"
      "3 compute F chunk=3 samples=0:4 devs=0-1 <- 1:v10, 1:v11, 8:v16\n"
      "4 compute B chunk=3 samples=0:4 devs=0-1 <- 3:saved(3)\n"
      "5 compute B chunk=2 samples=0:4 devs=0-1 parts=2 <- 2:saved(2), 9:grad(v16,3)/e\n"
      "6 compute B chunk=1 samples=0:4 devs=0-1 <- 1:saved(1), 4:grad(v11,3)\n"
      "7 all_to_all F chunk=2 tensor=v12 samples=0:4 devs=0-1 parts=2 <- 1:v12\n"
      "8 all_to_all F chunk=2 tensor=v16/e samples=0:4 devs=0-1 parts=2 <- 2:v16/e\n"
      "9 all_to_all B chunk=2 tensor=grad(v16,3) samples=0:4 devs=0-1 parts=2 <- "
      "4:grad(v16,3)\n",
      "an exchange where tokens enter experts, and where they leave; none for what nobody wants");
  is_str(text_of(g, 4, &t, "replicate", "bucket"),
         "bucket 1 [moe.gate.weight] chunk=1 trained holders=0-1 replicated\n"
         "bucket 2 [moe.experts.0.weight moe.experts.1.weight] chunk=2 trained holders=0\n"
         "bucket 3 [moe.experts.2.weight moe.experts.3.weight] chunk=2 trained holders=1\n"
         "11 all_reduce bucket=1 tensor=bucket(1) devs=0-1 <- 6:bucket(1)\n"
         "12 norm bucket=1 devs=0 <- 11:bucket(1)\n"
         "13 update bucket=1 devs=0-1 <- 11:bucket(1)\n"
         "14 norm bucket=2 devs=0 <- 5:bucket(2)\n"
         "15 update bucket=2 devs=0 <- 5:bucket(2)\n"
         "16 norm bucket=3 devs=1 <- 5:bucket(3)\n"
         "17 update bucket=3 devs=1 <- 5:bucket(3)\n",
         "each part's experts are held by one device, and summed with nobody");
  ok(strstr(passes_text(g, 4, &t, "shard", false),
            "7 all_to_all F chunk=2 tensor=v12 samples=0:4 devs=0-1 stream=ep_stream "
            "tags={EP=0,PP=0} parts=2 line=\"t.lua:3\"") != NULL,
     "on ep_stream, from the directive's line");
  strategy_shard(&t, "EP=*", "0,1", 2)->stream = "ep_stream";
  t.at.at[2].stream = "other";
  t.at.at[3].stream = "other";
  ok(strstr(passes_text(g, 4, &t, "shard", false), "devs=0-1 stream=other") != NULL,
     "or on its stream; said twice, it is the same");
  strategy_clear(&t);
  strategy_place(&t, "", "1,0");
  strategy_replicate(&t, "", "1,0")->bucket_bytes = 1;
  strategy_shard(&t, "EP=*", "1,0", 2);
  is_str(text_of(g, 4, &t, "replicate", "bucket"),
         "bucket 1 [moe.gate.weight] chunk=1 trained holders=1,0 replicated\n"
         "bucket 2 [moe.experts.0.weight] chunk=2 trained holders=1 replicated\n"
         "bucket 3 [moe.experts.1.weight] chunk=2 trained holders=1 replicated\n"
         "bucket 4 [moe.experts.2.weight] chunk=2 trained holders=0 replicated\n"
         "bucket 5 [moe.experts.3.weight] chunk=2 trained holders=0 replicated\n"
         "11 all_reduce bucket=1 tensor=bucket(1) devs=1,0 <- 6:bucket(1)\n"
         "12 norm bucket=1 devs=1 <- 11:bucket(1)\n"
         "13 update bucket=1 devs=1,0 <- 11:bucket(1)\n"
         "14 norm bucket=2 devs=1 <- 5:bucket(2)\n"
         "15 update bucket=2 devs=1 <- 5:bucket(2)\n"
         "16 norm bucket=3 devs=1 <- 5:bucket(3)\n"
         "17 update bucket=3 devs=1 <- 5:bucket(3)\n"
         "18 norm bucket=4 devs=0 <- 5:bucket(4)\n"
         "19 update bucket=4 devs=0 <- 5:bucket(4)\n"
         "20 norm bucket=5 devs=0 <- 5:bucket(5)\n"
         "21 update bucket=5 devs=0 <- 5:bucket(5)\n",
         "the first device has the first experts; bucket_size holds for each part");
  strategy_clear(&t);
  graph_free(g);
}

static void groups(void) {
  Graph *g = model(false);
  TestStrategy t = {0};
  strategy_place(&t, "", "0,1,2,3");
  strategy_replicate(&t, "EP=false", "0,1,2,3");
  strategy_shard(&t, "EP=*", "0,1,2,3", 2);
  is_str(text_of(g, 4, &t, "replicate", "experts"),
         "bucket 2 [moe.experts.0.weight moe.experts.1.weight] chunk=2 trained holders=0,2\n"
         "bucket 3 [moe.experts.2.weight moe.experts.3.weight] chunk=2 trained holders=1,3\n",
         "two groups hold the same experts");
  is_str(text_of(g, 4, &t, "replicate", "5:bucket"),
         "14 all_reduce bucket=2 tensor=bucket(2) devs=0,2 <- 5:bucket(2)\n"
         "17 all_reduce bucket=3 tensor=bucket(3) devs=1,3 <- 5:bucket(3)\n",
         "and sum over just those, asked or not");
  strategy_replicate(&t, "EP=*", "0,1,2,3")->zero = ZERO_GRADS;
  t.at.at[3].reduce_stream = "sums";
  is_str(text_of(g, 4, &t, "replicate", "bucket=2 "),
         "14 reduce_scatter bucket=2 tensor=bucket(2) devs=0,2 <- 5:bucket(2)\n"
         "15 norm bucket=2 devs=0,2 <- 14:bucket(2)\n"
         "16 update bucket=2 devs=0,2 <- 14:bucket(2)\n"
         "17 all_gather bucket=2 tensor=params(2) devs=0,2 <- 16:params(2)\n",
         "what replicate says of them holds among those");
  ok(strstr(passes_text(g, 4, &t, "replicate", false), "devs=1,3 stream=sums") != NULL,
     "on its stream");
  t.at.at[3].zero = ZERO_PARAMS;
  is_str(text_of(g, 4, &t, "zero", "all_gather"),
         "20 all_gather F chunk=2 bucket=2 tensor=params(2) devs=0,2 <- 1~\"t.lua:4\"\n"
         "21 all_gather F chunk=2 bucket=3 tensor=params(3) devs=1,3 <- 1~\"t.lua:4\"\n",
         "each part gathers its own");
  strategy_clear(&t);
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "EP=false", "0,1");
  strategy_shard(&t, "EP=*", "0,1", 1);
  is_str(text_of(g, 4, &t, "replicate", "all_to_all"), "", "groups of one device exchange nothing");
  is_str(text_of(g, 4, &t, "replicate", "experts"),
         "bucket 2 [moe.experts.0.weight moe.experts.1.weight moe.experts.2.weight "
         "moe.experts.3.weight] chunk=2 trained holders=0-1\n",
         "and each has all experts");
  strategy_clear(&t);
  for (size_t p = 1; p < g->params.n; p++) g->params.at[p].frozen = p == 3 || p == 4;
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "EP=false", "0,1");
  strategy_shard(&t, "EP=*", "0,1", 2);
  is_str(text_of(g, 4, &t, "replicate", "experts"),
         "bucket 2 [moe.experts.0.weight] chunk=2 trained holders=0\n"
         "bucket 3 [moe.experts.3.weight] chunk=2 trained holders=1\n"
         "bucket 4 [moe.experts.1.weight] chunk=2 holders=0\n"
         "bucket 5 [moe.experts.2.weight] chunk=2 holders=1\n",
         "frozen experts have buckets of their own, on the device that needs them");
  strategy_clear(&t);
  graph_free(g);
}

/* Stage 1 with its experts on devices 1 and 2, the others on 0; two microbatches. */
static void stages(void) {
  Graph *g = model(true);
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "PP=0,2", "0");
  strategy_place(&t, "PP=1", "1,2");
  strategy_replicate(&t, "EP=false PP=1", "1,2");
  strategy_shard(&t, "EP=*", "1,2", 2);
  strategy_order(&t, "PP=1 MB=0 PASS=F; PP=1 MB=1 PASS=F| PP=1 MB=0 PASS=B; PP=1 MB=1 PASS=BI; "
                     "PP=1 MB=1 PASS=BW");
  is_str(text_of(g, 8, &t, "place", "all_to_all"), "", "shard comes after place");
  is_str(text_of(g, 8, &t, "shard", "all_to_all"),
         "34 all_to_all F chunk=3 tensor=v14 samples=0:4 devs=1-2 parts=2 <- 2:v14\n"
         "35 all_to_all B chunk=3 tensor=grad(v14,3)/e samples=0:4 devs=1-2 parts=2 <- "
         "8:grad(v14,3)/e\n"
         "36 all_to_all F chunk=3 tensor=v18/e samples=0:4 devs=1-2 parts=2 <- 3:v18/e\n"
         "37 all_to_all B chunk=3 tensor=grad(v18,4) samples=0:4 devs=1-2 parts=2 <- "
         "7:grad(v18,4)\n"
         "38 all_to_all F chunk=3 tensor=v14 samples=4:8 devs=1-2 mb=1 parts=2 <- 12:v14\n"
         "39 all_to_all BI chunk=3 tensor=grad(v14,3)/e samples=4:8 devs=1-2 mb=1 parts=2 <- "
         "18:grad(v14,3)/e\n"
         "40 all_to_all F chunk=3 tensor=v18/e samples=4:8 devs=1-2 mb=1 parts=2 <- 13:v18/e\n"
         "41 all_to_all BI chunk=3 tensor=grad(v18,4) samples=4:8 devs=1-2 mb=1 parts=2 <- "
         "17:grad(v18,4)\n",
         "one for each microbatch and pass, none for BW");
  /* A group begins where the one before it has ended: its exchanges are in between. */
  is_str(text_of(g, 8, &t, "order", "~"),
         "7 compute B chunk=4 samples=0:4 devs=1-2 order=1 group=2 member=1 <- 4:saved(4), "
         "28:grad(v21,5), 4~\"t.lua:6\"\n"
         "12 compute F chunk=2 samples=4:8 devs=1-2 mb=1 order=1 group=2 <- 29:v3, 4~\"t.lua:6\"\n"
         "17 compute BI chunk=4 samples=4:8 devs=1-2 mb=1 order=1 group=3 <- 14:saved(4), "
         "33:grad(v21,5), 14~\"t.lua:6\", 9~\"t.lua:6\"\n"
         "21 compute BW chunk=4 samples=4:8 devs=1-2 mb=1 order=1 group=4 <- 17:kept(4), "
         "14:saved(4), 19~\"t.lua:6\"\n"
         "22 compute BW chunk=3 samples=4:8 devs=1-2 mb=1 order=1 group=4 parts=2 <- 18:kept(3), "
         "13:saved(3), 19~\"t.lua:6\"\n"
         "23 compute BW chunk=2 samples=4:8 devs=1-2 mb=1 order=1 group=4 <- 19:kept(2), "
         "12:saved(2), 19~\"t.lua:6\"\n",
         "an order goes through exchanges");
  strategy_clear(&t);
  graph_free(g);
}

int main(void) {
  one_group();
  groups();
  stages();
  return done_testing();
}
