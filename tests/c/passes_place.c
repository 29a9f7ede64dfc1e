/* Directive place, and the transfers that follow from it. */
#include "lib/passes.h"

/* Only the transfers: "v3 0 0:4 > 1-2 0:2 pp_stream F <- 1 -> 5". */
static const char *transfers(const Graph *g, int64_t batch, const TestStrategy *t) {
  static char text[4096];
  PiperErr err = {0};
  const PassOptions opt = {.float_bytes = 4, .verify = true};
  const Strategy s = strategy_of(t);
  Dag *d;
  if (passes_run(g, batch, &s, &opt, &d, &err) != PIPER_OK) bail(err.text);
  size_t at = 0;
  text[0] = '\0';
  for (uint32_t n = 1; n < d->n; n++) {
    if (d->kind[n] != NODE_TRANSFER) continue;
    const Tensor *tensor = &d->tensors.at[d->tensor[n]];
    char from[32], to[32], label[32];
    devsets_text(d->devsets, d->src_devs[n], from, sizeof from);
    devsets_text(d->devsets, d->devs[n], to, sizeof to);
    at += (size_t)snprintf(text + at, sizeof text - at, "%s%u %s %d:%d > %s %d:%d %s %s:",
                           tensor->kind == TENSOR_GRAD ? "g" : "v", tensor->value.i, from,
                           (int)d->src_lo[n], (int)d->src_hi[n], to, (int)d->lo[n], (int)d->hi[n],
                           intern_text(d->names, d->stream[n]), PASS_NAME[d->pass[n]]);
    for (int in = 1; in >= 0; in--)
      for (size_t e = 1; e < d->edges.n; e++) {
        const Edge *edge = &d->edges.at[e];
        if ((in ? edge->dst : edge->src) != n) continue;
        dag_label(d, (NodeId){in ? edge->src : edge->dst}, label, sizeof label);
        at += (size_t)snprintf(text + at, sizeof text - at, in ? " %s >" : " %s", label);
      }
    at += (size_t)snprintf(text + at, sizeof text - at, "\n");
  }
  dag_free(d);
  return text;
}

static void chains(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  is_str(transfers(g, 4, &t), "", "no place directive: everything on device 0");
  strategy_place(&t, "PP=0", "0")->stream = "up";
  strategy_place(&t, "PP=1", "1");
  is_str(transfers(g, 4, &t),
         "v3 0 0:4 > 1 0:4 up F: 0F0 > 1F0\n"
         "g3 1 0:4 > 0 0:4 pp_stream B: 1B0 > 0B0\n",
         "values and gradients travel, on the stream of the nodes that they leave");
  strategy_clear(&t);
  strategy_place(&t, "", "3");
  strategy_place(&t, "PP=1", "3")->stream = "down";
  is_str(transfers(g, 4, &t), "", "one device: nothing travels, two directives may agree");
  strategy_clear(&t);

  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1");
  is_str(transfers(g, 4, &t), "", "the same devices: nothing travels");
  strategy_clear(&t);
  strategy_place(&t, "PP=0", "0,1");
  strategy_place(&t, "PP=1", "1,0");
  strategy_replicate(&t, "", "0,1");
  is_str(transfers(g, 4, &t),
         "v3 0-1 0:4 > 1,0 0:4 pp_stream F: 0F0 > 1F0\n"
         "g3 1,0 0:4 > 0-1 0:4 pp_stream B: 1B0 > 0B0\n",
         "the order of devices says who has which samples");
  strategy_clear(&t);
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "0,1");
  strategy_replicate(&t, "PP=1", "0,1");
  is_str(transfers(g, 4, &t),
         "v3 0 0:4 > 0-1 0:4 pp_stream F: 0F0 > 1F0\n"
         "g3 0-1 0:4 > 0 0:4 pp_stream B: 1B0 > 0B0\n",
         "one and two devices: a half travels");
  strategy_clear(&t);
  strategy_split(&t, "PP=1", "MB", 2);
  strategy_place(&t, "PP=0", "0,1");
  strategy_place(&t, "PP=1 MB=0", "0");
  strategy_place(&t, "PP=1 MB=1", "1");
  strategy_replicate(&t, "PP=0", "0,1");
  is_str(transfers(g, 4, &t), "",
         "halves on two devices are microbatches on those devices: nothing travels");
  strategy_clear(&t);
  strategy_split(&t, "PP=1", "MB", 2);
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1");
  is_str(transfers(g, 8, &t),
         "v3 0-1 0:8 > 0-1 0:4 pp_stream F: 0F0 > 1F0\n"
         "g3 0-1 0:4 > 0-1 0:8 pp_stream B: 1B0 > 0B0\n"
         "v3 0-1 0:8 > 0-1 4:8 pp_stream F: 0F0 > 1F1\n"
         "g3 0-1 4:8 > 0-1 0:8 pp_stream B: 1B1 > 0B0\n",
         "microbatches of another size share samples out differently");
  strategy_clear(&t);
  graph_free(g);
}

