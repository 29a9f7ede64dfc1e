/* row.h - the softmax of one row, for softmax.c and cross_entropy.c. No include guard. A row is
 * worked on in tiles that stay in the first-level cache. */
#include "exp.h"

#undef TILE
#define TILE 256

/* NaN is passed over here and makes the sum NaN. */
static REAL FN(row_max)(int64_t n, const REAL *x) {
  enum { WIDTH = 64 };
  REAL most = -INFINITY;
  int64_t i = 0;
  if (n >= WIDTH) {
    REAL lane[WIDTH];
    for (int j = 0; j < WIDTH; j++) lane[j] = -INFINITY;
    for (; i + WIDTH <= n; i += WIDTH)
      for (int j = 0; j < WIDTH; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 0; j < WIDTH; j++) most = lane[j] > most ? lane[j] : most;
  }
  for (; i < n; i++) most = x[i] > most ? x[i] : most;
  return most;
}

/* e of n neighbours; e may be x. */
ALWAYS_INLINE void FN(row_exp)(int64_t n, const REAL *x, REAL max, REAL *e) {
  _Pragma("GCC ivdep") for (int64_t j = 0; j < n; j++) e[j] = FN(exp_nonpositive)(x[j] - max);
}

/* Sum of e over a row; 'e' is room for the whole row (x itself will do), or NULL: it is not wanted. */
static double FN(row_sum)(int64_t n, const REAL *x, REAL max, REAL *e) {
  REAL tile[TILE];
  double sum = 0;
  for (int64_t j = 0; j < n; j += TILE) {
    const int64_t count = min_i64(TILE, n - j);
    REAL *to = e != NULL ? e + j : tile;
    FN(row_exp)(count, x + j, max, to);
    sum += FN(sum)(count, to);
  }
  return sum;
}
