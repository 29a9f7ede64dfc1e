/* A traced model as a whole: names, tying, scopes, gradients, chunks. */
#include "ir/graph.h"

#include "tap.h"

static PiperErr err;

#define FAILS(call, message)                                                                       \
  (err = (PiperErr){0}, (call), is_str(err.text, message, "refused: %s", message))

static const Shape ROWS = {.rank = 2, .batched = true, .dim = {1, 4}};
static const Shape SQUARE = {.rank = 2, .dim = {4, 4}};
static const Shape ROW = {.rank = 1, .dim = {4}};
static const Shape SCALAR = {0};

static ValueId must(PiperStatus st, ValueId v) {
  if (st != PIPER_OK) bail(err.text);
  return v;
}

static ValueId input(Graph *g, const char *name) {
  ValueId v = {0};
  const PiperStatus st = graph_add_input(g, name, &ROWS, DT_FLOAT, 0, &v, &err);
  return must(st, v);
}

static ValueId param(Graph *g, const char *name, const Shape *s) {
  ValueId v = {0};
  const ParamSpec spec = {.name = name, .shape = *s, .init = INIT_NORMAL, .init_arg = 0.5};
  const PiperStatus st = graph_add_param(g, &spec, intern_id(g->names, "m.lua:7"), &v, &err);
  return must(st, v);
}

static ValueId op(Graph *g, OpKind kind, ValueId a, ValueId b) {
  ValueId v = {0};
  const OpSpec spec = {.kind = kind, .in = {a, b}};
  const PiperStatus st = graph_add_op(g, &spec, 0, &v, &err);
  return must(st, v);
}

static const ValueId NONE = {0};

static void test_names(void) {
  Graph *g = graph_new("names");
  ValueId v;
  const ValueId x = input(g, "x"), w = param(g, "w", &SQUARE);
  is_int(param(g, "w", &SQUARE).i, w.i, "one name is one parameter");
  is_int(graph_find_param(g, "w").i, graph_value(g, w)->param.i,
         "a parameter is found by its name");
  is_int(graph_find_param(g, "x").i, 0, "an input's name is no parameter");
  is_int(graph_find_input(g, "x"), graph_value(g, x)->input, "an input is found by its name");
  is_int(graph_find_input(g, "nothing"), 0, "a name that nobody has is not found");
  const ParamSpec row = {.name = "w", .shape = ROW}, like_input = {.name = "x", .shape = ROW};
  const ParamSpec batched = {.name = "b", .shape = ROWS};
  const uint32_t n = (uint32_t)g->values.n;
  FAILS(graph_add_param(g, &row, 0, &v, &err),
        "parameter \"w\" is [4] here, but [4, 4] at m.lua:7: one name is one parameter");
  FAILS(graph_add_param(g, &like_input, 0, &v, &err),
        "parameter \"x\": an input is called so (an earlier line)");
  FAILS(graph_add_param(g, &batched, 0, &v, &err),
        "parameter \"b\": a parameter has no batch axis");
  FAILS(graph_add_input(g, "x", &ROWS, DT_FLOAT, 0, &v, &err),
        "input \"x\": there is one already (an earlier line)");
  FAILS(graph_add_input(g, "w", &ROWS, DT_FLOAT, 0, &v, &err),
        "input \"w\": a parameter is called so (m.lua:7)");
  FAILS(graph_add_input(g, "y", &SQUARE, DT_FLOAT, 0, &v, &err),
        "input \"y\": the first axis must be \"batch\" or { \"batch\", k }: an input is data for "
        "each "
        "sample");
  FAILS(graph_add_input(g, "y", &(Shape){.rank = 7}, DT_FLOAT, 0, &v, &err),
        "input \"y\": 7 axes; there can be 6");
  is_int(g->values.n, n, "an error leaves no value behind");
  graph_free(g);
}