/* PP=0 is read by PP=1, PP=2 and PP=3. */
static void shared(void) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x"), sum = MODEL_NONE;
  model_enter(g, "PP");
  h = model_linear(g, "a", h);
  model_leave(g, "PP");
  for (int i = 0; i < 3; i++) {
    char name[16];
    snprintf(name, sizeof name, "b%d", i);
    model_enter(g, "PP");
    const ValueId y = model_op(g, OP_SUM_SQUARES, NULL, model_linear(g, name, h), MODEL_NONE);
    sum = sum.i == 0 ? y : model_op(g, OP_ADD, NULL, sum, y);
    if (i == 2) model_loss(g, sum);
    model_leave(g, "PP");
  }
  model_cut(g);
  TestStrategy t = {0};
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1,3", "1");
  strategy_place(&t, "PP=2", "2");
  is_str(transfers(g, 4, &t),
         "v3 0 0:4 > 1 0:4 pp_stream F: 0F0 > 3F0 1F0\n"
         "g3 1 0:4 > 0 0:4 pp_stream B: 1B0 > 0B0\n"
         "v3 0 0:4 > 2 0:4 pp_stream F: 0F0 > 2F0\n"
         "g3 2 0:4 > 0 0:4 pp_stream B: 2B0 > 0B0\n"
         "v6 1 0:4 > 2 0:4 pp_stream F: 1F0 > 2F0\n"
         "g6 2 0:4 > 1 0:4 pp_stream B: 2B0 > 1B0\n"
         "g3 1 0:4 > 0 0:4 pp_stream B: 3B0 > 0B0\n"
         "v10 2 0:4 > 1 0:4 pp_stream F: 2F0 > 3F0\n"
         "g10 1 0:4 > 2 0:4 pp_stream B: 3B0 > 2B0\n",
         "two readers on one device share a transfer; sums over samples travel whole");
  strategy_clear(&t);
  strategy_place(&t, "PP=0,1,3", "0");
  strategy_place(&t, "PP=2", "1,2");
  strategy_replicate(&t, "PP=2", "1,2");
  passes_fail(
      g, 4, &t,
      "t.lua:2: place: sum_squares (m.lua:3) has no batch axis, so it can move only between "
      "equally many devices, not from device 0 (t.lua:1) to devices 1-2 (t.lua:2): place both "
      "on equally many, or compute it in the stage that reads it");
  graph_free(g);
}

static void errors(void) {
  Graph *g = model_chain(3);
  TestStrategy t = {0};
  strategy_place(&t, "PP=0,1", "0");
  strategy_place(&t, "PP=1", "1");
  passes_fail(g, 4, &t,
              "t.lua:2: place: 1F0 is placed on device 1 here and on device 0 at t.lua:1");
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "1");
  passes_fail(g, 4, &t,
              "t.lua:1: place: 2F0 is on no device: no place directive matches F of the "
              "chunk { PP = 2 } (m.lua:3); where there is a place directive, each node needs one");
  strategy_place(&t, "", "");
  passes_fail(g, 4, &t, "t.lua:1: place: the list of devices is empty");
  strategy_place(&t, "", "0,-1");
  passes_fail(g, 4, &t, "t.lua:1: place: device -1: devices count from 0");
  strategy_place(&t, "", "2,0,2");
  passes_fail(g, 4, &t, "t.lua:1: place: device 2 is listed twice");
  strategy_place(&t, "PP=3", "0");
  passes_fail(g, 4, &t, "t.lua:1: place: filter { PP = 3 } matches nothing; PP runs from 0 to 2");
  strategy_place(&t, "", "0,1,2");
  passes_fail(g, 4, &t, "t.lua:1: place: 4 samples cannot be divided equally over devices 0-2");
  strategy_split(&t, "", "MB", 4);
  strategy_place(&t, "", "0,1");
  passes_fail(
      g, 4, &t,
      "t.lua:2: place: 1 sample of a microbatch cannot be divided equally over devices 0-1");
  strategy_place(&t, "PASS=F", "0");
  strategy_place(&t, "PASS=B", "1");
  passes_fail(g, 4, &t,
              "t.lua:2: place: 0F0 is on device 0 (t.lua:1), 0B0 on device 1 (t.lua:2): all passes "
              "of a chunk and microbatch have to be on the same devices");
  strategy_place(&t, "PP=0,1,2 PASS=F", "0");
  passes_fail(g, 4, &t,
              "t.lua:1: place: 2B0 is on no device: no place directive matches B of the "
              "chunk { PP = 2 } (m.lua:3); where there is a place directive, each node needs one");
  strategy_place(&t, "", "0")->stream = "a";
  strategy_place(&t, "PP=1", "0")->stream = "b";
  passes_fail(g, 4, &t,
              "t.lua:2: place: transfers from 1F0 are on stream \"b\" here and on \"a\" at "
              "t.lua:1");
  graph_free(g);
}

int main(void) {
  chains();
  shared();
  errors();
  return done_testing();
}
