/* Shape rules, dtypes, and what ops do to the batch: results, and the message for each mistake. */
#include "ir/graph.h"
#include "ir/op_rules.h"

#include "tap.h"

static Graph *g;

static ValueId input(const char *name, const Shape *s, DType t) {
  ValueId v = {0};
  if (graph_add_input(g, name, s, t, 0, &v, NULL) != PIPER_OK) bail("input");
  return v;
}

static ValueId param(const char *name, const Shape *s) {
  ValueId v = {0};
  const ParamSpec spec = {.name = name, .shape = *s};
  if (graph_add_param(g, &spec, 0, &v, NULL) != PIPER_OK) bail("param");
  return v;
}

#define DIMS(...)                                                                                  \
  { __VA_ARGS__ }
#define BATCHED(n, ...) (&(Shape){.rank = n, .batched = true, .dim = DIMS(__VA_ARGS__)})
#define PLAIN(n, ...) (&(Shape){.rank = n, .dim = DIMS(__VA_ARGS__)})

static PiperErr err;

static ValueId op3(OpKind kind, ValueId a, ValueId b, ValueId c) {
  ValueId v = {0};
  const OpSpec spec = {.kind = kind, .in = {a, b, c}, .attrs = {{2}}};
  err = (PiperErr){0};
  graph_add_op(g, &spec, 0, &v, &err);
  return v;
}

static ValueId op2(OpKind kind, ValueId a, ValueId b) { return op3(kind, a, b, (ValueId){0}); }
static ValueId op1(OpKind kind, ValueId a) { return op2(kind, a, (ValueId){0}); }

static ValueId op_with(OpKind kind, ValueId a, double d0, double d1, double d2) {
  ValueId v = {0};
  const OpSpec spec = {.kind = kind, .in = {a}, .attrs = {{d0, d1, d2}}};
  err = (PiperErr){0};
  graph_add_op(g, &spec, 0, &v, &err);
  return v;
}

static ValueId reshape(ValueId a, const Shape *to) {
  ValueId v = {0};
  const OpSpec spec = {.kind = OP_RESHAPE, .in = {a}, .reshape_to = to};
  err = (PiperErr){0};
  graph_add_op(g, &spec, 0, &v, &err);
  return v;
}

static void is_value(ValueId v, const char *shape, BatchKind batch, const char *name) {
  char text[160];
  if (v.i == 0) diag("%s", err.text);
  shape_text(&graph_value(g, v)->shape, text, sizeof text);
  is_str(v.i == 0 ? "error" : text, shape, "%s: shape", name);
  is_int(graph_value(g, v)->batch, batch, "%s: relation to the batch", name);
}

static void fails(ValueId v, const char *message) {
  is_str(v.i == 0 ? err.text : "no error", message, "refused: %s", message);
}

#define SPLIT BATCH_SPLIT
#define SAME BATCH_INDEPENDENT
#define PARTIAL BATCH_PARTIAL

