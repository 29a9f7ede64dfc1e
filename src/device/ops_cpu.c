/* ops_cpu.c - the ops on the CPU: products, elementwise ops, sums, what the compiler inserts; and
 * running a program of them. */
#include "device/ops_cpu.h"

#include "device/broadcast.h"
#include "device/cpu_isa.h"
#include "device/ops_cpu_op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(KERNEL_SCRATCH_BYTES <= OP_SCRATCH_BYTES, "base/kernel.h says what the planner plans");

PiperStatus ops_cpu_init(OpsCpu *cpu, const KernelTable *table, Team *team, PiperErr *err) {
  *cpu = (OpsCpu){.table = table, .team = team};
  return table != NULL ? PIPER_OK : cpu_isa_select(&cpu->table, err);
}

/* ---- products ---------------------------------------------------------------------------------- */

/* The gradient of a linear's bias; arg: the rows. */
static void column_sums(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  enum { N = 3 };
  (void)thread;
  o->k->column_sums(*(const int64_t *)arg, hi - lo, last(o, DY(N), 0), op_at(o, DY(N), lo),
                    op_at(o, DX(N), lo), o->add);
}

static PiperStatus run_linear(Op *o) {
  enum { X, W, B, N };
  const int wrt = o->call->wrt;
  if (!backward(o)) {
    NEED(is_real(o, X));
    const DType t = (DType)arg(o, X)->dtype;
    NEED(is(o, W, t) && is(o, OUT(N), t) && arg(o, W)->rank == 2);
    NEED(arg(o, X)->rank >= 1 && arg(o, OUT(N))->rank == arg(o, X)->rank);
    const int64_t in = last(o, W, 0), out = last(o, W, 1), rows = count(o, X) / in;
    NEED(last(o, X, 0) == in && last(o, OUT(N), 0) == out && count(o, OUT(N)) == rows * out);
    NEED(!has(o, B) || (is(o, B, t) && count(o, B) == out));
    COMPUTE();
    op_gemm(o, &(Gemm){.m = rows, .n = out, .k = in, .a = o->at[X], .lda = in, .b = o->at[W],
                       .ldb = in, .b_trans = true, .c = o->at[OUT(N)], .ldc = out,
                       .start = has(o, B) ? o->at[B] : NULL});
    return PIPER_OK;
  }
  NEED(is_real(o, DY(N)) && is(o, DX(N), (DType)arg(o, DY(N))->dtype) && arg(o, DY(N))->rank >= 1);
  const DType t = (DType)arg(o, DY(N))->dtype;
  const void *dy = o->at[DY(N)];
  void *dx = o->at[DX(N)];
  const int64_t out = last(o, DY(N), 0), rows = count(o, DY(N)) / out;
  if (wrt == B) {
    NEED(count(o, DX(N)) == out);
    COMPUTE();
    op_split(o, out, 2 * OP_LINE, (double)rows, column_sums, &rows);
    return PIPER_OK;
  }
  const int w = wrt == X ? W : DX(N), x = wrt == X ? DX(N) : X;
  NEED(wrt <= W && is(o, w, t) && is(o, x, t) && arg(o, w)->rank == 2 && arg(o, x)->rank >= 1);
  const int64_t in = last(o, w, 0);
  NEED(last(o, w, 1) == out && last(o, x, 0) == in && count(o, x) == rows * in);
  COMPUTE();
  if (wrt == X) /* dy [rows, out] W [out, in] */
    op_gemm(o, &(Gemm){.m = rows, .n = in, .k = out, .a = dy, .lda = out, .b = o->at[W], .ldb = in,
                       .c = dx, .ldc = in, .start = o->add ? dx : NULL, .ld_start = in});
  else /* dy^T [out, rows] x [rows, in] */
    op_gemm(o, &(Gemm){.m = out, .n = in, .k = rows, .a = dy, .lda = out, .a_trans = true,
                       .b = o->at[X], .ldb = in, .c = dx, .ldc = in, .start = o->add ? dx : NULL,
                       .ld_start = in});
  return PIPER_OK;
}

