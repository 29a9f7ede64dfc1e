/* models.h - models of a few ops for tests of passes; op n is at "m.lua:n". Any failure ends the
 * test program. */
#ifndef PIPER_TESTS_MODELS_H
#define PIPER_TESTS_MODELS_H

#include "ir/graph.h"

#include "tap.h"

#define MODEL_NONE ((ValueId){0})

static inline void model_must(PiperStatus st, const PiperErr *err) {
  if (st != PIPER_OK) bail(err->text);
}

static inline uint32_t model_line(Graph *g, size_t n) {
  char text[32];
  snprintf(text, sizeof text, "m.lua:%zu", n);
  return intern_id(g->names, text);
}

/* [batch, 4] */
static inline ValueId model_input(Graph *g, const char *name) {
  PiperErr err = {0};
  ValueId v;
  const Shape shape = {.rank = 2, .batched = true, .dim = {1, 4}};
  model_must(graph_add_input(g, name, &shape, DT_FLOAT, model_line(g, g->ops.n), &v, &err), &err);
  return v;
}

/* [rows, 4] */
static inline ValueId model_param(Graph *g, const char *name, int64_t rows) {
  PiperErr err = {0};
  ValueId v;
  const ParamSpec spec = {.name = name, .shape = {.rank = 2, .dim = {rows, 4}}};
  model_must(graph_add_param(g, &spec, model_line(g, g->ops.n), &v, &err), &err);
  return v;
}

static inline ValueId model_spec(Graph *g, OpSpec spec) {
  PiperErr err = {0};
  ValueId v;
  model_must(graph_add_op(g, &spec, model_line(g, g->ops.n), &v, &err), &err);
  return v;
}

static inline ValueId model_op(Graph *g, OpKind kind, const char *name, ValueId a, ValueId b) {
  return model_spec(g, (OpSpec){.kind = kind, .in = {a, b}, .attrs = {{2}}, .name = name});
}

/* "name" = x W^T with W = "name.weight" of [4, 4] */
static inline ValueId model_linear(Graph *g, const char *name, ValueId x) {
  char weight[64];
  snprintf(weight, sizeof weight, "%s.weight", name);
  return model_op(g, OP_LINEAR, name, x, model_param(g, weight, 4));
}

static inline void model_loss(Graph *g, ValueId v) {
  PiperErr err = {0};
  model_must(graph_add_loss(g, v, model_line(g, g->ops.n), &err), &err);
}

static inline void model_enter(Graph *g, const char *tag) {
  PiperErr err = {0};
  model_must(graph_enter_at(g, tag, model_line(g, g->ops.n), &err), &err);
}

static inline void model_leave(Graph *g, const char *tag) {
  PiperErr err = {0};
  model_must(graph_leave(g, tag, &err), &err);
}

static inline Graph *model_new(void) {
  Graph *g = graph_new("test");
  if (g == NULL) bail("no memory");
  return g;
}

static inline Graph *model_cut(Graph *g) {
  PiperErr err = {0};
  model_must(graph_cut(g, &err), &err);
  return g;
}

/* As nn.moe, of x [batch, 4] as two tokens of width 2, each to the best of the experts: parameters
 * "name.gate.weight" and, in a scope EP, "name.experts.<i>.weight" of [2, 2]. 'around': what is before
 * and after the experts is in a scope of this tag each; NULL: in none. */
static inline ValueId model_moe_in(Graph *g, const char *around, const char *name, ValueId x,
                                   uint32_t experts) {
  enum { TOKENS = 2, WIDTH = 2 };
  const Shape tokens = {.rank = 3, .batched = true, .dim = {1, TOKENS, WIDTH}},
              row = {.rank = 2, .batched = true, .dim = {1, TOKENS * WIDTH}};
  PiperErr err = {0};
  ValueId router, weights[8], stack;
  char text[64];
  snprintf(text, sizeof text, "%s.gate.weight", name);
  const ParamSpec gate = {.name = text, .shape = {.rank = 2, .dim = {experts, WIDTH}}};
  model_must(graph_add_param(g, &gate, model_line(g, g->ops.n), &router, &err), &err);
  for (uint32_t i = 0; i < experts; i++) {
    snprintf(text, sizeof text, "%s.experts.%u.weight", name, i);
    const ParamSpec spec = {.name = text, .shape = {.rank = 2, .dim = {WIDTH, WIDTH}}};
    model_must(graph_add_param(g, &spec, model_line(g, g->ops.n), &weights[i], &err), &err);
  }
  model_must(graph_add_stack(g, weights, experts, &stack, &err), &err);
#define MOE_OP(...) model_spec(g, (OpSpec){__VA_ARGS__})
  if (around != NULL) model_enter(g, around);
  x = MOE_OP(.kind = OP_RESHAPE, .in = {x}, .reshape_to = &tokens);
  const ValueId logits = MOE_OP(.kind = OP_LINEAR, .in = {x, router});
  const ValueId slots = MOE_OP(.kind = OP_ROUTE, .in = {logits}, .attrs = {{1, TOKENS}});
  const ValueId share = MOE_OP(.kind = OP_GATE, .in = {logits, slots}, .attrs = {{0, TOKENS}});
  ValueId blocks = MOE_OP(.kind = OP_DISPATCH, .in = {x, slots}, .attrs = {{experts, 1 + TOKENS}},
                          .name = "blocks");
  if (around != NULL) model_leave(g, around);
  model_enter(g, "EP");
  const ValueId ends = MOE_OP(.kind = OP_EXPERT_ENDS, .in = {blocks});
  const ValueId packed = MOE_OP(.kind = OP_PACK, .in = {blocks, ends}, .attrs = {{TOKENS}});
  const ValueId made = MOE_OP(.kind = OP_EXPERT_LINEAR, .in = {packed, stack, ends});
  blocks = MOE_OP(.kind = OP_UNPACK, .in = {made, ends}, .attrs = {{1 + TOKENS}}, .name = "made");
  model_leave(g, "EP");
  if (around != NULL) model_enter(g, around);
  x = MOE_OP(.kind = OP_COMBINE, .in = {blocks, share, slots});
  x = MOE_OP(.kind = OP_RESHAPE, .in = {x}, .reshape_to = &row);
  if (around != NULL) model_leave(g, around);
  return x;
#undef MOE_OP
}

static inline ValueId model_moe(Graph *g, const char *name, ValueId x, uint32_t experts) {
  return model_moe_in(g, NULL, name, x, experts);
}

/* A chain of stages PP = 0 .. n-1, each one linear "l<i>"; the last ends in the loss
 * sum_squares. */
static inline Graph *model_chain(uint32_t n) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x");
  for (uint32_t i = 0; i < n; i++) {
    char name[16];
    snprintf(name, sizeof name, "l%u", i);
    model_enter(g, "PP");
    h = model_linear(g, name, h);
    if (i + 1 == n) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(g, "PP");
  }
  return model_cut(g);
}

#endif
