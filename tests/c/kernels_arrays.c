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
  FILL, FILL_ADD, SCALE, SCALE_ADD, RELU, RELU_GRAD, ADDITION, SUBTRACTION, PRODUCT, QUOTIENT, LEFT_NUMBER,
  RIGHT_NUMBER, TWO_NUMBERS, DIV_GRAD, DIFFERENCE, NARROW, SGD, MOMENTUM, ADAMW, WHATS
} What;
static const char *const NAME[WHATS] = {
    "fill", "fill and add", "scale", "scale and add", "relu", "relu_grad", "add", "sub", "mul", "div",
    "number - array", "array / number", "number + number", "div_grad", "scaled_difference", "narrow",
    "sgd", "sgd with momentum", "adamw"};

static const AdamwStep ADAM = {.lr = 0.01, .grad_scale = 0.5, .weight_decay = 0.1, .beta = {0.9, 0.95},
                               .eps = 1e-8, .bias_correction = {0.19, 0.0975}};

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
  case NARROW: k->narrow(n, sums + i, at(y, i), true); break;
  case SGD: k->sgd(n, at(y, i), at(a, i), NULL, 0.1, 0.5, 0.01, 0); break;
  case MOMENTUM: k->sgd(n, at(y, i), at(a, i), at(m, i), 0.1, 0.5, 0.01, 0.9); break;
  case ADAMW: k->adamw(n, at(y, i), at(a, i), at(m, i), at(v, i), &ADAM); break;
  case WHATS: break;
  }
}

/* The same for one element, plainly. */
static double plain(What what, double a, double b, double a0, double b0, double y, double *m, double *v,
                    double sum) {
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
         what == DIV_GRAD || what == DIFFERENCE;
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
      want = plain(what, get(&a, i), get(&b, i), get(&a, 0), get(&b, 0), want, &want_m, &want_v, sums[i]);
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
    k->cross_entropy_grad(1, 2, at(&row, 0), &target, 1, at(&dx, 0), false);
    const double p = 1 - 1 / (1 + exp(-x)); /* of class 1, whose gradient is p - 1 */
    worst = fmax(worst, fabs(get(&dx, 0) - (1 - p)));
    double loss;
    k->cross_entropy(1, 2, at(&row, 0), &target, &loss);
    worst = fmax(worst, fabs(loss - (x + log1p(exp(-x)))) / fmax(1, x));
  }
  is_near(worst, 0, f64 ? 1e-15 : 3e-7, "%s %s: e^x to the last bits", table->isa, f64 ? "f64" : "f32");

  double loss = 0;
  float row[4] = {1000, -1000, -INFINITY, 999};
  float big[2] = {-3e38f, 3e38f};
  if (f64) return;
  int32_t first = 0;
  k->cross_entropy(1, 4, row, &first, &loss);
  is_near(loss, log1p(exp(-1)), 1e-6, "%s: large logits do not overflow, -inf is probability 0", table->isa);
  k->cross_entropy(1, 2, big, &target, &loss);
  is_near(loss, 0, 0, "%s: nor do the largest there are", table->isa);
  for (int i = 0; i < 3; i++) {
    float odd[70] = {0};
    odd[i == 0 ? 69 : i] = i == 2 ? INFINITY : NAN;
    k->cross_entropy(1, 70, odd, &first, &loss);
    ok(isnan(loss), "%s: the loss of logits with %s is nan", table->isa, i == 2 ? "inf" : "nan");
  }
}

int main(void) {
  random_start();
  int runs;
  for (int i = 0; (table = cpu_isa_at(i, &runs)) != NULL; i++) {
    if (!runs) {
      skip("this processor lacks an instruction set");
      continue;
    }
    for (int type = 0; type < 2; type++) {
      f64 = type;
      k = f64 ? &table->f64 : &table->f32;
      test_maps();
      test_sums();
      test_columns();
      test_exp();
    }
  }
  return done_testing();
}
