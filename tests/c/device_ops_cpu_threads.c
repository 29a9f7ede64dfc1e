/* The same bits with 1, 2, 3 and 4 threads: every op and gradient, in shapes large enough to be cut,
 * whose sizes no cut divides evenly. That they are right with one thread is shown elsewhere. */
#include "base/dtype.h"
#include "device/cpu_isa.h"
#include "device/ops_cpu.h"
#include "op_case.h"
#include "random_data.h"

#include "tap.h"

enum { MOST_THREADS = 4 };

static Crowd crowd = {.n_cores = 2};
static Team *team_of[MOST_THREADS + 1];
static OpsCpu cpu_of[MOST_THREADS + 1];
static unsigned char *scratch;

typedef struct Large {
  OpKind op;
  OpShape in[3], out;
  double d[5];
  int64_t ids; /* integers are 0 .. ids - 1 */
} Large;

static const Large LARGE[] = {
    {OP_LINEAR, .in = {SHAPE(2, 67, 130), SHAPE(211, 130), SHAPE(211)}, .out = SHAPE(2, 67, 211)},
    {OP_LINEAR, .in = {SHAPE(2000, 5), SHAPE(300, 5), SHAPE(300)}, .out = SHAPE(2000, 300)},
    {OP_LINEAR, .in = {SHAPE(1, 900), SHAPE(1100, 900), SHAPE(1100)}, .out = SHAPE(1, 1100)},
    {OP_LINEAR, .in = {SHAPE(5000, 300), SHAPE(1, 300), SHAPE(1)}, .out = SHAPE(5000, 1)},
    {OP_MATMUL, .in = {SHAPE(190, 301), SHAPE(301, 170)}, .out = SHAPE(190, 170)},
    {OP_MATMUL, .in = {SHAPE(7, 40, 90), SHAPE(7, 90, 33)}, .out = SHAPE(7, 40, 33)},
    {OP_MATMUL, .in = {SHAPE(3, 80, 190), SHAPE(190, 133)}, .out = SHAPE(3, 80, 133)},
    {OP_EMBEDDING, .in = {SHAPE(700), SHAPE(60, 131)}, .out = SHAPE(700, 131), .ids = 60},
    {OP_EMBEDDING, .in = {SHAPE(90), SHAPE(3000, 37)}, .out = SHAPE(90, 37), .ids = 3000},
    {OP_RELU, .in = {SHAPE(311, 333)}, .out = SHAPE(311, 333)},
    {OP_GELU, .in = {SHAPE(311, 333)}, .out = SHAPE(311, 333)},
    {OP_SILU, .in = {SHAPE(311, 333)}, .out = SHAPE(311, 333)},
    {OP_SWIGLU, .in = {SHAPE(311, 333), SHAPE(311, 333)}, .out = SHAPE(311, 333)},
    {OP_SOFTMAX, .in = {SHAPE(3, 97, 333)}, .out = SHAPE(3, 97, 333)},
    {OP_RMSNORM, .in = {SHAPE(3, 97, 333), SHAPE(333)}, .out = SHAPE(3, 97, 333), .d = {1e-6}},
    {OP_LAYERNORM, .in = {SHAPE(3, 97, 333), SHAPE(333), SHAPE(333)}, .out = SHAPE(3, 97, 333),
     .d = {1e-5}},
    {OP_ROPE, .in = {SHAPE(3, 131, 5, 66)}, .out = SHAPE(3, 131, 5, 66), .d = {10000, 7}},
    {OP_ATTENTION, .in = {SHAPE(3, 133, 6, 40), SHAPE(3, 133, 2, 40), SHAPE(3, 133, 2, 40)},
     .out = SHAPE(3, 133, 6, 40), .d = {1}},
    {OP_ATTENTION, .in = {SHAPE(5, 70, 1, 65), SHAPE(5, 150, 1, 65), SHAPE(5, 150, 1, 65)},
     .out = SHAPE(5, 70, 1, 65), .d = {0}},
    {OP_DROPOUT, .in = {SHAPE(311, 333)}, .out = SHAPE(311, 333), .d = {0.3, 5, 333}},
    {OP_TRANSPOSE, .in = {SHAPE(311, 333)}, .out = SHAPE(333, 311), .d = {0, 1}},
    {OP_TRANSPOSE, .in = {SHAPE(7, 41, 3, 133)}, .out = SHAPE(7, 133, 3, 41), .d = {3, 1}},
    {OP_TRANSPOSE, .in = {SHAPE(7, 41, 13, 33)}, .out = SHAPE(7, 13, 41, 33), .d = {1, 2}},
    {OP_SLICE, .in = {SHAPE(31, 77, 65)}, .out = SHAPE(31, 50, 65), .d = {1, 20, 70}},
    {OP_ADD, .in = {SHAPE(311, 333), SHAPE(311, 333)}, .out = SHAPE(311, 333)},
    {OP_ADD, .in = {SHAPE(5, 77, 333), SHAPE(77, 333)}, .out = SHAPE(5, 77, 333)},
    {OP_SUB, .in = {SHAPE(77, 1, 333), SHAPE(5, 333)}, .out = SHAPE(77, 5, 333)},
    {OP_MUL, .in = {SHAPE(311, 333), SHAPE(311, 1)}, .out = SHAPE(311, 333)},
    {OP_MUL, .in = {SHAPE(1), SHAPE(99999)}, .out = SHAPE(99999)},
    {OP_DIV, .in = {SHAPE(311, 333), SHAPE(333)}, .out = SHAPE(311, 333)},
    {OP_SCALE, .in = {SHAPE(99999)}, .out = SHAPE(99999), .d = {0.3}},
    {OP_RESHAPE, .in = {SHAPE(101, 990)}, .out = SHAPE(99990)},
    {OP_SUM, .in = {SHAPE(311, 333)}, .out = SCALAR},
    {OP_SUM, .in = {SHAPE(2000001)}, .out = SCALAR},
    {OP_MEAN, .in = {SHAPE(311, 333)}, .out = SCALAR, .d = {7}},
    {OP_SUM_SQUARES, .in = {SHAPE(311, 333)}, .out = SCALAR},
    {OP_MSE, .in = {SHAPE(311, 333), SHAPE(311, 333)}, .out = SCALAR, .d = {9}},
    {OP_CROSS_ENTROPY, .in = {SHAPE(9, 37, 501), SHAPE(9, 37)}, .out = SCALAR, .d = {333},
     .ids = 501},
    {OP_CROSS_ENTROPY, .in = {SHAPE(901, 11), SHAPE(901)}, .out = SCALAR, .d = {901, 4, 1},
     .ids = 11},
    {OP_ONCE, .in = {SHAPE(99999)}, .out = SHAPE(99999)},
};
enum { N_LARGE = sizeof LARGE / sizeof *LARGE };

