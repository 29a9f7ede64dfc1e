/* Kernels over arrays: every length around the vector widths, no alignment, nothing touched beyond
 * the end, and results that do not depend on how an array is cut into pieces. */
#include "base/hash.h"
#include "device/cpu_isa.h"

#include "random_data.h"

enum { LONGEST = 150, GUARD = 16, SIZE = LONGEST + 2 * GUARD };

typedef struct Array {
  union {
    float f32[SIZE];
    double f64[SIZE];
  } u;
} Array;

static const KernelTable *table;
static const Kernels *k;
static bool f64;

static void *at(Array *a, int i) {
  return f64 ? (void *)&a->u.f64[GUARD + i] : (void *)&a->u.f32[GUARD + i];
}
static double get(const Array *a, int i) { return f64 ? a->u.f64[GUARD + i] : (double)a->u.f32[GUARD + i]; }

static Array random_array(double least) {
  Array a;
  for (int i = 0; i < SIZE; i++) {
    const double u = random_uniform() * 2 - 1;
    const double x = u < 0 ? u - least : u + least;
    if (f64)
      a.u.f64[i] = x;
    else
      a.u.f32[i] = (float)x;
  }
  return a;
}

static double rounded(double x) { return f64 ? x : (double)(float)x; }

typedef enum What {
  FILL,
  FILL_ADD,
  SCALE,
  SCALE_ADD,
  RELU,
  RELU_GRAD,
  ADDITION,
  SUBTRACTION,
  PRODUCT,
  QUOTIENT,
  LEFT_NUMBER,
  RIGHT_NUMBER,
  TWO_NUMBERS,
  DIV_GRAD,
  DIFFERENCE,
  GELU,
  GELU_GRAD,
  SILU,
  SILU_GRAD,
  SWIGLU,
  SWIGLU_GRAD,
  SWIGLU_GRAD_ADD,
  SWIGLU_GATE,
  SWIGLU_UP,
  DROPOUT,
  DROPOUT_ADD,
  NARROW,
  SGD,
  MOMENTUM,
  ADAMW,
  WHATS
} What;
static const char *const NAME[WHATS] = {"fill",
                                        "fill and add",
                                        "scale",
                                        "scale and add",
                                        "relu",
                                        "relu_grad",
                                        "add",
                                        "sub",
                                        "mul",
                                        "div",
                                        "number - array",
                                        "array / number",
                                        "number + number",
                                        "div_grad",
                                        "scaled_difference",
                                        "gelu",
                                        "gelu_grad",
                                        "silu",
                                        "silu_grad",
                                        "swiglu",
                                        "swiglu_grad",
                                        "swiglu_grad, one added to",
                                        "swiglu_grad of the gate",
                                        "swiglu_grad of up",
                                        "dropout",
                                        "dropout and add",
                                        "narrow",
                                        "sgd",
                                        "sgd with momentum",
                                        "adamw"};

static const AdamwStep ADAM = {.lr = 0.01, .grad_scale = 0.5, .weight_decay = 0.1, .beta = {0.9, 0.95},
                               .eps = 1e-8, .bias_correction = {0.19, 0.0975}};

static DropoutMask mask_at(int i) {
  return (DropoutMask){.seed = UINT64_C(0xabcdef0123456789),
                       .stream = UINT64_C(0x1122334455667788),
                       .first = (UINT64_C(1) << 40) + (uint64_t)i,
                       .threshold = 0x60000000,
                       .scale = 1.6};
}

/* The number that decides about element i: word i % 64 / 16 of block i / 64 * 16 + i % 16. */
static bool kept(int i) {
  const DropoutMask m = mask_at(i);
  const uint64_t block = m.first / 64 * 16 + m.first % 16;
  const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)m.stream,
                               (uint32_t)(m.stream >> 32)};
  const uint32_t key[2] = {(uint32_t)m.seed, (uint32_t)(m.seed >> 32)};
  uint32_t out[4];
  rng_philox(counter, key, out);
  return out[m.first % 64 / 16] >= m.threshold;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }
static double normal(double x) { return erfc(-x / sqrt(2)) / 2; }
static double normal_density(double x) { return exp(-x * x / 2) / sqrt(2 * acos(-1)); }