/* Products lo .. hi - 1 of several that lie behind one another; arg: the first. */
static void some_products(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const Gemm *first = arg;
  const size_t a = (size_t)(first->m * first->k) * o->real_bytes;
  const size_t b = (size_t)(first->k * first->n) * o->real_bytes;
  const size_t c = (size_t)(first->m * first->n) * o->real_bytes;
  for (size_t i = (size_t)lo; i < (size_t)hi; i++) {
    Gemm g = *first;
    g.a = (const unsigned char *)g.a + i * a;
    g.b = (const unsigned char *)g.b + i * b;
    g.c = (unsigned char *)g.c + i * c;
    if (g.start != NULL) g.start = (const unsigned char *)g.start + i * c;
    o->k->gemm(&g, op_scratch(o, thread));
  }
}

static void batched_gemm(const Op *o, int64_t batch, Gemm g) {
  const double flops = 2.0 * (double)g.m * (double)g.n * (double)g.k;
  if (batch == 1) op_gemm(o, &g);
  else op_split(o, batch, 1, flops / OP_FLOPS_PER_WORK, some_products, &g);
}

static PiperStatus run_matmul(Op *o) {
  enum { A, B, N };
  const int wrt = o->call->wrt;
  const int a = backward(o) && wrt == A ? DX(N) : A, b = backward(o) && wrt == B ? DX(N) : B;
  const int y = backward(o) ? DY(N) : OUT(N);
  NEED(wrt <= B && is_real(o, y));
  const DType t = (DType)arg(o, y)->dtype;
  NEED(is(o, a, t) && is(o, b, t) && arg(o, a)->rank >= 2 && arg(o, b)->rank >= 2);
  NEED(arg(o, y)->rank == arg(o, a)->rank);
  int64_t m = last(o, a, 1), batch = count(o, a) / (m * last(o, a, 0));
  const int64_t k = last(o, a, 0), n = last(o, b, 0);
  NEED(last(o, b, 1) == k && last(o, y, 1) == m && last(o, y, 0) == n);
  NEED(count(o, y) == batch * m * n);
  const int64_t b_batch = count(o, b) / (k * n);
  NEED(b_batch == batch || arg(o, b)->rank == 2);
  COMPUTE();
  if (b_batch == 1) { /* one b for all: the leading axes are rows */
    m *= batch;
    batch = 1;
  }
  void *dx = o->at[DX(N)];
  const void *start = backward(o) && o->add ? dx : NULL;
  if (!backward(o))
    batched_gemm(o, batch, (Gemm){.m = m, .n = n, .k = k, .a = o->at[A], .lda = k, .b = o->at[B],
                                  .ldb = n, .c = o->at[OUT(N)], .ldc = n});
  else if (wrt == A) /* dy [m, n] b^T [n, k] */
    batched_gemm(o, batch, (Gemm){.m = m, .n = k, .k = n, .a = o->at[DY(N)], .lda = n,
                                  .b = o->at[B], .ldb = n, .b_trans = true, .c = dx, .ldc = k,
                                  .start = start, .ld_start = k});
  else /* a^T [k, m] dy [m, n] */
    batched_gemm(o, batch, (Gemm){.m = k, .n = n, .k = m, .a = o->at[A], .lda = k, .a_trans = true,
                                  .b = o->at[DY(N)], .ldb = n, .c = dx, .ldc = n, .start = start,
                                  .ld_start = n});
  return PIPER_OK;
}

static void embedding_rows(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  enum { IDS, TABLE, N };
  const int64_t width = last(o, TABLE, 0);
  (void)arg;
  (void)thread;
  o->k->embedding(hi - lo, width, (const int32_t *)o->at[IDS] + lo, o->at[TABLE],
                  op_at(o, OUT(N), lo * width));
}

/* Columns of the table, not rows: some ids are much more frequent than others. */
static void embedding_grad_columns(const Op *o, const void *arg, int64_t lo, int64_t hi,
                                   uint32_t thread) {
  enum { IDS, TABLE, N };
  (void)arg;
  (void)thread;
  o->k->embedding_grad(count(o, IDS), last(o, DX(N), 1), hi - lo, last(o, DX(N), 0), o->at[IDS],
                       op_at(o, DY(N), lo), op_at(o, DX(N), lo), o->add);
}

