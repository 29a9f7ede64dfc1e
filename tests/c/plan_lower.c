/* What plan_lower makes of small DAGs: lists, streams, waits, buffers. */
#include "lib/plans.h"

/* "0 default_stream 0F0; 1 pp_stream/F/0>1 send 1 (0)" ...: index, stream, what, waits. One line an
 * instruction. */
static const char *list(const Plan *p, int32_t rank) {
  static char text[8192];
  static const char *const kinds[] = {"run", "send", "recv", "all_reduce"};
  const RankPlan *r = plan_rank(p, rank);
  size_t at = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    char node[64];
    dag_label(p->dag, (NodeId){x->node}, node, sizeof node);
    at += (size_t)snprintf(text + at, sizeof text - at, "%u %s: %s %s", i,
                           r->streams.at[x->stream].name, kinds[x->kind], node);
    for (uint32_t k = 0; k < x->n_waits; k++)
      at += (size_t)snprintf(text + at, sizeof text - at, "%s%u", k == 0 ? ", after " : " ",
                             r->waits.at[x->wait_first + k]);
    at += (size_t)snprintf(text + at, sizeof text - at, "\n");
  }
  return text;
}

/* The buffers of values, gradients of values and inputs: "value 0:4 from 0 to 2 comm". */
static const char *buffers(const Plan *p, int32_t rank) {
  static char text[4096];
  const RankPlan *r = plan_rank(p, rank);
  size_t at = 0;
  text[0] = '\0';
  for (uint32_t k = 0; k < r->buffers.n; k++) {
    const Buffer *b = &r->buffers.at[k];
    const char *role = b->role == BUFFER_VALUE   ? "value"
                       : b->role == BUFFER_GRAD  ? "grad"
                       : b->role == BUFFER_INPUT ? "input"
                                                 : NULL;
    if (role == NULL) continue;
    at += (size_t)snprintf(text + at, sizeof text - at, "%s %lld:%lld in %u-%u %s\n", role,
                           (long long)b->lo, (long long)b->hi, b->first, b->last,
                           MEM_NAME[b->category]);
  }
  return text;
}

static Plan *lowered(const Graph *g, TestStrategy *t, PlanSpec x) {
  PiperErr err = {0};
  Plan *p = plans_lowered(g, t, x, &err);
  if (p == NULL) bail(err.text);
  strategy_clear(t);
  return p;
}

