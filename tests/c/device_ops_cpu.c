/* Every op and every gradient, on every instruction set this processor has, in f32 and f64: against
 * plain formulas, central differences, and exactly where numbers are small integers. */
#include "device/cpu_isa.h"
#include "device/ops_cpu.h"
#include "op_case.h"
#include "random_data.h"

/* The numbers of one case. Reals are exact in f32. */
typedef struct Data {
  const OpCase *c;
  bool integers;
  long double *x[3], *y, *dy, *aux;
  double *prior; /* what a gradient is added to, one array as long as the longest operand */
} Data;

static OpsCpu cpu_of[4];
static unsigned char *scratch;
static int n_isas;

static void describe(const OpCase *c, char *buf, size_t n) {
  size_t used = (size_t)snprintf(buf, n, "%s", OP_INFO[c->op].name);
  for (int i = 0; i < case_operands(c); i++) {
    used += (size_t)snprintf(buf + used, n - used, " [");
    for (int d = 0; d < c->in[i].rank; d++)
      used += (size_t)snprintf(buf + used, n - used, "%s%d", d > 0 ? "," : "", (int)c->in[i].dim[d]);
    used += (size_t)snprintf(buf + used, n - used, "]");
  }
}

static long double some_real(const Data *d, int operand) {
  if (d->integers) {
    if (d->c->op == OP_DIV && operand == 1) return ldexpl(random_int(0, 1) ? 1 : -1, random_int(-1, 2));
    return random_int(-3, 3);
  }
  const double u = random_uniform() * 2 - 1;
  if (d->c->op == OP_DIV && operand == 1) return (float)(u < 0 ? u - 0.5 : u + 0.5);
  if (d->c->op == OP_RELU) return (float)(u < 0 ? u - 0.01 : u + 0.01); /* not at the bend */
  if (d->c->op == OP_CROSS_ENTROPY) return (float)(u * 8);
  if (d->c->op == OP_GELU || d->c->op == OP_SILU || d->c->op == OP_SOFTMAX) return (float)(u * 4);
  return (float)u;
}

static Data data_new(const OpCase *c, bool integers) {
  Data d = {.c = c, .integers = integers};
  int64_t most = 1;
  for (int i = 0; i < case_operands(c); i++) {
    const int64_t n = shape_count(&c->in[i]);
    most = n > most ? n : most;
    d.x[i] = malloc((size_t)n * sizeof(long double));
    const int64_t ids = c->op == OP_EMBEDDING ? c->in[1].dim[0]
                        : c->in[0].rank > 0   ? c->in[0].dim[c->in[0].rank - 1]
                                              : 1;
    for (int64_t j = 0; j < n; j++)
      d.x[i][j] = case_operand_is_int(c, i) ? random_int(0, (int)ids - 1) : some_real(&d, i);
    for (int64_t j = 0; j < n && c->op == OP_CROSS_ENTROPY && i == 1 && c->d2 != 0; j++)
      if (random_int(0, 2) == 0) d.x[i][j] = c->d1; /* ignored */
  }
  const int64_t n = shape_count(&c->out);
  d.y = malloc((size_t)n * sizeof(long double));
  d.dy = malloc((size_t)n * sizeof(long double));
  for (int64_t j = 0; j < n; j++)
    d.dy[j] = integers ? random_int(-3, 3) : (float)(random_uniform() * 2 - 1);
  naive_forward(c, d.x, d.y);
  if (OP_INFO[c->op].flags & OPF_AUX) {
    const OpShape aux = case_aux(c);
    d.aux = malloc((size_t)shape_count(&aux) * sizeof *d.aux);
    naive_aux(c, d.x, d.aux);
  }
  d.prior = malloc((size_t)most * sizeof *d.prior);
  for (int64_t j = 0; j < most; j++)
    d.prior[j] = integers ? random_int(-9, 9) : (double)(float)(random_uniform() * 2 - 1);
  return d;
}

static void data_free(Data *d) {
  for (int i = 0; i < 3; i++) free(d->x[i]);
  free(d->y);
  free(d->dy);
  free(d->aux);
  free(d->prior);
}

static double largest(const long double *x, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)x[i]));
  return most;
}

/* How a gradient meets what its destination held, and who says so: the call or the instruction. OVER:
 * it is written over operand 0. */
