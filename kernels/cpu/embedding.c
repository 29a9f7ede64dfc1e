/* embedding.c - rows of a table picked by id, and their gradients added up.
 *
 *   ids: (n), table: (vocab, width), y: (n, width)
 *
 * All ids are checked before anything is written. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#include <string.h>

/* The first id outside 0 .. vocab - 1; -1: there is none. */
static int64_t first_bad_id(int64_t n, int64_t vocab, const int32_t *ids) {
  for (int64_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= vocab) return i;
  return -1;
}

#define SELF "embedding.c"
#include "both.h"

#else

int64_t FN(embedding)(int64_t n, int64_t vocab, int64_t width, const int32_t *ids,
                      const void *table_, void *y_) {
  const REAL *table = table_;
  REAL *y = y_;
  const int64_t bad = first_bad_id(n, vocab, ids);
  if (bad >= 0) return bad;
  for (int64_t i = 0; i < n; i++)
    memcpy(y + i * width, table + ids[i] * width, (size_t)width * sizeof *y);
  return -1;
}

int64_t FN(embedding_grad)(int64_t n, int64_t vocab, int64_t width, const int32_t *ids,
                           const void *dy_, void *dtable_, bool add) {
  const REAL *dy = dy_;
  REAL *dtable = dtable_;
  const int64_t bad = first_bad_id(n, vocab, ids);
  if (bad >= 0) return bad;
  if (!add) memset(dtable, 0, (size_t)vocab * (size_t)width * sizeof *dtable);
  for (int64_t i = 0; i < n; i++) {
    const REAL *restrict from = dy + i * width;
    REAL *restrict to = dtable + ids[i] * width;
    for (int64_t j = 0; j < width; j++) to[j] += from[j];
  }
  return -1;
}

#endif
