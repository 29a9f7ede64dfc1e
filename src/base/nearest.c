/* Damerau-Levenshtein in the restricted form (no edit inside a swapped pair), three rows. */
#include "base/nearest.h"

#include <ctype.h>
#include <string.h>

static unsigned min2(unsigned a, unsigned b) { return a < b ? a : b; }

static size_t length(const char *s) {
  const size_t n = strlen(s);
  return n < NEAREST_MAX ? n : NEAREST_MAX;
}

static int at(const char *s, size_t i) { return tolower((unsigned char)s[i]); }

unsigned nearest_distance(const char *a, const char *b) {
  unsigned rows[3][NEAREST_MAX + 1];
  unsigned *before = rows[0], *last = rows[1], *row = rows[2]; /* rows i-2, i-1, i */
  const size_t na = length(a), nb = length(b);
  for (size_t j = 0; j <= nb; j++) last[j] = (unsigned)j;
  for (size_t i = 1; i <= na; i++) {
    row[0] = (unsigned)i;
    for (size_t j = 1; j <= nb; j++) {
      const unsigned differ = at(a, i - 1) != at(b, j - 1);
      row[j] = min2(last[j - 1] + differ, min2(last[j], row[j - 1]) + 1);
      if (i > 1 && j > 1 && at(a, i - 1) == at(b, j - 2) && at(a, i - 2) == at(b, j - 1))
        row[j] = min2(row[j], before[j - 2] + 1);
    }
    unsigned *free_row = before;
    before = last;
    last = row;
    row = free_row;
  }
  return last[nb];
}

void nearest_try(Nearest *n, const char *name, const char *candidate) {
  const unsigned limit = length(name) < 6 ? 1 : (unsigned)(length(name) / 3);
  const unsigned d = nearest_distance(name, candidate);
  if (d > limit || (n->best != NULL && d >= n->distance)) return;
  n->best = candidate;
  n->distance = d;
}
