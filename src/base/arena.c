/* Blocks are chained; a request larger than a quarter of a block gets a block of its own, so that
 * at most a quarter of a block is ever wasted at its end. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)64 * 1024)

typedef struct Block {
  struct Block *next;
  size_t size;
  alignas(max_align_t) unsigned char data[];
} Block;

struct Arena {
  Block *blocks;          /* every block, newest first */
  unsigned char *at, *end; /* free part of the current small block */
  size_t bytes;
};

Arena *arena_new(void) { return calloc(1, sizeof(Arena)); }

void arena_reset(Arena *a) {
  for (Block *b = a->blocks; b != NULL;) {
    Block *next = b->next;
    free(b);
    b = next;
  }
  *a = (Arena){0};
}

void arena_free(Arena *a) {
  if (a == NULL) return;
  arena_reset(a);
  free(a);
}

static Block *add_block(Arena *a, size_t size) {
  if (size > SIZE_MAX - sizeof(Block)) return NULL;
  Block *b = calloc(1, sizeof *b + size);
  if (b == NULL) return NULL;
  b->next = a->blocks;
  b->size = size;
  a->blocks = b;
  a->bytes += sizeof *b + size;
  return b;
}

void *arena_alloc(Arena *a, size_t n, size_t size) {
  const size_t align = alignof(max_align_t);
  if (size != 0 && n > (SIZE_MAX - align) / size) return NULL;
  size_t want = (n * size + align - 1) / align * align;
  if (want == 0) want = align;
  if (want > BLOCK_BYTES / 4) {
    Block *b = add_block(a, want);
    return b != NULL ? b->data : NULL;
  }
  if (a->at == NULL || (size_t)(a->end - a->at) < want) {
    Block *b = add_block(a, BLOCK_BYTES);
    if (b == NULL) return NULL;
    a->at = b->data;
    a->end = b->data + BLOCK_BYTES;
  }
  void *p = a->at;
  a->at += want;
  return p;
}

char *arena_strdup(Arena *a, const char *s, size_t len) {
  char *p = arena_alloc(a, len + 1, 1);
  if (p != NULL) memcpy(p, s, len);
  return p;
}

size_t arena_bytes(const Arena *a) { return a->bytes; }