typedef struct Args {
  KernelCall call;
  uint64_t bytes[KERNEL_MAX_ARGS];
  unsigned char *data[KERNEL_MAX_ARGS], *work[KERNEL_MAX_ARGS], *want[KERNEL_MAX_ARGS];
} Args;

static void set_arg(Args *a, int i, const OpShape *s, DType t, int64_t ids) {
  const int64_t n = shape_count(s);
  KernelArg *arg = &a->call.args[i];
  *arg = (KernelArg){.base = (uint16_t)i, .dtype = (uint8_t)t, .rank = (uint8_t)s->rank};
  memcpy(arg->dim, s->dim, sizeof s->dim);
  a->bytes[i] = (uint64_t)n * dtype_bytes(t);
  a->data[i] = malloc(a->bytes[i]);
  a->work[i] = malloc(a->bytes[i]);
  a->want[i] = malloc(a->bytes[i]);
  for (int64_t j = 0; j < n; j++) {
    const double u = random_uniform() + 0.125; /* no zeros to divide by, and roots are real */
    if (t == DT_I32) ((int32_t *)a->data[i])[j] = random_int(0, (int)ids - 1);
    else if (t == DT_F32) ((float *)a->data[i])[j] = (float)u;
    else ((double *)a->data[i])[j] = u;
  }
}

static Args args_new(OpKind op, KernelPart part, int wrt, bool add, int n_args, const double *d) {
  Args a = {.call = {.op = (uint8_t)op, .part = (uint8_t)part, .wrt = (uint8_t)wrt,
                     .accumulate = add, .first_base = KERNEL_NO_BASE, .n_args = (uint16_t)n_args}};
  memcpy(a.call.attrs.d, d, sizeof a.call.attrs.d);
  for (int i = 0; i < KERNEL_MAX_ARGS; i++) a.call.args[i].base = KERNEL_NO_BASE;
  return a;
}

/* Runs the call on each team, from the same contents; frees 'a'. */
static bool same_bits(Args *a, const char *what) {
  static const StepBlock step = {.step = 3, .lr = 0.01, .seed = 5, .bias_correction = {0.3, 0.1}};
  const KernelRun run = {.calls = &a->call, .n_calls = 1, .bases = a->work,
                         .first = (const uint8_t[KERNEL_MAX_ARGS]){0}, .step = &step,
                         .scratch = scratch};
  bool same = true;
  PiperErr err = {0};
  if (ops_cpu_check(&a->call, 1, a->bytes, KERNEL_MAX_ARGS, &err) != PIPER_OK) bail(err.text);
  for (int threads = 1; threads <= MOST_THREADS; threads++) {
    for (int i = 0; i < KERNEL_MAX_ARGS; i++)
      if (a->bytes[i] != 0) memcpy(a->work[i], a->data[i], a->bytes[i]);
    if (ops_cpu_run(&run, &cpu_of[threads], &err) != PIPER_OK) bail(err.text);
    for (int i = 0; i < KERNEL_MAX_ARGS; i++) {
      if (a->bytes[i] == 0) continue;
      if (threads == 1) memcpy(a->want[i], a->work[i], a->bytes[i]);
      if (memcmp(a->want[i], a->work[i], a->bytes[i]) == 0) continue;
      diag("%s: %d threads give other bits in argument %d", what, threads, i);
      same = false;
    }
  }
  for (int i = 0; i < KERNEL_MAX_ARGS; i++) {
    free(a->data[i]);
    free(a->work[i]);
    free(a->want[i]);
  }
  return same;
}