/* Elements i .. i + n - 1 of y (and of the states m, v) by the kernel. */
static void run(What what, int i, int n, Array *a, Array *b, Array *y, Array *m, Array *v,
                const double *sums) {
  switch (what) {
  case FILL: k->fill(n, 2.5, at(y, i), false); break;
  case FILL_ADD: k->fill(n, 2.5, at(y, i), true); break;
  case SCALE: k->scale(n, 0.3, at(a, i), at(y, i), false); break;
  case SCALE_ADD: k->scale(n, 0.3, at(a, i), at(y, i), true); break;
  case RELU: k->relu(n, at(a, i), at(y, i)); break;
  case RELU_GRAD: k->relu_grad(n, at(a, i), at(b, i), at(y, i), false); break;
  case ADDITION: k->add(n, at(a, i), 1, at(b, i), 1, at(y, i)); break;
  case SUBTRACTION: k->sub(n, at(a, i), 1, at(b, i), 1, at(y, i)); break;
  case PRODUCT: k->mul(n, at(a, i), 1, at(b, i), 1, at(y, i)); break;
  case QUOTIENT: k->div(n, at(a, i), 1, at(b, i), 1, at(y, i)); break;
  case LEFT_NUMBER: k->sub(n, at(a, 0), 0, at(b, i), 1, at(y, i)); break;
  case RIGHT_NUMBER: k->div(n, at(a, i), 1, at(b, 0), 0, at(y, i)); break;
  case TWO_NUMBERS: k->add(n, at(a, 0), 0, at(b, 0), 0, at(y, i)); break;
  case DIV_GRAD: k->div_grad(n, at(m, i), at(a, i), 1, at(b, i), 1, at(y, i)); break;
  case DIFFERENCE: k->scaled_difference(n, -0.7, at(a, i), at(b, i), at(y, i), false); break;
  case GELU:
    k->gelu(n, at(a, i), at(y, i));
    break;
  case GELU_GRAD:
    k->gelu_grad(n, at(a, i), at(b, i), at(y, i), false);
    break;
  case SILU:
    k->silu(n, at(a, i), at(y, i));
    break;
  case SILU_GRAD:
    k->silu_grad(n, at(a, i), at(b, i), at(y, i), false);
    break;
  case SWIGLU:
    k->swiglu(n, at(a, i), at(b, i), at(y, i));
    break;
  case SWIGLU_GRAD:
    k->swiglu_grad(n, at(a, i), at(b, i), at(v, i), at(y, i), false, at(m, i), false);
    break;
  case SWIGLU_GRAD_ADD:
    k->swiglu_grad(n, at(a, i), at(b, i), at(v, i), at(y, i), true, at(m, i), false);
    break;
  case SWIGLU_GATE:
    k->swiglu_grad(n, at(a, i), at(b, i), at(v, i), at(y, i), true, NULL, false);
    break;
  case SWIGLU_UP:
    k->swiglu_grad(n, at(a, i), NULL, at(v, i), NULL, false, at(y, i), true);
    break;
  case DROPOUT:
  case DROPOUT_ADD: {
    const DropoutMask mask = mask_at(i);
    k->dropout(n, &mask, at(a, i), at(y, i), what == DROPOUT_ADD);
    break;
  }
  case NARROW: k->narrow(n, sums + i, at(y, i), true); break;
  case SGD: k->sgd(n, at(y, i), at(a, i), NULL, 0.1, 0.5, 0.01, 0); break;
  case MOMENTUM: k->sgd(n, at(y, i), at(a, i), at(m, i), 0.1, 0.5, 0.01, 0.9); break;
  case ADAMW: k->adamw(n, at(y, i), at(a, i), at(m, i), at(v, i), &ADAM); break;
  case WHATS: break;
  }
}

