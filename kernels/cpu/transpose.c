/* transpose.c - a matrix of elements of REAL's size turned over: y[j, i] (+)= x[i, j], x: (rows, columns).
 *
 * Blocks of TRANSPOSE x TRANSPOSE go through registers, bands of BAND rows of x keep the lines of y that
 * they write in cache; what is left at the edges is done element by element. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#define SELF "transpose.c"
enum { BAND = 64 };
#include "both.h"
#undef TRANSPOSE

#else

#undef TRANSPOSE
#include "transpose.h"

/* Elements, in words of REAL's size: what they hold may be integers. */
ALWAYS_INLINE void FN(turn_block)(const REAL *x, int64_t ld_x, REAL *y, int64_t ld_y, bool add) {
  if (!add) {
    FN(transpose)(x, ld_x, y, ld_y);
    return;
  }
  REAL block[TRANSPOSE * TRANSPOSE];
  FN(transpose)(x, ld_x, block, TRANSPOSE);
  for (int j = 0; j < TRANSPOSE; j++)
    for (int i = 0; i < TRANSPOSE; i++) y[j * ld_y + i] += block[j * TRANSPOSE + i];
}

ALWAYS_INLINE void FN(turn_edge)(int64_t rows, int64_t columns, const REAL *x, int64_t ld_x,
                                 REAL *y, int64_t ld_y, bool add) {
  for (int64_t j = 0; j < columns; j++)
    for (int64_t i = 0; i < rows; i++)
      y[j * ld_y + i] = add ? y[j * ld_y + i] + x[i * ld_x + j] : x[i * ld_x + j];
}

static void FN(turn_band)(int64_t rows, int64_t columns, const REAL *x, int64_t ld_x, REAL *y,
                          int64_t ld_y, bool add) {
  const int64_t whole = columns / TRANSPOSE * TRANSPOSE;
  int64_t i = 0;
  for (; i + TRANSPOSE <= rows; i += TRANSPOSE) {
    for (int64_t j = 0; j < whole; j += TRANSPOSE)
      FN(turn_block)(x + i * ld_x + j, ld_x, y + j * ld_y + i, ld_y, add);
    FN(turn_edge)
    (TRANSPOSE, columns - whole, x + i * ld_x + whole, ld_x, y + whole * ld_y + i, ld_y, add);
  }
  FN(turn_edge)(rows - i, columns, x + i * ld_x, ld_x, y + i, ld_y, add);
}

void FN(transpose_matrix)(int64_t rows, int64_t columns, const void *x_, int64_t ld_x, void *y_,
                          int64_t ld_y, bool add) {
  const REAL *x = x_;
  REAL *y = y_;
  for (int64_t i = 0; i < rows; i += BAND)
    FN(turn_band)(min_i64(BAND, rows - i), columns, x + i * ld_x, ld_x, y + i, ld_y, add);
}

#endif