static void test_products(void) {
  const ValueId x = input("x", BATCHED(3, 1, 7, 4), DT_FLOAT),
                v = input("v", BATCHED(1, 1), DT_FLOAT);
  const ValueId w = param("w", PLAIN(2, 5, 4)), b = param("b", PLAIN(1, 5));
  const ValueId w3 = param("w3", PLAIN(3, 7, 4, 3)), w1 = param("w1", PLAIN(1, 4));
  const ValueId ids = input("ids", BATCHED(2, 1, 7), DT_I32);
  is_value(op3(OP_LINEAR, x, w, b), "[batch, 7, 5]", SPLIT, "linear");
  is_value(op2(OP_LINEAR, w, w), "[5, 5]", SAME, "linear of a parameter, without bias");
  fails(op3(OP_LINEAR, x, b, b), "linear: weight is [5]: 2 axes are needed");
  fails(op3(OP_LINEAR, w, param("w2", PLAIN(2, 5, 3)), b),
        "linear: input is [5, 4], weight is [5, 3]: 4 is not 3");
  fails(op3(OP_LINEAR, x, w, w1), "linear: weight is [5, 4], bias is [4]: 5 is not 4");
  fails(op2(OP_LINEAR, v, w),
        "linear: input is [batch]: this would mix samples; only sum, mean and losses may combine "
        "those of the batch");
  fails(op2(OP_LINEAR, op1(OP_SUM, x), w), "linear: input is scalar: at least 1 axis is needed");
  fails(op2(OP_LINEAR, ids, w), "linear: input is i32; it must be floating point");

  const ValueId k = param("k", PLAIN(2, 4, 6));
  is_value(op2(OP_MATMUL, x, k), "[batch, 7, 6]", SPLIT, "matmul with a matrix");
  is_value(op2(OP_MATMUL, x, input("y", BATCHED(3, 1, 4, 2), DT_FLOAT)), "[batch, 7, 2]", SPLIT,
           "matmul sample by sample");
  is_value(op2(OP_MATMUL, input("rows", BATCHED(2, 3, 4), DT_FLOAT), k), "[batch*3, 6]", SPLIT,
           "matmul of rows that are samples");
  fails(op2(OP_MATMUL, x, w3), "matmul: left is [batch, 7, 4], right is [7, 4, 3]: batch is not 7");
  fails(op2(OP_MATMUL, k, x),
        "matmul: left is [4, 6], right is [batch, 7, 4]: their leading axes differ");
  fails(op2(OP_MATMUL, k, input("m", BATCHED(2, 6, 2), DT_FLOAT)),
        "matmul: right is [batch*6, 2]: this would mix samples; only sum, mean and losses may "
        "combine those of the batch");
  fails(op2(OP_MATMUL, x, w), "matmul: left is [batch, 7, 4], right is [5, 4]: 4 is not 5");
  fails(op2(OP_MATMUL, w1, k), "matmul: left is [4]: at least 2 axes are needed");

  is_value(op2(OP_EMBEDDING, ids, w), "[batch, 7, 4]", SPLIT, "embedding");
  is_int(graph_value(g, op2(OP_EMBEDDING, ids, w))->shape.axis[1], AXIS_SEQUENCE,
         "embedding keeps the name of the sequence axis");
  fails(op2(OP_EMBEDDING, x, w), "embedding: ids are floating point; they must be i32");
  fails(op2(OP_EMBEDDING, ids, x), "embedding: weight is [batch, 7, 4]: 2 axes are needed");
  const ValueId wide = input("wide", BATCHED(6, 1, 1, 1, 1, 1, 1), DT_I32);
  fails(op2(OP_EMBEDDING, wide, w),
        "embedding: ids are [batch, 1, 1, 1, 1, 1]: the result would have 7 axes; there can be 6");
}

