/* reduce.c - sums in f64, of all elements (sum.h) or of each column, in order of the rows. */
#ifndef REAL

#define SELF "reduce.c"
#include "both.h"

#else

#include "sum.h"

double FN(sum)(int64_t n, const void *x_) {
  const REAL *x = x_;
  SUM(WIDE(x + i), (double)x[i]);
}

double FN(sum_squares)(int64_t n, const void *x_) {
  const REAL *x = x_;
  SUM(WIDE(x + i) * WIDE(x + i), (double)x[i] * (double)x[i]);
}

double FN(sum_products)(int64_t n, const void *a_, const void *b_) {
  const REAL *a = a_, *b = b_;
  SUM(WIDE(a + i) * WIDE(b + i), (double)a[i] * (double)b[i]);
}

double FN(sum_squared_difference)(int64_t n, const void *a_, const void *b_) {
  const REAL *a = a_, *b = b_;
#define D ((double)a[i] - (double)b[i])
#define WIDE_D (WIDE(a + i) - WIDE(b + i))
  SUM(WIDE_D * WIDE_D, D *D);
#undef D
#undef WIDE_D
}

void FN(widen_add)(int64_t n, const void *x_, double *restrict sums) {
  const REAL *restrict x = x_;
  for (int64_t i = 0; i < n; i++) sums[i] += (double)x[i];
}

void FN(narrow)(int64_t n, const double *restrict sums, void *y_, bool add) {
  REAL *restrict y = y_;
  if (add)
    for (int64_t i = 0; i < n; i++) y[i] += (REAL)sums[i];
  else
    for (int64_t i = 0; i < n; i++) y[i] = (REAL)sums[i];
}

/* 4 'groups' of columns at once, their sums in registers. */
ALWAYS_INLINE void FN(column_group)(const int groups, int64_t rows, int64_t ld,
                                    const REAL *restrict x, REAL *restrict y, bool add) {
  FN(Wide) sums[8];
#pragma GCC unroll 8
  for (int q = 0; q < groups; q++) sums[q] = (FN(Wide)){0};
  for (int64_t i = 0; i < rows; i++)
#pragma GCC unroll 8
    for (int q = 0; q < groups; q++) sums[q] += WIDE(x + i * ld + 4 * q);
#pragma GCC unroll 8
  for (int q = 0; q < groups; q++)
    for (int l = 0; l < 4; l++) {
      const REAL sum = (REAL)sums[q][l];
      y[4 * q + l] = add ? y[4 * q + l] + sum : sum;
    }
}

void FN(column_sums)(int64_t rows, int64_t columns, int64_t ld, const void *x_, void *y_, bool add) {
  const REAL *x = x_;
  REAL *y = y_;
  int64_t j = 0;
  for (; j + 32 <= columns; j += 32) FN(column_group)(8, rows, ld, x + j, y + j, add);
  for (; j + 4 <= columns; j += 4) FN(column_group)(1, rows, ld, x + j, y + j, add);
  for (; j < columns; j++) {
    double sum = 0;
    for (int64_t i = 0; i < rows; i++) sum += (double)x[i * ld + j];
    y[j] = add ? y[j] + (REAL)sum : (REAL)sum;
  }
}

#endif
