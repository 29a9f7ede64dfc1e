/* exp.h - e^x for x <= 0, in plain arithmetic that the compiler vectorises. No include guard.
 *
 * x = n ln 2 + r with n whole and |r| <= ln 2 / 2; e^x = 2^n e^r. n comes from adding 1.5 * 2^52
 * (2^23), whose unit is 1, so n also stands in the low bits of that sum; ln 2 is subtracted in two
 * parts, the first short enough that n times it is exact. e^r is a polynomial: Taylor's of degree 13
 * (remainder below 5e-18), for float degree 7 (below 6e-9). Results below the smallest normal number
 * are 0. NaN stays NaN; above 0 x may be what rounding makes of 0, no more. */
ALWAYS_INLINE REAL FN(exp_nonpositive)(REAL x) {
  union {
    REAL real;
    BITS bits;
  } u;
#ifdef REAL_IS_DOUBLE
  const REAL least = -708.0, shift = 6755399441055744.0;
  const REAL per_ln2 = 1.4426950408889634, ln2_high = 6.93147180369123816490e-01,
             ln2_low = 1.90821492927058770002e-10;
  const int mantissa_bits = 52;
  const BITS one = (BITS)1023 << 52;
#else
  const REAL least = -87.0f, shift = 12582912.0f;
  const REAL per_ln2 = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  const int mantissa_bits = 23;
  const BITS one = (BITS)127 << 23;
#endif
  const REAL clamped = x < least ? least : x;
  u.real = clamped * per_ln2 + shift;
  const REAL n = u.real - shift;
  u.bits = (u.bits << mantissa_bits) + one; /* 2^n: the bits of 'shift' leave at the top */
  const REAL r = (clamped - n * ln2_high) - n * ln2_low;
#ifdef REAL_IS_DOUBLE
  REAL p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
#else
  REAL p = 1.0f / 5040;
#endif
  p = p * r + (REAL)1 / 720;
  p = p * r + (REAL)1 / 120;
  p = p * r + (REAL)1 / 24;
  p = p * r + (REAL)1 / 6;
  p = p * r + (REAL)0.5;
  p = p * r + 1;
  p = p * r + 1;
  return x < least ? 0 : p * u.real;
}