static void test_elementwise(void) {
  const ValueId x = input("ex", BATCHED(3, 1, 7, 4), DT_FLOAT),
                one = input("e1", BATCHED(3, 1, 1, 4), DT_FLOAT);
  const ValueId b = param("eb", PLAIN(1, 4)), c = param("ec", PLAIN(2, 7, 1));
  const ValueId first = param("ef", PLAIN(3, 1, 1, 4)), number = param("en", PLAIN(3, 2, 7, 4));
  is_value(op2(OP_ADD, x, b), "[batch, 7, 4]", SPLIT, "add broadcasts a row");
  is_value(op2(OP_ADD, first, x), "[batch, 7, 4]", SPLIT,
           "add stretches an axis of 1 over the batch");
  is_value(op2(OP_MUL, one, x), "[batch, 7, 4]", SPLIT, "mul stretches an axis of 1");
  is_value(op2(OP_DIV, b, c), "[7, 4]", SAME, "both sides stretch");
  fails(op2(OP_ADD, x, number), "add: left is [batch, 7, 4], right is [2, 7, 4]: batch is not 2");
  fails(op2(OP_SUB, x, input("e2", BATCHED(3, 2, 7, 4), DT_FLOAT)),
        "sub: left is [batch, 7, 4], right is [batch*2, 7, 4]: batch is not batch*2");
  fails(op2(OP_ADD, x, input("e3", BATCHED(1, 1), DT_FLOAT)),
        "add: left is [batch, 7, 4], right is [batch]: 4 is not batch");
  fails(op2(OP_MUL, param("e4", PLAIN(2, 3, 1)), input("e5", BATCHED(1, 1), DT_FLOAT)),
        "mul: left is [3, 1], right is [batch]: the batch would not stay the outermost axis");
  fails(op2(OP_MUL, param("e6", PLAIN(4, 3, 1, 1, 1)), x),
        "mul: left is [3, 1, 1, 1], right is [batch, 7, 4]: the batch would not stay the outermost "
        "axis");
  is_value(op1(OP_RELU, x), "[batch, 7, 4]", SPLIT, "relu");
  is_value(op1(OP_SCALE, c), "[7, 1]", SAME, "scale");
  is_value(op1(OP_FILL, (ValueId){0}), "scalar", SAME, "a constant");
}

static void test_reshape(void) {
  const ValueId x = input("rx", BATCHED(3, 1, 6, 4), DT_FLOAT), w = param("rw", PLAIN(2, 6, 4));
  is_value(reshape(x, BATCHED(2, 6, 4)), "[batch*6, 4]", SPLIT,
           "reshape gathers axes at the batch");
  is_value(reshape(reshape(x, BATCHED(2, 6, 4)), BATCHED(3, 1, 6, 4)), "[batch, 6, 4]", SPLIT,
           "and back");
  is_value(reshape(x, BATCHED(2, 3, 8)), "[batch*3, 8]", SPLIT, "samples stay apart in any form");
  is_value(reshape(w, PLAIN(1, 24)), "[24]", SAME, "reshape of a parameter");
  is_int(graph_value(g, reshape(x, BATCHED(4, 1, 3, 2, 4)))->shape.axis[3], AXIS_FEATURE,
         "an axis that stays last keeps its name");
  fails(
      reshape(x, PLAIN(2, 6, 4)),
      "reshape: input is [batch, 6, 4], and [6, 4] has no batch: it must stay the outermost axis");
  fails(reshape(w, BATCHED(2, 6, 4)),
        "reshape: input is [6, 4], which has no batch, but [batch*6, 4] has");
  fails(reshape(x, BATCHED(2, 1, 23)),
        "reshape: [batch, 6, 4] has 24 elements a sample, [batch, 23] has 23");
  fails(reshape(x, BATCHED(2, 1, -1)), "reshape: axis 1 is -1; it must be at least 1");
  fails(reshape(w, PLAIN(3, INT64_C(1) << 30, INT64_C(1) << 30, 1)),
        "reshape: [1073741824, 1073741824, 1] has more than 2^48 elements");
}

