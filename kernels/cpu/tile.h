/* tile.h - a tile of a product, its sums kept in registers. No include guard; after vec.h and
 * ahead.h.
 *
 *   C[rows, vectors] = (keep * start + sum over p < kc of A[i, p] B[p, :]) * factor
 *
 * A[i, p] at a[i * a_row + p * a_step], B[p, :] at b[p * ldb], aligned to vectors; keep and factor are
 * one number a row. NULL: start is 0, keep or factor 1. A sum is the same chain in every tile:
 * sum = 0; for each p: sum = fma(a, b, sum). Meanwhile memory is fetched for what comes next ('ahead' is
 * not NULL). */
ALWAYS_INLINE void FN(tile)(const int rows, const int vectors, int64_t kc, const REAL *restrict a,
                            int64_t a_row, int64_t a_step, const REAL *restrict b, int64_t ldb,
                            REAL *c, int64_t ldc, const REAL *start, int64_t ld_start,
                            const REAL *keep, const REAL *factor, Ahead *ahead) {
  VEC sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) sum[i][v] = (VEC){0};
  for (int64_t p = 0; p < kc;) {
    const int64_t end = ahead != NULL ? min_i64(p + AHEAD_EVERY, kc) : kc;
    if (ahead != NULL) ahead_fetch(ahead);
    for (; p < end; p++) {
      VEC row[NV];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; v++) row[v] = ((const VEC *)b)[v];
#pragma GCC unroll 16
      for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) sum[i][v] += a[i * a_row] * row[v];
      a += a_step;
      b += ldb;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
      VEC out = sum[i][v];
      if (start != NULL) {
        const VEC from = *(const VEC_U *)(start + i * ld_start + v * LANES);
        out = keep != NULL ? keep[i] * from + out : from + out;
      }
      if (factor != NULL) out *= factor[i];
      *(VEC_U *)(c + i * ldc + v * LANES) = out;
    }
}
