/* share.h - how n elements are divided among the members of a group: the one place that does it. */
#ifndef PIPER_BASE_SHARE_H
#define PIPER_BASE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Share {
  int64_t lo, hi; /* elements [lo, hi); empty where they are equal */
} Share;

/* That of member j of d: [floor(j * n / d), floor((j + 1) * n / d)). Nothing is padded: shares differ
 * by at most one element, and with fewer elements than members some are empty. */
static inline Share share_of(int64_t n, uint32_t j, uint32_t d) {
  const int64_t whole = n / d, rest = n % d;
  return (Share){whole * j + rest * j / d, whole * (j + 1) + rest * (j + 1) / d};
}

static inline int64_t share_size(Share s) { return s.hi - s.lo; }

static inline Share share_common(Share a, Share b) {
  const Share s = {a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi};
  return s.lo < s.hi ? s : (Share){s.lo, s.lo};
}

#endif