/* The same for element i, plainly. */
static double plain(What what, int i, double a, double b, double a0, double b0, double y, double *m,
                    double *v, double sum) {
  switch (what) {
  case FILL: return 2.5;
  case FILL_ADD: return y + 2.5;
  case SCALE: return 0.3 * a;
  case SCALE_ADD: return y + 0.3 * a;
  case RELU: return a > 0 ? a : 0;
  case RELU_GRAD: return a > 0 ? b : 0;
  case ADDITION: return a + b;
  case SUBTRACTION: return a - b;
  case PRODUCT: return a * b;
  case QUOTIENT: return a / b;
  case LEFT_NUMBER: return a0 - b;
  case RIGHT_NUMBER: return a / b0;
  case TWO_NUMBERS: return a0 + b0;
  case DIV_GRAD: return -*m * a / (b * b);
  case DIFFERENCE: return -0.7 * (a - b);
  case GELU:
    return a * normal(a);
  case GELU_GRAD:
    return b * (normal(a) + a * normal_density(a));
  case SILU:
    return a * sigmoid(a);
  case SILU_GRAD:
    return b * silu_slope(a);
  case SWIGLU:
    return a * sigmoid(a) * b;
  case SWIGLU_GRAD:
    *m = *v * a * sigmoid(a);
    return *v * b * silu_slope(a);
  case SWIGLU_GRAD_ADD:
    *m = *v * a * sigmoid(a);
    return y + *v * b * silu_slope(a);
  case SWIGLU_GATE:
    return y + *v * b * silu_slope(a);
  case SWIGLU_UP:
    return y + *v * a * sigmoid(a);
  case DROPOUT:
    return kept(i) ? 1.6 * a : 0;
  case DROPOUT_ADD:
    return y + (kept(i) ? 1.6 * a : 0);
  case NARROW: return y + sum;
  case SGD: return y - 0.1 * (0.5 * a + 0.01 * y);
  case MOMENTUM: *m = 0.9 * *m + (0.5 * a + 0.01 * y); return y - 0.1 * *m;
  default: {
    const double g = 0.5 * a;
    *m = 0.9 * *m + 0.1 * g;
    *v = 0.95 * *v + 0.05 * g * g;
    return y - 0.01 * (*m / 0.19 / (sqrt(*v / 0.0975) + 1e-8) + 0.1 * y);
  }
  }
}

static bool differ(double got, double want) {
  return !(fabs(got - want) <= (f64 ? 1e-14 : 2e-6) * fmax(fabs(want), 1));
}

/* Maps whose result can take the place of their operand 'a', all of it. */
static bool may_overwrite(What what) {
  return what == SCALE || (what >= RELU && what <= QUOTIENT) || what == RIGHT_NUMBER ||
         what == DIV_GRAD || (what >= DIFFERENCE && what <= SWIGLU_GRAD) || what == DROPOUT;
}

static Hash digest; /* of all results of one map */

static bool try_length(What what, int n, int shift) {
  Array a = random_array(0), b = random_array(0.1), y0 = random_array(0), m0 = random_array(0);
  Array v0 = random_array(0.5);
  double sums[LONGEST + 8];
  for (int i = 0; i < LONGEST + 8; i++) sums[i] = random_uniform();
  for (int i = 0; i < SIZE; i++) { /* second moments are positive */
    if (f64) v0.u.f64[i] = fabs(v0.u.f64[i]);
    else v0.u.f32[i] = fabsf(v0.u.f32[i]);
  }
  Array y = y0, m = m0, v = v0;
  run(what, shift, n, &a, &b, &y, &m, &v, sums);
  bool right = true;
  for (int i = -GUARD; i < SIZE - GUARD; i++) {
    double want = get(&y0, i), want_m = get(&m0, i), want_v = get(&v0, i);
    const bool inside = i >= shift && i < shift + n;
    if (inside)
      want = plain(what, i, get(&a, i), get(&b, i), get(&a, 0), get(&b, 0), want, &want_m, &want_v,
                   sums[i]);
    const bool bad = inside ? differ(get(&y, i), want) || differ(get(&m, i), want_m) || differ(get(&v, i), want_v)
                            : get(&y, i) != want || get(&m, i) != want_m || get(&v, i) != want_v;
    if (bad && right)
      diag("%s n %d shift %d: element %d is %.17g, not %.17g", NAME[what], n, shift, i, get(&y, i), want);
    right = right && !bad;
  }
  /* in three pieces */
  Array y2 = y0, m2 = m0, v2 = v0;
  const int cut1 = random_int(0, n), cut2 = random_int(cut1, n);
  run(what, shift, cut1, &a, &b, &y2, &m2, &v2, sums);
  run(what, shift + cut1, cut2 - cut1, &a, &b, &y2, &m2, &v2, sums);
  run(what, shift + cut2, n - cut2, &a, &b, &y2, &m2, &v2, sums);
  const size_t bytes = SIZE * (f64 ? 8 : 4);
  if (memcmp(&y, &y2, bytes) != 0 || memcmp(&m, &m2, bytes) != 0 || memcmp(&v, &v2, bytes) != 0) {
    diag("%s n %d: other bits when cut at %d and %d", NAME[what], n, cut1, cut2);
    right = false;
  }
  hash_bytes(&digest, &y, bytes);
  hash_bytes(&digest, &m, bytes);
  hash_bytes(&digest, &v, bytes);
  if (may_overwrite(what)) {
    y2 = a;
    run(what, shift, n, &y2, &b, &y2, &m2, &v2, sums);
    for (int i = shift; i < shift + n; i++) right = right && get(&y2, i) == get(&y, i);
  }
  return right;
}

