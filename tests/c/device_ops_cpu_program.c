/* What the compiler inserts, optimizers through the step block, whole programs, and what is refused. */
#include "device/cpu_isa.h"
#include "device/ops_cpu.h"

#include "tap.h"

static OpsCpuScratch *scratch;

static KernelArg arg(int base, DType t, int64_t offset, int rank, int64_t d0, int64_t d1) {
  return (KernelArg){.base = (uint16_t)base, .offset = (uint64_t)offset, .dtype = (uint8_t)t,
                     .rank = (uint8_t)rank, .dim = {d0, d1}};
}
#define VECTOR(base, t, n) arg(base, t, 0, 1, n, 0)
#define MATRIX(base, t, m, n) arg(base, t, 0, 2, m, n)
#define NUMBER(base, t) arg(base, t, 0, 0, 0, 0)
static const KernelArg ABSENT = {.base = KERNEL_NO_BASE};

#define CALL(kind, ...)                                                                            \
  (KernelCall) {                                                                                   \
    .op = kind, .first_base = KERNEL_NO_BASE,                                                      \
    .n_args = sizeof((KernelArg[]){__VA_ARGS__}) / sizeof(KernelArg), .args = { __VA_ARGS__ }      \
  }

/* Runs one call on bases p0 .. p4. */
static PiperStatus run5(KernelCall c, const StepBlock *step, int64_t sample_lo, PiperErr *err, void *p0,
                        void *p1, void *p2, void *p3, void *p4) {
  unsigned char *bases[5] = {p0, p1, p2, p3, p4};
  const uint64_t bytes[5] = {1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20};
  const KernelRun run = {.calls = &c, .n_calls = 1, .bases = bases, .sample_lo = sample_lo, .step = step};
  TRY(ops_cpu_check(&c, 1, bytes, 5, err));
  return ops_cpu_run(&run, scratch, err);
}

static void test_inserted(void) {
  PiperErr err = {0};
  float x[5] = {1, 2, 3, 4, 5}, y[5] = {10, 20, 30, 40, 50};
  double metric[1] = {3};

  KernelCall c = CALL(OP_ACCUMULATE, VECTOR(0, DT_F32, 5), VECTOR(1, DT_F32, 5));
  c.accumulate = true;
  run5(c, NULL, 0, &err, x, y, NULL, NULL, NULL);
  ok(y[0] == 11 && y[4] == 55, "accumulate adds");
  c.accumulate = false;
  run5(c, NULL, 0, &err, x, y, NULL, NULL, NULL);
  ok(y[0] == 1 && y[4] == 5, "or copies");

  c = CALL(OP_FILL, VECTOR(0, DT_F32, 4));
  c.attrs.d[0] = 0.5;
  run5(c, NULL, 0, &err, y, NULL, NULL, NULL, NULL);
  ok(y[0] == 0.5f && y[3] == 0.5f && y[4] == 5, "fill writes its number, and only where it is told to");

  c = CALL(OP_NORM, VECTOR(0, DT_F32, 5), VECTOR(1, DT_F64, 1));
  c.accumulate = true;
  run5(c, NULL, 0, &err, x, metric, NULL, NULL, NULL);
  is_near(metric[0], 58, 0, "norm adds the sum of squares");
  c.accumulate = false;
  run5(c, NULL, 0, &err, x, metric, NULL, NULL, NULL);
  is_near(metric[0], 55, 0, "or writes it");

  c = CALL(OP_LOSS, NUMBER(0, DT_F32), VECTOR(1, DT_F64, 1));
  run5(c, NULL, 0, &err, x, metric, NULL, NULL, NULL);
  c.accumulate = true;
  run5(c, NULL, 0, &err, x + 1, metric, NULL, NULL, NULL);
  is_near(metric[0], 3, 0, "losses of microbatches add up");
  is_int(err.code, PIPER_OK, "none of these failed");
  static const struct { float value; const char *text; } ODD[] = {
      {NAN, "loss is nan"}, {INFINITY, "loss is inf"}, {-INFINITY, "loss is -inf"}};
  for (int i = 0; i < 3; i++) {
    PiperErr odd = {0};
    float value = ODD[i].value;
    is_int(run5(c, NULL, 0, &odd, &value, metric, NULL, NULL, NULL), PIPER_EUSER, "%s is an error",
           ODD[i].text + 8);
    is_str(odd.text, ODD[i].text, "and says so");
  }
  is_near(metric[0], 3, 0, "and leaves the sum alone");

  c = CALL(OP_ONCE, VECTOR(0, DT_F32, 5), VECTOR(1, DT_F32, 5));
  run5(c, NULL, 0, &err, x, y, NULL, NULL, NULL);
  ok(y[0] == 1 && y[4] == 5, "once: the value at sample 0");
  run5(c, NULL, 8, &err, x, y, NULL, NULL, NULL);
  ok(y[0] == 0 && y[4] == 0, "once: zero at all others");
  KernelCall b = CALL(OP_ONCE, ABSENT, ABSENT, VECTOR(0, DT_F32, 5), VECTOR(1, DT_F32, 5));
  b.part = KERNEL_B;
  b.accumulate = true;
  for (int64_t lo = 0; lo < 16; lo += 4) run5(b, NULL, lo, &err, x, y, NULL, NULL, NULL);
  ok(y[0] == 1 && y[4] == 5, "its gradient enters once");

  c = CALL(OP_RESHAPE, VECTOR(0, DT_F32, 4), MATRIX(0, DT_F32, 2, 2));
  run5(c, NULL, 0, &err, x, NULL, NULL, NULL, NULL);
  ok(x[0] == 1 && x[3] == 4, "reshape in place does nothing");
  is_int(err.code, PIPER_OK, "none of these failed either");
}

