/* cross_entropy.c - -log softmax(logits)[target], row by row.
 *
 *   logits: (rows, classes), targets: (rows)
 *   loss     = sum over rows of log(sum of e) - (logits[target] - max),   e[j] = exp(logits[j] - max)
 *   dlogits  = factor * (e / sum of e - one at target)
 *
 * The gradient computes e again from the logits: storing it would cost more memory traffic than
 * time. A row is worked on in tiles that stay in the first-level cache. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#include <math.h>

#define SELF "cross_entropy.c"
#define TILE 256

static int64_t first_bad_target(int64_t rows, int64_t classes, const int32_t *targets) {
  for (int64_t i = 0; i < rows; i++)
    if (targets[i] < 0 || targets[i] >= classes) return i;
  return -1;
}

#include "both.h"

#else

#include "exp.h"

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

/* e of n neighbours. */
ALWAYS_INLINE void FN(row_exp)(int64_t n, const REAL *restrict x, REAL max, REAL *restrict e) {
  for (int64_t j = 0; j < n; j++) e[j] = FN(exp_nonpositive)(x[j] - max);
}

/* Sum of e over a row; 'e' is room for the whole row, or NULL: it is not wanted. */
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

int64_t FN(cross_entropy)(int64_t rows, int64_t classes, const void *logits, const int32_t *targets,
                          double *loss) {
  const REAL *x = logits;
  const int64_t bad = first_bad_target(rows, classes, targets);
  if (bad >= 0) return bad;
  double total = 0;
  for (int64_t i = 0; i < rows; i++, x += classes) {
    const REAL max = FN(row_max)(classes, x);
    total += log(FN(row_sum)(classes, x, max, NULL)) - ((double)x[targets[i]] - (double)max);
  }
  *loss = total;
  return -1;
}

int64_t FN(cross_entropy_grad)(int64_t rows, int64_t classes, const void *logits,
                               const int32_t *targets, double factor, void *dlogits, bool add) {
  const REAL *restrict x = logits;
  REAL *restrict dx = dlogits;
  const int64_t bad = first_bad_target(rows, classes, targets);
  if (bad >= 0) return bad;
  for (int64_t i = 0; i < rows; i++, x += classes, dx += classes) {
    const REAL max = FN(row_max)(classes, x);
    const REAL f = (REAL)(factor / FN(row_sum)(classes, x, max, add ? NULL : dx));
    if (add) {
      for (int64_t j = 0; j < classes; j += TILE) {
        REAL tile[TILE];
        const int64_t count = min_i64(TILE, classes - j);
        FN(row_exp)(count, x + j, max, tile);
        for (int64_t l = 0; l < count; l++) dx[j + l] += f * tile[l];
      }
    } else {
      for (int64_t j = 0; j < classes; j++) dx[j] *= f;
    }
    dx[targets[i]] -= (REAL)factor;
  }
  return -1;
}

#endif
