/* ops_cpu_shape.c - transpose and slice. Elements may be of any type; backward, where they are reals,
 * a transpose is its own inverse, and a slice leaves zeros beside it. */
#include "device/ops_cpu_op.h"

static PiperStatus find_pair(const Op *o) {
  const int from = FROM(o), to = TO(o);
  NEED(o->call->wrt == 0 && has(o, from) && is(o, to, (DType)arg(o, from)->dtype));
  NEED(!backward(o) || is_real(o, to));
  NEED(arg(o, from)->rank == arg(o, to)->rank);
  return PIPER_OK;
}

static bool is_axis(const KernelArg *a, double axis) {
  return axis >= 0 && axis < a->rank && axis == (int)axis;
}

/* Elements in the axes first .. end - 1. */
static int64_t between(const KernelArg *a, int first, int end) {
  int64_t n = 1;
  for (int i = first; i < end; i++) n *= a->dim[i];
  return n;
}

/* Element i of argument a, of whatever type. */
static unsigned char *element(const Op *o, int a, int64_t i) {
  return (unsigned char *)o->at[a] + (size_t)i * dtype_bytes((DType)arg(o, a)->dtype);
}

/* y (+)= x, n elements. */
static void copy_run(const Op *o, int64_t n, const void *x, void *y) {
  if (o->add) o->k->add(n, x, 1, y, 1, y);
  else memcpy(y, x, (size_t)n * dtype_bytes((DType)arg(o, TO(o))->dtype));
}

/* ---- transpose --------------------------------------------------------------------------------- */

/* x as [outer, a, middle, b, inner] becomes [outer, b, middle, a, inner]. */
typedef struct Transpose {
  int64_t a, middle, b, inner;
} Transpose;

/* Items are (outer, middle, b): runs of y that begin at each. */
static void transpose_runs(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const Transpose *s = arg;
  (void)thread;
  for (int64_t i = lo; i < hi; i++) {
    const int64_t j = i % s->b, m = i / s->b % s->middle, at = i / s->b / s->middle * s->middle;
    for (int64_t l = 0; l < s->a; l++)
      copy_run(o, s->inner,
               element(o, FROM(o), ((at * s->a + l * s->middle + m) * s->b + j) * s->inner),
               element(o, TO(o), ((at * s->b + j * s->middle + m) * s->a + l) * s->inner));
  }
}

/* Without inner axes: items are columns of the matrices [a, b], of one after another. */
static void transpose_columns(const Op *o, const void *arg, int64_t lo, int64_t hi,
                              uint32_t thread) {
  const Transpose *s = arg;
  (void)thread;
  for (int64_t i = lo; i < hi;) {
    const int64_t j = i % s->b, m = i / s->b % s->middle, at = i / s->b / s->middle * s->middle;
    const int64_t rest = s->b - j, n = rest < hi - i ? rest : hi - i;
    o->k->transpose_matrix(
        s->a, n, element(o, FROM(o), (at * s->a + m) * s->b + j), s->middle * s->b,
        element(o, TO(o), (at * s->b + j * s->middle + m) * s->a), s->middle * s->a, o->add);
    i += n;
  }
}

PiperStatus run_transpose(Op *o) {
  TRY(find_pair(o));
  const KernelArg *x = arg(o, FROM(o)), *y = arg(o, TO(o));
  const double *d = o->call->attrs.d;
  NEED(is_axis(x, d[0]) && is_axis(x, d[1]));
  const int first = (int)(d[0] < d[1] ? d[0] : d[1]), second = (int)(d[0] < d[1] ? d[1] : d[0]);
  for (int i = 0; i < x->rank; i++)
    NEED(y->dim[i] == x->dim[i == first ? second : i == second ? first : i]);
  COMPUTE();
  Transpose s = {.a = 1, .middle = 1, .b = 1, .inner = elements(x)};
  if (first != second)
    s = (Transpose){x->dim[first], between(x, first + 1, second), x->dim[second],
                    between(x, second + 1, x->rank)};
  const int64_t runs = elements(x) / (s.a * s.inner);
  if (s.inner == 1) op_split(o, runs, OP_LINE, 3 * (double)s.a, transpose_columns, &s);
  else op_split(o, runs, 1, 3 * (double)(s.a * s.inner), transpose_runs, &s);
  return PIPER_OK;
}

/* ---- slice ------------------------------------------------------------------------------------- */

/* Elements of the whole and of its part at one position of the axes outside, and where that begins. */
typedef struct Slice {
  int64_t whole, part, before;
} Slice;

static void slice_runs(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const Slice *s = arg;
  const size_t bytes = dtype_bytes((DType)o->call->args[TO(o)].dtype);
  (void)thread;
  for (int64_t i = lo; i < hi; i++) {
    if (!backward(o)) {
      copy_run(o, s->part, element(o, FROM(o), i * s->whole + s->before),
               element(o, TO(o), i * s->part));
      continue;
    }
    unsigned char *dx = element(o, TO(o), i * s->whole), *part = dx + (size_t)s->before * bytes;
    copy_run(o, s->part, element(o, FROM(o), i * s->part), part);
    if (o->add) continue;
    memset(dx, 0, (size_t)s->before * bytes);
    memset(part + (size_t)s->part * bytes, 0, (size_t)(s->whole - s->before - s->part) * bytes);
  }
}

PiperStatus run_slice(Op *o) {
  TRY(find_pair(o));
  const KernelArg *x = arg(o, backward(o) ? TO(o) : FROM(o));
  const KernelArg *y = arg(o, backward(o) ? FROM(o) : TO(o));
  const double *d = o->call->attrs.d;
  NEED(is_axis(x, d[0]));
  const int axis = (int)d[0];
  NEED(d[1] >= 0 && d[1] < d[2] && d[2] <= (double)x->dim[axis]);
  NEED((double)y->dim[axis] == d[2] - d[1]);
  for (int i = 0; i < x->rank; i++) NEED(i == axis || y->dim[i] == x->dim[i]);
  COMPUTE();
  const int64_t inner = between(x, axis + 1, x->rank), outer = between(x, 0, axis);
  const Slice s = {x->dim[axis] * inner, y->dim[axis] * inner, (int64_t)d[1] * inner};
  op_split(o, outer, 1, (double)(backward(o) ? s.whole : 2 * s.part), slice_runs, &s);
  return PIPER_OK;
}