static PiperStatus run_embedding(Op *o) {
  enum { IDS, TABLE, N };
  const int table = backward(o) ? DX(N) : TABLE, y = backward(o) ? DY(N) : OUT(N);
  NEED(!backward(o) || o->call->wrt == TABLE);
  NEED(is(o, IDS, DT_I32) && is_real(o, y));
  NEED(is(o, table, (DType)arg(o, y)->dtype) && arg(o, table)->rank == 2 && arg(o, y)->rank >= 1);
  const int64_t n = count(o, IDS), vocab = last(o, table, 1), width = last(o, table, 0);
  NEED(last(o, y, 0) == width && count(o, y) == n * width);
  COMPUTE();
  const int32_t *ids = o->at[IDS];
  for (int64_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= vocab)
      return err_set(o->err, PIPER_EUSER, "embedding: id %d is outside 0..%lld", (int)ids[i],
                     (long long)vocab - 1);
  if (!backward(o)) op_split(o, n, 1, 2 * (double)width, embedding_rows, NULL);
  else op_split(o, width, OP_LINE, 3 * (double)n + (o->add ? 0 : (double)vocab), embedding_grad_columns, NULL);
  return PIPER_OK;
}

/* ---- elementwise ------------------------------------------------------------------------------- */

static void relu_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const void *from = op_at(o, FROM(o), lo);
  void *to = op_at(o, TO(o), lo);
  (void)arg;
  (void)thread;
  if (backward(o)) o->k->relu_grad(hi - lo, op_at(o, OUT(1), lo), from, to, o->add);
  else o->k->relu(hi - lo, from, to);
}

static PiperStatus run_relu(Op *o) {
  int from, to;
  TRY(unary(o, &from, &to));
  NEED(!backward(o) || (is(o, OUT(1), (DType)arg(o, to)->dtype) && same_shape(o, OUT(1), to)));
  COMPUTE();
  op_split(o, count(o, to), OP_LINE, 3, relu_part, NULL);
  return PIPER_OK;
}

static void scale_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  (void)arg;
  (void)thread;
  o->k->scale(hi - lo, o->call->attrs.d[0], op_at(o, FROM(o), lo), op_at(o, TO(o), lo), o->add);
}

static PiperStatus run_scale(Op *o) {
  int from, to;
  TRY(unary(o, &from, &to));
  COMPUTE();
  op_split(o, count(o, to), OP_LINE, 2, scale_part, NULL);
  return PIPER_OK;
}

static PiperStatus run_reshape(Op *o) {
  int from = 0, to = OUT(1);
  if (!backward(o) && is(o, from, DT_I32)) NEED(is(o, to, DT_I32) && count(o, from) == count(o, to));
  else TRY(unary(o, &from, &to));
  COMPUTE();
  op_copy_or_add(o, from, to);
  return PIPER_OK;
}

static PiperStatus run_once(Op *o) {
  int from, to;
  TRY(unary(o, &from, &to));
  COMPUTE();
  if (o->run->sample_lo == 0) op_copy_or_add(o, from, to);
  else if (!o->add) op_fill(o, to, 0, false);
  return PIPER_OK;
}

static void binary_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  (void)thread;
  broadcast_forward(o->k, arg, lo, hi);
}

static void binary_grad_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  (void)thread;
  broadcast_grad(o->k, arg, lo, hi);
}