static void test_moves(void) {
  const ValueId x = input("mx", BATCHED(3, 1, 6, 4), DT_FLOAT), w = param("mw", PLAIN(2, 6, 4));
  const ValueId ids = input("mids", BATCHED(2, 2, 7), DT_I32);
  const ValueId turned = op_with(OP_TRANSPOSE, x, 1, 2, 0);
  is_value(turned, "[batch, 4, 6]", SPLIT, "transpose");
  is_int(graph_value(g, turned)->shape.axis[1], AXIS_FEATURE, "names of axes go with them");
  is_value(op_with(OP_TRANSPOSE, w, 1, 0, 0), "[4, 6]", SAME, "transpose of a parameter");
  is_value(op_with(OP_TRANSPOSE, w, 1, 1, 0), "[6, 4]", SAME, "an axis with itself");
  const ValueId part = op_with(OP_SLICE, ids, 1, 2, 7);
  is_value(part, "[batch*2, 5]", SPLIT, "slice");
  is_int(graph_value(g, part)->dtype, DT_I32, "slices of ids are ids");
  is_value(op_with(OP_SLICE, w, 0, 0, 1), "[1, 4]", SAME, "slice of a parameter");
  is_value(op_with(OP_TRANSPOSE, op2(OP_MUL, op1(OP_SUM, x), w), 0, 1, 0), "[4, 6]", PARTIAL,
           "transpose of sums");
  fails(op_with(OP_TRANSPOSE, x, 0, 2, 0),
        "transpose: input is [batch, 6, 4]: axis 0 is the batch, which has to stay as it is");
  fails(op_with(OP_TRANSPOSE, x, 1, 3, 0),
        "transpose: input is [batch, 6, 4], which has no axis 3 (they count from 0)");
  fails(op_with(OP_SLICE, x, 0, 0, 1),
        "slice: input is [batch, 6, 4]: axis 0 is the batch, which has to stay as it is");
  fails(op_with(OP_SLICE, x, 1, 3, 7),
        "slice: input is [batch, 6, 4]: positions from 3 up to, not including, 7 of axis 1, which "
        "has 6 from 0");
  fails(op_with(OP_SLICE, x, 1, 2, 2),
        "slice: input is [batch, 6, 4]: positions from 2 up to, not including, 2 of axis 1, which "
        "has 6 from 0");
  fails(op_with(OP_SLICE, op1(OP_SUM, x), 0, 0, 1),
        "slice: input is scalar, which has no axis 0 (they count from 0)");
}

static void is_aux(ValueId v, const char *shape, const char *name) {
  char text[160] = "none";
  const Op *op = graph_op(g, graph_value(g, v)->op);
  if (op->aux.i != 0) shape_text(&graph_value(g, op->aux)->shape, text, sizeof text);
  is_str(text, shape, "%s: auxiliary output", name);
}

static void test_rows(void) {
  const ValueId x = input("nx", BATCHED(3, 1, 6, 4), DT_FLOAT),
                v = input("nv", BATCHED(1, 1), DT_FLOAT);
  const ValueId w = param("nw", PLAIN(1, 4)), long_w = param("nl", PLAIN(1, 5));
  const ValueId rms = op2(OP_RMSNORM, x, w), layer = op3(OP_LAYERNORM, x, w, w);
  is_value(rms, "[batch, 6, 4]", SPLIT, "rmsnorm");
  is_aux(rms, "[batch, 6]", "rmsnorm");
  is_value(layer, "[batch, 6, 4]", SPLIT, "layernorm");
  is_aux(layer, "[batch, 6, 2]", "layernorm");
  is_aux(op2(OP_LAYERNORM, w, w), "[2]", "layernorm of one row, without bias");
  is_aux(op1(OP_SOFTMAX, x), "none", "softmax");
  is_value(op1(OP_SOFTMAX, x), "[batch, 6, 4]", SPLIT, "softmax");
  is_value(op1(OP_GELU, x), "[batch, 6, 4]", SPLIT, "gelu");
  fails(op2(OP_RMSNORM, x, long_w), "rmsnorm: input is [batch, 6, 4], weight is [5]: 4 is not 5");
  fails(op3(OP_LAYERNORM, x, w, long_w),
        "layernorm: input is [batch, 6, 4], bias is [5]: 4 is not 5");
  fails(op2(OP_RMSNORM, v, w),
        "rmsnorm: input is [batch]: this would mix samples; only sum, mean and losses may combine "
        "those of the batch");
  fails(op1(OP_SOFTMAX, v),
        "softmax: input is [batch]: this would mix samples; only sum, mean and losses may combine "
        "those of the batch");
  fails(op2(OP_SWIGLU, x, w),
        "swiglu: gate is [batch, 6, 4], up is [4]: their numbers of axes differ");
}