typedef enum Mode { WRITE, ADD, OVER, FIRST, LATER } Mode;

/* A joint op's parameters have no gradients, so the instruction says nothing; there FIRST and LATER are
 * calls for one gradient alone. */
static KernelCall make_call(const OpCase *c, DType t, KernelPart part, int wrt, Mode mode) {
  const bool joint = part == KERNEL_B && case_is_joint(c), adds = mode == ADD || mode == LATER;
  KernelCall call = case_call(c, part, wrt, mode < FIRST, t);
  if (joint && mode < FIRST) call.accumulate = adds ? (uint8_t)((1 << case_operands(c)) - 1) : 0;
  else if (joint) call.accumulate = (uint8_t)(adds << wrt);
  else if (mode < FIRST) call.accumulate = adds;
  else call.first_base = (uint16_t)case_destination(c, part, wrt);
  if (mode == OVER) call.args[case_destination(c, part, wrt)].base = call.args[0].base;
  return call;
}

/* Element j of what an argument holds before the call. */
static long double before(const Data *d, char what, KernelPart part, bool adds, int64_t j) {
  switch (what) {
  case '0':
  case '1':
  case '2':
    return d->x[what - '0'][j];
  case 'd':
    return d->dy[j];
  case 'y':
    return part == KERNEL_F ? NAN : d->y[j];
  case 'a':
    return part == KERNEL_F ? NAN : d->aux[j];
  default:
    return adds ? d->prior[j] : NAN;
  }
}

static void read_back(const void *from, DType t, int64_t n, double *out) {
  for (int64_t j = 0; j < n; j++)
    out[j] = t == DT_F32 ? (double)((const float *)from)[j] : ((const double *)from)[j];
}

/* Runs one call of the case. 'out' receives the destination, 'aux' (if not NULL) the auxiliary output.
 * Gradients held NaN before, in modes ADD and LATER 'prior'. */
static bool run_call(const Data *d, int isa, DType t, KernelPart part, int wrt, Mode mode,
                     double *out, double *aux) {
  const OpCase *c = d->c;
  const KernelCall call = make_call(c, t, part, wrt, mode);
  const int dst = mode == OVER ? 0 : case_destination(c, part, wrt);
  unsigned char *bases[KERNEL_MAX_ARGS] = {0};
  uint64_t bytes[KERNEL_MAX_ARGS] = {0};
  uint8_t first[KERNEL_MAX_ARGS] = {0};
  first[dst] = mode == FIRST;
  for (int i = 0; i < call.n_args; i++) {
    if (call.args[i].base != i) continue;
    const char what = case_arg(c, part, wrt, i);
    const OpShape shape = case_arg_shape(c, what);
    const DType own = (DType)call.args[i].dtype;
    bytes[i] = (uint64_t)shape_count(&shape) * dtype_bytes(own);
    bases[i] = malloc(bytes[i]);
    for (int64_t j = 0; j < shape_count(&shape); j++) {
      const long double v = before(d, what, part, mode == ADD || mode == LATER, j);
      if (own == DT_F32) ((float *)bases[i])[j] = (float)v;
      if (own == DT_F64) ((double *)bases[i])[j] = (double)v;
      if (own == DT_I32) ((int32_t *)bases[i])[j] = (int32_t)v;
    }
  }
  PiperErr err = {0};
  PiperStatus st = ops_cpu_check(&call, 1, bytes, call.n_args, &err);
  const KernelRun run = {.calls = &call,
                         .n_calls = 1,
                         .bases = bases,
                         .first = first,
                         .step = &CASE_STEP,
                         .scratch = scratch,
                         .sample_lo = c->op == OP_DROPOUT ? CASE_SAMPLE_LO : 0};
  if (st == PIPER_OK) st = ops_cpu_run(&run, &cpu_of[isa], &err);
  if (st != PIPER_OK) diag("%s", err.text);
  const OpShape shape = case_arg_shape(c, case_arg(c, part, wrt, dst));
  read_back(bases[dst], t, shape_count(&shape), out);
  if (aux != NULL) {
    const OpShape own = case_aux(c);
    read_back(bases[case_operands(c) + 1], t, shape_count(&own), aux);
  }
  for (int i = 0; i < call.n_args; i++) free(bases[i]);
  return st == PIPER_OK;
}

