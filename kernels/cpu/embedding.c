/* embedding.c - rows of a table picked by id, and their gradients added up.
 *
 *   ids: (n), table: (vocab, width), y: (n, width) */
#ifndef REAL

#include "kernels/cpu/isa.h"

#include <string.h>

#define SELF "embedding.c"
#include "both.h"

#else

void FN(embedding)(int64_t n, int64_t width, const int32_t *ids, const void *table_, void *y_) {
  const REAL *table = table_;
  REAL *y = y_;
  for (int64_t i = 0; i < n; i++)
    memcpy(y + i * width, table + ids[i] * width, (size_t)width * sizeof *y);
}

void FN(embedding_grad)(int64_t n, int64_t vocab, int64_t columns, int64_t width, const int32_t *ids,
                        const void *dy_, void *dtable_, bool add) {
  const REAL *dy = dy_;
  REAL *dtable = dtable_;
  for (int64_t i = 0; !add && i < vocab; i++)
    memset(dtable + i * width, 0, (size_t)columns * sizeof *dtable);
  for (int64_t i = 0; i < n; i++) {
    const REAL *restrict from = dy + i * width;
    REAL *restrict to = dtable + ids[i] * width;
    for (int64_t j = 0; j < columns; j++) to[j] += from[j];
  }
}

#endif
