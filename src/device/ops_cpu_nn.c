/* ops_cpu_nn.c - activations, norms, softmax, dropout. */
#include "device/ops_cpu_op.h"

#include "base/hash.h"

/* ---- activations ------------------------------------------------------------------------------- */

static void activation_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const bool gelu = o->call->op == OP_GELU;
  const void *x = op_at(o, 0, lo);
  void *to = op_at(o, TO(o), lo);
  (void)arg;
  (void)thread;
  if (backward(o))
    (gelu ? o->k->gelu_grad : o->k->silu_grad)(hi - lo, x, op_at(o, DY(1), lo), to, o->add);
  else (gelu ? o->k->gelu : o->k->silu)(hi - lo, x, to);
}

/* gelu, silu: the gradient reads the operand. */
PiperStatus run_activation(Op *o) {
  int from, to;
  TRY(unary(o, &from, &to));
  NEED(!backward(o) || (is(o, 0, (DType)arg(o, to)->dtype) && same_shape(o, 0, to)));
  COMPUTE();
  op_split(o, count(o, to), OP_LINE, 16, activation_part, NULL);
  return PIPER_OK;
}

enum { GATE, UP, SWIGLU_N };

/* The position, or NULL where it is absent. */
static void *swiglu_at(const Op *o, int i, int64_t at) {
  return has(o, i) ? op_at(o, i, at) : NULL;
}

static void swiglu_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  enum { N = SWIGLU_N };
  const void *gate = op_at(o, GATE, lo), *up = swiglu_at(o, UP, lo);
  (void)arg;
  (void)thread;
  if (!backward(o)) o->k->swiglu(hi - lo, gate, up, op_at(o, OUT(N), lo));
  else
    o->k->swiglu_grad(hi - lo, gate, up, op_at(o, DY(N), lo), swiglu_at(o, DX_JOINT(N, GATE), lo),
                      adds(o, GATE), swiglu_at(o, DX_JOINT(N, UP), lo), adds(o, UP));
}

PiperStatus run_swiglu(Op *o) {
  enum { N = SWIGLU_N };
  NEED(is_real(o, GATE));
  const DType t = (DType)arg(o, GATE)->dtype;
  if (!backward(o)) {
    NEED(is(o, UP, t) && same_shape(o, GATE, UP));
    NEED(is(o, OUT(N), t) && same_shape(o, GATE, OUT(N)));
  } else {
    const int dgate = DX_JOINT(N, GATE), dup = DX_JOINT(N, UP);
    NEED(is(o, DY(N), t) && same_shape(o, GATE, DY(N)) && (has(o, dgate) || has(o, dup)));
    NEED(!has(o, dgate) || (is(o, dgate, t) && same_shape(o, GATE, dgate)));
    NEED(!has(o, dgate) || (is(o, UP, t) && same_shape(o, GATE, UP)));
    NEED(!has(o, dup) || (is(o, dup, t) && same_shape(o, GATE, dup)));
  }
  COMPUTE();
  op_split(o, count(o, GATE), OP_LINE, 20, swiglu_part, NULL);
  return PIPER_OK;
}

/* ---- rows -------------------------------------------------------------------------------------- */

static void softmax_rows(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const int64_t n = last(o, TO(o), 0);
  const void *from = op_at(o, FROM(o), lo * n);
  void *to = op_at(o, TO(o), lo * n);
  (void)arg;
  (void)thread;
  if (backward(o)) o->k->softmax_grad(hi - lo, n, op_at(o, OUT(1), lo * n), from, to, o->add);
  else o->k->softmax(hi - lo, n, from, to);
}

PiperStatus run_softmax(Op *o) {
  int from, to;
  TRY(unary(o, &from, &to));
  NEED(arg(o, to)->rank >= 1);
  NEED(!backward(o) || (is(o, OUT(1), (DType)arg(o, to)->dtype) && same_shape(o, OUT(1), to)));
  COMPUTE();
  const int64_t n = last(o, to, 0);
  op_split(o, count(o, to) / n, 1, (backward(o) ? 5 : 12) * (double)n, softmax_rows, NULL);
  return PIPER_OK;
}

/* rmsnorm: n = 2 operands, 1 statistic of a row; layernorm: 3 and 2. */
enum { X, W, B };

