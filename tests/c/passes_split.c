/* Directive split, and the DAG it starts from. */
#include "lib/passes.h"

static void built(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  passes_give(
      g, 4, &t, "build",
      "dag batch=4 dims=0\n"
      "1 compute F chunk=1 samples=0:4 stream=default_stream tags={PP=0} line=\"m.lua:1\"\n"
      "2 compute F chunk=2 samples=0:4 stream=default_stream tags={PP=1} line=\"m.lua:2\" <- "
      "1:v3\n"
      "3 compute B chunk=2 samples=0:4 stream=default_stream tags={PP=1} line=\"m.lua:2\" <- "
      "2:saved(2)\n"
      "4 compute B chunk=1 samples=0:4 stream=default_stream tags={PP=0} line=\"m.lua:1\" <- "
      "1:saved(1), 3:grad(v3,2)\n",
      "a chunk has F and B; values go down, gradients up, inputs of the model make no edge");
  PiperErr err = {0};
  const PassOptions opt = {.float_bytes = 4, .dump_after = "lower"};
  const Strategy s = strategy_of(&t);
  Dag *d;
  is_int(passes_run(g, 4, &s, &opt, &d, &err), PIPER_EUSER, "a pass that is none");
  is_str(err.text,
         "there is no pass \"lower\" to dump after; the passes are build, split, "
         "split_backward, recompute, place, shard, replicate, count, order, zero",
         "gives the list of passes");
  is_str(passes_text(g, 0, &t, NULL, false), "batch is 0; it has to be at least 1",
         "an empty batch");
  graph_free(g);

  /* PP=0 trains, PP=1 is frozen, PP=2 has no parameter; x also goes from PP=0 to PP=2. */
  g = model_new();
  const ValueId x = model_input(g, "x");
  model_enter(g, "PP");
  const ValueId a = model_linear(g, "a", x);
  model_leave(g, "PP");
  model_enter(g, "PP");
  const ValueId b = model_linear(g, "b", a), c = model_linear(g, "c", x);
  graph_param(g, graph_find_param(g, "b.weight"))->frozen = true;
  graph_param(g, graph_find_param(g, "c.weight"))->frozen = true;
  model_leave(g, "PP");
  model_enter(g, "PP");
  const ValueId sum = model_op(g, OP_ADD, NULL, model_op(g, OP_ADD, NULL, a, b), c);
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, sum, MODEL_NONE));
  model_leave(g, "PP");
  model_cut(g);
  passes_give(
      g, 4, &t, "build",
      "dag batch=4 dims=0\n"
      "1 compute F chunk=1 samples=0:4 stream=default_stream tags={PP=0} line=\"m.lua:1\"\n"
      "2 compute F chunk=2 samples=0:4 stream=default_stream tags={PP=1} line=\"m.lua:2\" <- "
      "1:v3\n"
      "3 compute F chunk=3 samples=0:4 stream=default_stream tags={PP=2} line=\"m.lua:4\" <- "
      "1:v3, 2:v5, 2:v7\n"
      "4 compute B chunk=3 samples=0:4 stream=default_stream tags={PP=2} line=\"m.lua:4\" <- "
      "3:saved(3)\n"
      "5 compute B chunk=2 samples=0:4 stream=default_stream tags={PP=1} line=\"m.lua:2\" <- "
      "2:saved(2), 4:grad(v5,3)\n"
      "6 compute B chunk=1 samples=0:4 stream=default_stream tags={PP=0} line=\"m.lua:1\" <- "
      "1:saved(1), 5:grad(v3,2), 4:grad(v3,3)\n",
      "two readers, two contributions; no gradient to what depends on nothing trained");
  graph_free(g);
}

