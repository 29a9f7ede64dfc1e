/* moe.c - mixture of experts: which experts a token goes to, with which weight, and its way there
 * and back. base/ops.def says what slots, blocks, ends and packed rows are.
 *
 *   logits: (S, E) of one sample, slots: (S, k); p = softmax of a row of logits
 *
 *   route     the k largest logits of each token, equal ones by the lower expert; tokens in order
 *             take the next place of each of their experts, while it has one
 *   gate      w[t, j] = p[t, e(t, j)], normalised divided by their sum over j, which is the softmax of
 *             the chosen logits alone. Dropped choices keep their weight
 *   balance   E * sum over e of f[e] * mean over t of p[t, e];  f[e] = choices of e / (S k), dropped
 *             ones included
 *
 * Gradients: of a softmax p with gradient g, dlogits = p (g - sum of p g).
 *
 * Sums over experts are in order, of products that are rounded first (sum_products): where a compiler
 * may choose between a multiply-add and two operations, instruction sets would differ. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#include <math.h>
#include <string.h>

#define SELF "moe.c"

static int64_t expert_of(int32_t slot, int64_t capacity) {
  return slot >= 0 ? slot / capacity : -1 - (int64_t)slot;
}

/* The products take the place of a. */
static double sum_products(int64_t n, double *restrict a, const double *restrict b) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) a[i] *= b[i];
  for (int64_t i = 0; i < n; i++) sum += a[i];
  return sum;
}

#include "both.h"

#else

#include "exp.h"
#include "sum.h"

/* The expert with the largest logit that is not among the n chosen ones. */
static int64_t FN(best_other)(int64_t experts, const REAL *x, int64_t n, const int32_t *chosen) {
  int64_t best = -1;
  for (int64_t e = 0; e < experts; e++) {
    if (best >= 0 && !(x[e] > x[best])) continue;
    int64_t j = 0;
    while (j < n && chosen[j] != e) j++;
    if (j == n) best = e;
  }
  return best;
}

void FN(moe_route)(const MoeShape *m, const void *logits, int32_t *slots) {
  int32_t used[KERNEL_MAX_EXPERTS];
  const REAL *x = logits;
  memset(used, 0, (size_t)m->experts * sizeof *used);
  for (int64_t t = 0; t < m->tokens; t++, x += m->experts, slots += m->top_k) {
    for (int64_t j = 0; j < m->top_k; j++)
      slots[j] = (int32_t)FN(best_other)(m->experts, x, j, slots);
    for (int64_t j = 0; j < m->top_k; j++) {
      const int64_t e = slots[j];
      slots[j] = (int32_t)(used[e] < m->capacity ? e * m->capacity + used[e]++ : -1 - e);
    }
  }
}

/* exp(x - max) of all experts, or of the chosen ones, into e; returns their sum. */
static double FN(softmax_terms)(const MoeShape *m, const REAL *x, const int32_t *slots, bool chosen,
                                double *e) {
  const int64_t n = chosen ? m->top_k : m->experts;
  REAL max = -INFINITY;
  for (int64_t i = 0; i < n; i++) {
    const REAL v = x[chosen ? expert_of(slots[i], m->capacity) : i];
    max = v > max ? v : max;
  }
  double sum = 0;
  for (int64_t i = 0; i < n; i++) {
    const REAL v = x[chosen ? expert_of(slots[i], m->capacity) : i];
    sum += e[i] = (double)FN(exp_nonpositive)(v - max);
  }
  return sum;
}

void FN(moe_gate)(const MoeShape *m, bool normalize, const void *logits, const int32_t *slots,
                  void *weights) {
  double e[KERNEL_MAX_EXPERTS];
  const REAL *x = logits;
  REAL *w = weights;
  for (int64_t t = 0; t < m->tokens; t++, x += m->experts, slots += m->top_k, w += m->top_k) {
    const double sum = FN(softmax_terms)(m, x, slots, normalize, e);
    for (int64_t j = 0; j < m->top_k; j++)
      w[j] = (REAL)(e[normalize ? j : expert_of(slots[j], m->capacity)] / sum);
  }
}

