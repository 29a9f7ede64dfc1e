/* optimizer.c - one step of SGD or AdamW on one array, in one pass over memory.
 *
 *   SGD:   u = grad_scale g + weight_decay w;  m = momentum m + u;  w -= lr m   (w -= lr u without m)
 *   AdamW: g' = grad_scale g;  m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2
 *          w -= lr / correction1 m / (sqrt(v) / sqrt(correction2) + eps) + lr weight_decay w */
#ifndef REAL

#include "kernels/cpu/isa.h"

#include <tgmath.h>

#define SELF "optimizer.c"
#include "both.h"

#else

void FN(sgd)(int64_t n, void *w_, const void *g_, void *m_, double lr_, double grad_scale,
             double weight_decay, double momentum_) {
  REAL *restrict w = w_, *restrict m = m_;
  const REAL *restrict g = g_;
  const REAL lr = (REAL)lr_, scale = (REAL)grad_scale, decay = (REAL)weight_decay;
  const REAL momentum = (REAL)momentum_;
  if (m == NULL) {
    for (int64_t i = 0; i < n; i++) w[i] -= lr * (scale * g[i] + decay * w[i]);
  } else {
    for (int64_t i = 0; i < n; i++) {
      m[i] = momentum * m[i] + (scale * g[i] + decay * w[i]);
      w[i] -= lr * m[i];
    }
  }
}

void FN(adamw)(int64_t n, void *w_, const void *g_, void *m_, void *v_, const AdamwStep *s) {
  REAL *restrict w = w_, *restrict m = m_, *restrict v = v_;
  const REAL *restrict g = g_;
  const REAL scale = (REAL)s->grad_scale;
  const REAL beta1 = (REAL)s->beta[0], beta2 = (REAL)s->beta[1], eps = (REAL)s->eps;
  const REAL new1 = (REAL)(1 - s->beta[0]), new2 = (REAL)(1 - s->beta[1]);
  /* One division and one root for each element: with more the loop would wait for them, not for
   * memory. */
  const REAL rate = (REAL)(s->lr / s->bias_correction[0]);
  const REAL root = (REAL)(1 / sqrt(s->bias_correction[1])), decay = (REAL)(s->lr * s->weight_decay);
  for (int64_t i = 0; i < n; i++) {
    const REAL grad = scale * g[i];
    m[i] = beta1 * m[i] + new1 * grad;
    v[i] = beta2 * v[i] + new2 * grad * grad;
    w[i] -= rate * m[i] / (sqrt(v[i]) * root + eps) + decay * w[i];
  }
}

#endif
