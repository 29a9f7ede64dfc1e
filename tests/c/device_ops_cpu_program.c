/* What the compiler inserts, optimizers through the step block, whole programs, and what is refused. */
#include "device/cpu_isa.h"
#include "device/ops_cpu.h"

#include "tap.h"

static OpsCpu cpu;
static unsigned char *scratch;

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
  const KernelRun run = {.calls = &c, .n_calls = 1, .bases = bases, .sample_lo = sample_lo, .step = step,
                         .scratch = scratch};
  TRY(ops_cpu_check(&c, 1, bytes, 5, err));
  return ops_cpu_run(&run, &cpu, err);
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
  const KernelRun run = {.calls = calls, .n_calls = n, .bases = bases, .first = first, .scratch = scratch};
  is_int(ops_cpu_check(calls, n, bytes, 7, &err), PIPER_OK, "a program passes its check");
  is_int(ops_cpu_run(&run, &cpu, &err), PIPER_OK, "and runs");
  is_near(out[0], 16, 0, "its result is right");
  /* d hidden = [[2, 0], [0, 3]]; dW = dh^T x = [[2, 4], [-3, 9]] */
  ok(dw[0] == 2 && dw[1] == 4 && dw[2] == -3 && dw[3] == 9, "so is its gradient");
  first[DW] = 0;
  ops_cpu_run(&run, &cpu, &err);
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
/* Targets that are absent, and how many are not, as the graph counts them. */
static void test_ignored(void) {
  const float row[8] = {1, -2, 0.5f, 3, -1, 2, 0.25f, 1};
  float logits[8], loss[1], one[1] = {1}, want[8], got[8];
  PiperErr err = {0};
  memcpy(logits, row, sizeof row);
  int32_t targets[4] = {1, -100, 0, -100}, two[2] = {1, 0};
  float kept[4] = {row[0], row[1], row[4], row[5]}, kept_loss[1], kept_grad[4];
  KernelCall f =
      CALL(OP_CROSS_ENTROPY, MATRIX(0, DT_F32, 2, 2), VECTOR(1, DT_I32, 2), NUMBER(2, DT_F32));
  f.attrs.d[0] = 2;
  run5(f, NULL, 0, &err, kept, two, kept_loss, NULL, NULL);
  KernelCall b = CALL(OP_CROSS_ENTROPY, MATRIX(0, DT_F32, 2, 2), VECTOR(1, DT_I32, 2), ABSENT,
                      NUMBER(2, DT_F32), MATRIX(3, DT_F32, 2, 2));
  b.part = KERNEL_B;
  b.attrs.d[0] = 2;
  run5(b, NULL, 0, &err, kept, two, one, kept_grad, NULL);
  for (int i = 0; i < 8; i++) want[i] = i / 2 % 2 == 0 ? kept_grad[i / 4 * 2 + i % 2] : 0;

  f = CALL(OP_CROSS_ENTROPY, MATRIX(0, DT_F32, 4, 2), VECTOR(1, DT_I32, 4), NUMBER(2, DT_F32),
           ABSENT, NUMBER(3, DT_F64));
  b = CALL(OP_CROSS_ENTROPY, MATRIX(0, DT_F32, 4, 2), VECTOR(1, DT_I32, 4), ABSENT,
           NUMBER(2, DT_F32), MATRIX(3, DT_F32, 4, 2), ABSENT, NUMBER(4, DT_F64));
  b.part = KERNEL_B;
  f.attrs = b.attrs = (OpAttrs){{4, -100, 1}};
  double count[1] = {2};
  is_int(run5(f, NULL, 0, &err, logits, targets, loss, count, NULL), PIPER_OK,
         "absent targets are no error");
  ok(loss[0] == kept_loss[0], "the loss is that of the others, divided by their count");
  run5(b, NULL, 0, &err, logits, targets, one, got, count);
  ok(memcmp(got, want, sizeof got) == 0, "so is the gradient, and 0 in rows that are absent");
  run5(b, NULL, 0, &err, logits, targets, one, logits, count);
  ok(memcmp(logits, want, sizeof logits) == 0, "it may take the place of the logits");
  memcpy(logits, row, sizeof row);
  for (int i = 0; i < 8; i++) got[i] = 10;
  b.accumulate = true;
  run5(b, NULL, 0, &err, logits, targets, one, got, count);
  ok(got[2] == 10 && got[3] == 10 && fabsf(got[0] - 10 - want[0]) < 1e-6f,
     "or be added to what is there");
  b.accumulate = false;

  f.n_args = 3; /* without count */
  run5(f, NULL, 0, &err, logits, targets, loss, NULL, NULL);
  is_near((double)loss[0], (double)kept_loss[0] / 2, 1e-7, "without a count all targets divide");
  f.n_args = 5;

  for (int i = 0; i < 4; i++) targets[i] = -100;
  count[0] = 0;
  loss[0] = 7;
  run5(f, NULL, 0, &err, logits, targets, loss, count, NULL);
  run5(b, NULL, 0, &err, logits, targets, one, got, count);
  bool zero = loss[0] == 0;
  for (int i = 0; i < 8; i++) zero = zero && got[i] == 0;
  ok(zero, "count 0 gives loss 0 and gradient 0");
  targets[2] = -99;
  is_int(run5(f, NULL, 0, &err, logits, targets, loss, count, NULL), PIPER_EUSER,
         "other targets outside");
  is_str(err.text, "cross_entropy: target -99 is outside 0..1", "are errors still");
  is_int(run5(b, NULL, 0, &err, logits, targets, one, got, count), PIPER_EUSER,
         "for the gradient too");
}

