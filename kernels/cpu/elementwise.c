/* elementwise.c - maps over arrays of one length, whose result may overwrite an operand:
 *
 *   fill, scale, relu and its gradient, a + b, a - b, a b, a / b and its gradient, f (a - b) */
#ifndef REAL

#define SELF "elementwise.c"
#include "both.h"

#else

#include "each.h"

void FN(fill)(int64_t n, double value, void *y_, bool add) {
  const REAL v = (REAL)value;
  REAL *y = y_;
  EACH(n, y, add, v);
}

void FN(scale)(int64_t n, double factor, const void *x_, void *y_, bool add) {
  const REAL f = (REAL)factor, *x = x_;
  REAL *y = y_;
  EACH(n, y, add, f * x[i]);
}

/* NaN stays NaN. */
void FN(relu)(int64_t n, const void *x_, void *y_) {
  const REAL *x = x_;
  REAL *y = y_;
  EACH(n, y, false, x[i] < 0 ? 0 : x[i]);
}

void FN(relu_grad)(int64_t n, const void *y_, const void *dy_, void *dx_, bool add) {
  const REAL *y = y_, *dy = dy_;
  REAL *dx = dx_;
  EACH(n, dx, add, y[i] > 0 ? dy[i] : 0);
}

/* An operand with step 0 is one number, read before the first result is written. */
#define BINARY(name, a_op_b)                                                                       \
  void FN(name)(int64_t n, const void *a_, int a_step, const void *b_, int b_step, void *y_) {     \
    const REAL *as = a_, *bs = b_;                                                                 \
    REAL *y = y_;                                                                                  \
    if (n < 1) return;                                                                             \
    if (a_step != 0 && b_step != 0) {                                                              \
      _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {                                       \
        const REAL a = as[i], b = bs[i];                                                           \
        y[i] = a_op_b;                                                                             \
      }                                                                                            \
    } else if (a_step != 0) {                                                                      \
      const REAL b = bs[0];                                                                        \
      _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {                                       \
        const REAL a = as[i];                                                                      \
        y[i] = a_op_b;                                                                             \
      }                                                                                            \
    } else if (b_step != 0) {                                                                      \
      const REAL a = as[0];                                                                        \
      _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {                                       \
        const REAL b = bs[i];                                                                      \
        y[i] = a_op_b;                                                                             \
      }                                                                                            \
    } else {                                                                                       \
      const REAL a = as[0], b = bs[0];                                                             \
      EACH(n, y, false, a_op_b);                                                                   \
    }                                                                                              \
  }
BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a *b)
BINARY(div, a / b)
#undef BINARY

/* As -dy (a / b) / b: no b^2, which would leave the range of REAL first. */
void FN(div_grad)(int64_t n, const void *dy_, const void *a_, int a_step, const void *b_, int b_step,
                  void *db_) {
  const REAL *dy = dy_, *a = a_, *b = b_;
  REAL *db = db_;
  if (a_step != 0 && b_step != 0)
    EACH(n, db, false, -dy[i] * (a[i] / b[i]) / b[i]);
  else if (a_step != 0)
    EACH(n, db, false, -dy[i] * (a[i] / b[0]) / b[0]);
  else if (b_step != 0)
    EACH(n, db, false, -dy[i] * (a[0] / b[i]) / b[i]);
  else
    EACH(n, db, false, -dy[i] * (a[0] / b[0]) / b[0]);
}

void FN(scaled_difference)(int64_t n, double factor, const void *a_, const void *b_, void *y_,
                           bool add) {
  const REAL f = (REAL)factor, *a = a_, *b = b_;
  REAL *y = y_;
  EACH(n, y, add, f * (a[i] - b[i]));
}

#endif