static void two_stages(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  plans_1f1b(&t, 2, 2, false);
  Plan *p = lowered(g, &t, (PlanSpec){.batch = 4});
  is_str(list(p, 0),
         "0 default_stream: run 0F0\n"
         "1 pp_stream/F/0>1: send transfer l0 0F0 0>1, after 0\n"
         "2 default_stream: run 0F1\n"
         "3 pp_stream/F/0>1: send transfer l0 0F1 0>1, after 2\n"
         "4 pp_stream/B/1>0: recv transfer grad l0 1B0 1>0\n"
         "5 default_stream: run 0B0, after 4\n"
         "6 pp_stream/B/1>0: recv transfer grad l0 1B1 1>0\n"
         "7 default_stream: run 0B1, after 6\n"
         "8 default_stream: run norm l0.weight 0\n"
         "9 default_stream: run update l0.weight 0\n"
         "10 dp_stream: all_reduce all_reduce metrics 0-1, after 8\n",
         "the first of two stages: transfers wait for what they carry, and nothing else");
  is_str(list(p, 1),
         "0 pp_stream/F/0>1: recv transfer l0 0F0 0>1\n"
         "1 default_stream: run 1F0, after 0\n"
         "2 pp_stream/F/0>1: recv transfer l0 0F1 0>1\n"
         "3 default_stream: run 1B0\n"
         "4 pp_stream/B/1>0: send transfer grad l0 1B0 1>0, after 3\n"
         "5 default_stream: run 1F1, after 2\n"
         "6 default_stream: run 1B1\n"
         "7 pp_stream/B/1>0: send transfer grad l0 1B1 1>0, after 6\n"
         "8 default_stream: run norm l1.weight 1\n"
         "9 default_stream: run update l1.weight 1\n"
         "10 dp_stream: all_reduce all_reduce metrics 0-1, after 8\n",
         "the second: one wait for each transfer that is used");
  is_str(buffers(p, 0),
         "input 0:2 in 0-5 activations\n"
         "value 0:2 in 0-1 activations\n"
         "input 2:4 in 2-7 activations\n"
         "value 2:4 in 2-3 activations\n"
         "grad 0:2 in 4-5 comm\n"
         "grad 2:4 in 6-7 comm\n",
         "a buffer for each tensor and microbatch; what arrives is communication");
  is_str(buffers(p, 1),
         "value 0:2 in 0-3 comm\n"
         "value 2:4 in 2-6 comm\n"
         "grad 0:2 in 3-4 activations\n"
         "grad 2:4 in 6-7 activations\n",
         "a value lives until the backward pass that reads it");
  is_int(p->ranks[0].instrs.at[0].signals, 1, "an instruction that others wait for signals");
  is_int(p->ranks[0].instrs.at[1].signals, 0, "one that nobody waits for does not");
  plan_free(p);
  plans_1f1b(&t, 2, 2, false);
  p = lowered(g, &t, (PlanSpec){.batch = 4, .options.single_stream = true});
  is_str(list(p, 1),
         "0 all: recv transfer l0 0F0 0>1\n"
         "1 all: run 1F0\n"
         "2 all: recv transfer l0 0F1 0>1\n"
         "3 all: run 1B0\n"
         "4 all: send transfer grad l0 1B0 1>0\n"
         "5 all: run 1F1\n"
         "6 all: run 1B1\n"
         "7 all: send transfer grad l0 1B1 1>0\n"
         "8 all: run norm l1.weight 1\n"
         "9 all: run update l1.weight 1\n"
         "10 all: all_reduce all_reduce metrics 0-1\n",
         "all streams in one: the same list, and no waits");
  is_int(p->ranks[1].streams.at[0].kind, STREAM_COMPUTE, "that one is a compute stream");
  plan_free(p);
  graph_free(g);
}

static void streams(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_place(&t, "PP=0", "0,1")->stream = "line";
  strategy_place(&t, "PP=1", "1,2")->stream = "line";
  strategy_replicate(&t, "PP=0", "0,1")->reduce_stream = "line";
  strategy_replicate(&t, "PP=1", "1,2")->reduce_stream = "default_stream";
  Plan *p = lowered(g, &t, (PlanSpec){.batch = 4});
  is_str(list(p, 1),
         "0 default_stream: run 0F0\n"
         "1 line: recv transfer l0 0F0 0-1>1-2\n"
         "2 line: send transfer l0 0F0 0-1>1-2, after 0\n"
         "3 default_stream: run 1F0, after 1\n"
         "4 default_stream: run 1B0\n"
         "5 line: send transfer grad l0 1B0 1-2>0-1, after 4\n"
         "6 line: recv transfer grad l0 1B0 1-2>0-1\n"
         "7 default_stream: all_reduce all_reduce l1.weight 1-2\n"
         "8 default_stream: run 0B0, after 6\n"
         "9 default_stream: run norm l1.weight 1\n"
         "10 default_stream: run update l1.weight 1-2\n"
         "11 line: all_reduce all_reduce l0.weight 0-1, after 8\n"
         "12 default_stream: run update l0.weight 0-1, after 11\n"
         "13 dp_stream: all_reduce all_reduce metrics 0-2, after 9\n",
         "a name for transfers and a collective is one queue; pieces move in one order everywhere");
  plan_free(p);
  graph_free(g);
}

