#include "base/rng.h"

#include "tap.h"

/* Rows "philox4x32 10" of Random123's file of known answers: counter, key, result. */
static const uint32_t KNOWN[3][10] = {
    {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
    {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e,
     0xa20bc7c6, 0x6d5451fd},
    {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
     0x5001e420, 0x24126ea1},
};

#define N 200001
static double many[N];

/* Box and Muller with libm, from the same uniform numbers. */
static double normal_by_libm(uint64_t seed, uint64_t key, uint64_t i) {
  const double u = rng_uniform(seed, key, i & ~UINT64_C(1)), v = rng_uniform(seed, key, i | 1);
  const double radius = sqrt(-2 * log1p(-u)), angle = 2 * acos(-1) * v;
  return radius * (i % 2 == 0 ? cos(angle) : sin(angle));
}

int main(void) {
  for (int i = 0; i < 3; i++) {
    uint32_t out[4];
    rng_philox(KNOWN[i], KNOWN[i] + 4, out);
    ok(memcmp(out, KNOWN[i] + 6, sizeof out) == 0, "Philox-4x32-10 gives published answer %d", i);
  }

  const uint64_t key = rng_key("layers.0.weight"), seed = 7;
  rng_fill_uniform(seed, key, 0, N, many);
  double sum = 0, least = 1, most = 0;
  for (int i = 0; i < N; i++) {
    sum += many[i];
    least = fmin(least, many[i]);
    most = fmax(most, many[i]);
  }
  ok(least >= 0 && most < 1, "uniform numbers lie in [0, 1)");
  is_near(sum / N, 0.5, 4 * sqrt(1.0 / 12 / N), "their mean is 1/2");
  double correlation = 0;
  for (int i = 0; i + 1 < N; i++) correlation += (many[i] - 0.5) * (many[i + 1] - 0.5) * 12;
  is_near(correlation / N, 0, 4 / sqrt(N), "neighbours are not correlated");

  rng_fill_normal(seed, key, 0, N, many);
  double moment[5] = {0}, worst = 0;
  for (int i = 0; i < N; i++) {
    double power = 1;
    for (int k = 0; k < 5; k++, power *= many[i]) moment[k] += power / N;
    worst = fmax(worst, fabs(many[i] - normal_by_libm(seed, key, (uint64_t)i)));
  }
  is_near(moment[1], 0, 4 / sqrt(N), "normal numbers have mean 0");
  is_near(moment[2], 1, 4 * sqrt(2.0 / N), "variance 1");
  is_near(moment[3], 0, 4 * sqrt(15.0 / N), "no skew");
  is_near(moment[4], 3, 4 * sqrt(96.0 / N), "and the normal fourth moment");
  is_near(worst, 0, 1e-14, "they are Box and Muller's of the uniform ones, as libm computes them");

  bool same = true;
  for (uint64_t first = 0; first < 5; first++)
    for (size_t n = 0; n < 6; n++) {
      double part[6];
      rng_fill_normal(seed, key, first, n, part);
      for (size_t i = 0; i < n; i++)
        same = same && part[i] == many[first + i] && part[i] == rng_normal(seed, key, first + i);
      rng_fill_uniform(seed, key, first, n, part);
      for (size_t i = 0; i < n; i++) same = same && part[i] == rng_uniform(seed, key, first + i);
    }
  ok(same, "a number does not depend on which part of the stream is made with it");

  ok(rng_uniform(seed, key, 0) != rng_uniform(seed + 1, key, 0), "another seed, other numbers");
  ok(rng_uniform(seed, key, 0) != rng_uniform(seed + (UINT64_C(1) << 32), key, 0),
     "all bits of the seed count");
  ok(rng_uniform(seed, key, 0) != rng_uniform(seed, rng_key("layers.1.weight"), 0),
     "another name, other numbers");
  ok(rng_uniform(seed, key, 3) != rng_uniform(seed, key, 3 + (UINT64_C(1) << 40)),
     "streams are longer than 32 bits can count");
  /* Frozen: parameters of a seed must not change between versions or machines. */
  is_near(rng_normal(1, 2, 3), 0x1.5452b49fedf80p-1, 0, "the bits of a normal number stay what they are");
  return done_testing();
}