static void test_sgd(void) {
  PiperErr err = {0};
  const StepBlock step = {.step = 1, .lr = 0.25};
  double w[3] = {1, 2, -4}, g[3] = {4, -8, 2}, m[3] = {0}, norm[1] = {84};
  KernelCall c = CALL(OP_SGD, VECTOR(0, DT_F64, 3), VECTOR(1, DT_F64, 3), ABSENT, ABSENT);
  run5(c, &step, 0, &err, w, g, NULL, NULL, NULL);
  ok(w[0] == 0 && w[1] == 4 && w[2] == -4.5, "sgd: w - lr g");
  c.attrs.d[0] = 0.5;
  run5(c, &step, 0, &err, w, g, NULL, NULL, NULL);
  ok(w[0] == -1 && w[1] == 5.5 && w[2] == -4.4375, "weight decay adds d w to the gradient");

  double w2[3] = {1, 2, -4};
  c = CALL(OP_SGD, VECTOR(0, DT_F64, 3), VECTOR(1, DT_F64, 3), ABSENT, VECTOR(2, DT_F64, 3));
  c.attrs.d[1] = 0.5;
  run5(c, &step, 0, &err, w2, g, m, NULL, NULL);
  run5(c, &step, 0, &err, w2, g, m, NULL, NULL);
  ok(m[0] == 6 && m[1] == -12 && m[2] == 3, "momentum: m = 0.5 m + g");
  ok(w2[0] == -1.5 && w2[1] == 7 && w2[2] == -5.25, "w - lr m");

  double w3[3] = {0}, expected = 0.25 * 4 * (5 / sqrt(84));
  c = CALL(OP_SGD, VECTOR(0, DT_F64, 3), VECTOR(1, DT_F64, 3), VECTOR(2, DT_F64, 1), ABSENT);
  c.attrs.d[2] = 5;
  run5(c, &step, 0, &err, w3, g, norm, NULL, NULL);
  is_near(w3[0], -expected, 1e-15, "clipping: gradients longer than the limit are scaled to it");
  double w4[3] = {0};
  c.attrs.d[2] = 10;
  run5(c, &step, 0, &err, w4, g, norm, NULL, NULL);
  ok(w4[0] == -1 && w4[1] == 2, "shorter ones stay as they are");
  *norm = 0;
  double w5[3] = {0}, zero[3] = {0};
  run5(c, &step, 0, &err, w5, zero, norm, NULL, NULL);
  ok(w5[0] == 0, "a gradient of zero is no division by zero");
  is_int(err.code, PIPER_OK, "sgd: no errors");
}