static PiperStatus run_binary(Op *o) {
  enum { A, B, N };
  const OpKind op = (OpKind)o->call->op;
  const int wrt = o->call->wrt;
  if (!backward(o)) {
    NEED(is_real(o, OUT(N)));
    const DType t = (DType)arg(o, OUT(N))->dtype;
    NEED(is(o, A, t) && is(o, B, t));
    NEED(broadcast_fits(arg(o, A), arg(o, OUT(N))) && broadcast_fits(arg(o, B), arg(o, OUT(N))));
    COMPUTE();
    const Broadcast y = {.op = op,
                         .out = arg(o, OUT(N)),
                         .a = arg(o, A),
                         .b = arg(o, B),
                         .a_data = o->at[A],
                         .b_data = o->at[B],
                         .y = o->at[OUT(N)]};
    const int64_t n = broadcast_items(&y);
    op_split(o, n, n == count(o, OUT(N)) ? OP_LINE : 1, 3 * (double)count(o, OUT(N)) / (double)n,
             binary_part, &y);
    return PIPER_OK;
  }
  NEED(wrt <= B && is_real(o, DY(N)));
  const DType t = (DType)arg(o, DY(N))->dtype;
  NEED(is(o, DX(N), t) && broadcast_fits(arg(o, DX(N)), arg(o, DY(N))));
  const bool reads_a = strchr(OP_INFO[op].saves[wrt], '0') != NULL;
  const bool reads_b = strchr(OP_INFO[op].saves[wrt], '1') != NULL;
  NEED(!reads_a || (is(o, A, t) && broadcast_fits(arg(o, A), arg(o, DY(N)))));
  NEED(!reads_b || (is(o, B, t) && broadcast_fits(arg(o, B), arg(o, DY(N)))));
  COMPUTE();
  const BroadcastGrad g = {.op = op,
                           .wrt = wrt,
                           .add = o->add,
                           .out = arg(o, DY(N)),
                           .a = reads_a ? arg(o, A) : NULL,
                           .b = reads_b ? arg(o, B) : NULL,
                           .dst = arg(o, DX(N)),
                           .dy = o->at[DY(N)],
                           .a_data = o->at[A],
                           .b_data = o->at[B],
                           .dx = o->at[DX(N)]};
  const int64_t n = broadcast_grad_items(&g);
  op_split(o, n, n == count(o, DX(N)) ? OP_LINE : 1, 3 * (double)count(o, DY(N)) / (double)n,
           binary_grad_part, &g);
  return PIPER_OK;
}

/* ---- to a scalar ------------------------------------------------------------------------------- */

static double sum_term(const Op *o, const void *arg, int64_t lo, int64_t hi) {
  const int x = *(const int *)arg;
  return o->k->sum(hi - lo, op_at(o, x, lo));
}

static double sum_squares_term(const Op *o, const void *arg, int64_t lo, int64_t hi) {
  const int x = *(const int *)arg;
  return o->k->sum_squares(hi - lo, op_at(o, x, lo));
}

static double squared_difference_term(const Op *o, const void *arg, int64_t lo, int64_t hi) {
  (void)arg;
  return o->k->sum_squared_difference(hi - lo, op_at(o, 0, lo), op_at(o, 1, lo));
}

static void sum_squares_grad_part(const Op *o, const void *arg, int64_t lo, int64_t hi,
                                  uint32_t thread) {
  const double dy = *(const double *)arg;
  (void)thread;
  o->k->scale(hi - lo, 2 * dy, op_at(o, 0, lo), op_at(o, DX(1), lo), o->add);
}

/* sum, mean, sum_squares */
static PiperStatus run_sum(Op *o) {
  enum { X, N };
  static const int x = X;
  const OpKind op = (OpKind)o->call->op;
  const double divisor = op == OP_MEAN ? o->call->attrs.d[0] : 1;
  NEED(divisor > 0 && o->call->wrt == 0);
  if (!backward(o)) {
    NEED(is_real(o, X) && is_scalar(o, OUT(N), (DType)arg(o, X)->dtype));
    COMPUTE();
    OpTerm *term = op == OP_SUM_SQUARES ? sum_squares_term : sum_term;
    set_real(o->at[OUT(N)], (DType)arg(o, X)->dtype, op_sum(o, count(o, X), 1, term, &x) / divisor);
    return PIPER_OK;
  }
  NEED(is_real(o, DX(N)) && is_scalar(o, DY(N), (DType)arg(o, DX(N))->dtype));
  const DType t = (DType)arg(o, DX(N))->dtype;
  NEED(op != OP_SUM_SQUARES || (is(o, X, t) && same_shape(o, X, DX(N))));
  COMPUTE();
  const double dy = real_at(o->at[DY(N)], t);
  if (op == OP_SUM_SQUARES) op_split(o, count(o, X), OP_LINE, 2, sum_squares_grad_part, &dy);
  else op_fill(o, DX(N), dy / divisor, o->add);
  return PIPER_OK;
}