static void test_init_values(void) {
  Graph *g = graph_new("init");
  ValueId v = {0};
  double values[4] = {1, 2, 3, 4};
  const ParamSpec spec = {.name = "w", .shape = ROW, .init = INIT_VALUES, .values = values};
  graph_add_param(g, &spec, 0, &v, &err);
  values[3] = 0;
  is_near(graph_param(g, graph_value(g, v)->param)->values[3], 4, 0, "initial values are copied");
  graph_free(g);
}

static void test_losses(void) {
  Graph *g = graph_new("losses");
  const ValueId x = input(g, "x"), w = param(g, "w", &SCALAR);
  const ValueId s = op(g, OP_SUM, x, NONE);
  FAILS(graph_cut(g, &err),
        "model \"losses\": no loss: say which value to minimise with m:loss(x)");
  FAILS(graph_add_loss(g, x, 0, &err), "loss: value is [batch, 4], and a loss is a scalar: reduce "
                                       "it with sum, mean or another loss");
  must(graph_add_loss(g, s, 0, &err), s);
  must(graph_add_loss(g, s, 0, &err), s);
  must(graph_add_loss(g, w, 0, &err), s);
  is_int(g->losses.n - 1, 3, "three losses");
  is_int(g->losses.at[1].value.i, s.i, "a sum is a loss as it is");
  const Value *again = graph_value(g, g->losses.at[2].value);
  is_int(graph_op(g, again->op)->kind, OP_SCALE, "the same value again is a copy");
  is_near(graph_op(g, again->op)->attrs.d[0], 1, 0, "the copy is times 1");
  const Value *once = graph_value(g, g->losses.at[3].value);
  is_int(graph_op(g, once->op)->kind, OP_ONCE, "what does not depend on the batch is a loss once");
  is_int(once->batch, BATCH_PARTIAL, "and a partial sum then");
  must(graph_cut(g, &err), s);
  FAILS(graph_add_loss(g, s, 0, &err), "model \"losses\" is complete: nothing can be added to it");
  ok(graph_chunk(g, (ChunkId){1})->has_loss, "a chunk knows that it has a loss");
  graph_free(g);
}

static void test_scopes(void) {
  Graph *g = graph_new("scopes");
  const uint32_t pp = intern_id(g->names, "PP"), ep = intern_id(g->names, "EP");
  const uint32_t line = intern_id(g->names, "m.lua:3");
  const ValueId x = input(g, "x");
  graph_enter_at(g, "EP", line, &err);
  graph_leave(g, "EP", &err);
  graph_enter(g, "PP", &err);
  graph_enter_at(g, "EP", line, &err);
  const ValueId inner = op(g, OP_RELU, x, NONE);
  FAILS(graph_enter(g, "PP", &err), "annotate: \"PP\" is inside \"PP\" already (entered at )");
  FAILS(graph_leave(g, "PP", &err),
        "annotate: \"PP\" ends while \"EP\" inside it is still open (entered at m.lua:3)");
  graph_leave(g, "EP", &err);
  const ValueId outer = op(g, OP_RELU, x, NONE);
  FAILS(graph_cut(g, &err), "annotate: \"PP\" (entered at ) is still open at the end of the model; "
                            "write local _ <close> = "
                            "piper.annotate(\"PP\")");
  graph_leave(g, "PP", &err);
  FAILS(graph_leave(g, "PP", &err), "annotate: \"PP\" is not open");
  const ValueId outside = op(g, OP_RELU, x, NONE);
  const uint32_t in_scope = graph_op(g, graph_value(g, inner)->op)->scope;
  is_int(graph_scope_index(g, in_scope, ep), 1, "each tag counts its own entries");
  is_int(graph_scope_index(g, in_scope, pp), 0, "scopes nest");
  ok(g->scope_tags.at[g->scope_first.at[in_scope]].tag == pp, "tags are sorted within a set");
  const uint32_t out_scope = graph_op(g, graph_value(g, outer)->op)->scope;
  is_int(graph_scope_index(g, out_scope, ep), -1, "a scope that was left is not in the set");
  is_int(graph_op(g, graph_value(g, outside)->op)->scope, 0, "outside every scope");
  is_str(graph_tag_line(g, ep), "m.lua:3", "a tag knows where it was first entered");
  graph_free(g);
}

