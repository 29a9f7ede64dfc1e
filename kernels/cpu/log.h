/* log.h - ln x for normal x > 0, in plain arithmetic that the compiler vectorises. No include guard.
 *
 * x = 2^n m with m from sqrt(1/2) to sqrt(2); f = (m - 1) / (m + 1), |f| < 0.1716;
 * ln m = 2 (f + f^3 / 3 + f^5 / 5 + ...), broken off where the rest is below 3e-17, for float 3e-9.
 * n comes from the exponent's bits, and becomes a REAL as in exp.h. NaN stays NaN. */
ALWAYS_INLINE REAL FN(log_positive)(REAL x) {
  union {
    REAL real;
    BITS bits;
  } u, m;
#ifdef REAL_IS_DOUBLE
  const REAL shift = 6755399441055744.0;
  const REAL ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
  const int mantissa_bits = 52;
  const BITS bias = 1023, root_half = 0x3fe6a09e667f3bcd;
#else
  const REAL shift = 12582912.0f;
  const REAL ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  const int mantissa_bits = 23;
  const BITS bias = 127, root_half = 0x3f3504f3;
#endif
  u.real = x;
  const BITS biased =
      (u.bits + ((bias << mantissa_bits) - root_half)) >> mantissa_bits; /* n + bias */
  m.bits = u.bits - ((biased - bias) << mantissa_bits);
  u.real = shift;
  u.bits += biased;
  const REAL n = u.real - (shift + (REAL)bias);
  const REAL f = (m.real - 1) / (m.real + 1), s = f * f;
#ifdef REAL_IS_DOUBLE
  REAL p = 1.0 / 19;
  p = p * s + 1.0 / 17;
  p = p * s + 1.0 / 15;
  p = p * s + 1.0 / 13;
  p = p * s + 1.0 / 11;
  p = p * s + 1.0 / 9;
#else
  REAL p = 1.0f / 9;
#endif
  p = p * s + (REAL)1 / 7;
  p = p * s + (REAL)1 / 5;
  p = p * s + (REAL)1 / 3;
  const REAL ln_m = 2 * f + 2 * f * (s * p);
  return x == x ? n * ln2_high + (n * ln2_low + ln_m) : x;
}