static void test_maps(void) {
  static uint64_t digest_of[2][WHATS]; /* on the first instruction set */
  random_index_ = 0;
  for (What what = 0; what < WHATS; what++) {
    bool right = true;
    digest = HASH_START;
    for (int n = 0; n <= LONGEST - 8; n += n < 70 ? 1 : 13)
      right = try_length(what, n, random_int(0, 7)) && right;
    ok(right, "%s %s: %s", table->isa, f64 ? "f64" : "f32", NAME[what]);
    if (digest_of[f64][what] == 0)
      digest_of[f64][what] = hash_end(&digest);
    else
      ok(digest_of[f64][what] == hash_end(&digest), "%s %s: %s: same bits on every instruction set",
         table->isa, f64 ? "f64" : "f32", NAME[what]);
  }
}

/* Sums: near the plain ones, and the same bits from any address. */
static void test_sums(void) {
  bool near = true, same = true;
  for (int n = 0; n <= LONGEST - 8; n++) {
    Array a = random_array(0), b = random_array(0), c = a, d = b;
    double sum = 0, squares = 0, differences = 0;
    for (int i = 0; i < n; i++) {
      sum += get(&a, i);
      squares += get(&a, i) * get(&a, i);
      differences += (get(&a, i) - get(&b, i)) * (get(&a, i) - get(&b, i));
    }
    const double got[3] = {k->sum(n, at(&a, 0)), k->sum_squares(n, at(&a, 0)),
                           k->sum_squared_difference(n, at(&a, 0), at(&b, 0))};
    near = near && fabs(got[0] - sum) < 1e-12 && fabs(got[1] - squares) < 1e-12 &&
           fabs(got[2] - differences) < 1e-12;
    const int shift = random_int(1, 8);
    memmove(at(&c, shift), at(&a, 0), (size_t)n * (f64 ? 8 : 4));
    memmove(at(&d, 8 - shift), at(&b, 0), (size_t)n * (f64 ? 8 : 4));
    const double moved[3] = {k->sum(n, at(&c, shift)), k->sum_squares(n, at(&c, shift)),
                             k->sum_squared_difference(n, at(&c, shift), at(&d, 8 - shift))};
    same = same && memcmp(got, moved, sizeof got) == 0;
  }
  ok(near, "%s %s: sums are the plain ones", table->isa, f64 ? "f64" : "f32");
  ok(same, "%s %s: and do not depend on alignment", table->isa, f64 ? "f64" : "f32");
  /* f32: 2^24 + 1 is no float; a sum in f32 would lose every 1 */
  Array a = random_array(0);
  for (int i = 0; i < 100; i++) {
    if (f64) a.u.f64[GUARD + i] = i == 0 ? 0x1p53 - 200 : 1;
    else a.u.f32[GUARD + i] = i == 0 ? 0x1p24f : 1;
  }
  is_near(k->sum(100, at(&a, 0)), f64 ? 0x1p53 - 101 : 0x1p24 + 99, 0, "%s %s: sums run in f64",
          table->isa, f64 ? "f64" : "f32");
}