static void mse_grad_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const double factor = *(const double *)arg;
  (void)thread;
  o->k->scaled_difference(hi - lo, factor, op_at(o, 0, lo), op_at(o, 1, lo), op_at(o, DX(2), lo),
                          o->add);
}

static PiperStatus run_mse(Op *o) {
  enum { X, Y, N };
  const double divisor = o->call->attrs.d[0];
  NEED(divisor > 0 && is_real(o, X) && is(o, Y, (DType)arg(o, X)->dtype) && same_shape(o, X, Y));
  const DType t = (DType)arg(o, X)->dtype;
  const int64_t n = count(o, X);
  if (!backward(o)) {
    NEED(is_scalar(o, OUT(N), t));
    COMPUTE();
    set_real(o->at[OUT(N)], t, op_sum(o, n, 2, squared_difference_term, NULL) / divisor);
    return PIPER_OK;
  }
  NEED(o->call->wrt <= Y && is_scalar(o, DY(N), t) && is(o, DX(N), t) && same_shape(o, X, DX(N)));
  COMPUTE();
  const double of_x = 2 * real_at(o->at[DY(N)], t) / divisor;
  const double factor = o->call->wrt == X ? of_x : -of_x;
  op_split(o, n, OP_LINE, 3, mse_grad_part, &factor);
  return PIPER_OK;
}

/* Targets that count as absent; a number that no target has: none do. */
static int64_t ignored_target(const Op *o) {
  return o->call->attrs.d[2] != 0 ? (int64_t)o->call->attrs.d[1] : INT64_MIN;
}

static double cross_entropy_rows(const Op *o, const void *arg, int64_t lo, int64_t hi) {
  enum { LOGITS, TARGETS };
  const int64_t classes = last(o, LOGITS, 0);
  (void)arg;
  return o->k->cross_entropy(hi - lo, classes, op_at(o, LOGITS, lo * classes),
                             (const int32_t *)o->at[TARGETS] + lo, ignored_target(o));
}

static void cross_entropy_grad_rows(const Op *o, const void *arg, int64_t lo, int64_t hi,
                                    uint32_t thread) {
  enum { LOGITS, TARGETS, N };
  const double factor = *(const double *)arg;
  const int64_t classes = last(o, LOGITS, 0);
  (void)thread;
  o->k->cross_entropy_grad(hi - lo, classes, op_at(o, LOGITS, lo * classes),
                           (const int32_t *)o->at[TARGETS] + lo, ignored_target(o), factor,
                           op_at(o, DX(N), lo * classes), o->add);
}

static PiperStatus run_cross_entropy(Op *o) {
  enum { LOGITS, TARGETS, N };
  const int present = backward(o) ? N + 4 : N + 2; /* optional: how many targets there are */
  double divisor = o->call->attrs.d[0];
  const double d1 = o->call->attrs.d[1];
  NEED(has(o, present) ? is_scalar(o, present, DT_F64) : divisor > 0);
  NEED(o->call->attrs.d[2] == 0 || (d1 >= INT32_MIN && d1 <= INT32_MAX));
  NEED(is_real(o, LOGITS) && arg(o, LOGITS)->rank >= 1 && is(o, TARGETS, DT_I32));
  const DType t = (DType)arg(o, LOGITS)->dtype;
  const int64_t rows = count(o, TARGETS), classes = last(o, LOGITS, 0);
  NEED(count(o, LOGITS) == rows * classes);
  if (backward(o)) {
    NEED(o->call->wrt == LOGITS && is_scalar(o, DY(N), t) && is(o, DX(N), t));
    NEED(same_shape(o, LOGITS, DX(N)));
  } else {
    NEED(is_scalar(o, OUT(N), t));
  }
  COMPUTE();
  const int32_t *targets = o->at[TARGETS];
  for (int64_t i = 0; i < rows; i++)
    if ((targets[i] < 0 || targets[i] >= classes) && targets[i] != ignored_target(o))
      return err_set(o->err, PIPER_EUSER, "cross_entropy: target %d is outside 0..%lld",
                     (int)targets[i], (long long)classes - 1);
  if (has(o, present)) divisor = *(const double *)o->at[present];
  const double work = (backward(o) ? 16 : 10) * (double)classes;
  if (backward(o)) {
    const double factor = divisor == 0 ? 0 : real_at(o->at[DY(N)], t) / divisor;
    op_split(o, rows, 1, work, cross_entropy_grad_rows, &factor);
  } else {
    const double loss = op_sum(o, rows, work, cross_entropy_rows, NULL);
    set_real(o->at[OUT(N)], t, divisor == 0 ? 0 : loss / divisor);
  }
  return PIPER_OK;
}

