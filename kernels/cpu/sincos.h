/* sincos.h - sine and cosine of 0 <= x < 1.6e6, in plain arithmetic that the compiler vectorises.
 *
 * x = n pi/2 + r with n whole and |r| <= pi/4. pi/2 is subtracted in three parts, the first two short
 * enough (33 bits) that n times them is exact. sin r and cos r are Taylor's polynomials of degree 15
 * and 16 (remainders below 5e-17); n mod 4, which stands in the low bits of a sum as in exp.h, says
 * which of them is which, and the signs. */
#ifndef PIPER_KERNELS_CPU_SINCOS_H
#define PIPER_KERNELS_CPU_SINCOS_H

#include "kernels/cpu/isa.h"

ALWAYS_INLINE void sincos_positive(double x, double *sin_x, double *cos_x) {
  const double shift = 6755399441055744.0, per_half_pi = 0.63661977236758134308;
  const double part1 = 1.57079632673412561417e+00, part2 = 6.07710050630396597660e-11,
               part3 = 2.02226624879595063154e-21;
  union {
    double real;
    uint64_t bits;
  } u, s, c;
  u.real = x * per_half_pi + shift;
  const double n = u.real - shift;
  const double r = ((x - n * part1) - n * part2) - n * part3, z = r * r;
  double p = -1.0 / 1307674368000;
  p = p * z + 1.0 / 6227020800;
  p = p * z - 1.0 / 39916800;
  p = p * z + 1.0 / 362880;
  p = p * z - 1.0 / 5040;
  p = p * z + 1.0 / 120;
  p = p * z - 1.0 / 6;
  s.real = r + r * (z * p);
  double q = 1.0 / 20922789888000;
  q = q * z - 1.0 / 87178291200;
  q = q * z + 1.0 / 479001600;
  q = q * z - 1.0 / 3628800;
  q = q * z + 1.0 / 40320;
  q = q * z - 1.0 / 720;
  q = q * z + 1.0 / 24;
  c.real = 1 - (z * 0.5 - z * (z * q));
  const uint64_t swap = -(u.bits & 1);            /* all ones: n is odd */
  const uint64_t both = (s.bits ^ c.bits) & swap; /* exchanges them */
  s.bits ^= both ^ (u.bits & 2) << 62;
  c.bits ^= both ^ ((u.bits + 1) & 2) << 62;
  *sin_x = s.real;
  *cos_x = c.real;
}

#endif
