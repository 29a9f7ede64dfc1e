/* Tracing and cutting a model, with each allocation in turn failing. */
#include "ir/graph.h"

#include "nomem.h"
#include "tap.h"

static PiperStatus trace(Graph *g, PiperErr *err) {
  const Shape rows = {.rank = 2, .batched = true, .dim = {1, 4}},
              square = {.rank = 2, .dim = {4, 4}};
  double ones[16];
  for (int i = 0; i < 16; i++) ones[i] = 1;
  ValueId x, w, y = {0};
  TRY(graph_add_input(g, "x", &rows, DT_FLOAT, 0, &x, err));
  y = x;
  for (int layer = 0; layer < 12; layer++) {
    char name[16];
    snprintf(name, sizeof name, "w%d", layer);
    const ParamSpec p = {.name = name, .shape = square, .init = INIT_VALUES, .values = ones};
    TRY(graph_enter(g, "PP", err));
    TRY(graph_add_param(g, &p, 0, &w, err));
    const OpSpec linear = {.kind = OP_LINEAR, .in = {y, w}, .name = name};
    TRY(graph_add_op(g, &linear, 0, &y, err));
    TRY(graph_leave(g, "PP", err));
  }
  const OpSpec sum = {.kind = OP_SUM, .in = {y}};
  TRY(graph_add_op(g, &sum, 0, &y, err));
  TRY(graph_add_loss(g, y, 0, err));
  const OpSpec of_w = {.kind = OP_SUM, .in = {w}};
  TRY(graph_add_op(g, &of_w, 0, &y, err));
  TRY(graph_add_loss(g, y, 0, err));
  return graph_cut(g, err);
}

int main(void) {
  long n = 0;
  bool clean = true, struck = true;
  for (; struck; n++) {
    PiperErr err = {0};
    nomem_at(n);
    Graph *g = graph_new("model");
    const PiperStatus st = g != NULL ? trace(g, &err) : PIPER_ENOMEM;
    struck = nomem_struck();
    nomem_at(-1);
    if (struck && st != PIPER_ENOMEM) clean = false;
    if (!struck && st != PIPER_OK) clean = false;
    graph_free(g);
  }
  ok(clean, "each of %ld failures gives PIPER_ENOMEM", n - 1);
  ok(n > 20, "there were failures");
  return done_testing();
}
