/* Products: every transpose, start and size near the edges of blocks, against exact arithmetic; and
 * that the bits of a row depend on nothing but its numbers. */
#include "device/cpu_isa.h"

#include "random_data.h"

enum { AT_MOST = 1100 }; /* rows, columns, depth */

static void *scratch;

typedef struct Case {
  const KernelTable *table;
  bool f64;
  int m, n, k;
  bool a_trans, b_trans;
  int start;               /* 0: none, 1: C itself, 2: a row for all rows, 3: another matrix */
  int a_gap, b_gap, c_gap; /* leading dimensions are so much larger than need be */
  int shift;               /* elements by which all arrays miss their alignment */
} Case;

static void kernel(const Case *c, const Gemm *g) {
  (c->f64 ? &c->table->f64 : &c->table->f32)->gemm(g, scratch);
}

static size_t size_of(const Case *c) { return c->f64 ? 8 : 4; }

static double get(const Case *c, const void *p, int64_t i) {
  return c->f64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static void set(const Case *c, void *p, int64_t i, double v) {
  if (c->f64)
    ((double *)p)[i] = v;
  else
    ((float *)p)[i] = (float)v;
}

static void *array(const Case *c, int64_t n) {
  const size_t bytes = ((size_t)(n + c->shift) * size_of(c) + 63) / 64 * 64;
  unsigned char *p = aligned_alloc(64, bytes + 64);
  if (p == NULL) bail("no memory");
  for (int64_t i = 0; i < n + c->shift; i++) set(c, p, i, random_int(-3, 3));
  return p;
}

static void *at(const Case *c, void *p) { return (unsigned char *)p + (size_t)c->shift * size_of(c); }

/* Integers: C v must be start v + A (B v) exactly, for a random v; and gaps stay as they are. */
static bool exact(const Case *c) {
  const int64_t lda = (c->a_trans ? c->m : c->k) + c->a_gap, ldb = (c->b_trans ? c->k : c->n) + c->b_gap;
  const int64_t ldc = c->n + c->c_gap, c_size = c->m * ldc;
  void *a0 = array(c, (c->a_trans ? c->k : c->m) * lda), *a = at(c, a0);
  void *b0 = array(c, (c->b_trans ? c->n : c->k) * ldb), *b = at(c, b0);
  void *c0 = array(c, c_size), *out = at(c, c0), *other0 = array(c, c_size), *other = at(c, other0);
  double *before = malloc((size_t)c_size * sizeof *before);
  const void *start = c->start == 0 ? NULL : c->start == 1 ? out : other;
  const int64_t ld_start = c->start == 2 ? 0 : ldc;
  for (int64_t i = 0; i < c_size; i++) before[i] = get(c, out, i);
  kernel(c, &(Gemm){.m = c->m, .n = c->n, .k = c->k, .a = a, .b = b, .c = out, .start = start,
                    .lda = lda, .ldb = ldb, .ldc = ldc, .ld_start = ld_start,
                    .a_trans = c->a_trans, .b_trans = c->b_trans});
  bool right = true;
  double v[AT_MOST], bv[AT_MOST];
  for (int j = 0; j < c->n; j++) v[j] = random_int(-3, 3);
  for (int p = 0; p < c->k; p++) {
    bv[p] = 0;
    for (int j = 0; j < c->n; j++) bv[p] += get(c, b, c->b_trans ? j * ldb + p : p * ldb + j) * v[j];
  }
  for (int i = 0; i < c->m; i++) {
    double want = 0, got = 0;
    for (int p = 0; p < c->k; p++) want += get(c, a, c->a_trans ? p * lda + i : i * lda + p) * bv[p];
    for (int j = 0; j < c->n; j++) {
      got += get(c, out, i * ldc + j) * v[j];
      if (c->start == 1) want += before[i * ldc + j] * v[j];
      if (c->start >= 2) want += get(c, other, i * ld_start + j) * v[j];
    }
    right = right && got == want;
    for (int j = c->n; j < ldc; j++) right = right && get(c, out, i * ldc + j) == before[i * ldc + j];
  }
  if (!right)
    diag("%s %s m %d n %d k %d %c%c start %d gaps %d %d %d shift %d", c->table->isa,
         c->f64 ? "f64" : "f32", c->m, c->n, c->k, c->a_trans ? 'T' : 'N', c->b_trans ? 'T' : 'N',
         c->start, c->a_gap, c->b_gap, c->c_gap, c->shift);
  free(a0);
  free(b0);
  free(c0);
  free(other0);
  free(before);
  return right;
}

static bool exact_all_ways(Case c) {
  bool right = true;
  for (int way = 0; way < 4; way++)
    for (c.start = 0; c.start < 4; c.start++) {
      c.a_trans = way & 1;
      c.b_trans = way >> 1;
      right = exact(&c) && right;
    }
  return right;
}

static void test_exact(const KernelTable *table, bool f64) {
  const char *type = f64 ? "f64" : "f32";
  bool right = true;
  for (int m = 1; m <= 10; m++)
    for (int n = 1; n <= 10; n++)
      for (int k = 1; k <= 9; k += 2)
        right = exact_all_ways((Case){.table = table, .f64 = f64, .m = m, .n = n, .k = k}) && right;
  ok(right, "%s %s: all sizes from 1 to 10 are exact", table->isa, type);

  /* tiles of C, registers, transposed blocks */
  static const int ROWS[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33}, DEPTHS[] = {1, 3, 4, 7, 8, 9, 31};
  static const int COLUMNS[] = {1, 4, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 95, 97};
  right = true;
  for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
    for (size_t j = 0; j < sizeof COLUMNS / sizeof *COLUMNS; j++) {
      Case c = {.table = table, .f64 = f64, .m = ROWS[i], .n = COLUMNS[j], .shift = random_int(0, 5),
                .a_gap = random_int(0, 3), .b_gap = random_int(0, 3), .c_gap = random_int(0, 3)};
      c.k = DEPTHS[random_int(0, 6)];
      right = exact_all_ways(c) && right;
    }
  ok(right, "%s %s: sizes around tiles are exact, with gaps and without alignment", table->isa, type);

  /* blocks of K, of B's columns and of A's rows */
  static const int EDGES[][3] = {{9, 17, 255},  {9, 17, 256},  {9, 17, 257},  {5, 33, 511},
                                 {5, 33, 512},  {5, 33, 513},  {3, 511, 9},   {3, 512, 9},
                                 {3, 513, 9},   {3, 1025, 257}, {255, 9, 5},  {256, 9, 5},
                                 {257, 9, 5},   {127, 5, 300}, {128, 5, 300}, {129, 5, 300},
                                 {513, 50, 260}, {70, 257, 770}, {1, 1024, 600}, {1000, 1, 300}};
  right = true;
  for (size_t i = 0; i < sizeof EDGES / sizeof *EDGES; i++)
    right = exact_all_ways((Case){.table = table, .f64 = f64, .m = EDGES[i][0], .n = EDGES[i][1],
                                  .k = EDGES[i][2], .c_gap = (int)i % 2}) && right;
  ok(right, "%s %s: sizes around blocks are exact", table->isa, type);
}

/* The product of random reals, dense; rows first .. first + rows - 1 of it only. */
static void *product(Case c, const double *a, const double *b, int first, int rows) {
  void *a0 = array(&c, c.m * c.k), *b0 = array(&c, c.k * c.n), *out = array(&c, c.m * c.n);
  for (int i = 0; i < c.m * c.k; i++) {
    const int row = i / c.k, p = i % c.k;
    set(&c, at(&c, a0), c.a_trans ? p * c.m + row : i, a[i]);
  }
  for (int i = 0; i < c.k * c.n; i++) {
    const int p = i / c.n, j = i % c.n;
    set(&c, at(&c, b0), c.b_trans ? j * c.k + p : i, b[i]);
  }
  const int64_t a_first = c.a_trans ? first : (int64_t)first * c.k;
  kernel(&c, &(Gemm){.m = rows, .n = c.n, .k = c.k,
                     .a = (unsigned char *)at(&c, a0) + (size_t)a_first * size_of(&c),
                     .b = at(&c, b0),
                     .c = (unsigned char *)at(&c, out) + (size_t)first * (size_t)c.n * size_of(&c),
                     .lda = c.a_trans ? c.m : c.k, .ldb = c.b_trans ? c.k : c.n, .ldc = c.n,
                     .a_trans = c.a_trans, .b_trans = c.b_trans});
  free(a0);
  free(b0);
  if (c.shift > 0) memmove(out, at(&c, out), (size_t)(c.m * c.n) * size_of(&c));
  return out;
}

static void test_bits(bool f64) {
  const char *type = f64 ? "f64" : "f32";
  enum { M = 70, N = 53, K = 601 };
  double *a = malloc(sizeof *a * M * K), *b = malloc(sizeof *b * K * N);
  for (int i = 0; i < M * K; i++) a[i] = random_uniform() - 0.5;
  for (int i = 0; i < K * N; i++) b[i] = random_uniform() - 0.5;
  int runs;
  void *first = NULL;
  for (int t = 0; cpu_isa_at(t, &runs) != NULL; t++) {
    if (!runs) continue;
    Case c = {.table = cpu_isa_at(t, NULL), .f64 = f64, .m = M, .n = N, .k = K};
    const size_t bytes = (size_t)M * N * size_of(&c);
    void *whole = product(c, a, b, 0, M);
    bool same = true;
    for (int way = 1; way < 4; way++) {
      c.a_trans = way & 1;
      c.b_trans = way >> 1;
      c.shift = way;
      void *p = product(c, a, b, 0, M);
      same = same && memcmp(p, whole, bytes) == 0;
      free(p);
    }
    ok(same, "%s %s: transposes and alignment leave every bit as it was", c.table->isa, type);
    same = true;
    c.shift = 0;
    static const int PARTS[] = {1, 2, 3, 7, 8, 9, 16, 35};
    for (size_t q = 0; q < sizeof PARTS / sizeof *PARTS; q++)
      for (int i = 0; i < M; i += PARTS[q]) {
        const int rows = PARTS[q] < M - i ? PARTS[q] : M - i;
        const size_t from = (size_t)i * N * size_of(&c), some = (size_t)rows * N * size_of(&c);
        if (PARTS[q] == 1 && i % 9 != 0) continue;
        void *p = product(c, a, b, i, rows);
        same = same && memcmp((char *)p + from, (char *)whole + from, some) == 0;
        free(p);
      }
    ok(same, "%s %s: a row has the same bits however many rows are computed with it", c.table->isa,
       type);
    double worst = 0;
    for (int i = 0; i < M; i++)
      for (int j = 0; j < N; j++) {
        double sum = 0;
        for (int p = 0; p < K; p++)
          sum += (f64 ? a[i * K + p] : (double)(float)a[i * K + p]) *
                 (f64 ? b[p * N + j] : (double)(float)b[p * N + j]);
        worst = fmax(worst, fabs(get(&c, whole, i * N + j) - sum));
      }
    /* sums of 301 products below 1/4, rounded each time: the error grows like their root */
    is_near(worst, 0, f64 ? 1e-13 : 5e-5, "%s %s: close to the naive product", c.table->isa, type);
    if (first != NULL)
      ok(memcmp(first, whole, bytes) == 0, "%s %s: same bits as the first instruction set",
         c.table->isa, type);
    else
      first = whole;
    if (first != whole) free(whole);
  }
  free(first);
  free(a);
  free(b);
}

static void test_special_values(const KernelTable *table) {
  float a[2] = {INFINITY, 0}, b[2] = {0, 1}, c[1];
  table->f32.gemm(&(Gemm){.m = 1, .n = 1, .k = 2, .a = a, .b = b, .c = c, .lda = 2, .ldb = 1, .ldc = 1},
                  scratch);
  ok(isnan(c[0]), "%s: inf times 0 is nan in a product", table->isa);
  float big[9], one[9], out[9];
  for (int i = 0; i < 9; i++) big[i] = NAN, one[i] = 1;
  for (int i = 0; i < 9; i++) out[i] = NAN;
  table->f32.gemm(&(Gemm){.m = 3, .n = 3, .k = 3, .a = one, .b = one, .c = out, .lda = 3, .ldb = 3,
                          .ldc = 3}, scratch);
  bool clean = true;
  for (int i = 0; i < 9; i++) clean = clean && out[i] == 3;
  ok(clean, "%s: without a start, what C held does not matter", table->isa);
  table->f32.gemm(&(Gemm){.m = 3, .n = 3, .k = 3, .a = one, .b = one, .c = out, .start = big,
                          .ld_start = 3, .lda = 3, .ldb = 3, .ldc = 3}, scratch);
  clean = true;
  for (int i = 0; i < 9; i++) clean = clean && isnan(out[i]);
  ok(clean, "%s: a nan in the start reaches C", table->isa);
}

int main(void) {
  random_start();
  scratch = aligned_alloc(64, KERNEL_SCRATCH_BYTES);
  if (scratch == NULL) bail("no memory");
  int runs;
  for (int t = 0; cpu_isa_at(t, &runs) != NULL; t++) {
    const KernelTable *table = cpu_isa_at(t, NULL);
    if (!runs) {
      skip("this processor lacks an instruction set");
      continue;
    }
    test_exact(table, false);
    test_exact(table, true);
    test_special_values(table);
  }
  test_bits(false);
  test_bits(true);
  free(scratch);
  return done_testing();
}