static ValueId attention(ValueId q, ValueId k, ValueId v, double causal, double position) {
  ValueId y = {0};
  const OpSpec spec = {.kind = OP_ATTENTION, .in = {q, k, v}, .attrs = {{causal, position}}};
  err = (PiperErr){0};
  graph_add_op(g, &spec, 0, &y, &err);
  return y;
}

static void test_attention(void) {
  const ValueId q = input("aq", BATCHED(4, 1, 6, 4, 8), DT_FLOAT),
                k = input("ak", BATCHED(4, 1, 9, 2, 8), DT_FLOAT),
                v = input("av", BATCHED(4, 1, 9, 2, 8), DT_FLOAT);
  const ValueId y = attention(q, k, v, 1, 0);
  is_value(y, "[batch, 6, 4, 8]", SPLIT, "attention");
  is_aux(y, "[batch, 4, 6]", "attention");
  const ValueId p = param("ap", PLAIN(3, 5, 2, 4));
  is_value(attention(p, p, p, 0, 0), "[5, 2, 4]", SAME, "attention of parameters");
  fails(attention(q, k, input("a3", BATCHED(4, 1, 8, 2, 8), DT_FLOAT), 1, 0),
        "attention: keys are [batch, 9, 2, 8], values are [batch, 8, 2, 8]: 9 is not 8");
  fails(attention(q, input("a5", BATCHED(4, 1, 9, 2, 6), DT_FLOAT), v, 1, 0),
        "attention: queries are [batch, 6, 4, 8], keys are [batch, 9, 2, 6]: 8 is not 6");
  const ValueId odd = input("a6", BATCHED(4, 1, 9, 3, 8), DT_FLOAT);
  fails(attention(q, odd, odd, 1, 0), "attention: queries are [batch, 6, 4, 8], keys are [batch, 9, 3, 8]: "
                                      "3 heads of keys do not divide 4 heads of queries");
  fails(attention(q, p, p, 1, 0),
        "attention: queries are [batch, 6, 4, 8], keys are [5, 2, 4]: their leading axes differ");
  const ValueId rows = input("a7", BATCHED(3, 6, 4, 8), DT_FLOAT);
  fails(attention(rows, rows, rows, 1, 0),
        "attention: queries are [batch*6, 4, 8]: this would mix samples; only sum, mean and losses may "
        "combine those of the batch");
  fails(attention(op2(OP_MUL, op1(OP_SUM, q), p), p, p, 1, 0),
        "attention: queries are a sum over the batch; only linear ops may follow it, or splitting the batch "
        "would change the result");

  is_value(op_with(OP_ROPE, q, 10000, 0, 0), "[batch, 6, 4, 8]", SPLIT, "rope");
  is_value(op_with(OP_ROPE, op2(OP_MUL, op1(OP_SUM, q), p), 10000, 7, 0), "[5, 2, 4]", PARTIAL, "rope of sums");
  fails(op_with(OP_ROPE, input("r2", BATCHED(4, 1, 6, 4, 7), DT_FLOAT), 10000, 0, 0),
        "rope: input is [batch, 6, 4, 7]: pairs of the last axis are turned, and 7 is odd");
  fails(op_with(OP_ROPE, q, 0, 0, 0), "rope: base is 0, not a number above 0");
  fails(op_with(OP_ROPE, q, 10000, 999995, 0), "rope: input is [batch, 6, 4, 8]: there can be 1000000 positions");
  fails(op_with(OP_ROPE, rows, 10000, 0, 0),
        "rope: input is [batch*6, 4, 8]: this would mix samples; only sum, mean and losses may combine those "
        "of the batch");
  fails(op_with(OP_ROPE, input("r4", BATCHED(2, 1, 8), DT_FLOAT), 10000, 0, 0),
        "rope: input is [batch, 8]: at least 3 axes are needed");
}