/* Stage 0 in one piece, stage 1 in two microbatches, on one rank; then on different sets. */
static void pieces(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_split(&t, "PP=1", "MB", 2);
  Plan *p = lowered(g, &t, (PlanSpec){.batch = 4});
  is_str(list(p, 0),
         "0 default_stream: run 0F0\n"
         "1 default_stream: run 1F0\n"
         "2 default_stream: run 1F1\n"
         "3 default_stream: run 1B0\n"
         "4 default_stream: run 1B1\n"
         "5 default_stream: run 0B0\n"
         "6 default_stream: run norm l1.weight 0\n"
         "7 default_stream: run update l1.weight 0\n"
         "8 default_stream: run norm l0.weight 0\n"
         "9 default_stream: run update l0.weight 0\n",
         "in one piece and in two, on one rank: nothing is moved");
  is_str(buffers(p, 0),
         "input 0:4 in 0-5 activations\n"
         "value 0:4 in 0-4 activations\n"
         "grad 0:4 in 3-5 activations\n",
         "slices are parts of one buffer");
  plan_free(p);
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "0,1");
  strategy_replicate(&t, "PP=1", "0,1");
  p = lowered(g, &t, (PlanSpec){.batch = 4});
  is_str(list(p, 0),
         "0 default_stream: run 0F0\n"
         "1 pp_stream/F/0>1: send transfer l0 0F0 0>0-1, after 0\n"
         "2 default_stream: run 1F0\n"
         "3 default_stream: run 1B0\n"
         "4 pp_stream/B/1>0: recv transfer grad l0 1B0 0-1>0\n"
         "5 dp_stream: all_reduce all_reduce l1.weight 0-1, after 3\n"
         "6 default_stream: run 0B0, after 4\n"
         "7 default_stream: run norm l1.weight 0, after 5\n"
         "8 default_stream: run update l1.weight 0-1\n"
         "9 default_stream: run norm l0.weight 0\n"
         "10 default_stream: run update l0.weight 0\n"
         "11 dp_stream: all_reduce all_reduce metrics 0-1, after 9\n",
         "one device to two: a half travels");
  is_str(buffers(p, 0),
         "input 0:4 in 0-6 activations\n"
         "value 0:4 in 0-3 activations\n"
         "grad 0:4 in 3-6 comm\n",
         "the half that comes back lands beside the one that stayed");
  is_str(buffers(p, 1),
         "value 2:4 in 0-2 comm\n"
         "grad 2:4 in 2-3 activations\n",
         "the other device has its half only");
  plan_free(p);
  graph_free(g);
}

/* PP=0: its parameter is used and leads nowhere; PP=1 uses it as well. */
static void zeroes(void) {
  Graph *g = model_new();
  TestStrategy t = {0};
  const ValueId x = model_input(g, "x"), w = model_param(g, "w", 4);
  model_enter(g, "PP");
  model_op(g, OP_LINEAR, "dead", x, w);
  model_leave(g, "PP");
  model_enter(g, "PP");
  model_loss(g,
             model_op(g, OP_SUM_SQUARES, NULL, model_op(g, OP_LINEAR, "live", x, w), MODEL_NONE));
  model_leave(g, "PP");
  model_cut(g);
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "1");
  Plan *p = lowered(g, &t, (PlanSpec){.batch = 4});
  is_str(list(p, 0),
         "0 default_stream: run 0F0\n"
         "1 default_stream: run 0F1\n"
         "2 default_stream: run all_reduce w 0-1\n"
         "3 dp_stream: all_reduce all_reduce w 0-1, after 2\n"
         "4 default_stream: run norm w 0, after 3\n"
         "5 default_stream: run update w 0-1\n"
         "6 dp_stream: all_reduce all_reduce metrics 0-1, after 4\n",
         "gradients that nothing on a rank contributes to are zeroes; empty passes vanish");
  plan_free(p);
  graph_free(g);
}

int main(void) {
  two_stages();
  streams();
  pieces();
  zeroes();
  return done_testing();
}
