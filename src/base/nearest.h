/* nearest.h - edit distance, for "did you mean". */
#ifndef PIPER_BASE_NEAREST_H
#define PIPER_BASE_NEAREST_H

#include <stddef.h>

/* Insertions, deletions, replacements and swaps of neighbours that turn 'a' into 'b'; case does
 * not count. Only the first NEAREST_MAX bytes of each are looked at. */
#define NEAREST_MAX 64
unsigned nearest_distance(const char *a, const char *b);

/* Feeds candidates one by one: start with {0}. */
typedef struct Nearest {
  const char *best; /* NULL: none is near enough */
  unsigned distance;
} Nearest;

/* Keeps 'candidate' (borrowed) if it is nearer to 'name' than the best so far and near enough that
 * it may have been meant: one edit for each three bytes of the name, at least one. */
void nearest_try(Nearest *n, const char *name, const char *candidate);

#endif