/* What one call writes gradients to lies apart, and never in a parameter's. */
static void test_joint(void) {
  const ValueId x = input("jx", BATCHED(2, 1, 4), DT_FLOAT), w = param("jw", PLAIN(2, 3, 4));
  const ValueId h = op1(OP_RELU, x), flat = reshape(h, BATCHED(2, 1, 4));
  const Op *op = graph_op(g, graph_value(g, op2(OP_SWIGLU, h, x))->op);
  ok(op->in[0].i == h.i && op->in[1].i == x.i, "different operands enter as they are");
  op = graph_op(g, graph_value(g, op2(OP_SWIGLU, h, flat))->op);
  const Op *copy = graph_op(g, graph_value(g, op->in[1])->op);
  ok(op->in[0].i == h.i && copy->kind == OP_SCALE && copy->attrs.d[0] == 1,
     "the same value again, under whatever shape, is copied");
  op = graph_op(g, graph_value(g, op2(OP_SWIGLU, w, op1(OP_RELU, w)))->op);
  copy = graph_op(g, graph_value(g, op->in[0])->op);
  ok(copy->kind == OP_SCALE && copy->in[0].i == w.i, "so is a parameter");
}

static void test_dropout(void) {
  PiperErr own = {0};
  const ValueId x = input("dx", BATCHED(3, 2, 6, 4), DT_FLOAT), w = param("dw", PLAIN(1, 4));
  const OpSpec spec = {.kind = OP_DROPOUT, .in = {x}, .attrs = {{0.5}}};
  ValueId a, b;
  graph_add_op(g, &spec, 0, &a, &own);
  graph_add_op(g, &spec, 0, &b, &own);
  const Op *first = graph_op(g, graph_value(g, a)->op),
           *second = graph_op(g, graph_value(g, b)->op);
  ok(first->attrs.d[1] != second->attrs.d[1], "each dropout of a model has a number of its own");
  is_near(first->attrs.d[2], 48, 0, "and knows how many elements a sample has");
  const OpId of_w = graph_value(g, op_with(OP_DROPOUT, w, 0.5, 0, 0))->op;
  is_near(graph_op(g, of_w)->attrs.d[2], 0, 0, "0 where there is no batch");
  graph_enter(g, "EP", &own);
  fails(op_with(OP_DROPOUT, x, 0.5, 0, 0),
        "dropout: inside \"EP\", where experts see the tokens of all samples mixed: which sample "
        "one belongs to is not known there");
  graph_leave(g, "EP", &own);
}

#define COMBINE "; only linear ops may follow it, or splitting the batch would change the result"