void FN(moe_gate_grad)(const MoeShape *m, bool normalize, const void *logits, const int32_t *slots,
                       const void *dweights, void *dlogits, bool add) {
  double p[KERNEL_MAX_EXPERTS], g[KERNEL_MAX_EXPERTS], pg[KERNEL_MAX_EXPERTS];
  const REAL *x = logits, *dw = dweights;
  REAL *dx = dlogits;
  const int64_t experts = m->experts, k = m->top_k, n = normalize ? k : experts;
  for (int64_t t = 0; t < m->tokens; t++, x += experts, dx += experts, slots += k, dw += k) {
    const double sum = FN(softmax_terms)(m, x, slots, normalize, p);
    for (int64_t i = 0; i < n; i++) g[i] = 0; /* of an expert that is not chosen */
    for (int64_t j = 0; j < k; j++)
      g[normalize ? j : expert_of(slots[j], m->capacity)] = (double)dw[j];
    for (int64_t i = 0; i < n; i++) pg[i] = p[i] /= sum;
    const double mean = sum_products(n, pg, g);
    for (int64_t i = 0; i < n; i++) p[i] *= g[i] - mean;
    if (!add) memset(dx, 0, (size_t)experts * sizeof *dx);
    for (int64_t i = 0; i < n; i++)
      dx[normalize ? expert_of(slots[i], m->capacity) : i] += (REAL)p[i];
  }
}

/* How many choices fell on each expert. */
static void FN(count_choices)(const MoeShape *m, const int32_t *slots, double *n) {
  for (int64_t e = 0; e < m->experts; e++) n[e] = 0;
  for (int64_t i = 0; i < m->tokens * m->top_k; i++) n[expert_of(slots[i], m->capacity)]++;
}

double FN(moe_balance)(const MoeShape *m, const void *logits, const int32_t *slots) {
  double e[KERNEL_MAX_EXPERTS], n[KERNEL_MAX_EXPERTS], total = 0;
  const REAL *x = logits;
  FN(count_choices)(m, slots, n);
  for (int64_t t = 0; t < m->tokens; t++, x += m->experts) {
    const double sum = FN(softmax_terms)(m, x, slots, false, e);
    total += sum_products(m->experts, e, n) / sum;
  }
  return total * (double)m->experts / ((double)m->tokens * (double)m->tokens * (double)m->top_k);
}

void FN(moe_balance_grad)(const MoeShape *m, double factor, const void *logits,
                          const int32_t *slots, void *dlogits, bool add) {
  double p[KERNEL_MAX_EXPERTS], n[KERNEL_MAX_EXPERTS], pn[KERNEL_MAX_EXPERTS];
  const REAL *x = logits;
  REAL *dx = dlogits;
  FN(count_choices)(m, slots, n);
  factor *= (double)m->experts / ((double)m->tokens * (double)m->tokens * (double)m->top_k);
  for (int64_t t = 0; t < m->tokens; t++, x += m->experts, dx += m->experts) {
    const double sum = FN(softmax_terms)(m, x, slots, false, p);
    for (int64_t i = 0; i < m->experts; i++) pn[i] = p[i] /= sum;
    const double mean = sum_products(m->experts, pn, n);
    for (int64_t i = 0; i < m->experts; i++) p[i] *= factor * (n[i] - mean);
    if (!add) memset(dx, 0, (size_t)m->experts * sizeof *dx);
    for (int64_t i = 0; i < m->experts; i++) dx[i] += (REAL)p[i];
  }
}

/* Block b of the blocks: its count, then its rows. */
static REAL *FN(block)(const MoeBlocks *b, int64_t block) {
  return (REAL *)b->at + block * (1 + b->capacity) * b->width;
}

/* The row of a slot of sample s. */
static REAL *FN(slot_row)(const MoeBlocks *b, int64_t s, int32_t slot) {
  return FN(block)(b, s * b->experts + slot / b->capacity) + (1 + slot % b->capacity) * b->width;
}

void FN(moe_counts)(const MoeBlocks *b, int64_t choices, int64_t lo, int64_t hi,
                    const int32_t *slots) {
  int32_t n[KERNEL_MAX_EXPERTS];
  for (int64_t s = lo; s < hi; s++) {
    memset(n, 0, (size_t)b->experts * sizeof *n);
    for (int64_t i = s * choices; i < (s + 1) * choices; i++)
      if (slots[i] >= 0) n[slots[i] / b->capacity]++;
    for (int64_t e = 0; e < b->experts; e++)
      memcpy(FN(block)(b, s * b->experts + e), &n[e], sizeof n[e]);
  }
}

