/* activation.c - smooth activations and their gradients, element by element.
 *
 *   gelu:   y = x Phi(x), Phi the normal distribution (the exact form, not the one by tanh)
 *           dx = dy (Phi(x) + x phi(x)), phi its density
 *   silu:   y = x s, s = 1 / (1 + e^-x);    dx = dy s (1 + x (1 - s))
 *   swiglu: y = silu(g) u;                   dg = dy u s (1 + g (1 - s)), du = dy silu(g)
 *
 * A result may overwrite an operand. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#define SELF "activation.c"
#include "both.h"

#else

#include "each.h"
#include "normal.h"

ALWAYS_INLINE REAL FN(gelu1)(REAL x) {
  REAL density;
  return x * FN(normal)(x, &density);
}

ALWAYS_INLINE REAL FN(gelu1_slope)(REAL x) {
  REAL density;
  const REAL below = FN(normal)(x, &density);
  return below + x * density;
}

void FN(gelu)(int64_t n, const void *x_, void *y_) {
  const REAL *x = x_;
  REAL *y = y_;
  EACH(n, y, false, FN(gelu1)(x[i]));
}

void FN(gelu_grad)(int64_t n, const void *x_, const void *dy_, void *dx_, bool add) {
  const REAL *x = x_, *dy = dy_;
  REAL *dx = dx_;
  EACH(n, dx, add, dy[i] * FN(gelu1_slope)(x[i]));
}

/* s and 1 - s, each to its last bits, from e^-|x|, which does not overflow. */
ALWAYS_INLINE REAL FN(sigmoid1)(REAL x, REAL *rest) {
  const REAL e = FN(exp_nonpositive)(x < 0 ? x : -x), most = 1 / (1 + e), least = e * most;
  *rest = x < 0 ? most : least;
  return x < 0 ? least : most;
}

ALWAYS_INLINE REAL FN(silu1)(REAL x) {
  REAL rest;
  return x * FN(sigmoid1)(x, &rest);
}

ALWAYS_INLINE REAL FN(silu1_slope)(REAL x) {
  REAL rest;
  const REAL s = FN(sigmoid1)(x, &rest), xs = x * s;
  return s + xs * rest;
}

void FN(silu)(int64_t n, const void *x_, void *y_) {
  const REAL *x = x_;
  REAL *y = y_;
  EACH(n, y, false, FN(silu1)(x[i]));
}

void FN(silu_grad)(int64_t n, const void *x_, const void *dy_, void *dx_, bool add) {
  const REAL *x = x_, *dy = dy_;
  REAL *dx = dx_;
  EACH(n, dx, add, dy[i] * FN(silu1_slope)(x[i]));
}

void FN(swiglu)(int64_t n, const void *gate, const void *up, void *y_) {
  const REAL *g = gate, *u = up;
  REAL *y = y_;
  EACH(n, y, false, FN(silu1)(g[i]) * u[i]);
}

ALWAYS_INLINE void FN(swiglu_grads)(int64_t n, const REAL *g, const REAL *u, const REAL *dy,
                                    REAL *dg, const bool add_g, REAL *du, const bool add_u) {
  _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {
    REAL rest;
    const REAL s = FN(sigmoid1)(g[i], &rest), gs = g[i] * s, d = dy[i];
    const REAL to_g = d * u[i] * (s + gs * rest), to_u = d * gs;
    dg[i] = add_g ? dg[i] + to_g : to_g;
    du[i] = add_u ? du[i] + to_u : to_u;
  }
}

/* Literal bools leave one plain loop of each call. */
void FN(swiglu_grad)(int64_t n, const void *gate, const void *up, const void *dy_, void *dgate,
                     bool add_gate, void *dup, bool add_up) {
  const REAL *g = gate, *u = up, *dy = dy_;
  REAL *dg = dgate, *du = dup;
  if (dg == NULL) EACH(n, du, add_up, dy[i] * FN(silu1)(g[i]));
  else if (du == NULL) EACH(n, dg, add_gate, dy[i] * u[i] * FN(silu1_slope)(g[i]));
  else if (add_gate && add_up) FN(swiglu_grads)(n, g, u, dy, dg, true, du, true);
  else if (add_gate) FN(swiglu_grads)(n, g, u, dy, dg, true, du, false);
  else if (add_up) FN(swiglu_grads)(n, g, u, dy, dg, false, du, true);
  else FN(swiglu_grads)(n, g, u, dy, dg, false, du, false);
}

#endif
