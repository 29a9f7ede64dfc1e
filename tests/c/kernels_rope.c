/* Rotary embedding on every instruction set, f32 and f64: against the plain formula, in place, turned
 * back, added, in pieces. */
#include "device/cpu_isa.h"

#include "random_data.h"

enum { MOST = 40000 }; /* elements of an array */

typedef struct Case {
  int samples, positions, heads, width, gap;
  int64_t position;
  double base;
} Case;

static const KernelTable *table;
static const Kernels *k;
static bool f64;
static double first_set[MOST]; /* what the first instruction set gave */

static double get(const void *p, int64_t i) { return f64 ? ((const double *)p)[i] : (double)((const float *)p)[i]; }

static void set(void *p, int64_t i, double x) {
  if (f64) ((double *)p)[i] = x;
  else ((float *)p)[i] = (float)x;
}

static void *at(void *p, int64_t i) { return (unsigned char *)p + i * (f64 ? 8 : 4); }

static HeadSteps steps(const Case *c) {
  const int64_t row = (int64_t)c->heads * c->width + c->gap;
  return (HeadSteps){row * c->positions, row, c->width};
}

static int64_t room(const Case *c) { return c->samples * steps(c).sample; }

static void *numbers(const Case *c) {
  void *p = malloc((size_t)room(c) * 8);
  for (int64_t i = 0; i < room(c); i++) set(p, i, random_uniform() * 2 - 1);
  return p;
}

static void *copy(const Case *c, const void *x) { return memcpy(malloc((size_t)room(c) * 8), x, (size_t)room(c) * 8); }

static Rope call(const Case *c, const void *x, void *y) {
  return (Rope){.samples = c->samples, .positions = c->positions, .heads = c->heads, .width = c->width,
                .position = c->position, .base = c->base, .x = x, .y = y, .x_step = steps(c), .y_step = steps(c)};
}

/* y by the formula; what lies between the rows keeps what y held. */
static void naive(const Case *c, const void *x, double sign, double *y) {
  const HeadSteps step = steps(c);
  for (int s = 0; s < c->samples; s++)
    for (int p = 0; p < c->positions; p++)
      for (int h = 0; h < c->heads; h++)
        for (int i = 0; i < c->width / 2; i++) {
          const int64_t a = s * step.sample + p * step.position + h * step.head + i, b = a + c->width / 2;
          const long double angle = (long double)(c->position + p) * powl(c->base, -2.0L * i / c->width);
          const long double cosine = cosl(angle), sine = sign * sinl(angle);
          y[a] = (double)(get(x, a) * cosine - get(x, b) * sine);
          y[b] = (double)(get(x, b) * cosine + get(x, a) * sine);
        }
}

static bool near(const Case *c, const char *what, const void *got, const double *want, double tolerance) {
  for (int64_t i = 0; i < room(c); i++)
    if (!(fabs(get(got, i) - want[i]) <= tolerance)) {
      diag("%s: %d x %d at %lld, %d heads of %d: element %d is %.17g, not %.17g", what, c->samples, c->positions,
           (long long)c->position, c->heads, c->width, (int)i, get(got, i), want[i]);
      return false;
    }
  return true;
}

typedef struct Verdict {
  bool formula, back, add, place, pieces, bits;
} Verdict;