static void test_sums(void) {
  const ValueId x = input("sx", BATCHED(2, 1, 4), DT_FLOAT),
                y = input("sy", BATCHED(2, 1, 3), DT_FLOAT);
  const ValueId w = param("sw", PLAIN(1, 3)), z = input("sz", BATCHED(1, 1), DT_FLOAT);
  const ValueId ids = input("sids", BATCHED(1, 1), DT_I32);
  const ValueId s = op1(OP_SUM, x);
  is_value(s, "scalar", PARTIAL, "a sum over samples");
  is_value(op1(OP_SUM, w), "scalar", SAME, "a sum of a parameter");
  is_value(op1(OP_SUM_SQUARES, x), "scalar", PARTIAL, "sum_squares");
  const ValueId m = op1(OP_MEAN, x);
  const Op *mean = graph_op(g, graph_value(g, m)->op);
  ok(mean->per_element_mean && mean->divisor_per_sample == 4, "mean divides by 4 a sample");
  is_value(op2(OP_MSE, x, x), "scalar", PARTIAL, "mse");
  const ValueId ce = op2(OP_CROSS_ENTROPY, y, ids);
  is_value(ce, "scalar", PARTIAL, "cross_entropy");
  is_near(graph_op(g, graph_value(g, ce)->op)->divisor_per_sample, 1, 0,
          "it divides by the targets");
  fails(op2(OP_MSE, x, y), "mse: left is [batch, 4], right is [batch, 3]: 4 is not 3");
  fails(op2(OP_MSE, x, z),
        "mse: left is [batch, 4], right is [batch]: their numbers of axes differ");
  fails(op2(OP_CROSS_ENTROPY, y, x), "cross_entropy: targets are floating point; they must be i32");
  fails(op2(OP_CROSS_ENTROPY, z, ids),
        "cross_entropy: logits are [batch]: this would mix samples; only sum, mean and losses may "
        "combine those of the batch");
  fails(op2(OP_CROSS_ENTROPY, reshape(y, BATCHED(2, 3, 1)), ids),
        "cross_entropy: logits are [batch*3, 1], targets are [batch]: batch*3 is not batch");

  is_value(op2(OP_ADD, s, m), "scalar", PARTIAL, "sums add up");
  is_value(op2(OP_MUL, s, w), "[3]", PARTIAL, "a sum times a parameter");
  is_value(op2(OP_DIV, s, w), "[3]", PARTIAL, "a sum divided by a parameter");
  is_value(op1(OP_SCALE, s), "scalar", PARTIAL, "a sum times a number");
  is_value(op1(OP_MEAN, op2(OP_MUL, s, w)), "scalar", PARTIAL, "a mean of sums");
  fails(op1(OP_RELU, s), "relu: input is a sum over the batch" COMBINE);
  fails(op1(OP_SUM_SQUARES, s), "sum_squares: input is a sum over the batch" COMBINE);
  fails(op2(OP_MUL, s, m),
        "mul: both operands are sums over the batch, and a product of them mixes samples" COMBINE);
  fails(op2(OP_MUL, s, s),
        "mul: both operands are sums over the batch, and a product of them mixes samples" COMBINE);
  fails(op2(OP_DIV, w, s), "div: right is a sum over the batch" COMBINE);
  fails(op2(OP_ADD, x, s),
        "add: right is a sum over the batch, left is a value for each sample: this mixes samples");
}

static void test_once(void) {
  const ValueId x = input("ox", BATCHED(2, 1, 4), DT_FLOAT), w = param("ow", PLAIN(1, 4));
  const ValueId s = op1(OP_SUM, x);
  const ValueId a = op2(OP_SUB, op1(OP_SUM, w), s);
  const Op *sub = graph_op(g, graph_value(g, a)->op);
  is_value(a, "scalar", PARTIAL, "a sum and a value that does not depend on the batch");
  is_int(graph_op(g, graph_value(g, sub->in[0])->op)->kind, OP_ONCE, "the latter enters once");
  is_int(sub->in[1].i, s.i, "the sum enters as it is");

  const ValueId p = op2(OP_MUL, s, w),
                l = op3(OP_LINEAR, p, param("ok", PLAIN(2, 2, 4)), param("ob", PLAIN(1, 2)));
  const Op *linear = graph_op(g, graph_value(g, l)->op);
  is_value(l, "[2]", PARTIAL, "a linear layer on a sum");
  is_int(graph_op(g, graph_value(g, linear->in[2])->op)->kind, OP_ONCE, "its bias enters once");
  is_int(graph_value(g, linear->in[1])->kind, VALUE_PARAM, "its weight enters as it is");
}

static void test_roles(void) {
  const AxesPattern linear = op_axes(OP_LINEAR), ce = op_axes(OP_CROSS_ENTROPY);
  is_int(op_axis_role(&linear, 0, 3, 0), ROLE_INDEPENDENT, "linear: rows are independent");
  is_int(op_axis_role(&linear, 0, 3, 2), ROLE_CONTRACTED, "linear: input features are summed");
  is_int(op_axis_role(&linear, 1, 2, 0), ROLE_INDEPENDENT,
         "linear: output features are independent");
  is_int(op_axis_role(&ce, 0, 2, 1), ROLE_MIXING, "cross_entropy: classes mix");
  is_int(op_axis_role(&ce, 0, 2, 0), ROLE_CONTRACTED, "cross_entropy: rows are summed");
}

