#include "base/arena.h"

#include <stdint.h>

#include "tap.h"

int main(void) {
  Arena *a = arena_new();
  if (a == NULL) bail("no memory");
  unsigned char *p = arena_alloc(a, 100, 1);
  ok(p != NULL && p[0] == 0 && p[99] == 0, "memory is zeroed");
  ok((uintptr_t)arena_alloc(a, 1, 1) % 16 == 0, "memory is aligned for any type");
  ok(arena_alloc(a, SIZE_MAX / 2, 4) == NULL, "a size that overflows gives NULL");
  ok(arena_alloc(a, 1, SIZE_MAX - 8) == NULL, "a size next to the limit gives NULL");
  unsigned char *big = arena_alloc(a, 1 << 20, 1);
  ok(big != NULL && big[(1 << 20) - 1] == 0, "a large block is whole");
  is_str(arena_strdup(a, "stage 0", 5), "stage", "strdup copies len bytes");
  ok(arena_alloc(a, 0, 8) != NULL, "nothing is a block too");
  arena_reset(a);
  is_int(arena_bytes(a), 0, "reset gives the blocks back");
  ok(arena_alloc(a, 8, 8) != NULL, "an arena lives on after reset");
  arena_free(a);
  arena_free(NULL);
  return done_testing();
}