static void test_adamw(void) {
  PiperErr err = {0};
  double w[2] = {1, -2}, m[2] = {0}, v[2] = {0}, plain[2] = {1, -2}, pm[2] = {0}, pv[2] = {0};
  float w32[2] = {1, -2}, m32[2] = {0}, v32[2] = {0};
  KernelCall c = CALL(OP_ADAMW, VECTOR(0, DT_F64, 2), VECTOR(1, DT_F64, 2), ABSENT, VECTOR(2, DT_F64, 2),
                      VECTOR(3, DT_F64, 2));
  c.attrs = (OpAttrs){{0.1, 0.9, 0, 0.95, 1e-8}};
  for (int s = 1; s <= 5; s++) {
    const StepBlock step = {.step = s, .lr = 0.01, .bias_correction = {1 - pow(0.9, s), 1 - pow(0.95, s)}};
    double g[2] = {0.5 * s, -3};
    float g32[2] = {(float)g[0], (float)g[1]};
    run5(c, &step, 0, &err, w, g, m, v, NULL);
    KernelCall f = c;
    for (int i = 0; i < 5; i++)
      if (f.args[i].base != KERNEL_NO_BASE) f.args[i].dtype = DT_F32;
    run5(f, &step, 0, &err, w32, g32, m32, v32, NULL);
    for (int i = 0; i < 2; i++) { /* Algorithm 2 of the paper */
      pm[i] = 0.9 * pm[i] + (1 - 0.9) * g[i];
      pv[i] = 0.95 * pv[i] + (1 - 0.95) * g[i] * g[i];
      const double m_hat = pm[i] / (1 - pow(0.9, s)), v_hat = pv[i] / (1 - pow(0.95, s));
      plain[i] -= 0.01 * (m_hat / (sqrt(v_hat) + 1e-8) + 0.1 * plain[i]);
    }
  }
  ok(fabs(w[0] - plain[0]) < 1e-15 && fabs(w[1] - plain[1]) < 1e-15, "adamw: five steps as in the paper");
  ok(fabs(w32[0] - plain[0]) < 1e-6 && fabs(w32[1] - plain[1]) < 1e-6, "adamw: f32 follows");
  is_int(err.code, PIPER_OK, "adamw: no errors");
}

/* y = relu(x W^T + b) W2^T, its sum, and the gradients, with temporaries at offsets of one
 * workspace: small integers, computed by hand. */
static void test_program(void) {
  enum { WORK, X, W, B, V, OUT, DW };
  float x[4] = {1, 2, -1, 3}, w[4] = {1, 0, -2, 1}, b[2] = {1, -1}, v[2] = {2, 3}, out[1], dw[4];
  float work[16];
  for (int i = 0; i < 16; i++) work[i] = NAN;
  for (int i = 0; i < 4; i++) dw[i] = NAN;
  /* x W^T + b = [[2, -1], [0, 4]]; relu = [[2, 0], [0, 4]]; times v = [4, 12]; sum 16 */
  const KernelArg hidden = MATRIX(WORK, DT_F32, 2, 2), active = arg(WORK, DT_F32, 16, 2, 2, 2);
  const KernelArg y = arg(WORK, DT_F32, 32, 2, 2, 1), one = arg(WORK, DT_F32, 40, 0, 0, 0);
  const KernelArg dy = arg(WORK, DT_F32, 44, 2, 2, 1);
  KernelCall calls[] = {
      CALL(OP_LINEAR, MATRIX(X, DT_F32, 2, 2), MATRIX(W, DT_F32, 2, 2), VECTOR(B, DT_F32, 2), hidden),
      CALL(OP_RELU, hidden, active),
      CALL(OP_LINEAR, active, MATRIX(V, DT_F32, 1, 2), ABSENT, y),
      CALL(OP_SUM, y, NUMBER(OUT, DT_F32)),
      CALL(OP_FILL, one),
      CALL(OP_SUM, ABSENT, ABSENT, one, dy),
      CALL(OP_LINEAR, ABSENT, MATRIX(V, DT_F32, 1, 2), ABSENT, ABSENT, dy, hidden),
      CALL(OP_RELU, ABSENT, active, hidden, hidden),
      CALL(OP_LINEAR, MATRIX(X, DT_F32, 2, 2), ABSENT, ABSENT, ABSENT, hidden, MATRIX(DW, DT_F32, 2, 2)),
  };
  const uint32_t n = sizeof calls / sizeof *calls;
  calls[4].attrs.d[0] = 1;
  for (uint32_t i = 5; i < n; i++) calls[i].part = KERNEL_B;
  calls[8].wrt = 1;
  calls[8].first_base = DW;
  unsigned char *bases[] = {(void *)work, (void *)x, (void *)w, (void *)b, (void *)v, (void *)out, (void *)dw};
  uint64_t bytes[] = {52, 16, 16, 8, 8, 4, 16};
  uint8_t first[7] = {0};
  first[DW] = 1;
  PiperErr err = {0};
  const KernelRun run = {.calls = calls, .n_calls = n, .bases = bases, .first = first};
  is_int(ops_cpu_check(calls, n, bytes, 7, &err), PIPER_OK, "a program passes its check");
  is_int(ops_cpu_run(&run, scratch, &err), PIPER_OK, "and runs");
  is_near(out[0], 16, 0, "its result is right");
  /* d hidden = [[2, 0], [0, 3]]; dW = dh^T x = [[2, 4], [-3, 9]] */
  ok(dw[0] == 2 && dw[1] == 4 && dw[2] == -3 && dw[3] == 9, "so is its gradient");
  first[DW] = 0;
  ops_cpu_run(&run, scratch, &err);
  ok(dw[0] == 4 && dw[1] == 8 && dw[2] == -6 && dw[3] == 18, "a later microbatch adds to it");

  for (int i = 0; i < 7; i++) {
    PiperErr small = {0};
    bytes[i] -= 1;
    is_int(ops_cpu_check(calls, n, bytes, 7, &small), PIPER_EBUG, "base %d too small: refused", i);
    bytes[i] += 1;
  }
  PiperErr few = {0};
  is_int(ops_cpu_check(calls, n, bytes, 6, &few), PIPER_EBUG, "a base too few: refused");
}

