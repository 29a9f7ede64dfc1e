#include "base/vec.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool vec_grow_(void **at, size_t *cap, size_t n, size_t extra, size_t size) {
  if (extra > SIZE_MAX / size / 2 - n) return false;
  size_t want = *cap * 2 > n + extra ? *cap * 2 : n + extra;
  if (want < 8) want = 8;
  if (want > SIZE_MAX / size) return false;
  void *old, *grown;
  memcpy(&old, at, sizeof old); /* 'at' points to a T*, not to a void*: copy its bytes */
  grown = realloc(old, want * size);
  if (grown == NULL) return false;
  memcpy(at, &grown, sizeof grown);
  *cap = want;
  return true;
}

void vec_free_(void **at) {
  void *old, *none = NULL;
  memcpy(&old, at, sizeof old);
  free(old);
  memcpy(at, &none, sizeof none);
}
