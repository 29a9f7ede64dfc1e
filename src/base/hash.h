/* hash.h - a 64-bit hash over a stream of values, the same on every machine.
 *
 *   Hash h = HASH_START;
 *   hash_u32(&h, n);
 *   hash_str(&h, name);
 *   uint64_t digest = hash_end(&h);
 *
 * FNV-1a with a mixing step at the end: for digests and tables, no protection against malice. */
#ifndef PIPER_BASE_HASH_H
#define PIPER_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct Hash {
  uint64_t state;
} Hash;

#define HASH_START ((Hash){UINT64_C(0xcbf29ce484222325)})

void hash_bytes(Hash *h, const void *p, size_t n); /* the bytes alone: no length goes in */
void hash_u32(Hash *h, uint32_t v);
void hash_u64(Hash *h, uint64_t v);
void hash_f64(Hash *h, double v);        /* its bits: -0.0 and 0.0 differ */
void hash_str(Hash *h, const char *s);   /* length and bytes, so "ab","c" is not "a","bc" */
uint64_t hash_end(const Hash *h);        /* the stream may go on afterwards */

/* The hash of one block of bytes. */
uint64_t hash_of(const void *p, size_t n);

#endif
