/* rng.c - Philox in counter mode: the 128 random bits of block index / 2 are two 53-bit numbers, for
 * indices 2b and 2b + 1. The Philox key is the seed, the counter is (block, stream key).
 *
 * Normal numbers are Box and Muller's: sqrt(-2 ln u) cos(2 pi v) and ... sin(2 pi v) for the two
 * indices of a block. Logarithm, sine and cosine are written out below instead of taken from libm,
 * whose last bits differ between versions and processors: initial parameters must not, or ranks on
 * unlike machines would start from unlike models. Only +, -, *, / and sqrt are used, which IEEE 754
 * rounds in one way (no contraction to fused operations: the default of gcc -std=c11). */
#include "base/rng.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = UINT64_C(0xD2511F53) * c0, p1 = UINT64_C(0xCD9E8D57) * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9; /* golden ratio */
    k1 += 0xBB67AE85; /* sqrt(3) - 1 */
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

uint64_t rng_key(const char *name) { return hash_of(name, strlen(name)); }

typedef struct Pair {
  double at[2];
} Pair;

static Pair uniform_pair(uint64_t seed, uint64_t key, uint64_t block) {
  const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)key,
                               (uint32_t)(key >> 32)};
  const uint32_t philox_key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  uint32_t r[4];
  rng_philox(counter, philox_key, r);
  Pair p;
  for (int i = 0; i < 2; i++)
    p.at[i] = (double)(((uint64_t)r[2 * i + 1] << 32 | r[2 * i]) >> 11) * 0x1p-53;
  return p;
}

/* ln x of a normal x > 0: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and with s = (m - 1) / (m + 1)
 * ln m = 2 (s + s^3/3 + s^5/5 + ...); s^2 < 0.03, so s^23 no longer counts. */
static double natural_log(double x) {
  int e;
  double m = frexp(x, &e);
  if (m < 0.70710678118654752) {
    m *= 2;
    e--;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  /* ln 2 in two parts, the first with enough zeros at its end that e times it is exact */
  return e * 6.93147180369123816490e-01 + (e * 1.90821492927058770002e-10 + 2 * s * sum);
}

/* Cosine and sine of 2 pi u, 0 <= u < 1: Taylor's series within an eighth of a turn, then turned by
 * quarters. */
static Pair turn(double u) {
  const int quarter = (int)(4 * u + 0.5);
  const double t = (4 * u - quarter) * 1.57079632679489661923, t2 = t * t;
  double c = 0, s = 0;
  for (int k = 18; k >= 2; k -= 2) {
    c = (1 - c) * t2 / (k * (k - 1));
    s = (1 - s) * t2 / ((k + 1) * k);
  }
  c = 1 - c;
  s = (1 - s) * t;
  switch (quarter & 3) {
  case 0: return (Pair){{c, s}};
  case 1: return (Pair){{-s, c}};
  case 2: return (Pair){{-c, -s}};
  default: return (Pair){{s, -c}};
  }
}

static Pair normal_pair(uint64_t seed, uint64_t key, uint64_t block) {
  const Pair u = uniform_pair(seed, key, block);
  const double radius = sqrt(-2 * natural_log(1 - u.at[0])); /* 1 - u is never 0 */
  Pair p = turn(u.at[1]);
  p.at[0] *= radius;
  p.at[1] *= radius;
  return p;
}

static void fill(Pair (*pair)(uint64_t, uint64_t, uint64_t), uint64_t seed, uint64_t key,
                 uint64_t first, size_t n, double *out) {
  Pair p = {{0, 0}};
  for (size_t i = 0; i < n; i++) {
    const uint64_t index = first + i;
    if (i == 0 || index % 2 == 0) p = pair(seed, key, index / 2);
    out[i] = p.at[index % 2];
  }
}

double rng_uniform(uint64_t seed, uint64_t key, uint64_t index) {
  return uniform_pair(seed, key, index / 2).at[index % 2];
}

double rng_normal(uint64_t seed, uint64_t key, uint64_t index) {
  return normal_pair(seed, key, index / 2).at[index % 2];
}

void rng_fill_uniform(uint64_t seed, uint64_t key, uint64_t first, size_t n, double *out) {
  fill(uniform_pair, seed, key, first, n, out);
}

void rng_fill_normal(uint64_t seed, uint64_t key, uint64_t first, size_t n, double *out) {
  fill(normal_pair, seed, key, first, n, out);
}
