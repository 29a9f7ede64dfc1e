/* Directive order: which nodes, which edges, and every way in which it can be wrong. */
#include "lib/passes.h"

/* The temporal edges, and per node its order, group and member: "1F0 1.2.0\n ... 1F0>2F0". */
static const char *edges(const Graph *g, int64_t batch, const TestStrategy *t) {
  static char text[8192];
  static PiperErr err;
  err = (PiperErr){0};
  const PassOptions opt = {.float_bytes = 4, .verify = true};
  const Strategy s = strategy_of(t);
  Dag *d;
  if (passes_run(g, batch, &s, &opt, &d, &err) != PIPER_OK) return err.text;
  size_t at = 0;
  text[0] = '\0';
  for (size_t e = 1; e < d->edges.n; e++) {
    const Edge *edge = &d->edges.at[e];
    if (edge->kind != EDGE_TEMPORAL) continue;
    char from[64], to[64];
    dag_label(d, (NodeId){edge->src}, from, sizeof from);
    dag_label(d, (NodeId){edge->dst}, to, sizeof to);
    at += (size_t)snprintf(text + at, sizeof text - at, "%s%s>%s", at > 0 ? ", " : "", from, to);
  }
  dag_free(d);
  return text;
}

#define edges_are(g, batch, t, want, name)                                                         \
  (is_str(edges((g), (batch), (t)), (want), "%s", (name)), strategy_clear(t))

static void groups(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 2);
  strategy_order(&t, "PASS=F MB=0 PP=0;PASS=F MB=1 PP=0;PASS=B MB=0 PP=0;PASS=B MB=1 PP=0");
  const char *text = passes_text(g, 4, &t, "order", false);
  ok(strstr(text, "mb=1 order=1 group=2 line=\"m.lua:1\" <- 1~\"t.lua:2\"\n") != NULL,
     "a node knows its order and group, a temporal edge its line");
  edges_are(g, 4, &t, "0F0>0F1, 0F1>0B0, 0B0>0B1", "group after group");
  strategy_split(&t, "", "MB", 3);
  strategy_order(&t, "PASS=F MB=0;PASS=F MB=1|PASS=B MB=0; PASS=F MB=2|PASS=B MB=1;PASS=B MB=2");
  edges_are(g, 6, &t, "1F0>0F1, 1F0>1B0, 1F1>0F2, 1F1>1B1, 0B0>0F2, 0B0>1B1, 1F2>1B2, 0B1>1B2",
            "members overlap; sinks of a group come before sources of the next");
  strategy_split(&t, "", "MB", 3);
  strategy_order(&t, "PASS=F PP=0;PASS=B PP=0");
  edges_are(g, 6, &t, "0F0>join 0, 0F1>join 0, 0F2>join 0, join 0>0B0, join 0>0B1, join 0>0B2",
            "many to many goes through a join");
  strategy_split(&t, "", "MB", 2);
  strategy_order(&t, "PASS=F PP=0;PASS=B PP=0");
  edges_are(g, 4, &t, "0F0>0B0, 0F0>0B1, 0F1>0B0, 0F1>0B1", "two to two does not");
  strategy_order(&t, "");
  edges_are(g, 4, &t, "", "an order without groups orders nothing");
  strategy_order(&t, "PP=0 PASS=F");
  edges_are(g, 4, &t, "", "nor does one with a single group");
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "1");
  strategy_order(&t, "PP=0 PASS=F;PP=0 PASS=B");
  strategy_order(&t, "PP=1 PASS=F;PP=1 PASS=B");
  edges_are(g, 4, &t, "0F0>0B0, 1F0>1B0", "an order for each device set");
  graph_free(g);
}

/* PP=0 and PP=1 have two chunks each: LAYER=0 .. 3. */
static Graph *model_layers(void) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x");
  for (int stage = 0; stage < 2; stage++) {
    model_enter(g, "PP");
    for (int i = 0; i < 2; i++) {
      char name[16];
      snprintf(name, sizeof name, "l%d", stage * 2 + i);
      model_enter(g, "LAYER");
      h = model_linear(g, name, h);
      if (stage == 1 && i == 1) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
      model_leave(g, "LAYER");
    }
    model_leave(g, "PP");
  }
  return model_cut(g);
}

