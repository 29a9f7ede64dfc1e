/* op_case.h - an op on given shapes, its kernel calls, and its formula written down once more, the
 * plain way, in long double. */
#ifndef PIPER_TESTS_OP_CASE_H
#define PIPER_TESTS_OP_CASE_H

#include "base/kernel.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct OpShape {
  int rank;
  int64_t dim[SHAPE_MAX_RANK];
} OpShape;

#define SHAPE(...)                                                                                 \
  { sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), { __VA_ARGS__ } }
#define SCALAR                                                                                     \
  { 0, {0} }

typedef struct OpCase {
  OpKind op;
  OpShape in[3];
  OpShape out;
  double d0;     /* attrs.d[0] */
  bool no_bias;  /* LINEAR */
} OpCase;

static inline int64_t shape_count(const OpShape *s) {
  int64_t n = 1;
  for (int i = 0; i < s->rank; i++) n *= s->dim[i];
  return n;
}

static inline int case_operands(const OpCase *c) { return OP_INFO[c->op].n_operands; }

static inline bool case_operand_is_int(const OpCase *c, int i) {
  return (c->op == OP_EMBEDDING && i == 0) || (c->op == OP_CROSS_ENTROPY && i == 1);
}

/* Argument i of the call that is made of this case, and its element type. */
static inline const OpShape *case_arg_shape(const OpCase *c, int wrt, int i) {
  const int n = case_operands(c);
  return i < n ? &c->in[i] : i == n || i == n + 1 ? &c->out : &c->in[wrt];
}

/* Base i is argument i. Arguments that ops.def does not list for this gradient are absent. */
static inline KernelCall case_call(const OpCase *c, KernelPart part, int wrt, DType t) {
  const int n = case_operands(c);
  KernelCall call = {.op = (uint8_t)c->op, .part = (uint8_t)part, .wrt = (uint8_t)wrt,
                     .first_base = KERNEL_NO_BASE, .attrs = {{c->d0}},
                     .n_args = (uint16_t)(part == KERNEL_F ? n + 1 : n + 3)};
  const char *saves = part == KERNEL_B ? OP_INFO[c->op].saves[wrt] : "012y";
  for (int i = 0; i < call.n_args; i++) {
    KernelArg *a = &call.args[i];
    const OpShape *s = case_arg_shape(c, wrt, i);
    const char name = i < n ? (char)('0' + i) : 'y';
    const bool present = i > n || strchr(saves, name) != NULL;
    a->base = present && !(c->no_bias && i == 2) ? (uint16_t)i : KERNEL_NO_BASE;
    a->dtype = (uint8_t)(i < n && case_operand_is_int(c, i) ? DT_I32 : t);
    a->rank = (uint8_t)s->rank;
    memcpy(a->dim, s->dim, sizeof s->dim);
    if (a->base == KERNEL_NO_BASE) memset(a->dim, 0, sizeof a->dim), a->dtype = DT_NONE;
  }
  return call;
}

/* The index into an array of shape s of what a broadcast puts at element i of shape 'out'. */
static inline int64_t naive_broadcast(const OpShape *s, const OpShape *out, int64_t i) {
  int64_t index = 0, stride = 1;
  for (int d = 1; d <= out->rank; d++) {
    const int64_t size = out->dim[out->rank - d], at = i % size;
    i /= size;
    if (d > s->rank) continue;
    const int64_t own = s->dim[s->rank - d];
    index += (own == 1 ? 0 : at) * stride;
    stride *= own;
  }
  return index;
}