static void whole(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 2);
  passes_give(
      g, 4, &t, "split",
      "dag batch=4 dims=1\n"
      "1 compute F chunk=1 samples=0:2 stream=default_stream tags={MB=0,PP=0} line=\"m.lua:1\"\n"
      "2 compute F chunk=2 samples=0:2 stream=default_stream tags={MB=0,PP=1} line=\"m.lua:2\" <- "
      "1:v3\n"
      "3 compute B chunk=2 samples=0:2 stream=default_stream tags={MB=0,PP=1} line=\"m.lua:2\" <- "
      "2:saved(2)\n"
      "4 compute B chunk=1 samples=0:2 stream=default_stream tags={MB=0,PP=0} line=\"m.lua:1\" <- "
      "1:saved(1), 3:grad(v3,2)\n"
      "5 compute F chunk=1 samples=2:4 stream=default_stream tags={MB=1,PP=0} mb=1 "
      "line=\"m.lua:1\"\n"
      "6 compute F chunk=2 samples=2:4 stream=default_stream tags={MB=1,PP=1} mb=1 "
      "line=\"m.lua:2\" <- 5:v3\n"
      "7 compute B chunk=2 samples=2:4 stream=default_stream tags={MB=1,PP=1} mb=1 "
      "line=\"m.lua:2\" <- 6:saved(2)\n"
      "8 compute B chunk=1 samples=2:4 stream=default_stream tags={MB=1,PP=0} mb=1 "
      "line=\"m.lua:1\" <- 5:saved(1), 7:grad(v3,2)\n",
      "microbatch i meets microbatch i only");
  strategy_clear(&t);
  strategy_split(&t, "", "MB", 1);
  passes_give(g, 4, &t, "split",
              "dag batch=4 dims=1\n"
              "1 compute F chunk=1 samples=0:4 stream=default_stream tags={MB=0,PP=0} "
              "line=\"m.lua:1\"\n"
              "2 compute F chunk=2 samples=0:4 stream=default_stream tags={MB=0,PP=1} "
              "line=\"m.lua:2\" <- 1:v3\n"
              "3 compute B chunk=2 samples=0:4 stream=default_stream tags={MB=0,PP=1} "
              "line=\"m.lua:2\" <- 2:saved(2)\n"
              "4 compute B chunk=1 samples=0:4 stream=default_stream tags={MB=0,PP=0} "
              "line=\"m.lua:1\" <- 1:saved(1), 3:grad(v3,2)\n",
              "one microbatch is a tag");
  strategy_clear(&t);
  graph_free(g);
}

/* Node, microbatch, samples and where its edges come from: "5 F1 2:4 <- 3". */
static const char *brief(const Graph *g, int64_t batch, const TestStrategy *t) {
  static char text[4096];
  PiperErr err = {0};
  const PassOptions opt = {.float_bytes = 4, .verify = true};
  const Strategy s = strategy_of(t);
  Dag *d;
  if (passes_run(g, batch, &s, &opt, &d, &err) != PIPER_OK) bail(err.text);
  size_t at = 0;
  for (uint32_t n = 1; n < d->n; n++) {
    if (d->kind[n] != NODE_COMPUTE) continue;
    char label[32];
    dag_label(d, (NodeId){n}, label, sizeof label);
    at += (size_t)snprintf(text + at, sizeof text - at, "%u %s %d:%d", n, label, (int)d->lo[n],
                           (int)d->hi[n]);
    for (size_t e = 1, first = 1; e < d->edges.n; e++)
      if (d->edges.at[e].dst == n) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s %u", first ? " <-" : "",
                               d->edges.at[e].src);
        first = 0;
      }
    at += (size_t)snprintf(text + at, sizeof text - at, "\n");
  }
  dag_free(d);
  return text;
}

static void nested(void) {
  Graph *g = model_chain(1);
  TestStrategy t = {0};
  strategy_split(&t, "", "HALF", 2);
  strategy_split(&t, "", "MB", 3);
  is_str(brief(g, 12, &t),
         "1 0F0 0:2\n2 0B0 0:2 <- 1\n3 0F3 6:8\n4 0B3 6:8 <- 3\n5 0F1 2:4\n6 0F2 4:6\n"
         "7 0B1 2:4 <- 5\n8 0B2 4:6 <- 6\n9 0F4 8:10\n10 0F5 10:12\n11 0B4 8:10 <- 9\n"
         "12 0B5 10:12 <- 10\n",
         "splits nest, the first one outermost; microbatches count through both");
  strategy_clear(&t);
  graph_free(g);
}

