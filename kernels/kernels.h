/* kernels.h - the CPU kernels: what a device calls, and a table of them for each instruction set.
 *
 * Every kernel works in the calling thread, allocates nothing, keeps nothing and touches only what
 * its arguments name; buffers need the alignment of their elements only, and an output overlaps no
 * input unless the kernel says so. Arrays are row-major and contiguous. Counts may be 0 except in a
 * Gemm. Real data is float in the table's 'f32' half and double in 'f64'.
 *
 * Results depend on the values alone: not on alignment, not on the thread, and a row of a product
 * not on how many rows are computed with it. Sums run in f64, those of products (gemm,
 * attention) in the type of the data, in an order fixed by their length. */
#ifndef PIPER_KERNELS_H
#define PIPER_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* C[m, n] = start + op(A)[m, k] op(B)[k, n]; all counts >= 1. */
typedef struct Gemm {
  int64_t m, n, k;
  const void *a;     /* element (i, p) at a[i * lda + p], or a[p * lda + i] when a_trans */
  const void *b;     /* element (p, j) at b[p * ldb + j], or b[j * ldb + p] when b_trans */
  void *c;           /* element (i, j) at c[i * ldc + j] */
  const void *start; /* element (i, j) at start[i * ld_start + j]: c itself adds to C, a bias has
                        ld_start 0; NULL: zeros */
  int64_t lda, ldb, ldc, ld_start;
  bool a_trans, b_trans;
} Gemm;

/* Working space of a gemm: so many bytes, aligned to 64, for each thread that computes. */
#define KERNEL_SCRATCH_BYTES ((size_t)2432 * 1024)

/* Element (sample, position, head, i) of an array lies at sample * .sample + position * .position +
 * head * .head + i. */
typedef struct HeadSteps {
  int64_t sample, position, head;
} HeadSteps;

/* Rotary position embedding. Numbers i and i + width / 2 of a head turn by the angle
 * position * base^(-2 i / width); width is even, positions are from 0 to a million. */
typedef struct Rope {
  int64_t samples, positions, heads, width;
  int64_t position; /* of the first, in the whole sequence */
  double base;
  bool backward;    /* turn back: x is the gradient of the output */
  bool add;         /* add to y instead of writing it */
  const void *x;
  void *y;          /* may be x, with the same steps */
  HeadSteps x_step, y_step;
} Rope;

/* y = softmax(scale q k^T) v for each sample and head; all counts >= 1, kv_heads divides heads. */
typedef struct Attention {
  int64_t samples, queries, keys; /* queries and keys: of one sample */
  int64_t heads, kv_heads;        /* head h reads key/value head h / (heads / kv_heads) */
  int64_t width;                  /* of a head */
  double scale;                   /* > 0 */
  bool causal;                    /* a query sees the keys up to its own position only */
  int64_t query_position, key_position; /* of the first query and key in the whole sequence */
  const void *q;                  /* queries, heads */
  const void *k, *v;              /* keys, kv_heads */
  void *y;                        /* queries, heads */
  void *lse;                      /* [sample][head][query]: log of the sum of exp(scores); a query
                                     that sees no key has -inf, and y 0 */
  HeadSteps q_step, k_step, v_step, y_step;
} Attention;

/* Its gradients. A query's part in dk and dv is added in order of the heads and then of the queries. */
typedef struct AttentionGrad {
  const Attention *t;             /* y and lse as the forward pass left them */
  const void *dy;
  void *dq, *dk, *dv;             /* NULL: not wanted */
  HeadSteps dy_step, dq_step, dk_step, dv_step;
  bool add_dq, add_dk, add_dv;
} AttentionGrad;

/* One step of AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019). */
typedef struct AdamwStep {
  double lr, grad_scale, weight_decay, beta[2], eps;
  double bias_correction[2]; /* 1 - beta^step */
} AdamwStep;

/* Which elements a dropout keeps: kernels/cpu/dropout.c. */
typedef struct DropoutMask {
  uint64_t seed, stream, first; /* element i is number first + i of the stream */
  uint32_t threshold;           /* p 2^32 */
  double scale;                 /* of what is kept */
} DropoutMask;