static void try_case(const Case *c, bool compare, Verdict *v) {
  const int64_t n = room(c);
  void *x = numbers(c), *y = numbers(c), *z = copy(c, y), *sum = copy(c, y);
  double *want = malloc((size_t)n * sizeof *want), *plus = malloc((size_t)n * sizeof *plus);
  /* the angle is known to half a unit in its last place */
  const double limit = fmax(f64 ? 1e-15 : 2e-7, (double)(c->position + c->positions) * 2e-16 * 2);
  for (int64_t i = 0; i < n; i++) want[i] = get(y, i);
  naive(c, x, 1, want);
  Rope r = call(c, x, y);
  k->rope(&r);
  v->formula = near(c, "rope", y, want, limit) && v->formula;
  if (compare) v->bits = memcmp(y, first_set, (size_t)n * (f64 ? 8 : 4)) == 0 && v->bits;
  else memcpy(first_set, y, (size_t)n * (f64 ? 8 : 4));

  /* by positions, the later ones first */
  for (int cut = c->positions, start; cut > 0; cut = start) {
    start = cut - random_int(1, cut);
    r = call(c, at(x, start * steps(c).position), at(z, start * steps(c).position));
    r.positions = cut - start;
    r.position += start;
    k->rope(&r);
  }
  v->pieces = memcmp(y, z, (size_t)n * (f64 ? 8 : 4)) == 0 && v->pieces;

  for (int64_t i = 0; i < n; i++) plus[i] = get(sum, i) + want[i];
  for (int64_t i = 0; i < n; i++)
    if (i % steps(c).position >= (int64_t)c->heads * c->width) plus[i] = get(sum, i);
  r = call(c, x, sum);
  r.add = true;
  k->rope(&r);
  v->add = near(c, "added", sum, plus, limit + (f64 ? 1e-15 : 2e-7)) && v->add;

  void *place = copy(c, x);
  r = call(c, place, place);
  k->rope(&r);
  for (int64_t i = 0; i < n; i++)
    if (i % steps(c).position < (int64_t)c->heads * c->width) v->place = get(place, i) == get(y, i) && v->place;

  /* the transpose: turned by the negative angle, which gives back x */
  naive(c, y, -1, want);
  r = call(c, y, z);
  r.backward = true;
  k->rope(&r);
  v->back = near(c, "gradient", z, want, limit) && v->back;
  for (int64_t i = 0; i < n; i++)
    if (i % steps(c).position < (int64_t)c->heads * c->width)
      v->back = fabs(get(z, i) - get(x, i)) <= (f64 ? 2e-15 : 5e-7) && v->back;
  free(x);
  free(y);
  free(z);
  free(sum);
  free(place);
  free(want);
  free(plus);
}

static void test_type(int isa, Verdict *v) {
  static const Case CASES[] = {
      {1, 1, 1, 2, 0, 0, 10000},   {1, 3, 1, 2, 1, 5, 10000},     {2, 9, 3, 4, 0, 0, 10000},
      {1, 7, 2, 6, 3, 100, 10000}, {1, 5, 2, 14, 2, 1, 1e6},      {1, 5, 1, 16, 0, 0, 10000},
      {1, 5, 1, 30, 1, 3, 10000},  {1, 5, 3, 32, 0, 0, 10000},    {2, 65, 2, 64, 0, 0, 10000},
      {1, 33, 2, 80, 5, 7, 1e6},   {1, 6, 1, 126, 0, 2000, 5e5},  {1, 4, 1, 256, 0, 0, 10000},
      {1, 4, 1, 258, 1, 9, 10000}, {1, 3, 1, 700, 0, 1, 10000},   {1, 4, 2, 8, 0, 131072, 10000},
      {1, 4, 1, 64, 0, 999990, 100}};
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    static double before[2][16][MOST]; /* by type and case */
    random_index_ = 1000000 * i;
    if (isa > 0) memcpy(first_set, before[f64][i], sizeof first_set);
    try_case(&CASES[i], isa > 0, v);
    if (isa == 0) memcpy(before[f64][i], first_set, sizeof first_set);
  }
}

int main(void) {
  random_start();
  int runs, isa = 0;
  for (int i = 0; (table = cpu_isa_at(i, &runs)) != NULL; i++) {
    if (!runs) {
      skip("this processor lacks an instruction set");
      continue;
    }
    for (int type = 0; type < 2; type++) {
      f64 = type;
      k = f64 ? &table->f64 : &table->f32;
      Verdict v = {true, true, true, true, true, true};
      test_type(isa, &v);
      const char *name = f64 ? "f64" : "f32";
      ok(v.formula, "%s %s: the plain formula's numbers, nothing else written", table->isa, name);
      ok(v.back, "%s %s: the gradient turns back", table->isa, name);
      ok(v.add, "%s %s: added to what is there", table->isa, name);
      ok(v.place, "%s %s: in place", table->isa, name);
      ok(v.pieces, "%s %s: same bits however the positions are cut", table->isa, name);
      ok(v.bits, "%s %s: same bits as the first instruction set", table->isa, name);
    }
    isa++;
  }
  return done_testing();
}
