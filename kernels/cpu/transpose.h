/* transpose.h - square blocks of REAL transposed in registers, for panel.h. No include guard.
 *
 *   transpose4: 4 x 4;  transpose: TRANSPOSE x TRANSPOSE, 8 x 8 floats or 4 x 4 doubles
 *
 * dst[p * ld_dst + j] = src[j * ld_src + p]. Each step interleaves pairs of rows, as in sorting
 * the bits of an index: after log2 of the size the rows are columns. */

typedef REAL FN(Row4) __attribute__((vector_size(4 * sizeof(REAL))));
typedef REAL FN(Row4U) __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef BITS FN(Pick4) __attribute__((vector_size(4 * sizeof(REAL))));

ALWAYS_INLINE void FN(transpose4)(const REAL *src, int64_t ld_src, REAL *dst, int64_t ld_dst) {
  typedef FN(Row4) Row;
  typedef FN(Pick4) Pick;
  const Row a = *(const FN(Row4U) *)src, b = *(const FN(Row4U) *)(src + ld_src);
  const Row c = *(const FN(Row4U) *)(src + 2 * ld_src), d = *(const FN(Row4U) *)(src + 3 * ld_src);
#ifdef REAL_IS_DOUBLE
  const Row ab0 = __builtin_shuffle(a, b, (Pick){0, 4, 2, 6}); /* a0 b0 a2 b2 */
  const Row ab1 = __builtin_shuffle(a, b, (Pick){1, 5, 3, 7});
  const Row cd0 = __builtin_shuffle(c, d, (Pick){0, 4, 2, 6});
  const Row cd1 = __builtin_shuffle(c, d, (Pick){1, 5, 3, 7});
  *(FN(Row4U) *)dst = __builtin_shuffle(ab0, cd0, (Pick){0, 1, 4, 5});
  *(FN(Row4U) *)(dst + ld_dst) = __builtin_shuffle(ab1, cd1, (Pick){0, 1, 4, 5});
  *(FN(Row4U) *)(dst + 2 * ld_dst) = __builtin_shuffle(ab0, cd0, (Pick){2, 3, 6, 7});
  *(FN(Row4U) *)(dst + 3 * ld_dst) = __builtin_shuffle(ab1, cd1, (Pick){2, 3, 6, 7});
#else
  const Row ab0 = __builtin_shuffle(a, b, (Pick){0, 4, 1, 5}); /* a0 b0 a1 b1 */
  const Row ab1 = __builtin_shuffle(a, b, (Pick){2, 6, 3, 7});
  const Row cd0 = __builtin_shuffle(c, d, (Pick){0, 4, 1, 5});
  const Row cd1 = __builtin_shuffle(c, d, (Pick){2, 6, 3, 7});
  *(FN(Row4U) *)dst = __builtin_shuffle(ab0, cd0, (Pick){0, 1, 4, 5});
  *(FN(Row4U) *)(dst + ld_dst) = __builtin_shuffle(ab0, cd0, (Pick){2, 3, 6, 7});
  *(FN(Row4U) *)(dst + 2 * ld_dst) = __builtin_shuffle(ab1, cd1, (Pick){0, 1, 4, 5});
  *(FN(Row4U) *)(dst + 3 * ld_dst) = __builtin_shuffle(ab1, cd1, (Pick){2, 3, 6, 7});
#endif
}

#undef TRANSPOSE
#ifdef REAL_IS_DOUBLE
#define TRANSPOSE 4
ALWAYS_INLINE void FN(transpose)(const REAL *src, int64_t ld_src, REAL *dst, int64_t ld_dst) {
  FN(transpose4)(src, ld_src, dst, ld_dst);
}
#else
#define TRANSPOSE 8
typedef REAL FN(Row8) __attribute__((vector_size(32)));
typedef REAL FN(Row8U) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef BITS FN(Pick8) __attribute__((vector_size(32)));

ALWAYS_INLINE void FN(transpose)(const REAL *src, int64_t ld_src, REAL *dst, int64_t ld_dst) {
  typedef FN(Row8) Row;
  typedef FN(Pick8) Pick;
  /* Masks that act alike on both 128-bit halves are one cheap instruction. */
  const Pick low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
  const Pick low2 = {0, 1, 8, 9, 4, 5, 12, 13}, high2 = {2, 3, 10, 11, 6, 7, 14, 15};
  const Pick low4 = {0, 1, 2, 3, 8, 9, 10, 11}, high4 = {4, 5, 6, 7, 12, 13, 14, 15};
  Row r[8], s[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) r[i] = *(const FN(Row8U) *)(src + i * ld_src);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    s[i] = __builtin_shuffle(r[i], r[i + 1], low);
    s[i + 1] = __builtin_shuffle(r[i], r[i + 1], high);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) { /* r[i + x]: columns x and x + 4 of rows i .. i + 3 */
    r[i] = __builtin_shuffle(s[i], s[i + 2], low2);
    r[i + 1] = __builtin_shuffle(s[i], s[i + 2], high2);
    r[i + 2] = __builtin_shuffle(s[i + 1], s[i + 3], low2);
    r[i + 3] = __builtin_shuffle(s[i + 1], s[i + 3], high2);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    *(FN(Row8U) *)(dst + i * ld_dst) = __builtin_shuffle(r[i], r[i + 4], low4);
    *(FN(Row8U) *)(dst + (i + 4) * ld_dst) = __builtin_shuffle(r[i], r[i + 4], high4);
  }
}
#endif