static void test_dropout(void) {
  PiperErr err = {0};
  enum { SAMPLES = 6, EACH = 5 };
  float x[SAMPLES * EACH], whole[SAMPLES * EACH], part[SAMPLES * EACH];
  for (int i = 0; i < SAMPLES * EACH; i++) x[i] = 1;
  KernelCall c =
      CALL(OP_DROPOUT, VECTOR(0, DT_F32, SAMPLES * EACH), VECTOR(1, DT_F32, SAMPLES * EACH));
  c.attrs = (OpAttrs){{0.5, 9, EACH}};
  const StepBlock step = {.step = 1, .seed = 42}, next = {.step = 2, .seed = 42},
                  other = {.step = 1, .seed = 43};
  run5(c, &step, 0, &err, x, whole, NULL, NULL, NULL);
  c.args[0].dim[0] = c.args[1].dim[0] = EACH;
  for (int s = 0; s < SAMPLES; s++) run5(c, &step, s, &err, x, part + s * EACH, NULL, NULL, NULL);
  ok(memcmp(whole, part, sizeof whole) == 0,
     "a sample's mask does not depend on the samples beside it");
  c.attrs.d[2] = 0;
  run5(c, &step, 3, &err, x, part, NULL, NULL, NULL);
  ok(memcmp(whole, part, EACH * sizeof *x) == 0,
     "a value without a batch has one mask for all samples");
  c.args[0].dim[0] = c.args[1].dim[0] = SAMPLES * EACH;
  c.attrs.d[2] = EACH;
  run5(c, &next, 0, &err, x, part, NULL, NULL, NULL);
  ok(memcmp(whole, part, sizeof whole) != 0, "another step has another mask");
  run5(c, &other, 0, &err, x, part, NULL, NULL, NULL);
  ok(memcmp(whole, part, sizeof whole) != 0, "so has another seed");
  c.attrs.d[1] = 10;
  run5(c, &step, 0, &err, x, part, NULL, NULL, NULL);
  ok(memcmp(whole, part, sizeof whole) != 0, "and another dropout of the model");
}