/* y = the op of operands x. Whole numbers stand for ids. */
static inline void naive_forward(const OpCase *c, long double *const x[3], long double *y) {
  const OpShape *a = &c->in[0], *b = &c->in[1];
  const int64_t n = shape_count(a), n_out = shape_count(&c->out);
  long double sum = 0;
  switch (c->op) {
  case OP_LINEAR: {
    const int64_t in = b->dim[1], out = b->dim[0];
    for (int64_t i = 0; i < n_out; i++) {
      y[i] = c->no_bias ? 0 : x[2][i % out];
      for (int64_t p = 0; p < in; p++) y[i] += x[0][i / out * in + p] * x[1][i % out * in + p];
    }
    break;
  }
  case OP_MATMUL: {
    const int64_t m = a->dim[a->rank - 2], k = a->dim[a->rank - 1], cols = b->dim[b->rank - 1];
    for (int64_t i = 0; i < n_out; i++) {
      const int64_t batch = b->rank == 2 ? 0 : i / (m * cols);
      y[i] = 0;
      for (int64_t p = 0; p < k; p++)
        y[i] += x[0][i / cols * k + p] * x[1][(batch * k + p) * cols + i % cols];
    }
    break;
  }
  case OP_EMBEDDING:
    for (int64_t i = 0; i < n_out; i++) {
      const int64_t width = b->dim[1];
      y[i] = x[1][(int64_t)x[0][i / width] * width + i % width];
    }
    break;
  case OP_ADD: case OP_SUB: case OP_MUL: case OP_DIV:
    for (int64_t i = 0; i < n_out; i++) {
      const long double u = x[0][naive_broadcast(a, &c->out, i)], v = x[1][naive_broadcast(b, &c->out, i)];
      y[i] = c->op == OP_ADD ? u + v : c->op == OP_SUB ? u - v : c->op == OP_MUL ? u * v : u / v;
    }
    break;
  case OP_RELU:
    for (int64_t i = 0; i < n; i++) y[i] = x[0][i] > 0 ? x[0][i] : 0;
    break;
  case OP_SCALE: case OP_RESHAPE: case OP_ONCE:
    for (int64_t i = 0; i < n; i++) y[i] = (c->op == OP_SCALE ? (long double)c->d0 : 1) * x[0][i];
    break;
  case OP_SUM: case OP_MEAN:
    for (int64_t i = 0; i < n; i++) sum += x[0][i];
    y[0] = c->op == OP_MEAN ? sum / c->d0 : sum;
    break;
  case OP_SUM_SQUARES:
    for (int64_t i = 0; i < n; i++) sum += x[0][i] * x[0][i];
    y[0] = sum;
    break;
  case OP_MSE:
    for (int64_t i = 0; i < n; i++) sum += (x[0][i] - x[1][i]) * (x[0][i] - x[1][i]);
    y[0] = sum / c->d0;
    break;
  case OP_CROSS_ENTROPY: {
    const int64_t classes = a->dim[a->rank - 1];
    for (int64_t r = 0; r < n / classes; r++) {
      const long double *row = x[0] + r * classes, target = row[(int64_t)x[1][r]];
      long double others = 0; /* -log(e^target / sum) = log(sum of e^(x - target)) */
      for (int64_t j = 0; j < classes; j++) others += expl(row[j] - target);
      sum += logl(others);
    }
    y[0] = sum / c->d0;
    break;
  }
  default: abort();
  }
}