/* x -> PP0: h = relu(x w0) -> PP1: y = relu(h w1) + h; sum_squares */
static Graph *two_stages(bool freeze_first) {
  Graph *g = graph_new("stages");
  const ValueId x = input(g, "x"), w0 = param(g, "w0", &SQUARE), w1 = param(g, "w1", &SQUARE);
  graph_enter(g, "PP", &err);
  const ValueId h = op(g, OP_RELU, op(g, OP_LINEAR, x, w0), NONE);
  graph_leave(g, "PP", &err);
  graph_enter(g, "PP", &err);
  const ValueId y = op(g, OP_ADD, op(g, OP_LINEAR, h, w1), h);
  must(graph_add_loss(g, op(g, OP_SUM_SQUARES, y, NONE), 0, &err), y);
  op(g, OP_RELU, y, NONE); /* no loss depends on it */
  graph_leave(g, "PP", &err);
  graph_param(g, graph_value(g, w0)->param)->frozen = freeze_first;
  must(graph_cut(g, &err), y);
  return g;
}

static void test_chunks(void) {
  Graph *g = two_stages(false);
  is_int(graph_n_chunks(g), 2, "a chunk a stage");
  const Chunk *a = graph_chunk(g, (ChunkId){1}), *b = graph_chunk(g, (ChunkId){2});
  is_int(a->end_op - a->first_op, 2, "ops of the first");
  is_int(b->first_op, a->end_op, "the second begins where the first ends");
  is_int(b->end_op, g->ops.n, "and reaches to the end");
  is_int(a->n_in, 1, "the first reads the input");
  is_int(graph_value(g, (ValueId){g->chunk_values.at[a->in_first]})->kind, VALUE_INPUT,
         "namely the input");
  is_int(a->n_out, 1, "the first gives one value");
  is_int(b->n_in, 1, "which the second reads: once, though two ops do");
  is_int(g->chunk_values.at[b->in_first], g->chunk_values.at[a->out_first], "the same");
  is_int(b->n_out, 0, "nobody reads from the second");
  is_int(g->chunk_params.at[b->param_first], 2, "the second reads parameter 2");
  ok(a->has_backward && b->has_backward, "both have a backward pass");
  ok(!a->has_loss && b->has_loss, "the second has the loss");
  ok(graph_param(g, (ParamId){1})->reached, "gradients reach the first parameter");
  ok(!g->values.at[g->values.n - 1].needs_grad, "what no loss depends on takes no gradient");
  ok(!g->values.at[1].needs_grad, "an input takes no gradient");
  graph_free(g);

  g = two_stages(true);
  ok(!graph_chunk(g, (ChunkId){1})->has_backward, "a frozen stage has no backward pass");
  ok(graph_chunk(g, (ChunkId){2})->has_backward, "the stage behind it has");
  ok(!graph_param(g, (ParamId){1})->reached, "no gradient reaches a frozen parameter");
  ok(graph_param(g, (ParamId){2})->reached, "one reaches the other");
  graph_free(g);
}

static void test_unused(void) {
  Graph *g = graph_new("unused");
  input(g, "mask");
  param(g, "w", &ROW);
  must(graph_add_loss(g, op(g, OP_SUM, input(g, "x"), NONE), 0, &err), NONE);
  FAILS(graph_cut(g, &err), "model \"unused\": parameter \"w\" (made at m.lua:7) is never used");
  graph_free(g);

  g = graph_new("unused");
  input(g, "mask");
  must(graph_add_loss(g, op(g, OP_SUM, input(g, "x"), NONE), 0, &err), NONE);
  is_int(graph_cut(g, &err), PIPER_OK, "an input may be unused");
  graph_free(g);
}

