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
#include "device/team.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

typedef struct Op {
  const KernelCall *call;
  const KernelRun *run; /* NULL in a check, as is all that follows */
  const Kernels *k;
  size_t real_bytes;    /* of an element that k computes with */
  Team *team;
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

/* ---- all threads of the team --------------------------------------------------------------------- */

/* OP_SCRATCH_BYTES, aligned to 64, of one thread; for ops with OPF_SCRATCH. */
static inline void *op_scratch(const Op *o, uint32_t thread) {
  assert(OP_INFO[o->call->op].flags & OPF_SCRATCH);
  return o->run->scratch + thread * OP_SCRATCH_BYTES;
}

/* Element i of argument a, which is of reals. */
static inline void *op_at(const Op *o, int a, int64_t i) {
  return (unsigned char *)o->at[a] + (size_t)i * o->real_bytes;
}

/* Items lo .. hi - 1, on a thread of the team. */
typedef void OpPart(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread);

/* Does items 0 .. n - 1, in ranges that begin at multiples of 'unit'. 'work' says how much an item
 * is, so that little work stays on one thread: 1 for each element read or written, some 4 for a
 * division, 8 for an exponential. Where ranges begin depends on the number of threads, so what
 * becomes of an item must depend on nothing but the item. */
void op_split(const Op *o, int64_t n, int64_t unit, double work, OpPart *part, const void *arg);

/* The sum of terms over items 0 .. n - 1. A term is the sum over items lo .. hi - 1; n and 'work'
 * alone tell which terms there are, and they are added in order. */
typedef double OpTerm(const Op *o, const void *arg, int64_t lo, int64_t hi);
double op_sum(const Op *o, int64_t n, double work, OpTerm *term, const void *arg);

void op_gemm(const Op *o, const Gemm *g);
#define OP_FLOPS_PER_WORK 40 /* of products that op_split cuts */

/* Elements of a cache line: no two ranges of floats share one where buffers begin with one. */
#define OP_LINE 16

void op_copy_or_add(const Op *o, int from, int to); /* by o->add; 'from' may be 'to' */
void op_fill(const Op *o, int to, double value, bool add);

/* One operand of the output's size: checks a forward's or gradient's pair and gives its positions. */
static inline PiperStatus unary(const Op *o, int *from, int *to) {
  *from = backward(o) ? DY(1) : 0;
  *to = backward(o) ? DX(1) : OUT(1);
  NEED(o->call->wrt == 0 && is_real(o, *from) && is(o, *to, (DType)arg(o, *from)->dtype));
  NEED(count(o, *from) == count(o, *to));
  return PIPER_OK;
}

/* The positions of the operand and result of a unary op, or of the gradients. */
#define FROM(o) (backward(o) ? DY(1) : 0)
#define TO(o) (backward(o) ? DX(1) : OUT(1))

/* ---- ops of other files ------------------------------------------------------------------------ */

PiperStatus run_activation(Op *o); /* ops_cpu_nn.c */
PiperStatus run_swiglu(Op *o);
PiperStatus run_softmax(Op *o);
PiperStatus run_rownorm(Op *o);
PiperStatus run_dropout(Op *o);
PiperStatus run_rope(Op *o); /* ops_cpu_attention.c */
PiperStatus run_attention(Op *o);
PiperStatus run_transpose(Op *o); /* ops_cpu_shape.c */
PiperStatus run_slice(Op *o);
PiperStatus run_route(Op *o); /* ops_cpu_moe.c */
PiperStatus run_gate(Op *o);
PiperStatus run_balance(Op *o);
PiperStatus run_dispatch(Op *o);
PiperStatus run_combine(Op *o);
PiperStatus run_expert_ends(Op *o);
PiperStatus run_pack(Op *o); /* and unpack */
PiperStatus run_expert_linear(Op *o);
PiperStatus run_expert_swiglu(Op *o);
PiperStatus run_dropped(Op *o);

#endif
