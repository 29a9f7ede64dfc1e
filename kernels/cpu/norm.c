/* norm.c - normalisation of rows.
 *
 *   x, y: (rows, n); w, b: (n)
 *
 *   rmsnorm:    y = x r w,             r = 1 / sqrt(mean of x^2 + eps)
 *   layernorm:  y = (x - m) r w + b,   m = mean of x, r = 1 / sqrt(mean of (x - m)^2 + eps)
 *
 * Forward stores r of each row, or (m, r), as the gradients read them. With h = (x - m) r and g = dy w:
 *
 *   dx = r (g - h mean(g h));   layernorm: r (g - mean(g) - h mean(g h))
 *   dw = sum over rows of dy h
 *
 * Means are sums in f64 (sum.h); columns are summed in order of the rows. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#include <math.h>

#define SELF "norm.c"
#include "both.h"

#else

#include "each.h"
#include "sum.h"

/* Sum of (x - m)^2. */
static double FN(sum_squares_about)(int64_t n, const REAL *x, double m) {
#define D ((double)x[i] - m)
#define WIDE_D (WIDE(x + i) - m)
  SUM(WIDE_D * WIDE_D, D * D);
#undef D
#undef WIDE_D
}

static double FN(sum_triples)(int64_t n, const REAL *a, const REAL *b, const REAL *x) {
  SUM(WIDE(a + i) * WIDE(b + i) * WIDE(x + i), (double)a[i] * (double)b[i] * (double)x[i]);
}

/* Sum of a b (x - m), and in *products that of a b, in one pass. */
static double FN(sum_products_about)(int64_t n, const REAL *a, const REAL *b, const REAL *x,
                                     double m, double *products) {
  FN(Wide) part[4] = {{0}, {0}, {0}, {0}}, about[4] = {{0}, {0}, {0}, {0}};
  int64_t done = 0;
  for (; done + 16 <= n; done += 16)
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
      const int64_t i = done + 4 * q;
      const FN(Wide) ab = WIDE(a + i) * WIDE(b + i);
      part[q] += ab;
      about[q] += ab * (WIDE(x + i) - m);
    }
  for (int64_t i = done; i < n; i++) {
    const double ab = (double)a[i] * (double)b[i];
    part[(i - done) / 4][(i - done) % 4] += ab;
    about[(i - done) / 4][(i - done) % 4] += ab * ((double)x[i] - m);
  }
  *products = SUM_OF_PARTS(part);
  return SUM_OF_PARTS(about);
}

void FN(rmsnorm)(int64_t rows, int64_t n, double eps, const void *x_, const void *w_, void *y_,
                 void *stats_) {
  const REAL *x = x_, *w = w_;
  REAL *y = y_, *stats = stats_;
  for (int64_t i = 0; i < rows; i++, x += n, y += n) {
    const REAL r = (REAL)(1 / sqrt(FN(sum_squares)(n, x) / (double)n + eps));
    for (int64_t j = 0; j < n; j++) y[j] = x[j] * r * w[j];
    stats[i] = r;
  }
}

ALWAYS_INLINE void FN(rmsnorm_row)(int64_t n, REAL r, REAL pull, const REAL *x, const REAL *w,
                                   const REAL *dy, REAL *dx, bool add) {
  EACH(n, dx, add, r * (dy[i] * w[i]) - pull * x[i]);
}

void FN(rmsnorm_grad)(int64_t rows, int64_t n, const void *x_, const void *w_, const void *stats_,
                      const void *dy_, void *dx_, bool add) {
  const REAL *x = x_, *w = w_, *stats = stats_, *dy = dy_;
  REAL *dx = dx_;
  for (int64_t i = 0; i < rows; i++, x += n, dy += n, dx += n) {
    const double r = (double)stats[i];
    const REAL pull = (REAL)(r * r * r * FN(sum_triples)(n, dy, w, x) / (double)n);
    FN(rmsnorm_row)(n, stats[i], pull, x, w, dy, dx, add);
  }
}