/* ---- what the compiler inserts ----------------------------------------------------------------- */

static PiperStatus run_fill(Op *o) {
  NEED(is_real(o, 0));
  COMPUTE();
  op_fill(o, 0, o->call->attrs.d[0], false);
  return PIPER_OK;
}

static PiperStatus run_accumulate(Op *o) {
  NEED(is_real(o, 0) && is(o, 1, (DType)arg(o, 0)->dtype) && count(o, 0) == count(o, 1));
  COMPUTE();
  op_copy_or_add(o, 0, 1);
  return PIPER_OK;
}

static PiperStatus run_loss(Op *o) {
  NEED(is_real(o, 0) && count(o, 0) == 1 && is_scalar(o, 1, DT_F64));
  COMPUTE();
  const double value = real_at(o->at[0], (DType)arg(o, 0)->dtype);
  if (!isfinite(value))
    return err_set(o->err, PIPER_EUSER, "loss is %s",
                   isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  double *metric = o->at[1];
  *metric = o->add ? *metric + value : value;
  return PIPER_OK;
}

static double present_term(const Op *o, const void *arg, int64_t lo, int64_t hi) {
  const int32_t *targets = o->at[0];
  const double ignore = *(const double *)arg;
  int64_t present = 0;
  for (int64_t i = lo; i < hi; i++) present += targets[i] != ignore;
  return (double)present;
}

static PiperStatus run_count(Op *o) {
  NEED(is(o, 0, DT_I32) && is_scalar(o, 1, DT_F64));
  COMPUTE();
  const double present = op_sum(o, count(o, 0), 1, present_term, &o->call->attrs.d[0]);
  double *sum = o->at[1];
  *sum = o->add ? *sum + present : present;
  return PIPER_OK;
}

static PiperStatus run_norm(Op *o) {
  static const int grad = 0;
  NEED(is_real(o, 0) && is_scalar(o, 1, DT_F64));
  COMPUTE();
  const double sum = op_sum(o, count(o, 0), 1, sum_squares_term, &grad);
  double *norm = o->at[1];
  *norm = o->add ? *norm + sum : sum;
  return PIPER_OK;
}

/* What gradients are multiplied by: min(1, clip / norm); 1 without clipping. */
static double clip_scale(const Op *o, double clip) {
  if (clip == 0) return 1;
  const double scale = clip / sqrt(*(const double *)o->at[2]);
  return scale < 1 ? scale : 1;
}

typedef struct SgdStep {
  double lr, grad_scale, weight_decay, momentum;
} SgdStep;

enum { W, G, NORM, M, V }; /* arguments of both optimizers */

static void sgd_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const SgdStep *s = arg;
  (void)thread;
  o->k->sgd(hi - lo, op_at(o, W, lo), op_at(o, G, lo), s->momentum != 0 ? op_at(o, M, lo) : NULL,
            s->lr, s->grad_scale, s->weight_decay, s->momentum);
}

static PiperStatus run_sgd(Op *o) {
  const double decay = o->call->attrs.d[0], momentum = o->call->attrs.d[1];
  const double clip = o->call->attrs.d[2];
  NEED(is_real(o, W) && is(o, G, (DType)arg(o, W)->dtype) && count(o, W) == count(o, G));
  NEED(clip >= 0 && (clip == 0 || is_scalar(o, NORM, DT_F64)));
  NEED(momentum == 0 || (is(o, M, (DType)arg(o, W)->dtype) && count(o, M) == count(o, W)));
  COMPUTE();
  const SgdStep s = {o->run->step->lr, clip_scale(o, clip), decay, momentum};
  op_split(o, count(o, W), OP_LINE, 4, sgd_part, &s);
  return PIPER_OK;
}

