/* plan_actions and plan_table. */
#include "plan/plan_text.h"
#include "lib/plans.h"

static Plan *made(const Graph *g, TestStrategy *t, int64_t batch) {
  Plan *p = plans_must(g, t, (PlanSpec){.batch = batch});
  strategy_clear(t);
  return p;
}

static void actions_are(Plan *p, const char *want, const char *name) {
  char *text;
  PiperErr err = {0};
  if (plan_actions(p, &text, &err) != PIPER_OK) bail(err.text);
  is_str(text, want, "%s", name);
  free(text);
  plan_free(p);
}

static void actions(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  plans_1f1b(&t, 2, 3, false);
  actions_are(made(g, &t, 6), "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2",
              "1F1B: one line a rank, in order");
  plans_1f1b(&t, 2, 2, true);
  actions_are(made(g, &t, 4), "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1W0 1F1 1I1 1W1",
              "halves of a backward pass are I and W");
  actions_are(made(g, &t, 4), "0F0 1F0 1B0 0B0", "one device, no split");
  strategy_place(&t, "PP=0", "3");
  strategy_place(&t, "PP=1", "1,2");
  strategy_replicate(&t, "PP=1", "1,2");
  actions_are(made(g, &t, 4), "1F0 1B0\n1F0 1B0\n0F0 0B0", "ranks ascend; replicas do the same");
  strategy_split(&t, "", "OUTER", 2);
  strategy_split(&t, "", "INNER", 2);
  strategy_order(&t, "OUTER=0 INNER=0 PASS=F;OUTER=0 INNER=1 PASS=F;OUTER=1 INNER=0 PASS=F;"
                     "OUTER=1 INNER=1 PASS=F;PASS=B INNER=0;PASS=B INNER=1");
  actions_are(made(g, &t, 4), "0F0 1F0 0F1 1F1 0F2 1F2 0F3 1F3 1B0 1B2 0B0 0B2 1B1 1B3 0B1 0B3",
              "nested splits count through, outermost first");
  strategy_split(&t, "", "MB", 2);
  strategy_order(&t,
                 "MB=0 PASS=F;MB=1 PP=0 PASS=F|MB=0 PP=1 PASS=B;MB=1 PP=1 PASS=F|MB=0 PP=0 PASS=B;"
                 "MB=1 PASS=B");
  actions_are(made(g, &t, 4), "0F0 1F0 (0F1+1B0) (1F1+0B0) 1B1 0B1",
              "overlapped members are joined, in the order of the directive");
  graph_free(g);

  g = model_new();
  ValueId h = model_linear(g, "front", model_input(g, "x"));
  model_enter(g, "PP");
  h = model_linear(g, "a", h);
  model_enter(g, "LAYER");
  h = model_op(g, OP_RELU, NULL, h, MODEL_NONE);
  model_leave(g, "LAYER");
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
  model_leave(g, "PP");
  g->params.at[1].frozen = true;
  model_cut(g);
  actions_are(made(g, &t, 4), "-F0 -B0 0F0 0B0",
              "- is outside every stage; several chunks are one action; empty passes are listed");
  graph_free(g);
  g = model_new();
  model_loss(
      g, model_op(g, OP_SUM_SQUARES, NULL, model_linear(g, "a", model_input(g, "x")), MODEL_NONE));
  model_cut(g);
  actions_are(made(g, &t, 4), "0F0 0B0", "a model without stages is stage 0");
  graph_free(g);
}

static void table(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  char *text;
  PiperErr err = {0};
  plans_1f1b(&t, 2, 4, false);
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 64, .options.clip_norm = 1});
  p->predicted_seconds = 0.0123;
  p->predicted_rule[0] = 0.0123;
  p->predicted_rule[1] = 0.0125;
  p->order_rule = "critical_path";
  p->busy_seconds = calloc(p->n_ranks, sizeof *p->busy_seconds);
  if (p->busy_seconds == NULL) bail("no memory");
  p->busy_seconds[0] = 0.0082;
  p->busy_seconds[1] = 0.0041;
  p->digest = 0x123456789abcdef;
  if (plan_table(p, &text, &err) != PIPER_OK) bail(err.text);
  char *memory = strstr(text, "\n0    "), *rest = strstr(text, "\na step");
  if (memory == NULL || rest == NULL) bail(text);
  rest[0] = memory[1] = '\0'; /* the figures of the memory planner are tested elsewhere */
  is_str(
      text,
      "plan          test, batch 64, f32, sgd, clip_norm 1\n"
      "ranks         2 (0-1)\n"
      "nodes         29, F 8, B 8, transfer 8, all_reduce 1, norm 2, update 2\n"
      "instructions  38, run 20, send 8, recv 8, all_reduce 2, waits 28 (8 for reused memory)\n"
      "predicted     step 12.3 ms, bubble 50.0%, order by critical_path (by downstream 12.5 ms)\n"
      "digest        0123456789abcdef\n"
      "\n"
      "memory of each rank at its peak\n"
      "rank         params        grads    optimizer  activations         comm    workspace        "
      " peak\n",
      "the head of a plan's table");
  is_str(rest + 1,
         "a step of each rank\n"
         "rank      sends        bytes    recvs        bytes  collectives        bytes       runs  "
         "   busy\n"
         "0             4        1 KiB        4        1 KiB            1         24 B         10  "
         "  66.7%\n"
         "1             4        1 KiB        4        1 KiB            1         24 B         10  "
         "  33.3%\n"
         "\n"
         "communication of a step\n"
         "kind            what        stream                    buckets    calls        bytes\n"
         "all_reduce      metrics     dp_stream                       -        1         24 B\n"
         "transfer        values      pp_stream                       -        4        1 KiB\n"
         "transfer        gradients   pp_stream                       -        4        1 KiB\n"
         "\n"
         "instructions of each stream\n"
         "0     default_stream 10, pp_stream/F/0>1 4, pp_stream/B/1>0 4, dp_stream 1\n"
         "1     pp_stream/F/0>1 4, default_stream 10, pp_stream/B/1>0 4, dp_stream 1",
         "what each rank does in a step");
  free(text);
  plan_free(p);
  graph_free(g);
  strategy_clear(&t);

  g = model_chain(12);
  plans_1f1b(&t, 12, 4, false);
  p = plans_must(g, &t, (PlanSpec){.batch = 64});
  if (plan_table(p, &text, &err) != PIPER_OK) bail(err.text);
  size_t widest = 0;
  for (const char *line = text; *line != '\0';
       line += strcspn(line, "\n") + (strchr(line, '\n') != NULL))
    if (strcspn(line, "\n") > widest) widest = strcspn(line, "\n");
  ok(widest <= 100, "at most 100 columns");
  free(text);
  plan_free(p);
  graph_free(g);
  strategy_clear(&t);
}