static void test_cost(void) {
  const ValueId x = input("cx", BATCHED(3, 1, 7, 4), DT_FLOAT),
                ids = input("cids", BATCHED(2, 1, 7), DT_I32);
  const ValueId w = param("cw", PLAIN(2, 5, 4)), b = param("cb", PLAIN(1, 5));
  const OpId linear = graph_value(g, op3(OP_LINEAR, x, w, b))->op;
  OpCost c = graph_op_cost(g, linear, KERNEL_F, 0, 3, 4);
  is_near(c.flops, 2 * 3 * 7 * 4 * 5, 0, "linear: 2 flops a multiply-add");
  is_near(c.bytes, 4 * (3 * 7 * 4 + 20 + 5 + 3 * 7 * 5), 0, "linear: bytes");
  c = graph_op_cost(g, linear, KERNEL_B, 0, 3, 8);
  is_near(c.flops, 2 * 3 * 7 * 4 * 5, 0, "linear: as many for the input's gradient");
  is_near(c.bytes, 8 * (3 * 7 * 4 + 20 + 3 * 7 * 5), 0,
          "linear: the input's gradient does not read the input");
  is_near(graph_op_cost(g, linear, KERNEL_B, 2, 3, 4).flops, 3 * 7 * 5, 0, "linear: bias");
  const OpId embed = graph_value(g, op2(OP_EMBEDDING, ids, w))->op;
  c = graph_op_cost(g, embed, KERNEL_F, 0, 3, 8);
  is_near(c.bytes, 4 * 21 + 8 * 2 * 21 * 4, 0, "embedding: one row an id");
  c = graph_op_cost(g, embed, KERNEL_B, 0, 3, 8);
  ok(c.flops == 0 && c.bytes == 0, "ids have no gradient");
  c = graph_op_cost(g, graph_value(g, reshape(x, BATCHED(2, 7, 4)))->op, KERNEL_F, 0, 3, 4);
  ok(c.flops == 0 && c.bytes == 0, "a view costs nothing");
  const OpId norm = graph_value(g, op2(OP_RMSNORM, x, param("cn", PLAIN(1, 4))))->op;
  c = graph_op_cost(g, norm, KERNEL_F, 0, 3, 4);
  is_near(c.bytes, 4 * (2 * 3 * 7 * 4 + 4 + 3 * 7), 0, "statistics are written");
  const ValueId q = input("cq", BATCHED(4, 1, 7, 4, 6), DT_FLOAT), k = input("ck", BATCHED(4, 1, 9, 2, 6), DT_FLOAT);
  const double each = 4 * 4 * 6; /* 2 products for each pair of query and key and each head */
  OpId attend = graph_value(g, attention(q, k, k, 0, 0))->op;
  is_near(graph_op_cost(g, attend, KERNEL_F, 0, 3, 4).flops, 3 * each * 7 * 9, 0, "attention: two products");
  attend = graph_value(g, attention(q, k, k, 1, 0))->op;
  is_near(graph_op_cost(g, attend, KERNEL_F, 0, 3, 4).flops, 3 * each * 28, 0, "causal: of what is seen");
  attend = graph_value(g, attention(q, k, k, 1, 5))->op;
  is_near(graph_op_cost(g, attend, KERNEL_F, 0, 3, 4).flops, 3 * each * (6 + 7 + 8 + 9 * 4), 0, "from a position on");
  c = graph_op_cost(g, norm, KERNEL_B, 1, 3, 4);
  is_near(c.bytes, 4 * (2 * 3 * 7 * 4 + 4 + 3 * 7), 0, "and read by the gradient of the weight");
}

int main(void) {
  g = graph_new("test");
  if (g == NULL) bail("no memory");
  test_products();
  test_elementwise();
  test_reshape();
  test_moves();
  test_rows();
  test_attention();
  test_joint();
  test_dropout();
  test_sums();
  test_once();
  test_roles();
  test_cost();
  graph_free(g);
  return done_testing();
}
