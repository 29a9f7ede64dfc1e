#include "base/hash.h"

#include <string.h>

static uint64_t step(uint64_t h, unsigned char byte) {
  return (h ^ byte) * UINT64_C(0x100000001b3);
}

void hash_bytes(Hash *h, const void *p, size_t n) {
  const unsigned char *bytes = p;
  uint64_t state = h->state;
  for (size_t i = 0; i < n; i++) state = step(state, bytes[i]);
  h->state = state;
}

/* Lowest byte first, whatever the machine's order is. */
static void add(Hash *h, uint64_t v, int n_bytes) {
  for (int i = 0; i < n_bytes; i++) h->state = step(h->state, (unsigned char)(v >> (8 * i)));
}

void hash_u32(Hash *h, uint32_t v) { add(h, v, 4); }

void hash_u64(Hash *h, uint64_t v) { add(h, v, 8); }

void hash_f64(Hash *h, double v) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  hash_u64(h, bits);
}

void hash_str(Hash *h, const char *s) {
  const size_t n = strlen(s);
  hash_u64(h, n);
  hash_bytes(h, s, n);
}

/* MurmurHash3's 64-bit finalizer: FNV leaves the high bits of short inputs poorly mixed. */
uint64_t hash_end(const Hash *h) {
  uint64_t v = h->state;
  v = (v ^ (v >> 33)) * UINT64_C(0xff51afd7ed558ccd);
  v = (v ^ (v >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
  return v ^ (v >> 33);
}

uint64_t hash_of(const void *p, size_t n) {
  Hash h = HASH_START;
  hash_bytes(&h, p, n);
  return hash_end(&h);
}
