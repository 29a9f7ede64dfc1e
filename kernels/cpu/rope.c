/* rope.c - rotary position embedding (Su et al., "RoFormer", 2021), in the form of published
 * checkpoints (GPT-NeoX, Llama): number i of a head's first half and number i of the second turn
 * together.
 *
 *   x, y: (samples, positions, heads, width)     angle = position * base^(-2 i / width)
 *   y[i]        = x[i] cos angle - x[i + width / 2] sin angle        i < width / 2
 *   y[i + width / 2] = x[i + width / 2] cos angle + x[i] sin angle
 *
 * Angles, sines and cosines are f64, once for each position, in tiles that stay in the first-level
 * cache; samples and heads share them. */
#ifndef REAL

#include "kernels/cpu/isa.h"
#include "kernels/cpu/sincos.h"

#include <math.h>
#include <string.h>

#define SELF "rope.c"
#define TILE 128 /* pairs; whole vectors */

#include "both.h"

#else

#include "vec.h"

/* Some neighbours of both halves, one vector or less. y may be x. */
ALWAYS_INLINE void FN(turn)(VEC c, VEC s, VEC a, VEC b, bool add, VEC *y_a, VEC *y_b) {
  const VEC turned_a = a * c - b * s, turned_b = b * c + a * s;
  *y_a = add ? *y_a + turned_a : turned_a;
  *y_b = add ? *y_b + turned_b : turned_b;
}

static void FN(turn_pairs)(int64_t n, const REAL *c, const REAL *s, const REAL *a, const REAL *b,
                           bool add, REAL *y_a, REAL *y_b) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    VEC to_a = {0}, to_b = {0};
    if (add) {
      to_a = *(const VEC_U *)(y_a + i);
      to_b = *(const VEC_U *)(y_b + i);
    }
    FN(turn)(*(const VEC_U *)(c + i), *(const VEC_U *)(s + i), *(const VEC_U *)(a + i),
             *(const VEC_U *)(b + i), add, &to_a, &to_b);
    *(VEC_U *)(y_a + i) = to_a;
    *(VEC_U *)(y_b + i) = to_b;
  }
  if (i == n) return;
  const size_t bytes = (size_t)(n - i) * sizeof(REAL);
  VEC from_a = {0}, from_b = {0}, to_a = {0}, to_b = {0};
  memcpy(&from_a, a + i, bytes);
  memcpy(&from_b, b + i, bytes);
  if (add) {
    memcpy(&to_a, y_a + i, bytes);
    memcpy(&to_b, y_b + i, bytes);
  }
  FN(turn)(*(const VEC_U *)(c + i), *(const VEC_U *)(s + i), from_a, from_b, add, &to_a, &to_b);
  memcpy(y_a + i, &to_a, bytes);
  memcpy(y_b + i, &to_b, bytes);
}

void FN(rope)(const Rope *r) {
  const int64_t half = r->width / 2;
  for (int64_t first = 0; first < half; first += TILE) {
    const int64_t n = min_i64(TILE, half - first);
    double speed[TILE] = {0};
    for (int64_t i = 0; i < n; i++)
      speed[i] = pow(r->base, -2.0 * (double)(first + i) / (double)r->width);
    for (int64_t p = 0; p < r->positions; p++) {
      const double position = (double)(r->position + p);
      REAL sines[TILE], cosines[TILE];
      for (int64_t i = 0; i < n; i += 16)
        for (int64_t j = i; j < i + 16; j++) {
          double s, c;
          sincos_positive(position * speed[j], &s, &c);
          sines[j] = (REAL)(r->backward ? -s : s);
          cosines[j] = (REAL)c;
        }
      for (int64_t sample = 0; sample < r->samples; sample++)
        for (int64_t head = 0; head < r->heads; head++) {
          const REAL *x = (const REAL *)r->x + sample * r->x_step.sample + p * r->x_step.position +
                          head * r->x_step.head + first;
          REAL *y = (REAL *)r->y + sample * r->y_step.sample + p * r->y_step.position +
                    head * r->y_step.head + first;
          FN(turn_pairs)(n, cosines, sines, x, x + half, r->add, y, y + half);
        }
    }
  }
}

#endif