static void test_moves_integers(void) {
  PiperErr err = {0};
  int32_t ids[6] = {1, -2, 3, 0x7f800001, 5, 6}, out[6]; /* one has the bits of a signalling NaN */
  KernelCall c = CALL(OP_TRANSPOSE, MATRIX(0, DT_I32, 2, 3), MATRIX(1, DT_I32, 3, 2));
  c.attrs = (OpAttrs){{0, 1}};
  is_int(run5(c, NULL, 0, &err, ids, out, NULL, NULL, NULL), PIPER_OK, "ids can be transposed");
  ok(out[0] == 1 && out[1] == 0x7f800001 && out[2] == -2 && out[5] == 6, "and stay what they are");
  c = CALL(OP_SLICE, MATRIX(0, DT_I32, 2, 3), MATRIX(1, DT_I32, 2, 2));
  c.attrs = (OpAttrs){{1, 1, 3}};
  is_int(run5(c, NULL, 0, &err, ids, out, NULL, NULL, NULL), PIPER_OK, "and sliced");
  ok(out[0] == -2 && out[1] == 3 && out[2] == 5 && out[3] == 6, "from a position up to another");
}

static void test_refused(void) {
  const KernelCall linear = CALL(OP_LINEAR, MATRIX(0, DT_F32, 2, 3), MATRIX(1, DT_F32, 4, 3),
                                 VECTOR(2, DT_F32, 4), MATRIX(3, DT_F32, 2, 4));
  const KernelCall loss = CALL(OP_CROSS_ENTROPY, MATRIX(0, DT_F32, 2, 3), VECTOR(1, DT_I32, 2), NUMBER(2, DT_F32));
  const KernelCall add = CALL(OP_ADD, MATRIX(0, DT_F32, 2, 3), VECTOR(1, DT_F32, 3), MATRIX(2, DT_F32, 2, 3));
  const KernelArg six = VECTOR(0, DT_F32, 6);
  KernelCall swiglu = CALL(OP_SWIGLU, six, six, ABSENT, six, ABSENT, ABSENT, six, six);
  swiglu.part = KERNEL_B;
  swiglu.wrt = KERNEL_WRT_ALL;
  KernelCall norm = CALL(OP_LAYERNORM, MATRIX(0, DT_F32, 2, 3), VECTOR(1, DT_F32, 3), ABSENT,
                         MATRIX(2, DT_F32, 2, 3), MATRIX(3, DT_F32, 2, 2));
  KernelCall slice = CALL(OP_SLICE, MATRIX(0, DT_F32, 2, 3), MATRIX(1, DT_F32, 2, 2));
  slice.attrs = (OpAttrs){{1, 1, 3}};
  KernelCall transpose = CALL(OP_TRANSPOSE, MATRIX(0, DT_F32, 2, 3), MATRIX(1, DT_F32, 3, 2));
  transpose.attrs = (OpAttrs){{0, 1}};
  KernelCall dropout = CALL(OP_DROPOUT, six, six);
#define CUBE(b, x, y, z)                                                                           \
  { .base = b, .dtype = DT_F32, .rank = 3, .dim = { x, y, z } }
  KernelCall rope = CALL(OP_ROPE, CUBE(0, 3, 2, 4), CUBE(1, 3, 2, 4));
  rope.attrs = (OpAttrs){{10000}};
  KernelCall attention = CALL(OP_ATTENTION, CUBE(0, 3, 2, 4), CUBE(1, 5, 1, 4), CUBE(1, 5, 1, 4), CUBE(2, 3, 2, 4),
                              MATRIX(3, DT_F32, 2, 3));
  const uint64_t bytes[] = {1000, 1000, 1000, 1000};
  struct {
    KernelCall c;
    const char *what;
  } bad[48];
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
  BAD(loss, "a count of another type", c.attrs.d[0] = 1, c.n_args = 5, c.args[3] = ABSENT,
      c.args[4] = six);
  BAD(loss, "an absent target that is no i32", c.attrs = ((OpAttrs){{1, 1e10, 1}}));
  BAD(add, "shapes that do not broadcast", c.args[1].dim[0] = 2);
  BAD(swiglu, "one gradient of an op that gives all", c.wrt = 0);
  BAD(add, "all gradients of an op that gives one", c.part = KERNEL_B, c.wrt = KERNEL_WRT_ALL);
  BAD(swiglu, "accumulation into an operand that is not there", c.accumulate = 4);
  BAD(linear, "accumulation into one that has no bit", c.part = KERNEL_B, c.accumulate = 2);
  BAD(swiglu, "a gradient at the place of a single one", c.args[4] = six);
  BAD(swiglu, "all gradients absent", c.args[6] = c.args[7] = ABSENT);
  BAD(swiglu, "a gradient of another size", c.args[7].dim[0] = 5);
  BAD(swiglu, "an operand that a gradient needs", c.args[1] = ABSENT);
  BAD(swiglu, "parameters among a joint op's operands", c.first_base = 0);
  BAD(norm, "statistics of another size", c.args[4].dim[1] = 1);
  BAD(norm, "statistics that are absent", c.args[4] = ABSENT);
  BAD(norm, "an eps below 0", c.attrs.d[0] = -1);
  BAD(slice, "positions behind the end", c.attrs.d[2] = 4);
  BAD(slice, "an axis that is not there", c.attrs.d[0] = 2);
  BAD(transpose, "half an axis", c.attrs.d[0] = 0.5);
  BAD(transpose, "a shape that is not turned", c.args[1] = MATRIX(1, DT_F32, 2, 3));
  BAD(dropout, "a probability of 1", c.attrs.d[0] = 1);
  BAD(rope, "pairs of an odd width", c.args[0].dim[2] = c.args[1].dim[2] = 3);
  BAD(rope, "a position before the first", c.attrs.d[1] = -1);
  BAD(rope, "another shape", c.args[1].dim[0] = 2, c.args[1].dim[1] = 3);
  BAD(attention, "heads that the key heads do not divide", c.args[0].dim[1] = c.args[3].dim[1] = 3,
      c.args[1].dim[1] = c.args[2].dim[1] = 2);
  BAD(attention, "keys of another width", c.args[1].dim[2] = c.args[2].dim[2] = 3);
  BAD(attention, "values for other keys", c.args[2].dim[0] = 4);
  BAD(attention, "another number of samples", c.args[0].rank = 4);
  BAD(attention, "a log-sum-exp of another size", c.args[4].dim[0] = 1);
  BAD(attention, "half causal", c.attrs.d[0] = 0.5);
  for (int i = 0; i < n; i++) {
    PiperErr err = {0};
    is_int(ops_cpu_check(&bad[i].c, 1, bytes, 4, &err), PIPER_EBUG, "refused: %s", bad[i].what);
    ok(err.text[0] != '\0', "with a message: %s", err.text);
  }
  PiperErr err = {0};
  KernelCall good = loss;
  good.attrs.d[0] = 1;
  ok(ops_cpu_check(&linear, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&good, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&add, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&swiglu, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&norm, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&slice, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&transpose, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&dropout, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&rope, 1, bytes, 4, &err) == PIPER_OK &&
         ops_cpu_check(&attention, 1, bytes, 4, &err) == PIPER_OK,
     "the calls themselves pass");
  KernelCall huge = add;
  huge.args[0].dim[0] = huge.args[2].dim[0] = INT64_C(1) << 62;
  is_int(ops_cpu_check(&huge, 1, bytes, 4, &err), PIPER_EBUG, "sizes whose product overflows are refused");
}

static void test_isa(void) {
  const KernelTable *table = NULL;
  PiperErr err = {0};
  setenv("PIPER_ISA", "v9", 1);
  is_int(cpu_isa_select(&table, &err), PIPER_EUSER, "PIPER_ISA=v9 is an error");
  ok(strstr(err.text, "train: PIPER_ISA is \"v9\": there are kernels for ") == err.text, "%s", err.text);
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
  if (ops_cpu_init(&cpu, NULL, NULL, &err) != PIPER_OK) bail(err.text);
  scratch = aligned_alloc(64, OP_SCRATCH_BYTES);
  test_inserted();
  test_sgd();
  test_adamw();
  test_program();
  test_ids();
  test_ignored();
  test_dropout();
  test_moves_integers();
  test_refused();
  test_isa();
  free(scratch);
  return done_testing();
}
