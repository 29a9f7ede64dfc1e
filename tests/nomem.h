/* nomem.h - an allocator that fails on the n-th call. The test is linked with
 *   -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
 * and allocations of the objects in the link (not those inside shared libraries) are counted. */
#ifndef PIPER_TESTS_NOMEM_H
#define PIPER_TESTS_NOMEM_H

#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static long nomem_left_ = -1; /* calls that still succeed; < 0: all */
static bool nomem_struck_;

/* The n-th allocation from now on (from 0) fails, and only that one; n < 0: none does. */
static inline void nomem_at(long n) {
  nomem_left_ = n;
  nomem_struck_ = false;
}

/* The failure has happened. */
static inline bool nomem_struck(void) { return nomem_struck_; }

static inline bool nomem_fails_(void) {
  if (nomem_left_ < 0) return false;
  if (nomem_left_-- > 0) return false;
  return nomem_struck_ = true;
}

void *__wrap_malloc(size_t n) { return nomem_fails_() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) {
  return nomem_fails_() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t n) { return nomem_fails_() ? NULL : __real_realloc(p, n); }

#endif
