/* cross_entropy.c - -log softmax(logits)[target], row by row; rows whose target is 'ignore' count as
 * absent.
 *
 *   logits: (rows, classes), targets: (rows)
 *   loss     = sum over rows of log(sum of e) - (logits[target] - max),   e[j] = exp(logits[j] - max)
 *   dlogits  = factor * (e / sum of e - one at target); 0 in rows that are absent
 *
 * The gradient computes e again from the logits: storing it would cost more memory traffic than
 * time. It may take the place of the logits. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#include <math.h>
#include <string.h>

#define SELF "cross_entropy.c"

#include "both.h"

#else

#include "row.h"

double FN(cross_entropy)(int64_t rows, int64_t classes, const void *logits, const int32_t *targets,
                         int64_t ignore) {
  const REAL *x = logits;
  double total = 0;
  for (int64_t i = 0; i < rows; i++, x += classes) {
    if (targets[i] == ignore) continue;
    const REAL max = FN(row_max)(classes, x);
    total += log(FN(row_sum)(classes, x, max, NULL)) - ((double)x[targets[i]] - (double)max);
  }
  return total;
}

void FN(cross_entropy_grad)(int64_t rows, int64_t classes, const void *logits,
                            const int32_t *targets, int64_t ignore, double factor, void *dlogits,
                            bool add) {
  const REAL *x = logits;
  REAL *dx = dlogits;
  for (int64_t i = 0; i < rows; i++, x += classes, dx += classes) {
    if (targets[i] == ignore) {
      if (!add) memset(dx, 0, (size_t)classes * sizeof *dx);
      continue;
    }
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
}

#endif
