/* normal.h - the normal distribution, in plain arithmetic that the compiler vectorises. No include guard.
 *
 * With t = |x| and e = exp(-t^2 / 2), the tail beyond t is Q = e R(t), where R(t) = exp(t^2 / 2)
 * erfc(t / sqrt 2) / 2 falls smoothly from 1/2 like 1 / (t sqrt(2 pi)): R(t) (t + c) is a polynomial in
 * u = (t - c) / (t + c), Chebyshev's interpolation of it (relative error 2e-8 in float, 4e-17 in
 * double). So the tail keeps its relative accuracy however small it is, and one exponential serves
 * distribution and density. t^2 is taken with its rounding error, which exp would multiply by t^2. */
#include "exp.h"

#ifndef PIPER_KERNELS_CPU_NORMAL
#define PIPER_KERNELS_CPU_NORMAL
#define INV_SQRT_2PI 0.39894228040143267794
#endif

/* Phi(x) = (1 + erf(x / sqrt 2)) / 2, and in *density e^(-x^2 / 2) / sqrt(2 pi). */
ALWAYS_INLINE REAL FN(normal)(REAL x, REAL *density) {
  const REAL t = x < 0 ? -x : x;
#ifdef REAL_IS_DOUBLE
  const REAL c = 5, most = 38; /* beyond it e is 0 */
  const REAL square = t * t, rest = __builtin_fma(t, t, -square);
#else
  const REAL c = 3.5f, most = 13.3f;
  const REAL square = t * t, rest = __builtin_fmaf(t, t, -square);
#endif
  REAL e = FN(exp_nonpositive)(square * (REAL)-0.5);
  e = t < most ? e - e * (rest * (REAL)0.5) : e; /* where the square overflows there is no rest */
  const REAL near = t < most ? t : most;
  const REAL inverse = 1 / (near + c), u = (near - c) * inverse;
#ifdef REAL_IS_DOUBLE
  REAL p = 2.24328476507427636e-9;
  p = p * u + 7.68714292694208486e-9;
  p = p * u - 1.06086969301079215e-8;
  p = p * u - 6.68060839493075966e-8;
  p = p * u + 4.36587844708032864e-8;
  p = p * u + 4.34555514520170261e-7;
  p = p * u - 3.37358975154460059e-7;
  p = p * u - 2.770367409722471e-6;
  p = p * u + 3.9810916716527454e-6;
  p = p * u + 0.0000166817080194476976;
  p = p * u - 0.0000497628189448596767;
  p = p * u - 0.0000593758631936976702;
  p = p * u + 0.000544899055101220813;
  p = p * u - 0.000797869376049696463;
  p = p * u - 0.0029933767681178934;
  p = p * u + 0.0207950667977415062;
  p = p * u - 0.0691186387065472565;
  p = p * u + 0.165020366170489505;
  p = p * u - 0.313533156671294999;
  p = p * u + 0.495305615969974399;
  p = p * u - 0.665382502890056806;
  p = p * u + 0.769193049750062965;
#else
  REAL p = 0.0001268793661f;
  p = p * u + 0.0004503789869f;
  p = p * u - 0.0004949724305f;
  p = p * u - 0.003195295786f;
  p = p * u + 0.006488812715f;
  p = p * u + 0.01741101008f;
  p = p * u - 0.1160520845f;
  p = p * u + 0.3154246764f;
  p = p * u - 0.5655617867f;
  p = p * u + 0.7444160792f;
#endif
  const REAL tail = e * (p * inverse);
  *density = e * (REAL)INV_SQRT_2PI;
  return x < 0 ? tail : 1 - tail;
}
