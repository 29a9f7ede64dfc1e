/* panel.h - panels of a product's operand, copied from rows or from columns. No include guard. */
#include "vec.h"

#include "transpose.h"

/* dst[p * width + j] = src[p * ld + j] for j < n, zero up to width. */
ALWAYS_INLINE void FN(pack_rows)(int64_t kc, int64_t n, int64_t width, const REAL *src, int64_t ld,
                                 REAL *restrict dst) {
  for (int64_t p = 0; p < kc; p++, src += ld, dst += width) {
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) *(VEC_U *)(dst + j) = *(const VEC_U *)(src + j);
    for (; j < n; j++) dst[j] = src[j];
    for (; j < width; j++) dst[j] = 0;
  }
}

/* dst[p * width + j] = src[j * ld + p] for j < n, zero up to width. */
static void FN(pack_columns)(int64_t kc, int64_t n, int64_t width, const REAL *src, int64_t ld,
                             REAL *restrict dst) {
  int64_t j = 0;
  for (; j + TRANSPOSE <= n; j += TRANSPOSE) {
    int64_t p = 0;
    for (; p + TRANSPOSE <= kc; p += TRANSPOSE)
      FN(transpose)(src + j * ld + p, ld, dst + p * width + j, width);
    for (; p < kc; p++)
      for (int64_t i = 0; i < TRANSPOSE; i++) dst[p * width + j + i] = src[(j + i) * ld + p];
  }
  for (; j + 4 <= n; j += 4) {
    int64_t p = 0;
    for (; p + 4 <= kc; p += 4) FN(transpose4)(src + j * ld + p, ld, dst + p * width + j, width);
    for (; p < kc; p++)
      for (int64_t i = 0; i < 4; i++) dst[p * width + j + i] = src[(j + i) * ld + p];
  }
  for (; j < n; j++)
    for (int64_t p = 0; p < kc; p++) dst[p * width + j] = src[j * ld + p];
  for (; j < width; j++)
    for (int64_t p = 0; p < kc; p++) dst[p * width + j] = 0;
}
