/* peak.c - multiply-adds between registers, as many at a time as their latency asks for: the most
 * that this instruction set can do, which products are compared with. */
#ifndef REAL

#define SELF "peak.c"
#define CHAINS (VECTOR_BYTES == 64 ? 24 : 12)
#include "both.h"

#else

double FN(peak)(double flops, double *sink) {
  typedef REAL Vec __attribute__((vector_size(VECTOR_BYTES)));
  const double flops_each = 2.0 * CHAINS * (VECTOR_BYTES / sizeof(REAL));
  volatile REAL factors[2] = {(REAL)0.5, (REAL)0.25}; /* unknown to the compiler */
  const Vec a = factors[0] + (Vec){0}, b = factors[1] + (Vec){0};
  Vec chain[CHAINS];
#pragma GCC unroll 24
  for (int i = 0; i < CHAINS; i++) chain[i] = (REAL)i + (Vec){0};
  double done = 0;
  while (done < flops) {
    for (int repeat = 0; repeat < 1024; repeat++)
#pragma GCC unroll 24
      for (int i = 0; i < CHAINS; i++) chain[i] = chain[i] * a + b;
    done += 1024 * flops_each;
  }
  Vec sum = {0};
#pragma GCC unroll 24
  for (int i = 0; i < CHAINS; i++) sum += chain[i];
  *sink = (double)sum[0];
  return done;
}

#endif
