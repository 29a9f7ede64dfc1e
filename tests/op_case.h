/* op_case.h - an op on given shapes, its kernel calls, and its formula written down once more, the
 * plain way, in long double. */
#ifndef PIPER_TESTS_OP_CASE_H
#define PIPER_TESTS_OP_CASE_H

#include "base/hash.h"
#include "base/kernel.h"
#include "base/rng.h"

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
  double d0, d1, d2; /* attrs.d */
  bool no_bias;      /* LINEAR, LAYERNORM: operand 2 is absent */
} OpCase;

/* The step that random masks are made for, and the first sample of a part of the batch. */
static const StepBlock CASE_STEP = {.step = 5, .seed = UINT64_C(0x123456789abcdef)};
enum { CASE_SAMPLE_LO = 3 };

static inline int64_t shape_count(const OpShape *s) {
  int64_t n = 1;
  for (int i = 0; i < s->rank; i++) n *= s->dim[i];
  return n;
}

static inline int case_operands(const OpCase *c) { return OP_INFO[c->op].n_operands; }

static inline bool case_operand_is_int(const OpCase *c, int i) {
  return (c->op == OP_EMBEDDING && i == 0) || (c->op == OP_CROSS_ENTROPY && i == 1);
}

static inline bool case_is_joint(const OpCase *c) { return OP_INFO[c->op].flags & OPF_JOINT; }

/* The auxiliary output: of attention a number for each sample, head and query, otherwise so many for
 * each row of operand 0. */
static inline OpShape case_aux(const OpCase *c) {
  if (c->op == OP_ATTENTION) {
    const OpShape *q = &c->in[0];
    OpShape aux = *q;
    aux.rank--;
    aux.dim[aux.rank - 1] = q->dim[q->rank - 3];
    aux.dim[aux.rank - 2] = q->dim[q->rank - 2];
    return aux;
  }
  const int64_t each = c->op == OP_LAYERNORM ? 2 : 1;
  return (OpShape){2, {shape_count(&c->in[0]) / c->in[0].dim[c->in[0].rank - 1], each}};
}

/* What argument i of a call stands for: '0' to '2' operands, 'y' the output, 'a' the auxiliary one, 'd'
 * dy, 'A' to 'C' the gradient of an operand; 0: nothing. */
static inline char case_arg(const OpCase *c, KernelPart part, int wrt, int i) {
  const int n = case_operands(c);
  const bool aux = OP_INFO[c->op].flags & OPF_AUX;
  if (i < n) return (char)('0' + i);
  if (i == n) return 'y';
  if (part == KERNEL_F) return i == n + 1 && aux ? 'a' : 0;
  if (i == n + 1) return 'd';
  if (i == n + 2) return case_is_joint(c) ? 0 : (char)('A' + wrt);
  if (i == n + 3) return aux ? 'a' : 0;
  return case_is_joint(c) && i < n + 4 + n ? (char)('A' + i - n - 4) : 0;
}

static inline OpShape case_arg_shape(const OpCase *c, char arg) {
  return arg == 'y' || arg == 'd' ? c->out
         : arg == 'a'             ? case_aux(c)
                                  : c->in[arg >= 'A' ? arg - 'A' : arg - '0'];
}

/* Base i is argument i. Arguments that ops.def does not list for this gradient are absent. With 'all' a
 * joint op gives all its gradients, otherwise that of operand 'wrt'. */
static inline KernelCall case_call(const OpCase *c, KernelPart part, int wrt, bool all, DType t) {
  KernelCall call = {.op = (uint8_t)c->op,
                     .part = (uint8_t)part,
                     .wrt = (uint8_t)wrt,
                     .first_base = KERNEL_NO_BASE,
                     .attrs = {{c->d0, c->d1, c->d2}}};
  if (part == KERNEL_B && case_is_joint(c)) call.wrt = KERNEL_WRT_ALL;
  for (int i = 0; i < KERNEL_MAX_ARGS; i++) {
    KernelArg *a = &call.args[i];
    const char what = case_arg(c, part, wrt, i);
    bool read = part == KERNEL_F || what == 'd';
    for (int w = 0; part == KERNEL_B && w < case_operands(c); w++) {
      if (w != wrt && !(all && case_is_joint(c))) continue;
      read |= (what != 0 && strchr(OP_INFO[c->op].saves[w], what) != NULL) || what == 'A' + w;
    }
    a->base = KERNEL_NO_BASE;
    if (what == 0 || !read || (c->no_bias && what == '2')) continue;
    call.n_args = (uint16_t)(i + 1);
    const OpShape s = case_arg_shape(c, what);
    a->base = (uint16_t)i;
    a->dtype = (uint8_t)(what <= '2' && case_operand_is_int(c, what - '0') ? DT_I32 : t);
    a->rank = (uint8_t)s.rank;
    memcpy(a->dim, s.dim, sizeof s.dim);
  }
  return call;
}