static void test_ids(void) {
  float table[6] = {0}, out[8], logits[6] = {0}, loss[1], one[1] = {1}, dlogits[6] = {7, 7, 7, 7, 7, 7};
  static const struct { int32_t id; const char *embedding, *target; } BAD[] = {
      {300, "embedding: id 300 is outside 0..2", "cross_entropy: target 300 is outside 0..2"},
      {3, "embedding: id 3 is outside 0..2", "cross_entropy: target 3 is outside 0..2"},
      {-1, "embedding: id -1 is outside 0..2", "cross_entropy: target -1 is outside 0..2"}};
  for (int i = 0; i < 3; i++) {
    int32_t ids[2] = {2, BAD[i].id};
    PiperErr err[4] = {{0}};
    KernelCall c = CALL(OP_EMBEDDING, VECTOR(0, DT_I32, 2), MATRIX(1, DT_F32, 3, 2), MATRIX(2, DT_F32, 2, 2));
    is_int(run5(c, NULL, 0, &err[0], ids, table, out, NULL, NULL), PIPER_EUSER, "id %d", BAD[i].id);
    is_str(err[0].text, BAD[i].embedding, "is named");
    c = CALL(OP_EMBEDDING, VECTOR(0, DT_I32, 2), ABSENT, ABSENT, MATRIX(2, DT_F32, 2, 2),
             MATRIX(1, DT_F32, 3, 2));
    c.part = KERNEL_B;
    c.wrt = 1;
    run5(c, NULL, 0, &err[1], ids, table, out, NULL, NULL);
    is_str(err[1].text, BAD[i].embedding, "by the gradient too");
    c = CALL(OP_CROSS_ENTROPY, MATRIX(1, DT_F32, 2, 3), VECTOR(0, DT_I32, 2), NUMBER(2, DT_F32));
    c.attrs.d[0] = 2;
    run5(c, NULL, 0, &err[2], ids, logits, loss, NULL, NULL);
    is_str(err[2].text, BAD[i].target, "target %d is named", BAD[i].id);
    c = CALL(OP_CROSS_ENTROPY, MATRIX(1, DT_F32, 2, 3), VECTOR(0, DT_I32, 2), ABSENT, NUMBER(2, DT_F32),
             MATRIX(3, DT_F32, 2, 3));
    c.attrs.d[0] = 2;
    c.part = KERNEL_B;
    run5(c, NULL, 0, &err[3], ids, logits, one, dlogits, NULL);
    is_str(err[3].text, BAD[i].target, "by the gradient too");
    ok(dlogits[0] == 7, "which wrote nothing");
  }
}