static void convex(void) {
  Graph *g = model_layers();
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "1");
  strategy_order(&t, "PP=0 MB=0 PASS=F;PP=0 MB=1 PASS=F|PP=0 MB=0 PASS=B;PP=0 MB=1 PASS=B");
  const char *text = passes_text(g, 4, &t, "order", false);
  /* Nodes: F of chunks 1 to 4, B of 4 to 1, then their copies: 9 is F of chunk 1, 10 of chunk 2. */
  ok(strstr(text,
            "9 compute F chunk=1 samples=2:4 devs=0 stream=default_stream "
            "tags={LAYER=0,MB=1,PP=0} mb=1 order=1 group=2 line=\"m.lua:1\" <- 2~\"t.lua:4\"") !=
         NULL,
     "a member of several chunks begins at its source");
  edges_are(g, 4, &t, "0F0>0F1, 0F0>0B0, 0F1>0B1, 0B0>0B1",
            "inner edges make sources and sinks; the members overlap");

  strategy_order(&t, "LAYER=0,1,3 PASS=F;LAYER=0,1,3 PASS=B");
  passes_fail(
      g, 4, &t,
      "t.lua:1: order: group 1: filter { LAYER = { 0, 1, 3 }, PASS = \"F\" } matches "
      "0F0 (m.lua:2) and 1F0 (m.lua:4), but not 1F0 (m.lua:3), which is on the way from one to "
      "the other: put them into different groups");
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "1");
  strategy_order(&t, "PP=0");
  passes_fail(
      g, 4, &t,
      "t.lua:3: order: group 1: filter { PP = 0 } matches 0F0 (m.lua:2) and 0B0 "
      "(m.lua:2), but not 1B0 (m.lua:3), which is on the way from one to the other: put them "
      "into different groups");
  strategy_order(&t, "PP=0 PASS=F|PP=1;PP=0 PASS=B");
  edges_are(g, 4, &t, "1B0>0B0", "a path through another member of the group does no harm");
  strategy_order(&t, "LAYER=0,2 PASS=F|LAYER=1,3 PASS=F");
  edges_are(g, 4, &t, "", "members may interleave chunk by chunk");
  strategy_order(&t, "LAYER=0,3 PASS=F|LAYER=1 PASS=F");
  passes_fail(
      g, 4, &t,
      "t.lua:1: order: group 1: filter { LAYER = { 0, 3 }, PASS = \"F\" } matches 0F0 "
      "(m.lua:1) and 1F0 (m.lua:4), but not 1F0 (m.lua:3), which is on the way from one to the "
      "other: put them into different groups");
  strategy_split(&t, "", "MB", 2);
  strategy_order(&t, "LAYER=0 PASS=F;LAYER=1,2 PASS=F;LAYER=3 PASS=F");
  edges_are(g, 4, &t, "0F0>0F0, 0F0>0F1, 0F1>0F0, 0F1>0F1, 1F0>1F0, 1F0>1F1, 1F1>1F0, 1F1>1F1",
            "a member of several unconnected pieces is convex");
  graph_free(g);

  /* Two branches: l0, l1, l2 in LAYER = 0 to 2, l3, l4 in LAYER = 3 and 4. */
  g = model_new();
  const ValueId x = model_input(g, "x");
  ValueId h = x, sum = MODEL_NONE;
  for (int i = 0; i < 5; i++) {
    char name[16];
    snprintf(name, sizeof name, "l%d", i);
    model_enter(g, "LAYER");
    h = model_linear(g, name, i == 3 ? x : h);
    model_leave(g, "LAYER");
    if (i == 2) sum = h;
  }
  sum = model_op(g, OP_ADD, NULL, sum, h);
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, sum, MODEL_NONE));
  model_cut(g);
  strategy_order(&t, "LAYER=2,3 PASS=F;LAYER=4 PASS=F");
  edges_are(g, 4, &t, "0F0>0F0, 0F0>0F0", "a member may be of independent branches");
  strategy_order(&t, "LAYER=0,4 PASS=F;LAYER=1 PASS=F");
  edges_are(g, 4, &t, "0F0>0F0, 0F0>0F0", "at whatever distance");
  strategy_order(&t, "LAYER=0,2,3 PASS=F");
  passes_fail(
      g, 4, &t,
      "t.lua:1: order: group 1: filter { LAYER = { 0, 2, 3 }, PASS = \"F\" } matches 0F0 "
      "(m.lua:1) and 0F0 (m.lua:3), but not 0F0 (m.lua:2), which is on the way from one to the "
      "other: put them into different groups");
  graph_free(g);

  /* On one device, another interval: u -> transfer -> v inside a group. */
  g = model_chain(3);
  strategy_split(&t, "PP=1", "MB", 2);
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1");
  strategy_order(&t, "PP=0,1 PASS=F;PP=2 PASS=F");
  edges_are(g, 8, &t, "1F0>2F0, 1F1>2F0", "a transfer inside a member is a part of it");
  graph_free(g);

  /* More members than a word has bits: the 70 Fs of PP=0 and PP=2 of a microbatch each, PP=1
   * elsewhere in the last. */
  g = model_chain(3);
  strategy_split(&t, "", "MB", 70);
  char groups[4096];
  size_t at = 0;
  for (int i = 0; i < 70; i++)
    at += (size_t)snprintf(groups + at, sizeof groups - at, "%sPP=%s MB=%d PASS=F",
                           i > 0 ? "|" : "", i < 69 ? "0,1,2" : "0,2", i);
  strategy_order(&t, groups);
  passes_fail(
      g, 70, &t,
      "t.lua:2: order: group 1: filter { MB = 69, PASS = \"F\", PP = { 0, 2 } } "
      "matches 0F69 (m.lua:1) and 2F69 (m.lua:3), but not 1F69 (m.lua:2), which is on the way "
      "from one to the other: put them into different groups");
  graph_free(g);
}