/* Where the gradient of operand 'wrt' is. */
static inline int case_destination(const OpCase *c, KernelPart part, int wrt) {
  const int n = case_operands(c);
  return part == KERNEL_F ? n : case_is_joint(c) ? n + 4 + wrt : n + 2;
}

/* A word of the mask of the dropout numbered 'op': kept where it is at least p 2^32. Numbers are dealt
 * out 64 by 64, the words of 16 blocks of Philox, first words first. */
static inline uint32_t naive_random(double op, uint64_t i) {
  const uint64_t block = i / 64 * 16 + i % 16;
  Hash h = HASH_START;
  hash_bytes(&h, "dropout", 7);
  hash_u64(&h, (uint64_t)op);
  hash_u64(&h, (uint64_t)CASE_STEP.step);
  const uint64_t stream = hash_end(&h);
  const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                               (uint32_t)(stream >> 32)};
  const uint32_t key[2] = {(uint32_t)CASE_STEP.seed, (uint32_t)(CASE_STEP.seed >> 32)};
  uint32_t out[4];
  rng_philox(counter, key, out);
  return out[i % 64 / 16];
}

/* Mean and 1 / deviation of a row as a norm sees it. */
static inline void naive_stats(const OpCase *c, const long double *x, int64_t n,
                               long double stats[2]) {
  long double mean = 0, square = 0;
  for (int64_t i = 0; i < n && c->op == OP_LAYERNORM; i++) mean += x[i] / (long double)n;
  for (int64_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / (long double)n;
  stats[0] = mean;
  stats[1] = 1 / sqrtl(square + c->d0);
}

/* Row 'row' of attention ([sample][position][head]): y, and its log-sum-exp as the result. */
static inline long double naive_attention(const OpCase *c, long double *const x[3], int64_t row,
                                          long double *y) {
  const OpShape *q = &c->in[0], *k = &c->in[1];
  const int64_t width = q->dim[q->rank - 1], heads = q->dim[q->rank - 2];
  const int64_t queries = q->dim[q->rank - 3];
  const int64_t kv_heads = k->dim[k->rank - 2], keys = k->dim[k->rank - 3];
  const int64_t head = row % heads / (heads / kv_heads), query = row / heads % queries;
  const int64_t first = (row / heads / queries * keys * kv_heads + head) * width;
  long double sum = 0;
  for (int64_t i = 0; i < width; i++) y[i] = 0;
  for (int64_t j = 0; j < keys && !(c->d0 != 0 && c->d2 + j > c->d1 + query); j++) {
    const int64_t at = first + j * kv_heads * width;
    long double score = 0;
    for (int64_t i = 0; i < width; i++) score += x[0][row * width + i] * x[1][at + i];
    const long double e = expl(score / sqrtl(width));
    sum += e;
    for (int64_t i = 0; i < width; i++) y[i] += e * x[2][at + i];
  }
  for (int64_t i = 0; i < width && sum > 0; i++) y[i] /= sum;
  return logl(sum);
}

static inline void naive_aux(const OpCase *c, long double *const x[3], long double *aux) {
  const int64_t n = c->in[0].dim[c->in[0].rank - 1];
  for (int64_t i = 0; i < shape_count(&c->in[0]) / n; i++) {
    if (c->op == OP_ATTENTION) {
      const int64_t heads = c->in[0].dim[c->in[0].rank - 2];
      const int64_t queries = c->in[0].dim[c->in[0].rank - 3], sample = i / heads / queries;
      long double y[n];
      aux[(sample * heads + i % heads) * queries + i / heads % queries] = naive_attention(c, x, i, y);
      continue;
    }
    long double stats[2];
    naive_stats(c, x[0] + i * n, n, stats);
    if (c->op == OP_LAYERNORM) aux[2 * i] = stats[0], aux[2 * i + 1] = stats[1];
    else aux[i] = stats[1];
  }
}

/* The index into x of element i of y, row-major, where axes d0 and d1 are exchanged or axis d0 begins at
 * d1. */
static inline int64_t naive_moved(const OpCase *c, int64_t i) {
  const int first = (int)c->d0, second = (int)c->d1;
  int64_t at[SHAPE_MAX_RANK] = {0}, index = 0;
  for (int d = c->out.rank - 1; d >= 0; d--) {
    at[d] = i % c->out.dim[d];
    i /= c->out.dim[d];
  }
  if (c->op == OP_TRANSPOSE) {
    const int64_t kept = at[first];
    at[first] = at[second];
    at[second] = kept;
  } else {
    at[first] += (int64_t)c->d1;
  }
  for (int d = 0; d < c->in[0].rank; d++) index = index * c->in[0].dim[d] + at[d];
  return index;
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
  case OP_GELU:
    for (int64_t i = 0; i < n; i++) y[i] = x[0][i] * (1 + erfl(x[0][i] / sqrtl(2))) / 2;
    break;
  case OP_SILU:
    for (int64_t i = 0; i < n; i++) y[i] = x[0][i] / (1 + expl(-x[0][i]));
    break;
  case OP_SWIGLU:
    for (int64_t i = 0; i < n; i++) y[i] = x[0][i] / (1 + expl(-x[0][i])) * x[1][i];
    break;
  case OP_SOFTMAX: {
    const int64_t width = a->dim[a->rank - 1];
    for (int64_t i = 0; i < n; i++) {
      if (i % width == 0) sum = 0;
      for (int64_t j = i; i % width == 0 && j < i + width; j++) sum += expl(x[0][j]);
      y[i] = expl(x[0][i]) / sum;
    }
    break;
  }
  case OP_RMSNORM:
  case OP_LAYERNORM: {
    const int64_t width = a->dim[a->rank - 1];
    long double stats[2] = {0, 0};
    for (int64_t i = 0; i < n; i++) {
      if (i % width == 0) naive_stats(c, x[0] + i, width, stats);
      y[i] = (x[0][i] - stats[0]) * stats[1] * x[1][i % width];
      if (c->op == OP_LAYERNORM && !c->no_bias) y[i] += x[2][i % width];
    }
    break;
  }
  case OP_ROPE: {
    const int64_t width = a->dim[a->rank - 1], heads = a->dim[a->rank - 2];
    const int64_t positions = a->dim[a->rank - 3];
    for (int64_t i = 0; i < n; i++) {
      const int64_t at = i % width, pair = at % (width / 2);
      const long double position = c->d1 + i / width / heads % positions;
      const long double angle = position * powl(c->d0, -2.0L * pair / width);
      const long double other = at == pair ? -x[0][i + width / 2] : x[0][i - width / 2];
      y[i] = x[0][i] * cosl(angle) + other * sinl(angle);
    }
    break;
  }
  case OP_ATTENTION: {
    const int64_t width = a->dim[a->rank - 1];
    for (int64_t row = 0; row < n / width; row++) naive_attention(c, x, row, y + row * width);
    break;
  }
  case OP_DROPOUT:
    for (int64_t i = 0; i < n; i++) {
      const uint64_t at = CASE_SAMPLE_LO * (uint64_t)c->d2 + (uint64_t)i;
      const bool kept = naive_random(c->d1, at) >= c->d0 * 0x1p32;
      y[i] = kept ? x[0][i] / (1 - (long double)c->d0) : 0;
    }
    break;
  case OP_TRANSPOSE:
  case OP_SLICE:
    for (int64_t i = 0; i < n_out; i++) y[i] = x[0][naive_moved(c, i)];
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
      if (c->d2 != 0 && x[1][r] == c->d1) continue;
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
    {OP_LINEAR, {SHAPE(1, 1), SHAPE(1, 1), SHAPE(1)}, SHAPE(1, 1), .d0 = 0},
    {OP_LINEAR, {SHAPE(3, 5), SHAPE(7, 5), SHAPE(7)}, SHAPE(3, 7), .d0 = 0},
    {OP_LINEAR, {SHAPE(3, 5), SHAPE(7, 5), SCALAR}, SHAPE(3, 7), .no_bias = true},
    {OP_LINEAR, {SHAPE(2, 3, 5), SHAPE(1, 5), SHAPE(1)}, SHAPE(2, 3, 1), .d0 = 0},
    {OP_LINEAR, {SHAPE(5), SHAPE(4, 5), SHAPE(4)}, SHAPE(4), .d0 = 0},
    {OP_LINEAR, {SHAPE(17, 12), SHAPE(37, 12), SHAPE(37)}, SHAPE(17, 37), .d0 = 0},
    {OP_LINEAR, {SHAPE(2, 300), SHAPE(3, 300), SHAPE(3)}, SHAPE(2, 3), .d0 = 0},
    {OP_MATMUL, {SHAPE(1, 1), SHAPE(1, 1)}, SHAPE(1, 1), .d0 = 0},
    {OP_MATMUL, {SHAPE(4, 3), SHAPE(3, 5)}, SHAPE(4, 5), .d0 = 0},
    {OP_MATMUL, {SHAPE(2, 4, 3), SHAPE(3, 5)}, SHAPE(2, 4, 5), .d0 = 0},
    {OP_MATMUL, {SHAPE(2, 4, 3), SHAPE(2, 3, 5)}, SHAPE(2, 4, 5), .d0 = 0},
    {OP_MATMUL, {SHAPE(2, 3, 1, 4), SHAPE(2, 3, 4, 1)}, SHAPE(2, 3, 1, 1), .d0 = 0},
    {OP_MATMUL, {SHAPE(3, 17, 9), SHAPE(3, 9, 19)}, SHAPE(3, 17, 19), .d0 = 0},
    {OP_EMBEDDING, {SHAPE(3), SHAPE(5, 7)}, SHAPE(3, 7), .d0 = 0},
    {OP_EMBEDDING, {SHAPE(2, 4), SHAPE(3, 1)}, SHAPE(2, 4, 1), .d0 = 0},
    {OP_EMBEDDING, {SHAPE(6), SHAPE(1, 33)}, SHAPE(6, 33), .d0 = 0},
    {OP_RELU, {SHAPE(1)}, SHAPE(1), .d0 = 0},
    {OP_RELU, {SHAPE(3, 7, 5)}, SHAPE(3, 7, 5), .d0 = 0},
    {OP_GELU, {SHAPE(1)}, SHAPE(1), .d0 = 0},
    {OP_GELU, {SHAPE(3, 7, 5)}, SHAPE(3, 7, 5), .d0 = 0},
    {OP_SILU, {SHAPE(1)}, SHAPE(1), .d0 = 0},
    {OP_SILU, {SHAPE(3, 7, 5)}, SHAPE(3, 7, 5), .d0 = 0},
    {OP_SWIGLU, {SHAPE(1), SHAPE(1)}, SHAPE(1), .d0 = 0},
    {OP_SWIGLU, {SHAPE(2, 41), SHAPE(2, 41)}, SHAPE(2, 41), .d0 = 0},
#define ROWS(op)                                                                                   \
  {op, {SHAPE(1)}, SHAPE(1), .d0 = 0}, {op, {SHAPE(3, 1)}, SHAPE(3, 1), .d0 = 0},                  \
  {op, {SHAPE(2, 15)}, SHAPE(2, 15), .d0 = 0}, {op, {SHAPE(2, 16)}, SHAPE(2, 16), .d0 = 0},        \
  {op, {SHAPE(2, 2, 17)}, SHAPE(2, 2, 17), .d0 = 0}, {op, {SHAPE(2, 63)}, SHAPE(2, 63), .d0 = 0},  \
  {op, {SHAPE(2, 64)}, SHAPE(2, 64), .d0 = 0}, {op, {SHAPE(2, 65)}, SHAPE(2, 65), .d0 = 0},        \
  {op, {SHAPE(255)}, SHAPE(255), .d0 = 0}, {op, {SHAPE(256)}, SHAPE(256), .d0 = 0},                \
  {op, {SHAPE(257)}, SHAPE(257), .d0 = 0}, {op, {SHAPE(2, 300)}, SHAPE(2, 300), .d0 = 0}
    ROWS(OP_SOFTMAX),
#undef ROWS
#define NORMS(op, absent)                                                                          \
  {op, {SHAPE(1), SHAPE(1), SHAPE(1)}, SHAPE(1), .d0 = 0.25, .no_bias = absent},                   \
      {op, {SHAPE(3, 2), SHAPE(2), SHAPE(2)}, SHAPE(3, 2), .d0 = 0.25, .no_bias = absent},         \
      {op, {SHAPE(2, 3, 5), SHAPE(5), SHAPE(5)}, SHAPE(2, 3, 5), .d0 = 0.05, .no_bias = absent},   \
      {op, {SHAPE(2, 15), SHAPE(15), SHAPE(15)}, SHAPE(2, 15), .d0 = 1e-5, .no_bias = absent},     \
      {op, {SHAPE(2, 16), SHAPE(16), SHAPE(16)}, SHAPE(2, 16), .d0 = 1e-5, .no_bias = absent},     \
      {op, {SHAPE(9, 33), SHAPE(33), SHAPE(33)}, SHAPE(9, 33), .d0 = 1e-5, .no_bias = absent}, {   \
    op, {SHAPE(3, 71), SHAPE(71), SHAPE(71)}, SHAPE(3, 71), .d0 = 0.25, .no_bias = absent          \
  }
    NORMS(OP_RMSNORM, true),
    {OP_RMSNORM, {SHAPE(2, 31), SHAPE(31)}, SHAPE(2, 31), .d0 = 1e-5},
    {OP_RMSNORM, {SHAPE(2, 32), SHAPE(32)}, SHAPE(2, 32), .d0 = 1e-5},
    {OP_RMSNORM, {SHAPE(2, 36), SHAPE(36)}, SHAPE(2, 36), .d0 = 1e-5},
    {OP_RMSNORM, {SHAPE(2, 64), SHAPE(64)}, SHAPE(2, 64), .d0 = 1e-5},
    NORMS(OP_LAYERNORM, false),
    NORMS(OP_LAYERNORM, true),
#undef NORMS
    {OP_ROPE, {SHAPE(1, 1, 2)}, SHAPE(1, 1, 2), .d0 = 10000, .d1 = 0},
    {OP_ROPE, {SHAPE(5, 3, 6)}, SHAPE(5, 3, 6), .d0 = 10000, .d1 = 0},
    {OP_ROPE, {SHAPE(2, 3, 7, 2, 10)}, SHAPE(2, 3, 7, 2, 10), .d0 = 1e6, .d1 = 100},
    {OP_ROPE, {SHAPE(2, 9, 1, 64)}, SHAPE(2, 9, 1, 64), .d0 = 10000, .d1 = 3},
#define ATTENTION(queries, keys, heads, kv_heads, width, ...)                                      \
  {OP_ATTENTION,                                                                                   \
   {SHAPE(2, queries, heads, width), SHAPE(2, keys, kv_heads, width),                              \
    SHAPE(2, keys, kv_heads, width)},                                                              \
   SHAPE(2, queries, heads, width), __VA_ARGS__}
    ATTENTION(1, 1, 1, 1, 1, .d0 = 0),
    ATTENTION(5, 5, 2, 2, 3, .d0 = 1),
    ATTENTION(5, 9, 4, 2, 2, .d0 = 0),
    ATTENTION(3, 8, 2, 1, 4, .d0 = 1, .d1 = 9, .d2 = 4),
    ATTENTION(6, 4, 1, 1, 2, .d0 = 1, .d1 = 3, .d2 = 3),
    ATTENTION(17, 17, 1, 1, 1, .d0 = 1),
    ATTENTION(3, 2, 1, 1, 64, .d0 = 1),
    ATTENTION(2, 3, 1, 1, 80, .d0 = 0),
#undef ATTENTION
    {OP_ATTENTION, {SHAPE(4, 2, 3), SHAPE(4, 1, 3), SHAPE(4, 1, 3)}, SHAPE(4, 2, 3), .d0 = 1},
    {OP_DROPOUT, {SHAPE(1)}, SHAPE(1), .d0 = 0.5, .d1 = 3, .d2 = 1},
    {OP_DROPOUT, {SHAPE(2, 5)}, SHAPE(2, 5), .d0 = 0, .d1 = 3, .d2 = 5},
    {OP_DROPOUT, {SHAPE(3, 7, 13)}, SHAPE(3, 7, 13), .d0 = 0.3, .d1 = 4, .d2 = 91},
    {OP_DROPOUT, {SHAPE(300)}, SHAPE(300), .d0 = 0.9, .d1 = 4, .d2 = 0},
    {OP_DROPOUT, {SHAPE(2, 64)}, SHAPE(2, 64), .d0 = 0.1, .d1 = 1e6, .d2 = 64},
    {OP_TRANSPOSE, {SHAPE(1, 1)}, SHAPE(1, 1), .d0 = 0, .d1 = 1},
    {OP_TRANSPOSE, {SHAPE(3, 5)}, SHAPE(5, 3), .d0 = 0, .d1 = 1},
    {OP_TRANSPOSE, {SHAPE(3, 5)}, SHAPE(3, 5), .d0 = 1, .d1 = 1},
    {OP_TRANSPOSE, {SHAPE(8, 8)}, SHAPE(8, 8), .d0 = 1, .d1 = 0},
    {OP_TRANSPOSE, {SHAPE(70, 19)}, SHAPE(19, 70), .d0 = 0, .d1 = 1},
    {OP_TRANSPOSE, {SHAPE(63, 7)}, SHAPE(7, 63), .d0 = 0, .d1 = 1},
    {OP_TRANSPOSE, {SHAPE(64, 4)}, SHAPE(4, 64), .d0 = 0, .d1 = 1},
    {OP_TRANSPOSE, {SHAPE(65, 9)}, SHAPE(9, 65), .d0 = 0, .d1 = 1},
    {OP_TRANSPOSE, {SHAPE(3, 128)}, SHAPE(128, 3), .d0 = 0, .d1 = 1},
    {OP_TRANSPOSE, {SHAPE(2, 9, 17)}, SHAPE(2, 17, 9), .d0 = 2, .d1 = 1},
    {OP_TRANSPOSE, {SHAPE(2, 3, 4, 5)}, SHAPE(2, 4, 3, 5), .d0 = 1, .d1 = 2},
    {OP_TRANSPOSE, {SHAPE(2, 9, 3, 10)}, SHAPE(2, 10, 3, 9), .d0 = 1, .d1 = 3},
    {OP_TRANSPOSE, {SHAPE(3, 2, 4, 1, 2)}, SHAPE(4, 2, 3, 1, 2), .d0 = 0, .d1 = 2},
    {OP_SLICE, {SHAPE(1)}, SHAPE(1), .d0 = 0, .d1 = 0, .d2 = 1},
    {OP_SLICE, {SHAPE(7)}, SHAPE(3), .d0 = 0, .d1 = 2, .d2 = 5},
    {OP_SLICE, {SHAPE(3, 7)}, SHAPE(3, 7), .d0 = 1, .d1 = 0, .d2 = 7},
    {OP_SLICE, {SHAPE(3, 7)}, SHAPE(3, 1), .d0 = 1, .d1 = 6, .d2 = 7},
    {OP_SLICE, {SHAPE(2, 5, 3, 2)}, SHAPE(2, 2, 3, 2), .d0 = 1, .d1 = 1, .d2 = 3},
    {OP_SLICE, {SHAPE(4, 33)}, SHAPE(2, 33), .d0 = 0, .d1 = 0, .d2 = 2},
#define BROADCASTS(op)                                                                             \
  {op, {SHAPE(1), SHAPE(1)}, SHAPE(1), .d0 = 0}, {op, {SCALAR, SCALAR}, SCALAR, .d0 = 0},          \
      {op, {SHAPE(3, 4), SHAPE(3, 4)}, SHAPE(3, 4), .d0 = 0},                                      \
      {op, {SHAPE(3, 4), SHAPE(4)}, SHAPE(3, 4), .d0 = 0},                                         \
      {op, {SHAPE(4), SHAPE(3, 4)}, SHAPE(3, 4), .d0 = 0},                                         \
      {op, {SHAPE(3, 4), SHAPE(3, 1)}, SHAPE(3, 4), .d0 = 0},                                      \
      {op, {SHAPE(3, 1), SHAPE(1, 4)}, SHAPE(3, 4), .d0 = 0},                                      \
      {op, {SCALAR, SHAPE(3, 4)}, SHAPE(3, 4), .d0 = 0},                                           \
      {op, {SHAPE(3, 4), SCALAR}, SHAPE(3, 4), .d0 = 0},                                           \
      {op, {SHAPE(2, 1, 4, 1), SHAPE(3, 1, 5)}, SHAPE(2, 3, 4, 5), .d0 = 0},                       \
      {op, {SHAPE(2, 3, 4), SHAPE(1, 3, 1)}, SHAPE(2, 3, 4), .d0 = 0},                             \
      {op, {SHAPE(2, 1, 4), SHAPE(2, 3, 4)}, SHAPE(2, 3, 4), .d0 = 0},                             \
      {op, {SHAPE(1, 3, 1, 2, 1, 2), SHAPE(2, 1, 2, 1, 3, 1)}, SHAPE(2, 3, 2, 2, 3, 2), .d0 = 0},  \
      {op, {SHAPE(3, 300), SHAPE(300)}, SHAPE(3, 300), .d0 = 0},                                   \
      {op, {SHAPE(2, 300), SHAPE(2, 1)}, SHAPE(2, 300), .d0 = 0},                                  \
      {op, {SHAPE(1), SHAPE(519)}, SHAPE(519), .d0 = 0}, {                                         \
    op, {SHAPE(519), SHAPE(519)}, SHAPE(519), .d0 = 0                                              \
  }
    BROADCASTS(OP_ADD),
    BROADCASTS(OP_SUB),
    BROADCASTS(OP_MUL),
    BROADCASTS(OP_DIV),
#undef BROADCASTS
    {OP_SCALE, {SHAPE(1)}, SHAPE(1), .d0 = -0.25},
    {OP_SCALE, {SHAPE(3, 13)}, SHAPE(3, 13), .d0 = 3},
    {OP_RESHAPE, {SHAPE(2, 6)}, SHAPE(3, 4), .d0 = 0},
    {OP_ONCE, {SHAPE(37)}, SHAPE(37), .d0 = 0},
    {OP_SUM, {SCALAR}, SCALAR, .d0 = 0},
    {OP_SUM, {SHAPE(3, 41)}, SCALAR, .d0 = 0},
    {OP_MEAN, {SHAPE(1)}, SCALAR, .d0 = 2},
    {OP_MEAN, {SHAPE(3, 41)}, SCALAR, .d0 = 256},
    {OP_SUM_SQUARES, {SHAPE(1)}, SCALAR, .d0 = 0},
    {OP_SUM_SQUARES, {SHAPE(5, 31)}, SCALAR, .d0 = 0},
    {OP_MSE, {SHAPE(1), SHAPE(1)}, SCALAR, .d0 = 1},
    {OP_MSE, {SHAPE(5, 31), SHAPE(5, 31)}, SCALAR, .d0 = 512},
    {OP_CROSS_ENTROPY, {SHAPE(1, 1), SHAPE(1)}, SCALAR, .d0 = 1},
    {OP_CROSS_ENTROPY, {SHAPE(5), SCALAR}, SCALAR, .d0 = 1},
    {OP_CROSS_ENTROPY, {SHAPE(3, 5), SHAPE(3)}, SCALAR, .d0 = 3},
    {OP_CROSS_ENTROPY, {SHAPE(2, 3, 70), SHAPE(2, 3)}, SCALAR, .d0 = 24},
    {OP_CROSS_ENTROPY, {SHAPE(2, 64), SHAPE(2)}, SCALAR, .d0 = 2},
    {OP_CROSS_ENTROPY, {SHAPE(255), SCALAR}, SCALAR, .d0 = 1},
    {OP_CROSS_ENTROPY, {SHAPE(256), SCALAR}, SCALAR, .d0 = 1},
    {OP_CROSS_ENTROPY, {SHAPE(257), SCALAR}, SCALAR, .d0 = 1},
    {OP_CROSS_ENTROPY, {SHAPE(2, 300), SHAPE(2)}, SCALAR, .d0 = 8},
    {OP_CROSS_ENTROPY,
     {SHAPE(1, 1), SHAPE(1)},
     SCALAR,
     .d0 = 1,
     .d1 = 0,
     .d2 = 1}, /* the only class is ignored */
    {OP_CROSS_ENTROPY, {SHAPE(9, 5), SHAPE(9)}, SCALAR, .d0 = 9, .d1 = -100, .d2 = 1},
    {OP_CROSS_ENTROPY, {SHAPE(9, 5), SHAPE(9)}, SCALAR, .d0 = 9, .d1 = 2, .d2 = 1},
};
enum { N_OP_CASES = sizeof OP_CASES / sizeof *OP_CASES };

#endif