static void adamw_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  (void)thread;
  o->k->adamw(hi - lo, op_at(o, W, lo), op_at(o, G, lo), op_at(o, M, lo), op_at(o, V, lo), arg);
}

static PiperStatus run_adamw(Op *o) {
  const double *d = o->call->attrs.d, clip = d[2];
  NEED(is_real(o, W));
  const DType t = (DType)arg(o, W)->dtype;
  const int64_t n = count(o, W);
  NEED(is(o, G, t) && is(o, M, t) && is(o, V, t));
  NEED(count(o, G) == n && count(o, M) == n && count(o, V) == n);
  NEED(clip >= 0 && (clip == 0 || is_scalar(o, NORM, DT_F64)));
  COMPUTE();
  const StepBlock *step = o->run->step;
  const AdamwStep s = {.lr = step->lr,
                       .grad_scale = clip_scale(o, clip),
                       .weight_decay = d[0],
                       .beta = {d[1], d[3]},
                       .eps = d[4],
                       .bias_correction = {step->bias_correction[0], step->bias_correction[1]}};
  op_split(o, n, OP_LINE, 12, adamw_part, &s);
  return PIPER_OK;
}

/* ---- programs ---------------------------------------------------------------------------------- */

static PiperStatus (*const RUN[OP_KIND_COUNT])(Op *) = {
    [OP_LINEAR] = run_linear,
    [OP_MATMUL] = run_matmul,
    [OP_EMBEDDING] = run_embedding,
    [OP_RELU] = run_relu,
    [OP_GELU] = run_activation,
    [OP_SILU] = run_activation,
    [OP_SWIGLU] = run_swiglu,
    [OP_SOFTMAX] = run_softmax,
    [OP_RMSNORM] = run_rownorm,
    [OP_LAYERNORM] = run_rownorm,
    [OP_ROPE] = run_rope,
    [OP_ATTENTION] = run_attention,
    [OP_DROPOUT] = run_dropout,
    [OP_ADD] = run_binary,
    [OP_SUB] = run_binary,
    [OP_MUL] = run_binary,
    [OP_DIV] = run_binary,
    [OP_SCALE] = run_scale,
    [OP_RESHAPE] = run_reshape,
    [OP_TRANSPOSE] = run_transpose,
    [OP_SLICE] = run_slice,
    [OP_SUM] = run_sum,
    [OP_MEAN] = run_sum,
    [OP_SUM_SQUARES] = run_sum,
    [OP_MSE] = run_mse,
    [OP_CROSS_ENTROPY] = run_cross_entropy,
    [OP_ROUTE] = run_route,
    [OP_GATE] = run_gate,
    [OP_BALANCE] = run_balance,
    [OP_DISPATCH] = run_dispatch,
    [OP_COMBINE] = run_combine,
    [OP_EXPERT_ENDS] = run_expert_ends,
    [OP_PACK] = run_pack,
    [OP_UNPACK] = run_pack,
    [OP_EXPERT_LINEAR] = run_expert_linear,
    [OP_EXPERT_SWIGLU] = run_expert_swiglu,
    [OP_ONCE] = run_once,
    [OP_FILL] = run_fill,
    [OP_ACCUMULATE] = run_accumulate,
    [OP_LOSS] = run_loss,
    [OP_DROPPED] = run_dropped,
    [OP_COUNT] = run_count,
    [OP_NORM] = run_norm,
    [OP_SGD] = run_sgd,
    [OP_ADAMW] = run_adamw,
};

/* The bits of 'accumulate' that mean something to this call. */
static unsigned may_accumulate(const KernelCall *c) {
  if (c->part == KERNEL_B && c->wrt == KERNEL_WRT_ALL) return (1u << OP_INFO[c->op].n_operands) - 1;
  return c->part == KERNEL_B || c->op == OP_ACCUMULATE || c->op == OP_LOSS || c->op == OP_COUNT ||
         c->op == OP_NORM || c->op == OP_DROPPED;
}

