/* dropout.c - elements kept with probability 1 - p, the others 0, by counter: whether element i of the
 * stream is kept is a function of (seed, stream, i) alone, so any part of it can be made anywhere, and
 * backward makes it again.
 *
 *   y[i] = random number first + i < threshold ? 0 : scale x[i]
 *
 * Random numbers are those of Philox-4x32-10 (base/rng.h): the Philox key is the seed, the counter is
 * (block, stream), each block giving 4 words of 32 bits. 16 blocks make a group of 64 numbers: number
 * 64 g + 16 w + l is word w of block 16 g + l, so that 16 blocks can be computed side by side and
 * stored as they are. Backward is the same map of dy. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#define SELF "dropout.c"
enum { LANES = 16, GROUP = 4 * LANES };

static void random_group(uint64_t seed, uint64_t stream, uint64_t group, uint32_t out[GROUP]) {
  uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int l = 0; l < LANES; l++) {
    const uint64_t block = group * LANES + (uint64_t)l;
    c0[l] = (uint32_t)block;
    c1[l] = (uint32_t)(block >> 32);
    c2[l] = (uint32_t)stream;
    c3[l] = (uint32_t)(stream >> 32);
  }
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {
    for (int l = 0; l < LANES; l++) {
      const uint64_t p0 = UINT64_C(0xD2511F53) * c0[l], p1 = UINT64_C(0xCD9E8D57) * c2[l];
      c0[l] = (uint32_t)(p1 >> 32) ^ c1[l] ^ k0;
      c1[l] = (uint32_t)p1;
      c2[l] = (uint32_t)(p0 >> 32) ^ c3[l] ^ k1;
      c3[l] = (uint32_t)p0;
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  for (int l = 0; l < LANES; l++) {
    out[l] = c0[l];
    out[LANES + l] = c1[l];
    out[2 * LANES + l] = c2[l];
    out[3 * LANES + l] = c3[l];
  }
}

#include "both.h"

#else

#include "each.h"

ALWAYS_INLINE void FN(dropout_part)(int64_t n, const uint32_t *random, uint32_t threshold,
                                    REAL scale, const REAL *x, REAL *y, bool add) {
  EACH(n, y, add, random[i] < threshold ? 0 : scale * x[i]);
}

void FN(dropout)(int64_t n, const DropoutMask *mask, const void *x_, void *y_, bool add) {
  const REAL *x = x_, scale = (REAL)mask->scale;
  REAL *y = y_;
  uint32_t random[GROUP];
  for (int64_t i = 0; i < n;) {
    const uint64_t number = mask->first + (uint64_t)i, from = number % GROUP;
    const int64_t count = min_i64((int64_t)(GROUP - from), n - i);
    random_group(mask->seed, mask->stream, number / GROUP, random);
    if (count == GROUP) FN(dropout_part)(GROUP, random, mask->threshold, scale, x + i, y + i, add);
    else FN(dropout_part)(count, random + from, mask->threshold, scale, x + i, y + i, add);
    i += count;
  }
}

#endif