static void test_columns(void) {
  bool right = true;
  double *x = malloc(sizeof *x * 90 * 71), *y = malloc(sizeof *y * 90);
  for (int columns = 1; columns <= 90; columns++)
    for (int add = 0; add < 2; add++) {
      const int rows = random_int(1, 71);
      for (int i = 0; i < rows * columns; i++) {
        const int value = random_int(-5, 5);
        if (f64) x[i] = value;
        else ((float *)x)[i] = (float)value;
      }
      for (int j = 0; j < columns; j++) {
        if (f64) y[j] = 7;
        else ((float *)y)[j] = 7;
      }
      k->column_sums(rows, columns, columns, x, y, add);
      for (int j = 0; j < columns; j++) {
        double sum = add ? 7 : 0;
        for (int i = 0; i < rows; i++) sum += f64 ? x[i * columns + j] : (double)((float *)x)[i * columns + j];
        right = right && sum == (f64 ? y[j] : (double)((float *)y)[j]);
      }
    }
  ok(right, "%s %s: column sums of integers are exact", table->isa, f64 ? "f64" : "f32");
  free(x);
  free(y);
}

/* e^x stands behind the softmax of two classes: 1 / (1 + e^-x). */
static void test_exp(void) {
  double worst = 0;
  const int32_t target = 1;
  for (int i = 0; i < 40000; i++) {
    const double x = rounded(i < 20000 ? i * 0.0045 : random_uniform() * 20);
    Array row, dx;
    if (f64) row.u.f64[GUARD] = x, row.u.f64[GUARD + 1] = 0;
    else row.u.f32[GUARD] = (float)x, row.u.f32[GUARD + 1] = 0;
    k->cross_entropy_grad(1, 2, at(&row, 0), &target, INT64_MIN, 1, at(&dx, 0), false);
    const double p = 1 - 1 / (1 + exp(-x)); /* of class 1, whose gradient is p - 1 */
    worst = fmax(worst, fabs(get(&dx, 0) - (1 - p)));
    double loss;
    loss = k->cross_entropy(1, 2, at(&row, 0), &target, INT64_MIN);
    worst = fmax(worst, fabs(loss - (x + log1p(exp(-x)))) / fmax(1, x));
  }
  is_near(worst, 0, f64 ? 1e-15 : 3e-7, "%s %s: e^x to the last bits", table->isa, f64 ? "f64" : "f32");

  double loss = 0;
  float row[4] = {1000, -1000, -INFINITY, 999};
  float big[2] = {-3e38f, 3e38f};
  if (f64) return;
  int32_t first = 0;
  loss = k->cross_entropy(1, 4, row, &first, INT64_MIN);
  is_near(loss, log1p(exp(-1)), 1e-6, "%s: large logits do not overflow, -inf is probability 0", table->isa);
  loss = k->cross_entropy(1, 2, big, &target, INT64_MIN);
  is_near(loss, 0, 0, "%s: nor do the largest there are", table->isa);
  for (int i = 0; i < 3; i++) {
    float odd[70] = {0};
    odd[i == 0 ? 69 : i] = i == 2 ? INFINITY : NAN;
    loss = k->cross_entropy(1, 70, odd, &first, INT64_MIN);
    ok(isnan(loss), "%s: the loss of logits with %s is nan", table->isa, i == 2 ? "inf" : "nan");
  }
}

/* gelu and silu and their slopes, relative to the result where that is as large as its operand, to the
 * operand otherwise; and how far tails fall short of relative accuracy. */
