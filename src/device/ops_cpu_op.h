/* ops_cpu_op.h - one kernel call being checked or run: what the files of ops (ops_cpu*.c) share, and
 * nobody else uses.
 *
 * Each op is a function: first what it requires of its arguments (NEED), then which kernels do it.
 * The requirements are tested on every run as well; they are a few integer comparisons. In a check
 * (ops_cpu_check) the functions stop before the kernels: COMPUTE ends the requirements. Shapes are
 * read from arguments that are present: a gradient lacks operands it does not read. */
#ifndef PIPER_DEVICE_OPS_CPU_OP_H
#define PIPER_DEVICE_OPS_CPU_OP_H

#include "base/kernel.h"
#include "kernels/kernels.h"

#include <string.h>

typedef struct Op {
  const KernelCall *call;
  const KernelRun *run; /* NULL in a check, as is all that follows */
  const Kernels *k;
  void *scratch;        /* KERNEL_SCRATCH_BYTES, aligned to 64 */
  void *at[KERNEL_MAX_ARGS]; /* addresses of the arguments; NULL: absent */
  bool add;             /* the resolved 'accumulate', of the only gradient or of operand 0's */
  PiperErr *err;
} Op;

/* ---- arguments --------------------------------------------------------------------------------- */

static inline bool has(const Op *o, int i) {
  return i < o->call->n_args && o->call->args[i].base != KERNEL_NO_BASE;
}

static inline const KernelArg *arg(const Op *o, int i) { return &o->call->args[i]; }

static inline int64_t elements(const KernelArg *a) {
  int64_t n = 1;
  for (int i = 0; i < a->rank; i++) n *= a->dim[i];
  return n;
}

static inline int64_t count(const Op *o, int i) { return elements(arg(o, i)); }

/* Dimension i counted from the last one. */
static inline int64_t last(const Op *o, int i, int from_last) {
  return arg(o, i)->dim[arg(o, i)->rank - 1 - from_last];
}

static inline bool is(const Op *o, int i, DType t) { return has(o, i) && arg(o, i)->dtype == t; }

static inline bool is_real(const Op *o, int i) { return is(o, i, DT_F32) || is(o, i, DT_F64); }

static inline bool same_shape(const Op *o, int i, int j) {
  const KernelArg *a = arg(o, i), *b = arg(o, j);
  return a->rank == b->rank && memcmp(a->dim, b->dim, a->rank * sizeof a->dim[0]) == 0;
}

static inline bool is_scalar(const Op *o, int i, DType t) { return is(o, i, t) && count(o, i) == 1; }

/* Elements of argument i are REALs of type t. */
static inline double real_at(const void *p, DType t) {
  return t == DT_F32 ? (double)*(const float *)p : *(const double *)p;
}

static inline void set_real(void *p, DType t, double v) {
  if (t == DT_F32)
    *(float *)p = (float)v;
  else
    *(double *)p = v;
}

static inline PiperStatus misfit(const Op *o, const char *what) {
  return err_set(o->err, PIPER_EBUG, "%s %s: arguments do not fit: %s", OP_INFO[o->call->op].name,
                 o->call->part == KERNEL_B ? "gradient" : "kernel", what);
}

#define NEED(what)                                                                                 \
  do {                                                                                             \
    if (!(what)) return misfit(o, #what);                                                          \
  } while (0)

/* The rest of the function runs kernels. */
#define COMPUTE()                                                                                  \
  do {                                                                                             \
    if (o->run == NULL) return PIPER_OK;                                                           \
  } while (0)

/* Positions after the n operands of a model op. */
#define OUT(n) (n)
#define OUT_AUX(n) ((n) + 1) /* forward */
#define DY(n) ((n) + 1)
#define DX(n) ((n) + 2)
#define AUX(n) ((n) + 3)            /* backward */
#define DX_JOINT(n, i) ((n) + 4 + (i)) /* of a joint op */

static inline bool backward(const Op *o) { return o->call->part == KERNEL_B; }

/* Of a joint op: whether the gradient of operand i is added to what is there. */
static inline bool adds(const Op *o, int i) { return o->call->accumulate >> i & 1; }

/* y (+)= x, n elements of type t. */
static inline void copy_or_add(const Op *o, int64_t n, DType t, const void *x, void *y) {
  if (o->add)
    o->k->add(n, x, 1, y, 1, y);
  else if (x != y)
    memcpy(y, x, (size_t)n * dtype_bytes(t));
}

/* One operand of the output's size: checks a forward's or gradient's pair and gives its positions. */
static inline PiperStatus unary(const Op *o, int *from, int *to) {
  *from = backward(o) ? DY(1) : 0;
  *to = backward(o) ? DX(1) : OUT(1);
  NEED(o->call->wrt == 0 && is_real(o, *from) && is(o, *to, (DType)arg(o, *from)->dtype));
  NEED(count(o, *from) == count(o, *to));
  return PIPER_OK;
}

/* ---- ops of other files ------------------------------------------------------------------------ */

#endif