/* 'wrt' is one that the call can have, and a joint op's gradients are where they should be. */
static PiperStatus check_wrt(const Op *o) {
  const KernelCall *c = o->call;
  const int n = OP_INFO[c->op].n_operands;
  if (c->part == KERNEL_F) NEED(c->wrt == 0);
  else if (!(OP_INFO[c->op].flags & OPF_JOINT)) NEED(c->wrt < n);
  else NEED(c->wrt == KERNEL_WRT_ALL && c->first_base == KERNEL_NO_BASE && !has(o, DX(n)));
  return PIPER_OK;
}

/* Shape and place of every argument that is there. */
static PiperStatus check_args(const Op *o, const uint64_t *base_bytes, uint32_t n_bases) {
  const KernelCall *c = o->call;
  for (int i = 0; i < c->n_args; i++) {
    if (!has(o, i)) continue;
    const KernelArg *a = arg(o, i);
    NEED(a->base < n_bases);
    NEED(a->dtype == DT_F32 || a->dtype == DT_F64 || a->dtype == DT_I32);
    NEED(a->rank <= SHAPE_MAX_RANK);
    const uint64_t size = dtype_bytes((DType)a->dtype), room = base_bytes[a->base];
    NEED(a->offset % size == 0 && a->offset <= room);
    uint64_t n = (room - a->offset) / size; /* elements that fit */
    for (int d = 0; d < a->rank; d++) {
      NEED(a->dim[d] >= 1);
      n /= (uint64_t)a->dim[d];
    }
    const bool inside_its_buffer = n >= 1;
    NEED(inside_its_buffer);
  }
  return PIPER_OK;
}

PiperStatus ops_cpu_check(const KernelCall *calls, uint32_t n_calls, const uint64_t *base_bytes,
                          uint32_t n_bases, PiperErr *err) {
  for (uint32_t i = 0; i < n_calls; i++) {
    const KernelCall *c = &calls[i];
    if (c->op >= OP_KIND_COUNT || RUN[c->op] == NULL)
      return err_set(err, PIPER_EBUG, "kernel call %u: there is no op %d", i, c->op);
    Op op = {.call = c, .err = err}, *o = &op;
    const OpInfo *info = &OP_INFO[c->op];
    const bool model_op = info->n_operands > 0;
    NEED(c->n_args <= KERNEL_MAX_ARGS);
    NEED(c->part == KERNEL_F || (c->part == KERNEL_B && model_op));
    TRY(check_wrt(o));
    NEED((c->accumulate & ~may_accumulate(c)) == 0);
    NEED(may_accumulate(c) != 0 || c->first_base == KERNEL_NO_BASE);
    NEED(c->first_base == KERNEL_NO_BASE || c->first_base < n_bases);
    TRY(check_args(o, base_bytes, n_bases));
    TRY(RUN[c->op](o));
  }
  return PIPER_OK;
}

PiperStatus ops_cpu_run(const KernelRun *run, const OpsCpu *cpu, PiperErr *err) {
  for (uint32_t i = 0; i < run->n_calls; i++) {
    const KernelCall *c = &run->calls[i];
    Op op = {.call = c, .run = run, .team = cpu->team, .err = err}, *o = &op;
    NEED(run->scratch != NULL || !(OP_INFO[c->op].flags & OPF_SCRATCH));
    bool f64 = false;
    for (int q = 0; q < c->n_args; q++) {
      const KernelArg *a = &c->args[q];
      if (a->base == KERNEL_NO_BASE) continue;
      op.at[q] = run->bases[a->base] + a->offset;
    }
    /* The first real argument tells the type: later ones may be f64 sums of f32 data. */
    for (int q = 0; q < c->n_args; q++) {
      const KernelArg *a = &c->args[q];
      if (a->base == KERNEL_NO_BASE || a->dtype == DT_I32) continue;
      f64 = a->dtype == DT_F64;
      break;
    }
    op.real_bytes = f64 ? sizeof(double) : sizeof(float);
    op.k = f64 ? &cpu->table->f64 : &cpu->table->f32;
    op.add = c->first_base != KERNEL_NO_BASE ? !run->first[c->first_base] : c->accumulate & 1;
    TRY(RUN[c->op](o));
  }
  return PIPER_OK;
}