static void partial(void) {
  Graph *g = model_chain(3);
  TestStrategy t = {0};
  strategy_split(&t, "PP=1", "MB", 2);
  is_str(brief(g, 4, &t),
         "1 0F0 0:4\n2 1F0 0:2 <- 1\n3 2F0 0:4 <- 2 7\n4 2B0 0:4 <- 3\n5 1B0 0:2 <- 2 4\n"
         "6 0B0 0:4 <- 1 5 8\n7 1F1 2:4 <- 1\n8 1B1 2:4 <- 7 4\n",
         "one end split: its copies meet the whole other end");
  strategy_clear(&t);
  strategy_split(&t, "PP=0", "A", 2);
  strategy_split(&t, "PP=1,2", "B", 3);
  is_str(brief(g, 12, &t),
         "1 0F0 0:6\n2 1F0 0:4 <- 1\n3 2F0 0:4 <- 2\n4 2B0 0:4 <- 3\n5 1B0 0:4 <- 2 4\n"
         "6 0B0 0:6 <- 1 5 15\n7 0F1 6:12\n8 0B1 6:12 <- 7 15 16\n9 1F1 4:8 <- 7 1\n"
         "10 1F2 8:12 <- 7\n11 2F1 4:8 <- 9\n12 2F2 8:12 <- 10\n13 2B1 4:8 <- 11\n"
         "14 2B2 8:12 <- 12\n15 1B1 4:8 <- 9 13\n16 1B2 8:12 <- 10 14\n",
         "halves meet thirds where their samples do");
  strategy_clear(&t);
  strategy_split(&t, "PP=0", "A", 2);
  strategy_split(&t, "", "B", 2);
  is_str(brief(g, 8, &t),
         "1 0F0 0:2\n2 1F0 0:4 <- 1 9\n3 2F0 0:4 <- 2\n4 2B0 0:4 <- 3\n5 1B0 0:4 <- 2 4\n"
         "6 0B0 0:2 <- 1 5\n7 0F2 4:6\n8 0B2 4:6 <- 7 13\n9 0F1 2:4\n10 1F1 4:8 <- 7 15\n"
         "11 2F1 4:8 <- 10\n12 2B1 4:8 <- 11\n13 1B1 4:8 <- 10 12\n14 0B1 2:4 <- 9 5\n"
         "15 0F3 6:8\n16 0B3 6:8 <- 15 13\n",
         "a second split of both ends joins the copies on the same samples");
  strategy_clear(&t);
  graph_free(g);
}

/* PP=0 computes a value without batch axis from a parameter, PP=1 reads it. */
static Graph *model_whole_tensor(void) {
  Graph *g = model_new();
  const ValueId x = model_input(g, "x");
  model_enter(g, "PP");
  const ValueId w = model_op(g, OP_SCALE, "half", model_param(g, "w", 4), MODEL_NONE);
  const ValueId h = model_op(g, OP_RELU, NULL, x, MODEL_NONE);
  model_leave(g, "PP");
  model_enter(g, "PP");
  const ValueId y = model_op(g, OP_LINEAR, "y", h, w);
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, y, MODEL_NONE));
  model_leave(g, "PP");
  return model_cut(g);
}

static void whole_tensors(void) {
  Graph *g = model_whole_tensor();
  TestStrategy t = {0};
  strategy_split(&t, "PP=1", "MB", 2);
  passes_fail(g, 4, &t,
              "t.lua:1: split: \"half\" (scale, m.lua:1) has no batch axis to split, so the chunk "
              "{ PP = 0 } (m.lua:1) that computes it and the chunk { PP = 1 } (m.lua:3) that reads "
              "it have to be split alike");
  strategy_split(&t, "PP=1", "A", 2);
  strategy_split(&t, "PP=0", "B", 2);
  is_str(brief(g, 4, &t),
         "1 0F0 0:2\n2 1F0 0:2 <- 1 1\n3 1B0 0:2 <- 2\n4 0B0 0:2 <- 1 3\n5 1F1 2:4 <- 7 7\n"
         "6 1B1 2:4 <- 5\n7 0F1 2:4\n8 0B1 2:4 <- 6 7\n",
         "two directives may split its two ends");
  strategy_clear(&t);
  strategy_split(&t, "PP=1", "A", 2);
  strategy_split(&t, "PP=0", "B", 4);
  passes_fail(g, 4, &t,
              "t.lua:2: split: \"half\" (scale, m.lua:1) has no batch axis to split, so the chunk "
              "{ PP = 0 } (m.lua:1) that computes it and the chunk { PP = 1 } (m.lua:3) that reads "
              "it have to be split alike");
  graph_free(g);
}