/* Forward, or the gradient with respect to one operand. */
static bool try_part(const Large *l, KernelPart part, int wrt, bool add, DType t) {
  const OpCase c = {.op = l->op, .in = {l->in[0], l->in[1], l->in[2]}, .out = l->out};
  const KernelCall call = case_call(&c, part, wrt, true, t);
  Args a = args_new(l->op, part, call.wrt, add, call.n_args, l->d);
  for (int i = 0; i < call.n_args; i++) {
    if (call.args[i].base == KERNEL_NO_BASE) continue;
    const OpShape shape = case_arg_shape(&c, case_arg(&c, part, wrt, i));
    set_arg(&a, i, &shape, (DType)call.args[i].dtype, l->ids);
  }
  char what[100];
  snprintf(what, sizeof what, "%s %s %s %d", OP_INFO[l->op].name, dtype_name(t),
           part == KERNEL_B ? "gradient" : "forward", wrt);
  return same_bits(&a, what);
}

static bool try_op(const Large *l) {
  bool same = true;
  for (DType t = DT_F32; t <= DT_F64; t++) {
    same &= try_part(l, KERNEL_F, 0, false, t);
    for (int wrt = 0; wrt < OP_INFO[l->op].n_operands; wrt++) {
      if (OP_INFO[l->op].saves[wrt][0] == '!') continue;
      same &= try_part(l, KERNEL_B, wrt, false, t);
      same &= try_part(l, KERNEL_B, wrt, true, t);
    }
  }
  return same;
}

static void test_model_ops(void) {
  for (int op = 1; op < OP_KIND_COUNT; op++) {
    bool same = true, there = false;
    for (int i = 0; i < N_LARGE; i++) {
      if (LARGE[i].op != (OpKind)op) continue;
      there = true;
      same &= try_op(&LARGE[i]);
    }
    if (there) ok(same, "%s", OP_INFO[op].name);
  }
}

/* Ops that the compiler inserts, on flat arrays. */
static void test_inserted(void) {
  static const OpShape flat = SHAPE(300001), one = SHAPE(1);
  static const struct {
    OpKind op;
    int n_args, norm; /* position of an f64 number; -1: none */
    bool add;
    double d[5];
  } CALLS[] = {
      {OP_FILL, 1, -1, false, {0.5}},
      {OP_ACCUMULATE, 2, -1, false, {0}},
      {OP_ACCUMULATE, 2, -1, true, {0}},
      {OP_NORM, 2, 1, false, {0}},
      {OP_NORM, 2, 1, true, {0}},
      {OP_SGD, 3, 2, false, {0.1, 0, 0.5}},
      {OP_SGD, 4, 2, false, {0.1, 0.9, 0.5}},
      {OP_ADAMW, 5, 2, false, {0.1, 0.9, 0.5, 0.95, 1e-8}},
  };
  for (size_t c = 0; c < sizeof CALLS / sizeof *CALLS; c++) {
    bool same = true;
    for (DType t = DT_F32; t <= DT_F64; t++) {
      Args a = args_new(CALLS[c].op, KERNEL_F, 0, CALLS[c].add, CALLS[c].n_args, CALLS[c].d);
      for (int i = 0; i < CALLS[c].n_args; i++)
        set_arg(&a, i, i == CALLS[c].norm ? &one : &flat, i == CALLS[c].norm ? DT_F64 : t, 0);
      same &= same_bits(&a, OP_INFO[CALLS[c].op].name);
    }
    ok(same, "%s, %d arguments%s", OP_INFO[CALLS[c].op].name, CALLS[c].n_args,
       CALLS[c].add ? ", adding" : "");
  }
}

int main(void) {
  PiperErr err = {0};
  random_start();
  scratch = aligned_alloc(64, MOST_THREADS * OP_SCRATCH_BYTES);
  for (uint32_t n = 1; n <= MOST_THREADS; n++)
    if (team_new(n, &crowd, "piper test", &team_of[n], &err) != PIPER_OK ||
        ops_cpu_init(&cpu_of[n], NULL, team_of[n], &err) != PIPER_OK)
      bail(err.text);
  test_model_ops();
  test_inserted();
  for (uint32_t n = 1; n <= MOST_THREADS; n++) team_free(team_of[n]);
  free(scratch);
  return done_testing();
}