static void test_id_limits(void) {
  Graph *g = graph_new("ids");
  ValueId ids, targets, other, flat;
  const Shape shape = {.rank = 2, .batched = true, .dim = {1, 3}};
  const Shape line = {.rank = 1, .batched = true, .dim = {3}};
  const Shape small = {.rank = 2, .dim = {9, 4}}, large = {.rank = 2, .dim = {30, 4}};
  graph_add_input(g, "ids", &shape, DT_I32, 0, &ids, &err);
  graph_add_input(g, "targets", &shape, DT_I32, 0, &targets, &err);
  graph_add_input(g, "other", &shape, DT_I32, 0, &other, &err);
  const OpSpec reshape = {.kind = OP_RESHAPE, .in = {ids}, .reshape_to = &line};
  graph_add_op(g, &reshape, 0, &flat, &err);
  const ValueId a = op(g, OP_EMBEDDING, flat, param(g, "small", &small));
  op(g, OP_EMBEDDING, ids, param(g, "large", &large));
  const OpSpec targets_line = {.kind = OP_RESHAPE, .in = {targets}, .reshape_to = &line};
  graph_add_op(g, &targets_line, 0, &flat, &err);
  must(graph_add_loss(g, op(g, OP_CROSS_ENTROPY, a, flat), 0, &err), a);
  must(graph_cut(g, &err), a);
  is_int(g->inputs.at[1].limit, 9, "the smallest vocabulary limits ids, under any shape");
  is_int(g->inputs.at[2].limit, 4, "classes limit targets");
  is_int(g->inputs.at[3].limit, 0, "nobody limits what nobody reads");
  graph_free(g);
}

/* A target that a loss ignores may occur where every consumer of the input ignores it. */
static void test_ignored(void) {
  enum { ONE, TWO_ALIKE, TWO_APART, ONE_OF_TWO, ALSO_IDS, CASES };
  static const char *const names[CASES] = {
      "one loss ignores it", "two ignore the same", "two ignore different ones",
      "another loss ignores none", "an embedding reads it as well"};
  for (int c = 0; c < CASES; c++) {
    Graph *g = graph_new("ignored");
    const Shape shape = {.rank = 2, .batched = true, .dim = {1, 4}};
    const Shape line = {.rank = 1, .batched = true, .dim = {1}}, table = {.rank = 2, .dim = {4, 2}};
    ValueId x, y;
    graph_add_input(g, "x", &shape, DT_FLOAT, 0, &x, &err);
    graph_add_input(g, "y", &line, DT_I32, 0, &y, &err);
    if (c == ALSO_IDS) op(g, OP_EMBEDDING, y, param(g, "w", &table));
    const int n = c == ONE || c == ALSO_IDS ? 1 : 2;
    for (int i = 0; i < n; i++) {
      ValueId loss;
      OpSpec spec = {.kind = OP_CROSS_ENTROPY, .in = {x, y}, .attrs = {{0, -100, 1}}};
      if (i == 1 && c == TWO_APART) spec.attrs.d[1] = -1;
      if (i == 1 && c == ONE_OF_TWO) spec.attrs.d[2] = 0;
      must(graph_add_op(g, &spec, 0, &loss, &err), x);
      must(graph_add_loss(g, loss, 0, &err), loss);
    }
    must(graph_cut(g, &err), x);
    const Input *in = &g->inputs.at[2];
    is_int(in->ignores, c == ONE || c == TWO_ALIKE, "%s: whether it may occur", names[c]);
    ok(in->limit == 4 && (!in->ignores || in->ignore == -100), "%s: range", names[c]);
    graph_free(g);
  }
}

int main(void) {
  test_names();
  test_init_values();
  test_losses();
  test_scopes();
  test_chunks();
  test_unused();
  test_id_limits();
  test_ignored();
  graph_free(NULL);
  return done_testing();
}