/* Within 'tolerance' of the largest entry, or of 'least' where all entries are smaller: sums of
 * numbers around 1 may cancel. */
static bool near(const double *got, const long double *want, int64_t n, double tolerance,
                 double least, const char *what) {
  const double limit = tolerance * fmax(largest(want, n), least);
  for (int64_t i = 0; i < n; i++)
    if (!(fabs(got[i] - (double)want[i]) <= limit)) {
      diag("%s: element %d is %.17g, not %.17g (limit %g)", what, (int)i, got[i], (double)want[i], limit);
      return false;
    }
  return true;
}

static bool same_bits(const double *a, const double *b, int64_t n, const char *what) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp(&a[i], &b[i], sizeof a[i]) != 0) {
      diag("%s: element %d is %.17g and %.17g", what, (int)i, a[i], b[i]);
      return false;
    }
  return true;
}

/* The gradient of sum(dy y) with respect to operand wrt, by central differences in long double: the
 * step leaves an error of some 1e-11 of the third derivative. */
static void numeric_gradient(const Data *d, int wrt, long double *grad) {
  const int64_t n = shape_count(&d->c->in[wrt]), n_out = shape_count(&d->c->out);
  const long double step = 1e-5L;
  long double *y = malloc((size_t)n_out * sizeof *y);
  for (int64_t i = 0; i < n; i++) {
    const long double x = d->x[wrt][i];
    grad[i] = 0;
    for (int side = -1; side <= 1; side += 2) {
      d->x[wrt][i] = x + side * step;
      naive_forward(d->c, d->x, y);
      for (int64_t j = 0; j < n_out; j++) grad[i] += side * d->dy[j] * y[j] / (2 * step);
    }
    d->x[wrt][i] = x;
  }
  free(y);
}

typedef struct Verdict {
  bool forward, gradient, f32, exact, accumulates, bits;
} Verdict;

static bool is_exact(const Data *d) {
  switch ((int)d->c->op) {
  case OP_CROSS_ENTROPY:
  case OP_GELU:
  case OP_SILU:
  case OP_SWIGLU:
  case OP_SOFTMAX:
  case OP_RMSNORM:
  case OP_LAYERNORM:
  case OP_ROPE:
  case OP_ATTENTION:
    return false;
  case OP_DROPOUT:
    return d->integers && (d->c->d0 == 0 || d->c->d0 == 0.5); /* kept numbers are doubled */
  default:
    return d->integers;
  }
}

/* Gradients of small integers by ops that are at most quadratic in each operand are exact, and the
 * central differences are within rounding of them. */
static bool gradient_is_exact(const Data *d, int wrt) {
  return is_exact(d) && !(d->c->op == OP_DIV && wrt == 1);
}

static void try_gradient(const Data *d, int wrt, Verdict *v, const char *name) {
  const int64_t n = shape_count(&d->c->in[wrt]);
  const bool exact = gradient_is_exact(d, wrt);
  long double *want = malloc((size_t)n * sizeof *want), *sum = malloc((size_t)n * sizeof *sum);
  double *got = malloc((size_t)n * sizeof *got), *other = malloc((size_t)n * sizeof *got);
  double *reference = malloc((size_t)n * sizeof *got);
  numeric_gradient(d, wrt, want);
  for (int64_t i = 0; i < n; i++) {
    if (d->c->op == OP_RELU && d->x[0][i] == 0) want[i] = 0; /* the bend counts as flat */
    if (exact) want[i] = roundl(want[i] * 4096) / 4096;
  }
  for (DType t = DT_F32; t <= DT_F64; t++)
    for (int isa = 0; isa < n_isas; isa++) {
      char what[300];
      snprintf(what, sizeof what, "%s %s gradient %d", name, dtype_name(t), wrt);
      if (!run_call(d, isa, t, KERNEL_B, wrt, WRITE, got, NULL)) v->gradient = false;
      if (exact)
        v->exact = near(got, want, n, 0, 0, what) && v->exact;
      else if (t == DT_F64)
        v->gradient = near(got, want, n, 1e-6, 1e-3, what) && v->gradient;
      else /* up to 600 terms around 1, each rounded a few times */
        v->f32 = near(got, want, n, 1e-5, 1, what) && v->f32;
      if (isa == 0) memcpy(reference, got, (size_t)n * sizeof *got);
      v->bits = same_bits(got, reference, n, what) && v->bits;

      if (OP_INFO[d->c->op].flags & OPF_OVER && wrt == 0) {
        run_call(d, isa, t, KERNEL_B, wrt, OVER, other, NULL);
        v->accumulates = same_bits(got, other, n, what) && v->accumulates;
      }
      run_call(d, isa, t, KERNEL_B, wrt, FIRST, other, NULL);
      v->accumulates = same_bits(got, other, n, what) && v->accumulates;
      for (int64_t i = 0; i < n; i++) sum[i] = (long double)got[i] + d->prior[i];
      const double least = fmax(1, largest(want, n));
      run_call(d, isa, t, KERNEL_B, wrt, ADD, got, NULL);
      v->accumulates = near(got, sum, n, exact ? 0 : t == DT_F64 ? 1e-14 : 1e-6, least, what) && v->accumulates;
      run_call(d, isa, t, KERNEL_B, wrt, LATER, other, NULL);
      v->accumulates = same_bits(got, other, n, what) && v->accumulates;
    }
  free(want);
  free(sum);
  free(got);
  free(other);
  free(reference);
}

