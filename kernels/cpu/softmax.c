/* softmax.c - softmax of each row, and its gradient.
 *
 *   y = e / sum of e, e = exp(x - max of x);    dx = y (dy - sum of dy y)
 *
 * A result may take the place of an operand. Sums run in f64. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#include <math.h>

#define SELF "softmax.c"
#include "both.h"

#else

#include "each.h"
#include "row.h"

void FN(softmax)(int64_t rows, int64_t n, const void *x_, void *y_) {
  const REAL *x = x_;
  REAL *y = y_;
  for (int64_t i = 0; i < rows; i++, x += n, y += n) {
    const REAL scale = (REAL)(1 / FN(row_sum)(n, x, FN(row_max)(n, x), y));
    for (int64_t j = 0; j < n; j++) y[j] *= scale;
  }
}

ALWAYS_INLINE void FN(softmax_row)(int64_t n, REAL pull, const REAL *y, const REAL *dy, REAL *dx,
                                   bool add) {
  EACH(n, dx, add, y[i] * (dy[i] - pull));
}

void FN(softmax_grad)(int64_t rows, int64_t n, const void *y_, const void *dy_, void *dx_,
                      bool add) {
  const REAL *y = y_, *dy = dy_;
  REAL *dx = dx_;
  for (int64_t i = 0; i < rows; i++, y += n, dy += n, dx += n)
    FN(softmax_row)(n, (REAL)FN(sum_products)(n, y, dy), y, dy, dx, add);
}

#endif