static void errors(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 3);
  passes_fail(g, 8, &t,
              "t.lua:1: split: the 8 samples of compile's batch = 8 do not divide into "
              "3 microbatches, but into 2 or 4");
  strategy_split(&t, "", "MB", 16);
  passes_fail(g, 8, &t,
              "t.lua:1: split: the 8 samples of compile's batch = 8 do not divide into "
              "16 microbatches, but into at most 8");
  strategy_split(&t, "", "MB", 2);
  strategy_split(&t, "PP=1", "UB", 3);
  passes_fail(g, 8, &t,
              "t.lua:2: split: 4 samples of a microbatch do not divide into 3 microbatches, but into 2 or 4");
  strategy_split(&t, "", "MB", 0);
  passes_fail(g, 8, &t, "t.lua:1: split: num_microbatches is 0; it has to be at least 1");
  strategy_split(&t, "", "MB", -2);
  passes_fail(g, 8, &t, "t.lua:1: split: num_microbatches is -2; it has to be at least 1");
  strategy_split(&t, "PASS=F", "MB", 2);
  passes_fail(g, 8, &t,
              "t.lua:1: split: forward and backward of a chunk are split alike: leave PASS "
              "out of the filter");
  strategy_split(&t, "", "PP", 2);
  passes_fail(g, 8, &t,
              "t.lua:1: split: dim_name \"PP\" is the tag of a scope of the model; choose another");
  strategy_split(&t, "", "PASS", 2);
  passes_fail(g, 8, &t,
              "t.lua:1: split: dim_name \"PASS\" means the pass in a filter; choose another");
  strategy_split(&t, "", "", 2);
  passes_fail(g, 8, &t, "t.lua:1: split: dim_name is empty");
  strategy_split(&t, "PP=0", "MB", 2);
  strategy_split(&t, "PP=*", "MB", 4);
  passes_fail(g, 8, &t,
              "t.lua:2: split: dim_name \"MB\" was given to the split at t.lua:1; choose "
              "another");
  strategy_split(&t, "PP=5", "MB", 2);
  passes_fail(g, 8, &t, "t.lua:1: split: filter { PP = 5 } matches nothing; PP runs from 0 to 1");
  strategy_split(&t, "", "MB", INT64_C(1) << 40);
  passes_fail(
      g, INT64_C(1) << 40, &t,
      "t.lua:1: split: 1099511627776 microbatches of 4 nodes are too many: a DAG has at most "
      "4194304 nodes, which is at most 1048576 microbatches here");
  strategy_split(&t, "", "MB", 1 << 20);
  strategy_split(&t, "PP=1", "SUB", 3);
  passes_fail(g, 3 << 20, &t,
              "t.lua:2: split: 3 microbatches of 2097152 nodes are too many: a DAG has at most "
              "4194304 nodes, which is at most 1 microbatches here");
  strategy_split(&t, "PP=1", "MB", 2);
  strategy_split(&t, "MB=1", "SUB", 1 << 22);
  passes_fail(g, 1 << 23, &t,
              "t.lua:2: split: 4194304 microbatches of 2 nodes are too many: a DAG has at most "
              "4194304 nodes, which is at most 2097150 microbatches here");
  graph_free(g);
}

int main(void) {
  built();
  whole();
  nested();
  partial();
  whole_tensors();
  errors();
  return done_testing();
}