static bool has(const char *text, const char *line) {
  const bool found = strstr(text, line) != NULL;
  if (!found) diag("%s\nis not in\n%s", line, text);
  return found;
}

/* n stages on 'replicas' devices each, from 'step' to 'step'. */
static Plan *replicas_of(const Graph *g, TestStrategy *t, int n, int replicas, int step) {
  PiperErr err = {0};
  strategy_split(t, "", "MB", 2);
  for (int i = 0; i < n; i++) {
    char filter[16], devices[256];
    size_t at = 0;
    for (int j = 0; j < replicas; j++)
      at += (size_t)snprintf(devices + at, sizeof devices - at, "%s%d", j > 0 ? "," : "",
                             step == 1 ? i * replicas + j : i + step * j);
    snprintf(filter, sizeof filter, "PP=%d", i);
    strategy_place(t, filter, devices);
    if (replicas > 1) strategy_replicate(t, filter, devices);
  }
  Plan *p = plans_prepared(g, t, (PlanSpec){.batch = 2 * replicas}, &err);
  if (p == NULL || plan_find_world(p, &err) != PIPER_OK || plan_make(p, &err) != PIPER_OK)
    bail(err.text);
  return p;
}

/* Of many ranks those that have the same text share it. */
static void many(void) {
  Graph *g = model_chain(3);
  TestStrategy t = {0};
  PiperErr err = {0};
  char *text;
  Plan *p = replicas_of(g, &t, 3, 12, 1);
  if (plan_actions(p, &text, &err) != PIPER_OK) bail(err.text);
  is_str(text, "0-11: 0F0 0F1 0B0 0B1\n12-23: 1F0 1F1 1B0 1B1\n24-35: 2F0 2F1 2B0 2B1",
         "36 ranks: replicas share a line");
  free(text);
  if (plan_table(p, &text, &err) != PIPER_OK) bail(err.text);
  ok(has(text, "\n0-11                  64 B        64 B           0        64 B") &&
         has(text, "\n24-35                 64 B        64 B           0        48 B"),
     "memory by groups of ranks");
  ok(has(text, "\n0,24                 2        32 B       2        32 B           2        88 B"
               "         6") &&
         has(text,
             "\n13-23                4        64 B       4        64 B           2        88 B"
             "         5"),
     "what they do in a step: the first one of each stage has its norm");
  ok(has(text, "\n13-23         pp_stream/F received 2, default_stream 5, pp_stream/F sent 2, "
               "pp_stream/B received 2,\n              pp_stream/B sent 2, dp_stream 2\n"),
     "streams, all channels of a name and direction together");
  bool made = false;
  for (uint32_t r = 0; r < p->n_ranks; r++) made |= p->ranks[r].made != (p->ranks[r].like == r);
  ok(!made, "lists that were not there are not there again");
  free(text);
  plan_free(p);
  strategy_clear(&t);
  p = replicas_of(g, &t, 3, 12, 3);
  if (plan_actions(p, &text, &err) != PIPER_OK) bail(err.text);
  ok(has(text, "0,3,6,9,12,15,18,21,24,27,30,33: 0F0"), "ranks that are not neighbours");
  free(text);
  if (plan_table(p, &text, &err) != PIPER_OK) bail(err.text);
  ok(has(text, "\n0.. (12) "), "too many to name in a column");
  free(text);
  plan_free(p);
  strategy_clear(&t);
  graph_free(g);
  g = model_chain(33);
  p = replicas_of(g, &t, 33, 1, 1);
  if (plan_actions(p, &text, &err) != PIPER_OK) bail(err.text);
  ok(strncmp(text, "0F0 0F1 0B0 0B1\n1F0", 18) == 0, "no two ranks alike: one line a rank");
  free(text);
  plan_free(p);
  strategy_clear(&t);
  graph_free(g);
}

int main(void) {
  actions();
  table();
  many();
  return done_testing();
}