/* One sample of a router: 'top_k' choices a token, each expert with room for 'capacity' tokens. */
#define KERNEL_MAX_EXPERTS 4096
typedef struct MoeShape {
  int64_t tokens, experts, top_k, capacity;
} MoeShape;

/* Blocks of tokens of width 'width', of all samples; the form is told in base/ops.def. */
typedef struct MoeBlocks {
  void *at;
  int64_t experts, capacity, width;
} MoeBlocks;

/* Where the tokens of all samples go. */
typedef struct MoeTokens {
  const int32_t *slots;
  int64_t tokens, top_k; /* a sample, a token */
} MoeTokens;

/* KERNEL(result, name, arguments). A 'step' is 1, or 0 for an operand that is one number. 'add': add
 * to the destination instead of writing it. */
/* clang-format off */
#define KERNEL_LIST(KERNEL)                                                                        \
  KERNEL(void, gemm, (const Gemm *g, void *scratch))                                               \
  /* elementwise; the output may be the input */                                                   \
  KERNEL(void, fill, (int64_t n, double value, void *y, bool add))                                 \
  KERNEL(void, scale, (int64_t n, double factor, const void *x, void *y, bool add))                \
  KERNEL(void, relu, (int64_t n, const void *x, void *y))                                          \
  KERNEL(void, relu_grad, (int64_t n, const void *y, const void *dy, void *dx, bool add))          \
  /* y = x Phi(x), Phi the normal distribution */                                                  \
  KERNEL(void, gelu, (int64_t n, const void *x, void *y))                                          \
  KERNEL(void, gelu_grad, (int64_t n, const void *x, const void *dy, void *dx, bool add))          \
  /* y = x / (1 + e^-x) */                                                                         \
  KERNEL(void, silu, (int64_t n, const void *x, void *y))                                          \
  KERNEL(void, silu_grad, (int64_t n, const void *x, const void *dy, void *dx, bool add))          \
  /* y = silu(gate) up; a gradient that is not wanted is NULL, 'up' is not read for dup alone */   \
  KERNEL(void, swiglu, (int64_t n, const void *gate, const void *up, void *y))                     \
  KERNEL(void, swiglu_grad, (int64_t n, const void *gate, const void *up, const void *dy,          \
                             void *dgate, bool add_gate, void *dup, bool add_up))                  \
  /* y (+)= scale x where the mask keeps it, otherwise 0; its gradient is the same map of dy */    \
  KERNEL(void, dropout, (int64_t n, const DropoutMask *mask, const void *x, void *y, bool add))    \
  KERNEL(void, add, (int64_t n, const void *a, int a_step, const void *b, int b_step, void *y))    \
  KERNEL(void, sub, (int64_t n, const void *a, int a_step, const void *b, int b_step, void *y))    \
  KERNEL(void, mul, (int64_t n, const void *a, int a_step, const void *b, int b_step, void *y))    \
  KERNEL(void, div, (int64_t n, const void *a, int a_step, const void *b, int b_step, void *y))    \
  /* da of y = a / b is dy / b (div); db is this: -dy a / b^2 */                                    \
  KERNEL(void, div_grad, (int64_t n, const void *dy, const void *a, int a_step, const void *b,     \
                          int b_step, void *db))                                                   \
  /* y (+)= factor * (a - b) */                                                                    \
  KERNEL(void, scaled_difference, (int64_t n, double factor, const void *a, const void *b,         \
                                   void *y, bool add))                                             \
  /* reductions */                                                                                 \
  KERNEL(double, sum, (int64_t n, const void *x))                                                  \
  KERNEL(double, sum_squares, (int64_t n, const void *x))                                          \
  KERNEL(double, sum_products, (int64_t n, const void *a, const void *b))                          \
  KERNEL(double, sum_squared_difference, (int64_t n, const void *a, const void *b))                \
  /* sums[j] += x[j]; y (+)= sums, rounded */                                                      \
  KERNEL(void, widen_add, (int64_t n, const void *x, double *sums))                                \
  KERNEL(void, narrow, (int64_t n, const double *sums, void *y, bool add))                         \
  /* y[j] (+)= sum over i of x[i * ld + j], i < rows, j < columns */                               \
  KERNEL(void, column_sums, (int64_t rows, int64_t columns, int64_t ld, const void *x, void *y,    \
                             bool add))                                                            \
  /* y[i, :] = table[ids[i], :] */                                                                 \
  KERNEL(void, embedding, (int64_t n, int64_t width, const int32_t *ids, const void *table,        \
                           void *y))                                                               \
  /* dtable[ids[i], j] += dy[i, j] in order of i, j < columns <= width; without 'add' these columns \
     of every other row become zero */                                                             \
  KERNEL(void, embedding_grad, (int64_t n, int64_t vocab, int64_t columns, int64_t width,          \
                                const int32_t *ids, const void *dy, void *dtable, bool add))       \
  /* y[j * ld_y + i] (+)= x[i * ld_x + j], i < rows, j < columns */                                \
  KERNEL(void, transpose_matrix, (int64_t rows, int64_t columns, const void *x, int64_t ld_x,      \
                                  void *y, int64_t ld_y, bool add))                                \
  /* norms of rows of n; stats gets (rows) 1 / deviation, of layernorm (rows, 2) mean and that;    \
     b may be NULL */                                                                              \
  KERNEL(void, rmsnorm, (int64_t rows, int64_t n, double eps, const void *x, const void *w,        \
                         void *y, void *stats))                                                    \
  KERNEL(void, rmsnorm_grad, (int64_t rows, int64_t n, const void *x, const void *w,               \
                              const void *stats, const void *dy, void *dx, bool add))              \
  KERNEL(void, layernorm, (int64_t rows, int64_t n, double eps, const void *x, const void *w,      \
                           const void *b, void *y, void *stats))                                   \
  KERNEL(void, layernorm_grad, (int64_t rows, int64_t n, const void *x, const void *w,             \
                                const void *stats, const void *dy, void *dx, bool add))            \
  /* dw[j] (+)= over rows: dy[i * ld + j] times x[i * ld + j] normalised, j < columns; n_stats of  \
     a row is 1 or 2 */                                                                            \
  KERNEL(void, norm_weight_grad, (int64_t rows, int64_t columns, int64_t ld, const void *x,        \
                                  const void *stats, int n_stats, const void *dy, void *dw,        \
                                  bool add))                                                       \
  /* softmax of each row; y may be x, dx may be y or dy */                                         \
  KERNEL(void, softmax, (int64_t rows, int64_t n, const void *x, void *y))                         \
  KERNEL(void, softmax_grad, (int64_t rows, int64_t n, const void *y, const void *dy, void *dx,    \
                              bool add))                                                           \
  /* sum over rows of -log softmax(logits[i, :])[targets[i]]; rows whose target is 'ignore'        \
     (INT64_MIN: none) count as absent, the other targets are from 0 to classes - 1 */             \
  KERNEL(double, cross_entropy, (int64_t rows, int64_t classes, const void *logits,                \
                                 const int32_t *targets, int64_t ignore))                          \
  /* dlogits (+)= factor * (softmax(logits[i, :]) - one at targets[i]), and 0 in rows that are     \
     absent; without 'add' dlogits may be the logits */                                            \
  KERNEL(void, cross_entropy_grad, (int64_t rows, int64_t classes, const void *logits,             \
                                    const int32_t *targets, int64_t ignore, double factor,         \
                                    void *dlogits, bool add))                                      \
  KERNEL(void, rope, (const Rope *r))                                                              \
  /* pairs first .. end - 1, pair = sample * heads + head; scratch as for gemm */                  \
  KERNEL(void, attention, (const Attention *t, int64_t first, int64_t end, void *scratch))         \
  /* pairs first .. end - 1, pair = sample * kv_heads + kv_head */                                 \
  KERNEL(void, attention_grad,                                                                     \
         (const AttentionGrad *g, int64_t first, int64_t end, void *scratch))                      \
  /* mixture of experts: of one sample ... */                                                       \
  KERNEL(void, moe_route, (const MoeShape *m, const void *logits, int32_t *slots))                 \
  KERNEL(void, moe_gate, (const MoeShape *m, bool normalize, const void *logits,                   \
                          const int32_t *slots, void *weights))                                    \
  KERNEL(void, moe_gate_grad, (const MoeShape *m, bool normalize, const void *logits,              \
                               const int32_t *slots, const void *dweights, void *dlogits,          \
                               bool add))                                                          \
  KERNEL(double, moe_balance, (const MoeShape *m, const void *logits, const int32_t *slots))       \
  KERNEL(void, moe_balance_grad, (const MoeShape *m, double factor, const void *logits,            \
                                  const int32_t *slots, void *dlogits, bool add))                  \
  /* ... of samples lo .. hi - 1, with so many choices each: the counts of their blocks ... */     \
  KERNEL(void, moe_counts, (const MoeBlocks *b, int64_t choices, int64_t lo, int64_t hi,           \
                            const int32_t *slots))                                                 \
  /* ... of tokens lo .. hi - 1 of all samples; of blocks only rows, not counts ... */             \
  KERNEL(void, moe_dispatch, (const MoeBlocks *b, const MoeTokens *m, int64_t lo, int64_t hi,      \
                              const void *tokens))                                                 \
  KERNEL(void, moe_dispatch_grad, (const MoeBlocks *b, const MoeTokens *m, int64_t lo, int64_t hi, \
                                   void *dtokens, bool add))                                       \
  KERNEL(void, moe_combine, (const MoeBlocks *b, const MoeTokens *m, int64_t lo, int64_t hi,       \
                             const void *weights, void *y))                                        \
  KERNEL(void, moe_combine_grad, (const MoeBlocks *db, const MoeTokens *m, int64_t lo, int64_t hi, \
                                  const void *weights, const void *dy, bool add))                  \
  KERNEL(void, moe_combine_weight_grad, (const MoeBlocks *b, const MoeTokens *m, int64_t lo,       \
                                         int64_t hi, const void *dy, void *dweights, bool add))    \
  /* ... -1, or the first block whose count is not from 0 to its capacity */                       \
  KERNEL(int64_t, moe_ends, (const MoeBlocks *b, int64_t samples, int32_t *ends))                  \
  /* blocks lo .. hi - 1 to the packed rows, or from them, then with their counts */               \
  KERNEL(void, moe_move, (const MoeBlocks *b, int64_t samples, int64_t lo, int64_t hi,             \
                          const int32_t *ends, void *packed, bool pack, bool add))                 \
  /* optimizers: u = grad_scale * g + weight_decay * w; m NULL: w -= lr u;                          \
     otherwise m = momentum * m + u, w -= lr m */                                                  \
  KERNEL(void, sgd, (int64_t n, void *w, const void *g, void *m, double lr, double grad_scale,     \
                     double weight_decay, double momentum))                                        \
  KERNEL(void, adamw, (int64_t n, void *w, const void *g, void *m, void *v, const AdamwStep *s))   \
  /* Nothing but multiply-adds in registers, to compare with: does at least 'flops', returns how   \
     many; *sink keeps the compiler from leaving them out. */                                      \
  KERNEL(double, peak, (double flops, double *sink))
/* clang-format on */

typedef struct Kernels {
#define KERNEL(result, name, args) result (*name) args;
  KERNEL_LIST(KERNEL)
#undef KERNEL
} Kernels;

typedef struct KernelTable {
  const char *isa; /* "v3", "v4", "generic" */
  Kernels f32, f64;
} KernelTable;

/* Which of them exist depends on the machine that was built for; device/cpu_isa.h chooses. */
extern const KernelTable kernel_table_v3;
extern const KernelTable kernel_table_v4;
extern const KernelTable kernel_table_generic;

#endif