static void test_activations(void) {
  double worst[4] = {0}, tail = 0;
  Array x, y, one;
  for (int i = 0; i < SIZE; i++) {
    if (f64) one.u.f64[i] = 1;
    else one.u.f32[i] = 1;
  }
  for (int part = 0; part < 400; part++) {
    for (int i = 0; i < LONGEST; i++) {
      const double v =
          part < 200 ? (part * LONGEST + i) * 0.001 - 15 : (random_uniform() - 0.5) * 4;
      if (f64) x.u.f64[GUARD + i] = v;
      else x.u.f32[GUARD + i] = (float)v;
    }
    for (int what = 0; what < 4; what++) {
      if (what == 0) k->gelu(LONGEST, at(&x, 0), at(&y, 0));
      if (what == 1) k->silu(LONGEST, at(&x, 0), at(&y, 0));
      if (what == 2) k->gelu_grad(LONGEST, at(&x, 0), at(&one, 0), at(&y, 0), false);
      if (what == 3) k->silu_grad(LONGEST, at(&x, 0), at(&one, 0), at(&y, 0), false);
      for (int i = 0; i < LONGEST; i++) {
        const long double v = get(&x, i), s = 1 / (1 + expl(-v)), phi = erfcl(-v / sqrtl(2)) / 2;
        const long double want = what == 0   ? v * phi
                                 : what == 1 ? v * s
                                 : what == 2 ? phi + v * expl(-v * v / 2) / sqrtl(2 * acosl(-1))
                                             : s * (1 + v * (1 - s));
        const double off = (double)fabsl(get(&y, i) - want);
        worst[what] =
            fmax(worst[what], off / fmax(fabs((double)want), what < 2 ? 0.1 * fabs((double)v) : 1));
        if (what < 2 && v < -1 && v > -12) tail = fmax(tail, off / fabs((double)want));
      }
    }
  }
  static const char *const names[] = {"gelu", "silu", "the slope of gelu", "the slope of silu"};
  for (int what = 0; what < 4; what++)
    is_near(worst[what], 0, f64 ? 1e-15 : 4e-7, "%s %s: %s to the last bits", table->isa,
            f64 ? "f64" : "f32", names[what]);
  is_near(tail, 0, f64 ? 2e-15 : 1e-6, "%s %s: their left tails keep relative accuracy", table->isa,
          f64 ? "f64" : "f32");
  float odd[3] = {NAN, 1e30f, -1e30f}, out[3];
  if (f64) return;
  k->gelu(3, odd, out);
  ok(isnan(out[0]) && out[1] == 1e30f && out[2] == 0,
     "%s: gelu of nan, of very large and very small numbers", table->isa);
  k->silu(3, odd, out);
  ok(isnan(out[0]) && out[1] == 1e30f && out[2] == 0, "%s: silu of the same", table->isa);
  k->swiglu(3, odd, (float[]){1, 1, 1}, out);
  ok(isnan(out[0]) && out[1] == 1e30f && out[2] == 0, "%s: swiglu of the same", table->isa);
}

/* Of a million elements the share that is kept is p within five deviations, neighbours and samples of
 * equal place are independent, and another seed, step or op keeps others. */
static void test_dropout(void) {
  enum { N = 1 << 20 };
  float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), *z = malloc(N * sizeof *z);
  for (int i = 0; i < N; i++) x[i] = 1;
  for (int q = 1; q < 4; q++) {
    DropoutMask m = {
        .seed = random_seed_, .stream = 77, .threshold = (uint32_t)(q * 0x1p30), .scale = 1};
    table->f32.dropout(N, &m, x, y, false);
    double kept_of = 0, pairs = 0, apart = 0, same = 0;
    m.stream = 78;
    table->f32.dropout(N, &m, x, z, false);
    for (int i = 0; i < N; i++) {
      kept_of += (double)y[i];
      pairs += (double)y[i] * (double)y[(i + 1) % N];
      apart += (double)y[i] * (double)y[(i + 64) % N];
      same += (double)y[i] * (double)z[i];
    }
    const double p = 1 - q / 4.0, five = 5 * sqrt(0.25 / N) + 1e-6;
    ok(fabs(kept_of / N - p) < five && fabs(pairs / N - p * p) < 2 * five &&
           fabs(apart / N - p * p) < 2 * five && fabs(same / N - p * p) < 2 * five,
       "%s: dropout keeps %g of its elements, whatever their neighbours", table->isa, p);
  }
  float odd[2] = {INFINITY, NAN};
  for (int i = 0; i < 2; i++) {
    const DropoutMask all = {.threshold = UINT32_MAX, .scale = 2};
    table->f32.dropout(1, &all, &odd[i], y, false);
    ok(y[0] == 0, "%s: what dropout drops is 0, whatever it was", table->isa);
  }
  free(x);
  free(y);
  free(z);
}

int main(void) {
  random_start();
  int runs;
  for (int i = 0; (table = cpu_isa_at(i, &runs)) != NULL; i++) {
    if (!runs) {
      skip("this processor lacks an instruction set");
      continue;
    }
    test_dropout();
    for (int type = 0; type < 2; type++) {
      f64 = type;
      k = f64 ? &table->f64 : &table->f32;
      test_maps();
      test_sums();
      test_columns();
      test_exp();
      test_activations();
    }
  }
  return done_testing();
}
