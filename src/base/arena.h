/* arena.h - memory that is freed all at once. Not thread-safe: one arena, one owner. */
#ifndef PIPER_BASE_ARENA_H
#define PIPER_BASE_ARENA_H

#include <stddef.h>

typedef struct Arena Arena;

Arena *arena_new(void);                              /* NULL: out of memory */
void arena_free(Arena *a);                           /* frees every block handed out; NULL is fine */
void *arena_alloc(Arena *a, size_t n, size_t size);  /* n * size bytes, zeroed, aligned for any type;
                                                        NULL: out of memory or n * size overflows */
char *arena_strdup(Arena *a, const char *s, size_t len); /* NUL-terminated copy; NULL: out of memory */
void arena_reset(Arena *a);                          /* frees the blocks, keeps the arena */
size_t arena_bytes(const Arena *a);                  /* bytes held from the system */

#endif