static void FN(add_row)(int64_t n, const REAL *restrict x, REAL *restrict y) {
  for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

void FN(moe_dispatch)(const MoeBlocks *b, const MoeTokens *m, int64_t lo, int64_t hi,
                      const void *tokens) {
  const REAL *x = tokens;
  for (int64_t t = lo; t < hi; t++)
    for (int64_t j = 0; j < m->top_k; j++) {
      const int32_t slot = m->slots[t * m->top_k + j];
      if (slot < 0) continue;
      memcpy(FN(slot_row)(b, t / m->tokens, slot), x + t * b->width, (size_t)b->width * sizeof *x);
    }
}

void FN(moe_dispatch_grad)(const MoeBlocks *b, const MoeTokens *m, int64_t lo, int64_t hi,
                           void *dtokens, bool add) {
  REAL *dx = dtokens;
  for (int64_t t = lo; t < hi; t++) {
    if (!add) memset(dx + t * b->width, 0, (size_t)b->width * sizeof *dx);
    for (int64_t j = 0; j < m->top_k; j++) {
      const int32_t slot = m->slots[t * m->top_k + j];
      if (slot < 0) continue;
      FN(add_row)(b->width, FN(slot_row)(b, t / m->tokens, slot), dx + t * b->width);
    }
  }
}

void FN(moe_combine)(const MoeBlocks *b, const MoeTokens *m, int64_t lo, int64_t hi,
                     const void *weights, void *y_) {
  const REAL *w = weights;
  for (int64_t t = lo; t < hi; t++) {
    REAL *restrict y = (REAL *)y_ + t * b->width;
    memset(y, 0, (size_t)b->width * sizeof *y);
    for (int64_t j = 0; j < m->top_k; j++) {
      const int32_t slot = m->slots[t * m->top_k + j];
      if (slot < 0) continue;
      const REAL f = w[t * m->top_k + j];
      const REAL *restrict row = FN(slot_row)(b, t / m->tokens, slot);
      for (int64_t i = 0; i < b->width; i++) y[i] += f * row[i];
    }
  }
}

void FN(moe_combine_grad)(const MoeBlocks *b, const MoeTokens *m, int64_t lo, int64_t hi,
                          const void *weights, const void *dy_, bool add) {
  const REAL *w = weights;
  for (int64_t t = lo; t < hi; t++) {
    const REAL *restrict dy = (const REAL *)dy_ + t * b->width;
    for (int64_t j = 0; j < m->top_k; j++) {
      const int32_t slot = m->slots[t * m->top_k + j];
      if (slot < 0) continue;
      const REAL f = w[t * m->top_k + j];
      REAL *restrict row = FN(slot_row)(b, t / m->tokens, slot);
      for (int64_t i = 0; i < b->width; i++) row[i] = add ? row[i] + f * dy[i] : f * dy[i];
    }
  }
}

static double FN(dot)(int64_t n, const REAL *a, const REAL *b) {
  SUM(WIDE(a + i) * WIDE(b + i), (double)a[i] * (double)b[i]);
}

void FN(moe_combine_weight_grad)(const MoeBlocks *b, const MoeTokens *m, int64_t lo, int64_t hi,
                                 const void *dy_, void *dweights, bool add) {
  REAL *dw = dweights;
  for (int64_t t = lo; t < hi; t++) {
    const REAL *dy = (const REAL *)dy_ + t * b->width;
    for (int64_t j = 0; j < m->top_k; j++) {
      const int32_t slot = m->slots[t * m->top_k + j];
      const double sum =
          slot < 0 ? 0 : FN(dot)(b->width, FN(slot_row)(b, t / m->tokens, slot), dy);
      REAL *to = &dw[t * m->top_k + j];
      *to = (REAL)(add ? (double)*to + sum : sum);
    }
  }
}

int64_t FN(moe_ends)(const MoeBlocks *b, int64_t samples, int32_t *ends) {
  int64_t end = 0;
  for (int64_t e = 0; e < b->experts; e++)
    for (int64_t s = 0; s < samples; s++) {
      int32_t n;
      memcpy(&n, FN(block)(b, s * b->experts + e), sizeof n);
      if (n < 0 || n > b->capacity) return s * b->experts + e;
      ends[s * b->experts + e] = (int32_t)(end += n);
    }
  return -1;
}

/* Rows of blocks lo .. hi - 1 are copied, or added, to or from their places among the packed ones. */
void FN(moe_move)(const MoeBlocks *b, int64_t samples, int64_t lo, int64_t hi, const int32_t *ends,
                  void *packed, bool pack, bool add) {
  for (int64_t i = lo; i < hi; i++) {
    const int64_t s = i / b->experts, e = i % b->experts;
    const int64_t start = s > 0   ? ends[i - b->experts]
                          : e > 0 ? ends[(samples - 1) * b->experts + e - 1]
                                  : 0;
    const int32_t n = (int32_t)(ends[i] - start);
    REAL *rows = (REAL *)packed + start * b->width, *block = FN(block)(b, i);
    if (!pack) memcpy(block, &n, sizeof n);
    const REAL *from = pack ? block + b->width : rows;
    REAL *to = pack ? rows : block + b->width;
    if (add) FN(add_row)(n * b->width, from, to);
    else memcpy(to, from, (size_t)(n * b->width) * sizeof *to);
  }
}

#endif