static void errors(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_order(&t, "PP=0 PASS=B;PP=1 PASS=F");
  passes_fail(g, 4, &t,
              "t.lua:1: order: 0B0 is ordered before 1F0, but has to wait for it: 1F0 -> 1B0 "
              "-> 0B0 -> (order, t.lua:1) 1F0");
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "1");
  strategy_split(&t, "", "MB", 2);
  strategy_order(&t, "PP=0 PASS=F MB=0;PP=0 PASS=B MB=0;PP=0 PASS=F MB=1");
  strategy_order(&t, "PP=1 PASS=F MB=1;PP=1 PASS=F MB=0");
  passes_fail(g, 4, &t,
              "t.lua:4: order: 0B0 is ordered before 0F1, but has to wait for it: 0F1 -> transfer "
              "l0 0F1 0>1 -> 1F1 -> (order, t.lua:5) 1F0 -> 1B0 -> transfer grad l0 1B0 1>0 -> 0B0 "
              "-> (order, t.lua:4) 0F1");
  strategy_split(&t, "", "MB", 3);
  strategy_order(&t, "PASS=B;PASS=F");
  passes_fail(g, 6, &t,
              "t.lua:2: order: group 1: 0B0 is ordered before 0F0 (group 2), but has to wait for it: 0F0 -> 0B0 "
              "-> (order, t.lua:2) 0F0");
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "1");
  strategy_order(&t, "PP=0 PASS=F;PP=1 PASS=F");
  passes_fail(g, 4, &t,
              "t.lua:3: order: group 2: 1F0 is on device 1 (t.lua:2), 0F0 on device 0 (t.lua:1): "
              "one order is for one device set, so place PP = 1 on device 0 too");
  strategy_order(&t, "PP=0 PASS=F;PP=3 PASS=F");
  passes_fail(g, 4, &t,
              "t.lua:1: order: group 2: filter { PASS = \"F\", PP = 3 } matches nothing; PP "
              "runs from 0 to 1");
  strategy_order(&t, "PP=0 PASS=F;PP=0 PASS=BI;PP=0 PASS=BW");
  strategy_order(&t, "PP=1 PASS=F;PP=1 PASS=B");
  edges_are(g, 4, &t, "0F0>0I0, 0I0>0W0, 1F0>1B0", "some backward passes split, others not");

  strategy_order(&t, "PP=0 PASS=F;PP=1 PASS=F;PP=0,1 PASS=F");
  passes_fail(g, 4, &t, "t.lua:1: order: group 3: filter { PASS = \"F\", PP = { 0, 1 } } matches 0F0 again "
              "(first in group 1): an action runs once");
  strategy_order(&t, "PP=0 PASS=F|PP=0,1 PASS=F");
  passes_fail(g, 4, &t, 
              "t.lua:1: order: group 1: filter { PASS = \"F\", PP = { 0, 1 } } matches 0F0 twice "
              "in one group");
  strategy_order(&t, "PP=0 PASS=F;PP=1 PASS=F");
  strategy_order(&t, "PP=1 PASS=F;PP=1 PASS=B");
  passes_fail(g, 4, &t,
              "t.lua:2: order: group 1: 1F0 again (first in group 2 of the order at "
              "t.lua:1): an action runs once");
  graph_free(g);
}