static void try_case(const OpCase *c, bool integers, Verdict *v) {
  char name[256];
  describe(c, name, sizeof name);
  Data d = data_new(c, integers);
  const int64_t n = shape_count(&c->out);
  const bool exact = is_exact(&d);
  double *got = malloc((size_t)n * sizeof *got), *reference = malloc((size_t)n * sizeof *got);
  const OpShape aux_shape = d.aux != NULL ? case_aux(c) : (OpShape)SCALAR;
  double *aux = d.aux != NULL ? malloc((size_t)shape_count(&aux_shape) * sizeof *aux) : NULL;
  for (DType t = DT_F32; t <= DT_F64; t++)
    for (int isa = 0; isa < n_isas; isa++) {
      if (!run_call(&d, isa, t, KERNEL_F, 0, WRITE, got, aux)) v->forward = false;
      if (aux != NULL)
        v->forward =
            near(aux, d.aux, shape_count(&aux_shape), t == DT_F64 ? 1e-13 : 1e-6, 1, name) &&
            v->forward;
      if (exact)
        v->exact = near(got, d.y, n, 0, 0, name) && v->exact;
      else if (t == DT_F64)
        v->forward = near(got, d.y, n, 1e-13, 1, name) && v->forward;
      else
        v->f32 = near(got, d.y, n, 1e-5, 1, name) && v->f32;
      if (isa == 0) memcpy(reference, got, (size_t)n * sizeof *got);
      v->bits = same_bits(got, reference, n, name) && v->bits;
    }
  for (int wrt = 0; wrt < case_operands(c); wrt++)
    if (OP_INFO[c->op].saves[wrt][0] != '!' && !(c->no_bias && wrt == 2))
      try_gradient(&d, wrt, v, name);
  free(got);
  free(aux);
  free(reference);
  data_free(&d);
}

int main(void) {
  random_start();
  scratch = aligned_alloc(64, OP_SCRATCH_BYTES);
  int runs;
  for (int i = 0; cpu_isa_at(i, &runs) != NULL; i++) {
    PiperErr err = {0};
    if (!runs) continue;
    if (ops_cpu_init(&cpu_of[n_isas++], cpu_isa_at(i, NULL), NULL, &err) != PIPER_OK) bail(err.text);
  }
  for (int i = 0; i < N_OP_CASES;) {
    const OpKind op = OP_CASES[i].op;
    Verdict v = {true, true, true, true, true, true};
    for (; i < N_OP_CASES && OP_CASES[i].op == op; i++) {
      try_case(&OP_CASES[i], false, &v);
      try_case(&OP_CASES[i], true, &v);
    }
    const char *name = OP_INFO[op].name;
    ok(v.forward, "%s: f64 is the plain formula's", name);
    ok(v.gradient, "%s: gradients in f64 are the central differences", name);
    ok(v.f32, "%s: f32 agrees", name);
    ok(v.exact, "%s: small integers are exact", name);
    ok(v.accumulates,
       "%s: gradients are written, added, written the first time only or over operands", name);
    bits_of_isas(v.bits, name);
  }
  free(scratch);
  return done_testing();
}