/* Every op, in shapes with sizes 1, odd sizes, sizes beyond a vector and beyond a tile. */
static const OpCase OP_CASES[] = {
    {OP_LINEAR, {SHAPE(1, 1), SHAPE(1, 1), SHAPE(1)}, SHAPE(1, 1), 0, false},
    {OP_LINEAR, {SHAPE(3, 5), SHAPE(7, 5), SHAPE(7)}, SHAPE(3, 7), 0, false},
    {OP_LINEAR, {SHAPE(3, 5), SHAPE(7, 5), SCALAR}, SHAPE(3, 7), 0, true},
    {OP_LINEAR, {SHAPE(2, 3, 5), SHAPE(1, 5), SHAPE(1)}, SHAPE(2, 3, 1), 0, false},
    {OP_LINEAR, {SHAPE(5), SHAPE(4, 5), SHAPE(4)}, SHAPE(4), 0, false},
    {OP_LINEAR, {SHAPE(17, 12), SHAPE(37, 12), SHAPE(37)}, SHAPE(17, 37), 0, false},
    {OP_LINEAR, {SHAPE(2, 300), SHAPE(3, 300), SHAPE(3)}, SHAPE(2, 3), 0, false},
    {OP_MATMUL, {SHAPE(1, 1), SHAPE(1, 1)}, SHAPE(1, 1), 0, false},
    {OP_MATMUL, {SHAPE(4, 3), SHAPE(3, 5)}, SHAPE(4, 5), 0, false},
    {OP_MATMUL, {SHAPE(2, 4, 3), SHAPE(3, 5)}, SHAPE(2, 4, 5), 0, false},
    {OP_MATMUL, {SHAPE(2, 4, 3), SHAPE(2, 3, 5)}, SHAPE(2, 4, 5), 0, false},
    {OP_MATMUL, {SHAPE(2, 3, 1, 4), SHAPE(2, 3, 4, 1)}, SHAPE(2, 3, 1, 1), 0, false},
    {OP_MATMUL, {SHAPE(3, 17, 9), SHAPE(3, 9, 19)}, SHAPE(3, 17, 19), 0, false},
    {OP_EMBEDDING, {SHAPE(3), SHAPE(5, 7)}, SHAPE(3, 7), 0, false},
    {OP_EMBEDDING, {SHAPE(2, 4), SHAPE(3, 1)}, SHAPE(2, 4, 1), 0, false},
    {OP_EMBEDDING, {SHAPE(6), SHAPE(1, 33)}, SHAPE(6, 33), 0, false},
    {OP_RELU, {SHAPE(1)}, SHAPE(1), 0, false},
    {OP_RELU, {SHAPE(3, 7, 5)}, SHAPE(3, 7, 5), 0, false},
#define BROADCASTS(op)                                                                             \
  {op, {SHAPE(1), SHAPE(1)}, SHAPE(1), 0, false}, {op, {SCALAR, SCALAR}, SCALAR, 0, false},        \
  {op, {SHAPE(3, 4), SHAPE(3, 4)}, SHAPE(3, 4), 0, false},                                         \
  {op, {SHAPE(3, 4), SHAPE(4)}, SHAPE(3, 4), 0, false},                                            \
  {op, {SHAPE(4), SHAPE(3, 4)}, SHAPE(3, 4), 0, false},                                            \
  {op, {SHAPE(3, 4), SHAPE(3, 1)}, SHAPE(3, 4), 0, false},                                         \
  {op, {SHAPE(3, 1), SHAPE(1, 4)}, SHAPE(3, 4), 0, false},                                         \
  {op, {SCALAR, SHAPE(3, 4)}, SHAPE(3, 4), 0, false},                                              \
  {op, {SHAPE(3, 4), SCALAR}, SHAPE(3, 4), 0, false},                                              \
  {op, {SHAPE(2, 1, 4, 1), SHAPE(3, 1, 5)}, SHAPE(2, 3, 4, 5), 0, false},                          \
  {op, {SHAPE(2, 3, 4), SHAPE(1, 3, 1)}, SHAPE(2, 3, 4), 0, false},                                \
  {op, {SHAPE(2, 1, 4), SHAPE(2, 3, 4)}, SHAPE(2, 3, 4), 0, false},                                \
  {op, {SHAPE(1, 3, 1, 2, 1, 2), SHAPE(2, 1, 2, 1, 3, 1)}, SHAPE(2, 3, 2, 2, 3, 2), 0, false},     \
  {op, {SHAPE(3, 300), SHAPE(300)}, SHAPE(3, 300), 0, false},                                      \
  {op, {SHAPE(2, 300), SHAPE(2, 1)}, SHAPE(2, 300), 0, false},                                     \
  {op, {SHAPE(1), SHAPE(519)}, SHAPE(519), 0, false},                                              \
  {op, {SHAPE(519), SHAPE(519)}, SHAPE(519), 0, false}
    BROADCASTS(OP_ADD),
    BROADCASTS(OP_SUB),
    BROADCASTS(OP_MUL),
    BROADCASTS(OP_DIV),
#undef BROADCASTS
    {OP_SCALE, {SHAPE(1)}, SHAPE(1), -0.25, false},
    {OP_SCALE, {SHAPE(3, 13)}, SHAPE(3, 13), 3, false},
    {OP_RESHAPE, {SHAPE(2, 6)}, SHAPE(3, 4), 0, false},
    {OP_ONCE, {SHAPE(37)}, SHAPE(37), 0, false},
    {OP_SUM, {SCALAR}, SCALAR, 0, false},
    {OP_SUM, {SHAPE(3, 41)}, SCALAR, 0, false},
    {OP_MEAN, {SHAPE(1)}, SCALAR, 2, false},
    {OP_MEAN, {SHAPE(3, 41)}, SCALAR, 256, false},
    {OP_SUM_SQUARES, {SHAPE(1)}, SCALAR, 0, false},
    {OP_SUM_SQUARES, {SHAPE(5, 31)}, SCALAR, 0, false},
    {OP_MSE, {SHAPE(1), SHAPE(1)}, SCALAR, 1, false},
    {OP_MSE, {SHAPE(5, 31), SHAPE(5, 31)}, SCALAR, 512, false},
    {OP_CROSS_ENTROPY, {SHAPE(1, 1), SHAPE(1)}, SCALAR, 1, false},
    {OP_CROSS_ENTROPY, {SHAPE(5), SCALAR}, SCALAR, 1, false},
    {OP_CROSS_ENTROPY, {SHAPE(3, 5), SHAPE(3)}, SCALAR, 3, false},
    {OP_CROSS_ENTROPY, {SHAPE(2, 3, 70), SHAPE(2, 3)}, SCALAR, 24, false},
    {OP_CROSS_ENTROPY, {SHAPE(2, 300), SHAPE(2)}, SCALAR, 8, false},
};
enum { N_OP_CASES = sizeof OP_CASES / sizeof *OP_CASES };

#endif