static void in_schedule(Directive *x, uint32_t schedule, uint32_t rank) {
  x->schedule = schedule;
  x->rank_in_schedule = rank;
}

/* Two ranks, GPipe, two microbatches, and what replaces the groups of rank 1; stage 1 is placed by that
 * schedule, or by another directive. */
static void schedule_placed(TestStrategy *t, const char *rank1, uint32_t placed_by) {
  in_schedule(strategy_split(t, "", "MB", 2), 7, 0);
  in_schedule(
      strategy_order(t, "PP=0 MB=0 PASS=F;PP=0 MB=1 PASS=F;PP=0 MB=0 PASS=B;PP=0 MB=1 PASS=B"), 7,
      0);
  in_schedule(strategy_order(t, rank1), 7, 1);
  in_schedule(strategy_place(t, "PP=0", "0"), 7, 0);
  in_schedule(strategy_place(t, "PP=1", "1"), placed_by, 0);
}

static void schedule_of(TestStrategy *t, const char *rank1) { schedule_placed(t, rank1, 7); }

static void schedules(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  schedule_of(&t, "PP=1 MB=0 PASS=F;PP=1 MB=1 PASS=F;PP=1 MB=0 PASS=B;PP=1 MB=1 PASS=B");
  edges_are(g, 4, &t, "0F0>0F1, 0F1>0B0, 0B0>0B1, 1F0>1F1, 1F1>1B0, 1B0>1B1", "a schedule");
  schedule_of(&t, "PP=1 MB=0 PASS=F;PP=1 MB=1 PASS=F;PP=1 MB=0 PASS=F;PP=1 MB=1 PASS=B");
  passes_fail(g, 4, &t, "t.lua:3: order: rank 1, column 3: 1F0 again (first in column 1): an action runs once");
  schedule_of(&t, "PP=1 MB=0 PASS=F;PP=1 MB=1 PASS=F;PP=1 MB=0 PASS=B;PP=0 MB=1 PASS=B");
  passes_fail(g, 4, &t,
              "t.lua:3: order: rank 1, column 4: 0B1 again (first on rank 0, in column 4): an action runs once");
  schedule_of(&t, "PP=1 MB=0 PASS=F;PP=1 MB=1 PASS=F;PP=1 MB=0 PASS=B");
  passes_fail(g, 4, &t, "t.lua:3: order: rank 1: 1B1 is missing: a schedule names each action of its stages once");
  schedule_of(&t, "PP=1 MB=0 PASS=F;PP=1 MB=1 PASS=F|PP=1 MB=0 PASS=BI;PP=1 MB=0 PASS=BW");
  passes_fail(g, 4, &t, "t.lua:3: order: rank 1: 1B1 is missing: a schedule names each action of its stages once");
  schedule_of(&t, "PP=1 MB=0 PASS=F;PP=1 MB=2 PASS=F;PP=1 MB=0 PASS=B;PP=1 MB=1 PASS=B");
  passes_fail(g, 4, &t,
              "t.lua:3: order: rank 1, column 2: filter { MB = 2, PASS = \"F\", PP = 1 } "
              "matches nothing; MB runs from 0 to 1");
  schedule_of(&t, "PP=1 MB=0 PASS=F;PP=1 MB=1 PASS=F|PP=1 MB=1 PASS=F;PP=1 MB=1 PASS=B");
  passes_fail(g, 4, &t, "t.lua:3: order: rank 1, column 2: 1F1 twice in one group");
  schedule_of(&t, "PP=1 MB=0 PASS=F;PP=1 MB=0 PASS=B;PP=1 MB=1 PASS=B;PP=1 MB=1 PASS=F");
  passes_fail(g, 4, &t,
              "t.lua:3: order: rank 1, column 3: 1B1 is ordered before 1F1 (column 4), but has to wait for it: 1F1 -> 1B1 "
              "-> (order, t.lua:3) 1F1");
  schedule_of(&t, "");
  passes_fail(g, 4, &t,
              "t.lua:1: schedule: it places stage 1, but has no order that names it: each stage is in "
              "the order of its rank");
  schedule_placed(&t, "", 0);
  edges_are(g, 4, &t, "0F0>0F1, 0F1>0B0, 0B0>0B1", "stages that a schedule leaves out are free");
  schedule_of(&t, "");
  strategy_order(&t, "PP=1 MB=0 PASS=F;PP=1 MB=0 PASS=B");
  edges_are(g, 4, &t, "0F0>0F1, 0F1>0B0, 0B0>0B1, 1F0>1B0", "an order alone may name some");
  in_schedule(strategy_order(&t, "PP=1 PASS=F"), 3, 0);
  edges_are(g, 4, &t, "", "so may orders that come without a split");

  /* Stages of two chunks; a chunk that is missing in one pass. */
  Graph *layers = model_layers();
  schedule_of(&t, "PP=1 MB=0 PASS=F;PP=1 MB=1 PASS=F;PP=1 MB=0 PASS=B;PP=1 LAYER=3 MB=1 PASS=B");
  passes_fail(layers, 4, &t, "t.lua:3: order: rank 1: 1B1 is missing: a schedule names each action of its stages once");
  schedule_of(&t, "PP=1 LAYER=2 MB=0 PASS=F;PP=1 LAYER=2 MB=1 PASS=F;PP=1 LAYER=2 MB=0 PASS=B;"
                  "PP=1 LAYER=2 MB=1 PASS=B");
  edges_are(layers, 4, &t, "0F0>0F1, 0F1>0B0, 0B0>0B1, 1F0>1F1, 1F1>1B0, 1B0>1B1",
            "chunks that a schedule never names are free");
  graph_free(layers);

  /* Two device sets run the two halves of the microbatches: the rank that is missing one is
   * named. */
  in_schedule(strategy_split(&t, "", "MB", 2), 1, 0);
  strategy_place(&t, "MB=0", "0");
  strategy_place(&t, "MB=1", "1");
  in_schedule(
      strategy_order(&t, "PP=0 MB=0 PASS=F;PP=1 MB=0 PASS=F;PP=1 MB=0 PASS=B;PP=0 MB=0 PASS=B"), 1,
      0);
  in_schedule(strategy_order(&t, "PP=0 MB=1 PASS=F;PP=1 MB=1 PASS=F;PP=1 MB=1 PASS=B"), 1, 1);
  passes_fail(g, 4, &t, "t.lua:5: order: rank 1: 0B1 is missing: a schedule names each action of its stages once");
  graph_free(g);
}

int main(void) {
  groups();
  convex();
  errors();
  schedules();
  return done_testing();
}