static void norm_rows(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const int n = OP_INFO[o->call->op].n_operands, n_stats = n - 1;
  const int64_t width = last(o, X, 0), rows = hi - lo, at = lo * width;
  const double eps = o->call->attrs.d[0];
  const void *x = op_at(o, X, at), *w = o->at[W];
  void *stats = op_at(o, backward(o) ? AUX(n) : OUT_AUX(n), lo * n_stats);
  (void)arg;
  (void)thread;
  if (!backward(o)) {
    if (n == 2) o->k->rmsnorm(rows, width, eps, x, w, op_at(o, OUT(n), at), stats);
    else o->k->layernorm(rows, width, eps, x, w, o->at[B], op_at(o, OUT(n), at), stats);
    return;
  }
  const void *dy = op_at(o, DY(n), at);
  void *dx = op_at(o, DX(n), at);
  (n == 2 ? o->k->rmsnorm_grad : o->k->layernorm_grad)(rows, width, x, w, stats, dy, dx, o->add);
}

/* Gradients of weight and bias. */
static void norm_columns(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const int n = OP_INFO[o->call->op].n_operands;
  const int64_t width = last(o, DY(n), 0), rows = count(o, DY(n)) / width;
  const void *dy = op_at(o, DY(n), lo);
  void *to = op_at(o, DX(n), lo);
  (void)arg;
  (void)thread;
  if (o->call->wrt == B) o->k->column_sums(rows, hi - lo, width, dy, to, o->add);
  else
    o->k->norm_weight_grad(rows, hi - lo, width, op_at(o, X, lo), o->at[AUX(n)], n - 1, dy, to,
                           o->add);
}

PiperStatus run_rownorm(Op *o) {
  const int n = OP_INFO[o->call->op].n_operands, n_stats = n - 1, wrt = o->call->wrt;
  const int y = backward(o) ? DY(n) : OUT(n), stats = backward(o) ? AUX(n) : OUT_AUX(n);
  NEED(is_real(o, y) && arg(o, y)->rank >= 1);
  const DType t = (DType)arg(o, y)->dtype;
  const int64_t width = last(o, y, 0), rows = count(o, y) / width;
  const bool to_rows = !backward(o) || wrt == X;
  if (!backward(o)) {
    NEED(o->call->attrs.d[0] >= 0);
    NEED(n == 2 || !has(o, B) || (is(o, B, t) && count(o, B) == width));
  } else {
    NEED(is(o, DX(n), t) && (wrt == X ? same_shape(o, DX(n), y) : count(o, DX(n)) == width));
  }
  if (!backward(o) || wrt != B) {
    NEED(is(o, X, t) && same_shape(o, X, y) && is(o, stats, t));
    NEED(count(o, stats) == rows * n_stats);
  }
  NEED(!to_rows || (is(o, W, t) && count(o, W) == width));
  COMPUTE();
  if (to_rows) op_split(o, rows, 1, 6 * (double)width, norm_rows, NULL);
  else op_split(o, width, OP_LINE, 3 * (double)rows, norm_columns, NULL);
  return PIPER_OK;
}

/* ---- dropout ----------------------------------------------------------------------------------- */

static void dropout_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  DropoutMask mask = *(const DropoutMask *)arg;
  mask.first += (uint64_t)lo;
  (void)thread;
  o->k->dropout(hi - lo, &mask, op_at(o, FROM(o), lo), op_at(o, TO(o), lo), o->add);
}

/* Forward and backward are the same map. */
PiperStatus run_dropout(Op *o) {
  int from, to;
  const double p = o->call->attrs.d[0], op = o->call->attrs.d[1], per_sample = o->call->attrs.d[2];
  TRY(unary(o, &from, &to));
  NEED(p >= 0 && p < 1 && op >= 0 && op <= 0x1p32 && per_sample >= 0 && per_sample <= 0x1p48);
  COMPUTE();
  NEED(o->run->step != NULL);
  const StepBlock *step = o->run->step;
  Hash stream = HASH_START;
  hash_bytes(&stream, "dropout", 7);
  hash_u64(&stream, (uint64_t)op);
  hash_u64(&stream, (uint64_t)step->step);
  const DropoutMask mask = {.seed = step->seed,
                            .stream = hash_end(&stream),
                            .first = (uint64_t)o->run->sample_lo * (uint64_t)per_sample,
                            .threshold = (uint32_t)(p * 0x1p32),
                            .scale = 1 / (1 - p)};
  op_split(o, count(o, to), 64, 6, dropout_part, &mask);
  return PIPER_OK;
}