void FN(layernorm)(int64_t rows, int64_t n, double eps, const void *x_, const void *w_,
                   const void *b_, void *y_, void *stats_) {
  const REAL *x = x_, *w = w_, *b = b_;
  REAL *y = y_, *stats = stats_;
  for (int64_t i = 0; i < rows; i++, x += n, y += n) {
    const double mean = FN(sum)(n, x) / (double)n;
    const REAL m = (REAL)mean;
    const REAL r = (REAL)(1 / sqrt(FN(sum_squares_about)(n, x, mean) / (double)n + eps));
    if (b != NULL)
      for (int64_t j = 0; j < n; j++) y[j] = (x[j] - m) * r * w[j] + b[j];
    else
      for (int64_t j = 0; j < n; j++) y[j] = (x[j] - m) * r * w[j];
    stats[2 * i] = m;
    stats[2 * i + 1] = r;
  }
}

ALWAYS_INLINE void FN(layernorm_row)(int64_t n, REAL m, REAL r, REAL shift, REAL pull,
                                     const REAL *x, const REAL *w, const REAL *dy, REAL *dx,
                                     bool add) {
  EACH(n, dx, add, r * (dy[i] * w[i] - shift - pull * (x[i] - m)));
}

void FN(layernorm_grad)(int64_t rows, int64_t n, const void *x_, const void *w_, const void *stats_,
                        const void *dy_, void *dx_, bool add) {
  const REAL *x = x_, *w = w_, *stats = stats_, *dy = dy_;
  REAL *dx = dx_;
  for (int64_t i = 0; i < rows; i++, x += n, dy += n, dx += n) {
    const REAL m = stats[2 * i], scale = stats[2 * i + 1];
    const double r = (double)scale;
    double sum;
    const double about = FN(sum_products_about)(n, dy, w, x, (double)m, &sum);
    const REAL shift = (REAL)(sum / (double)n), pull = (REAL)(r * r * about / (double)n);
    FN(layernorm_row)(n, m, scale, shift, pull, x, w, dy, dx, add);
  }
}

/* 4 'groups' of columns at once, their sums in registers; stats of a row are r or (m, r). */
ALWAYS_INLINE void FN(weight_group)(const int groups, int64_t rows, int64_t ld, const REAL *x,
                                    const REAL *stats, const int n_stats, const REAL *dy, REAL *dw,
                                    bool add) {
  FN(Wide) sums[8];
#pragma GCC unroll 8
  for (int q = 0; q < groups; q++) sums[q] = (FN(Wide)){0};
  for (int64_t i = 0; i < rows; i++, stats += n_stats) {
    const double m = n_stats == 2 ? (double)stats[0] : 0, r = (double)stats[n_stats - 1];
#pragma GCC unroll 8
    for (int q = 0; q < groups; q++)
      sums[q] += WIDE(dy + i * ld + 4 * q) * ((WIDE(x + i * ld + 4 * q) - m) * r);
  }
#pragma GCC unroll 8
  for (int q = 0; q < groups; q++)
    for (int l = 0; l < 4; l++) {
      const REAL sum = (REAL)sums[q][l];
      dw[4 * q + l] = add ? dw[4 * q + l] + sum : sum;
    }
}

ALWAYS_INLINE void FN(weight_columns)(int64_t rows, int64_t columns, int64_t ld, const REAL *x,
                                      const REAL *stats, const int n_stats, const REAL *dy,
                                      REAL *dw, bool add) {
  int64_t j = 0;
  for (; j + 32 <= columns; j += 32)
    FN(weight_group)(8, rows, ld, x + j, stats, n_stats, dy + j, dw + j, add);
  for (; j + 4 <= columns; j += 4)
    FN(weight_group)(1, rows, ld, x + j, stats, n_stats, dy + j, dw + j, add);
  for (; j < columns; j++) {
    double sum = 0;
    for (int64_t i = 0; i < rows; i++) {
      const REAL *s = stats + i * n_stats;
      const double m = n_stats == 2 ? (double)s[0] : 0, r = (double)s[n_stats - 1];
      sum += (double)dy[i * ld + j] * (((double)x[i * ld + j] - m) * r);
    }
    dw[j] = add ? dw[j] + (REAL)sum : (REAL)sum;
  }
}

void FN(norm_weight_grad)(int64_t rows, int64_t columns, int64_t ld, const void *x,
                          const void *stats, int n_stats, const void *dy, void *dw, bool add) {
  if (n_stats == 1) FN(weight_columns)(rows, columns, ld, x, stats, 1, dy, dw, add);
  else FN(weight_columns)(rows, columns, ld, x, stats, 2, dy, dw, add);
}

#endif