/* Each of these differs in one point from a call that is right. */
static void test_refused(void) {
  const KernelCall linear = CALL(OP_LINEAR, MATRIX(0, DT_F32, 2, 3), MATRIX(1, DT_F32, 4, 3),
                                 VECTOR(2, DT_F32, 4), MATRIX(3, DT_F32, 2, 4));
  const KernelCall loss = CALL(OP_CROSS_ENTROPY, MATRIX(0, DT_F32, 2, 3), VECTOR(1, DT_I32, 2), NUMBER(2, DT_F32));
  const KernelCall add = CALL(OP_ADD, MATRIX(0, DT_F32, 2, 3), VECTOR(1, DT_F32, 3), MATRIX(2, DT_F32, 2, 3));
  const uint64_t bytes[] = {1000, 1000, 1000, 1000};
  struct { KernelCall c; const char *what; } bad[12];
  int n = 0;
#define BAD(call, text, ...)                                                                       \
  do {                                                                                             \
    KernelCall c = call;                                                                           \
    __VA_ARGS__;                                                                                   \
    bad[n].c = c;                                                                                  \
    bad[n++].what = text;                                                                          \
  } while (0)
  BAD(linear, "an unknown op", c.op = OP_KIND_COUNT);
  BAD(linear, "no op", c.op = OP_NONE);
  BAD(linear, "an inner size that differs", c.args[1].dim[1] = 2);
  BAD(linear, "a bias of another length", c.args[2].dim[0] = 3);
  BAD(linear, "an operand of another type", c.args[1].dtype = DT_F64);
  BAD(linear, "an operand that is absent", c.args[0].base = KERNEL_NO_BASE);
  BAD(linear, "a size of 0", c.args[0].dim[0] = 0);
  BAD(linear, "accumulation in a forward pass", c.accumulate = true);
  BAD(linear, "an offset between elements", c.args[0].offset = 2);
  BAD(loss, "a divisor of 0", c.attrs.d[0] = 0);
  BAD(loss, "targets that are no integers", c.attrs.d[0] = 1, c.args[1].dtype = DT_F32);
  BAD(add, "shapes that do not broadcast", c.args[1].dim[0] = 2);
  for (int i = 0; i < n; i++) {
    PiperErr err = {0};
    is_int(ops_cpu_check(&bad[i].c, 1, bytes, 4, &err), PIPER_EBUG, "refused: %s", bad[i].what);
    ok(err.text[0] != '\0', "with a message: %s", err.text);
  }
  PiperErr err = {0};
  KernelCall good = loss;
  good.attrs.d[0] = 1;
  ok(ops_cpu_check(&linear, 1, bytes, 4, &err) == PIPER_OK && ops_cpu_check(&good, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&add, 1, bytes, 4, &err) == PIPER_OK, "the calls themselves pass");
  KernelCall huge = add;
  huge.args[0].dim[0] = huge.args[2].dim[0] = INT64_C(1) << 62;
  is_int(ops_cpu_check(&huge, 1, bytes, 4, &err), PIPER_EBUG, "sizes whose product overflows are refused");
}

static void test_isa(void) {
  const KernelTable *table = NULL;
  PiperErr err = {0};
  setenv("PIPER_ISA", "v9", 1);
  is_int(cpu_isa_select(&table, &err), PIPER_EUSER, "PIPER_ISA=v9 is an error");
  ok(strstr(err.text, "PIPER_ISA=v9: there are kernels for ") == err.text, "%s", err.text);
  int runs;
  for (int i = 0; cpu_isa_at(i, &runs) != NULL; i++) {
    PiperErr own = {0};
    setenv("PIPER_ISA", cpu_isa_at(i, NULL)->isa, 1);
    const PiperStatus st = cpu_isa_select(&table, &own);
    ok(runs ? st == PIPER_OK && table == cpu_isa_at(i, NULL) : st == PIPER_EUSER,
       "PIPER_ISA=%s chooses it, or says that this processor cannot", cpu_isa_at(i, NULL)->isa);
  }
  unsetenv("PIPER_ISA");
  PiperErr own = {0};
  is_int(cpu_isa_select(&table, &own), PIPER_OK, "without it there is a choice");
}

int main(void) {
  PiperErr err = {0};
  if (ops_cpu_scratch_new(NULL, NULL, &scratch, &err) != PIPER_OK) bail(err.text);
  test_inserted();
  test_sgd();
  test_adamw();
  test_program();
  test_ids();
  test_refused();
  test_isa();
  ops_cpu_scratch_free(scratch);
  return done_testing();
}
