/* attention.c - softmax(scale q k^T) v, head by head, without ever holding a matrix of all scores.
 *
 *   q, y, dq, dy: (samples, queries, heads, width)   k, v, dk, dv: (samples, keys, kv_heads, width)
 *   head h reads key/value head h / (heads / kv_heads); causal: a query sees the keys up to its own
 *   position
 *
 *   s[i, j] = scale q[i] . k[j]     lse[i] = log sum over j of exp s[i, j]      p = exp(s - lse)
 *   y[i]    = sum over j of p[i, j] v[j]
 *   dp[i, j] = dy[i] . v[j]         delta[i] = dy[i] . y[i]     ds = scale p (dp - delta)
 *   dv[j] = sum over i of p[i, j] dy[i]    dk[j] = sum over i of ds[i, j] q[i]
 *   dq[i] = sum over j of ds[i, j] k[j]
 *
 * This is FlashAttention (Dao et al., 2022; Dao, "FlashAttention-2", 2023) with the online softmax of
 * Milakov and Gimelshein (2018): blocks of queries, and for each of them blocks of keys; of the keys
 * so far a query keeps its largest score m, the sum l of exp(s - m) and the sum of exp(s - m) v, and
 * all are scaled by exp(m before - m) when m grows. Backward computes p again from lse.
 *
 * A block of scores lies transposed, [key][query]: queries along the vector. So its softmax needs no
 * sums within a vector, a key is read where it lies, one number at a time, and only the block of
 * queries (and of dy) is copied transposed, once for all keys. Both transposes of the block serve as
 * the left operand of a product as they are. Of a causal block only tiles that some query sees are
 * computed: KEY_TILE keys by STRIP queries, and below the diagonal they are filled with -inf.
 *
 * Every sum has one order, given by the numbers of queries and keys and by the width: keys (queries,
 * for dk and dv) from the first to the last in blocks as span_of cuts them, the heads of a group from
 * the first to the last. Products are chains as in gemm.c, the width cut into chunks. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#include "ahead.h"

#include <math.h>

#define SELF "attention.c"

#define QUERIES 128 /* of a block, at most */
#define KEYS 128
#define CHUNK 128  /* of the width, in the products that sum over it */
#define STRIP 16   /* queries: whole vectors on every instruction set */
#define KEY_TILE 8 /* keys, and queries where they are the rows of a tile */

typedef struct Span {
  int64_t start, n;
} Span;

/* Part i when 'n' things are cut into nearly equal parts of whole units, 'most' at most in each. */
static int64_t spans(int64_t n, int64_t unit, int64_t most) {
  return parts_of(parts_of(n, unit), most / unit);
}

static Span span_of(int64_t n, int64_t unit, int64_t most, int64_t i) {
  const int64_t units = parts_of(n, unit), parts = spans(n, unit, most);
  const int64_t start = part_start(units, parts, i) * unit;
  return (Span){start, min_i64(part_start(units, parts, i + 1) * unit, n) - start};
}

static int64_t clamp_i64(int64_t x, int64_t least, int64_t most) {
  return x < least ? least : min_i64(x, most);
}

/* A block of queries meets a block of keys: query i sees key j where j <= i + diagonal. */
typedef struct Meeting {
  Span q, k;
  int64_t columns; /* queries, filled up to whole strips */
  int64_t diagonal;
} Meeting;

static Meeting meeting_of(const Attention *t, Span q, Span k) {
  Meeting m = {.q = q, .k = k, .columns = parts_of(q.n, STRIP) * STRIP, .diagonal = k.n};
  if (t->causal) m.diagonal = (t->query_position + q.start) - (t->key_position + k.start);
  return m;
}

/* Keys that query i sees, counted from the block's first; the first query that sees key j. */
static int64_t keys_seen(const Meeting *m, int64_t i) {
  return clamp_i64(i + m->diagonal + 1, 0, m->k.n);
}
static int64_t first_query(const Meeting *m, int64_t j) {
  return clamp_i64(j - m->diagonal, 0, m->columns);
}

/* Keys key .. key + n - 1 of the block, and the first query that their scores are computed for. */
typedef struct KeyTile {
  int64_t key, n, first;
} KeyTile;

static KeyTile key_tile(const Meeting *m, int64_t key) {
  return (KeyTile){key, min_i64(KEY_TILE, m->k.n - key), first_query(m, key) / STRIP * STRIP};
}

/* Blocks of keys that some of the queries see, but no fewer than one: what nobody sees is computed in
 * it as zeros. */
static int64_t key_spans_seen(const Attention *t, Span q) {
  const int64_t all = spans(t->keys, KEY_TILE, KEYS);
  if (!t->causal) return all;
  const int64_t last = (t->query_position + q.start + q.n - 1) - t->key_position;
  int64_t n = 1;
  while (n < all && span_of(t->keys, KEY_TILE, KEYS, n).start <= last) n++;
  return n;
}

/* Queries of the span that see no key at all. */
static int64_t blind_queries(const Attention *t, Span q) {
  return t->causal ? clamp_i64(t->key_position - (t->query_position + q.start), 0, q.n) : 0;
}

#include "both.h"

#else

#include "exp.h"
#include "log.h"
#include "panel.h"
#include "tile.h"

static REAL *FN(head_of)(const void *array, HeadSteps step, int64_t sample, int64_t head) {
  return array == NULL ? NULL : (REAL *)array + sample * step.sample + head * step.head;
}

/* The caller's scratch. */
typedef struct FN(Work) {
  VEC panel[KEYS > QUERIES ? KEYS : QUERIES][NV]; /* right operand, 1 to NV vectors wide */
  REAL s[KEYS][QUERIES];                          /* scores, then p */
  REAL ds[KEYS][QUERIES];                         /* dp, then ds */
  REAL q[CHUNK][QUERIES];                         /* transposed, in panels */
  REAL dy[CHUNK][QUERIES];
  REAL max[QUERIES], base[QUERIES], sum[QUERIES], keep[QUERIES], factor[QUERIES];
  REAL lse[QUERIES], delta[QUERIES];
} FN(Work);
_Static_assert(sizeof(FN(Work)) <= KERNEL_SCRATCH_BYTES, "see kernels.h");

/* ---- products ---------------------------------------------------------------------------------- */

typedef struct FN(Product) {
  const REAL *a, *b;
  int64_t a_row, a_step, ldb;
  REAL *c;
  const REAL *start; /* beside c, or NULL */
  int64_t ldc;
  const REAL *keep, *factor;
} FN(Product);

typedef void FN(Tile)(int64_t kc, const FN(Product) *x);

/* Whether the left operand's neighbours are in the sum (R: in a row of A) or in the tile's rows (C) is
 * known when compiling: that is one pointer, or one for each row. */
#define TILE(rows, vectors)                                                                        \
  static void FN(tile_r##rows##x##vectors)(int64_t kc, const FN(Product) *x) {                     \
    FN(tile)(rows, vectors, kc, x->a, x->a_row, 1, x->b, x->ldb, x->c, x->ldc, x->start, x->ldc,   \
             x->keep, x->factor, NULL);                                                            \
  }                                                                                                \
  static void FN(tile_c##rows##x##vectors)(int64_t kc, const FN(Product) *x) {                     \
    FN(tile)(rows, vectors, kc, x->a, 1, x->a_step, x->b, x->ldb, x->c, x->ldc, x->start, x->ldc,  \
             x->keep, x->factor, NULL);                                                            \
  }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3)
/* clang-format off */
TILES(1) TILES(2) TILES(4)
#if MR == 8
TILES(8)
#endif
#undef TILE
#undef TILES

/* [how A lies][rows][vectors] */
static FN(Tile) *const FN(TILES)[2][MR + 1][NV + 1] = {
#define TILES(rows, kind)                                                                          \
  [rows] = {NULL, FN(tile_##kind##rows##x1), FN(tile_##kind##rows##x2), FN(tile_##kind##rows##x3)}
#if MR == 8
    {TILES(1, r), TILES(2, r), TILES(4, r), TILES(8, r)},
    {TILES(1, c), TILES(2, c), TILES(4, c), TILES(8, c)},
#else
    {TILES(1, r), TILES(2, r), TILES(4, r)},
    {TILES(1, c), TILES(2, c), TILES(4, c)},
#endif
#undef TILES
};
/* clang-format on */

/* Fewer columns of C exist than the vectors have. */
static void FN(edge)(FN(Tile) *tile, int64_t rows, int64_t columns, int64_t kc,
                     const FN(Product) *x) {
  VEC sums[MR][NV];
  FN(Product) whole = *x;
  whole.c = (REAL *)sums;
  whole.ldc = NV * LANES;
  whole.start = whole.keep = whole.factor = NULL;
  tile(kc, &whole);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      REAL out = ((const REAL *)sums)[i * NV * LANES + j];
      if (x->start != NULL) {
        const REAL from = x->start[i * x->ldc + j];
        out = x->keep != NULL ? x->keep[i] * from + out : from + out;
      }
      if (x->factor != NULL) out *= x->factor[i];
      x->c[i * x->ldc + j] = out;
    }
}

/* Some rows (KEY_TILE at most) of a product, up to NV vectors wide. a_step is 1 or a_row is 1. */
ALWAYS_INLINE void FN(rows)(int64_t rows, int64_t columns, int64_t kc, FN(Product) x) {
  const int64_t vectors = parts_of(columns, LANES);
  for (int64_t step; rows > 0; rows -= step) {
    step = min_i64(rows >= 8 ? 8 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1, MR);
    FN(Tile) *tile = FN(TILES)[x.a_step != 1][step][vectors];
    if (columns == vectors * LANES) tile(kc, &x);
    else FN(edge)(tile, step, columns, kc, &x);
    x.a += step * x.a_row;
    x.c += step * x.ldc;
    if (x.start != NULL) x.start += step * x.ldc;
    if (x.keep != NULL) x.keep += step;
    if (x.factor != NULL) x.factor += step;
  }
}

/* ---- panels ------------------------------------------------------------------------------------ */

/* So many columns cut into panels of 1 to NV vectors. */
typedef struct FN(Panels) {
  int64_t n;
  Span at[QUERIES / (VECTOR_BYTES / sizeof(REAL))];
} FN(Panels);

static FN(Panels) FN(panels_of)(int64_t columns) {
  FN(Panels) p = {.n = spans(columns, LANES, NV * LANES)};
  for (int64_t i = 0; i < p.n; i++) p.at[i] = span_of(columns, LANES, NV * LANES, i);
  return p;
}

/* Rows of x (n, width) transposed: panels of n columns, filled up with zeros. */
static void FN(transpose_rows)(int64_t n, int64_t width, const REAL *x, int64_t ld,
                               const FN(Panels) *panels, REAL *out) {
  for (int64_t i = 0; i < panels->n; i++) {
    const Span p = panels->at[i];
    const int64_t there = clamp_i64(n - p.start, 0, p.n);
    FN(pack_columns)(width, there, p.n, x + p.start * ld, ld, out + p.start * width);
  }
}

/* Columns of x (n, width): some of them, filled up to whole vectors with zeros. */
static int64_t FN(panel)(int64_t n, Span columns, const REAL *x, int64_t ld, VEC (*out)[NV]) {
  const int64_t vectors = parts_of(columns.n, LANES);
  x += columns.start;
  if (columns.n < vectors * LANES) FN(pack_rows)(n, columns.n, vectors * LANES, x, ld, (REAL *)out);
  else if (vectors == 1) FN(pack_rows)(n, LANES, LANES, x, ld, (REAL *)out);
  else if (vectors == 2) FN(pack_rows)(n, 2 * LANES, 2 * LANES, x, ld, (REAL *)out);
  else FN(pack_rows)(n, 3 * LANES, 3 * LANES, x, ld, (REAL *)out);
  return vectors * LANES;
}

/* c[key][query] (+)= k[key] . q[query] over one chunk of the width. */
static void FN(scores)(KeyTile tile, Span chunk, const REAL *k, int64_t ldk, const REAL *q,
                       const FN(Panels) *panels, REAL (*c)[QUERIES]) {
  for (int64_t i = 0; i < panels->n; i++) {
    const Span p = panels->at[i];
    const int64_t from = tile.first > p.start ? tile.first : p.start;
    if (from >= p.start + p.n) continue;
    REAL *to = &c[tile.key][from];
    FN(rows)(tile.n, p.start + p.n - from, chunk.n,
             (FN(Product)){.a = k + tile.key * ldk + chunk.start,
                           .a_row = ldk,
                           .a_step = 1,
                           .b = q + p.start * chunk.n + (from - p.start),
                           .ldb = p.n,
                           .c = to,
                           .ldc = QUERIES,
                           .start = chunk.start > 0 ? to : NULL});
  }
}

/* Scores of queries that do not see the key become -inf. */
static void FN(mask)(const Meeting *m, KeyTile tile, REAL (*s)[QUERIES]) {
  for (int64_t j = tile.key; j < tile.key + tile.n; j++)
    for (int64_t i = tile.first; i < first_query(m, j); i++) s[j][i] = -(REAL)INFINITY;
}

/* out[query] = (keep * out[query] +) factor * sum over the block's keys of a[key][query] b[key] */
static void FN(add_to_queries)(const REAL *a, const Meeting *m, int64_t width, const REAL *b,
                               int64_t ldb, REAL *out, int64_t ld_out, bool add, const REAL *keep,
                               const REAL *factor, FN(Work) *w) {
  const int64_t panels = spans(width, LANES, NV * LANES);
  for (int64_t i = 0; i < panels; i++) {
    const Span p = span_of(width, LANES, NV * LANES, i);
    const int64_t pitch = FN(panel)(m->k.n, p, b + m->k.start * ldb, ldb, w->panel);
    for (int64_t row = 0; row < m->q.n; row += KEY_TILE) {
      const int64_t rows = min_i64(KEY_TILE, m->q.n - row);
      REAL *to = out + (m->q.start + row) * ld_out + p.start;
      FN(rows)(rows, p.n, keys_seen(m, row + rows - 1),
               (FN(Product)){.a = a + row,
                             .a_row = 1,
                             .a_step = QUERIES,
                             .b = (const REAL *)w->panel,
                             .ldb = pitch,
                             .c = to,
                             .ldc = ld_out,
                             .start = add ? to : NULL,
                             .keep = keep != NULL ? keep + row : NULL,
                             .factor = factor != NULL ? factor + row : NULL});
    }
  }
}

/* ---- forward ----------------------------------------------------------------------------------- */

/* In what follows 'n' is a constant where it matters: a whole tile's. */

ALWAYS_INLINE void FN(raise_max)(const int64_t n, int64_t first, int64_t columns, FN(Work) *w,
                                 REAL (*s)[QUERIES]) {
  for (int64_t c = first; c < columns; c += STRIP)
    for (int i = 0; i < STRIP; i++) {
      REAL max = w->max[c + i];
#pragma GCC unroll 8
      for (int64_t j = 0; j < n; j++) max = s[j][c + i] > max ? s[j][c + i] : max;
      w->max[c + i] = max;
    }
}

ALWAYS_INLINE void FN(exp_and_sum)(const int64_t n, int64_t first, int64_t columns, REAL scale,
                                   FN(Work) *w, REAL (*s)[QUERIES]) {
  for (int64_t c = first; c < columns; c += STRIP)
    for (int i = 0; i < STRIP; i++) {
      REAL sum = 0;
#pragma GCC unroll 8
      for (int64_t j = 0; j < n; j++) {
        const REAL e = FN(exp_nonpositive)((s[j][c + i] - w->base[c + i]) * scale);
        s[j][c + i] = e;
        sum += e;
      }
      w->sum[c + i] += sum;
    }
}

/* Scores to exp(scale (s - max)); sum becomes that of all keys so far, keep what it was multiplied by.
 * The first 'blind' queries see no key: their maximum is -inf, and everything about them 0. */
static void FN(online_softmax)(const Meeting *m, int64_t blind, REAL scale, FN(Work) *w) {
  REAL before[QUERIES];
  for (int64_t i = 0; i < m->columns; i++) before[i] = w->max[i];
  for (int64_t key = 0; key < m->k.n; key += KEY_TILE) {
    const KeyTile tile = key_tile(m, key);
    if (tile.n == KEY_TILE) FN(raise_max)(KEY_TILE, tile.first, m->columns, w, &w->s[key]);
    else FN(raise_max)(tile.n, tile.first, m->columns, w, &w->s[key]);
  }
  for (int64_t i = 0; i < m->columns; i++) {
    w->base[i] = i < blind ? 0 : w->max[i];
    w->keep[i] = FN(exp_nonpositive)((before[i] - w->base[i]) * scale);
    w->sum[i] *= w->keep[i];
  }
  for (int64_t key = 0; key < m->k.n; key += KEY_TILE) {
    const KeyTile tile = key_tile(m, key);
    if (tile.n == KEY_TILE) FN(exp_and_sum)(KEY_TILE, tile.first, m->columns, scale, w, &w->s[key]);
    else FN(exp_and_sum)(tile.n, tile.first, m->columns, scale, w, &w->s[key]);
  }
}

static void FN(query_block)(const Attention *t, Span block, const REAL *q, const REAL *k,
                            const REAL *v, REAL *y, REAL *lse, FN(Work) *w) {
  const int64_t chunks = spans(t->width, 1, CHUNK), key_spans = key_spans_seen(t, block);
  const int64_t blind = blind_queries(t, block);
  const REAL scale = (REAL)t->scale;
  const FN(Panels) columns = FN(panels_of)(parts_of(block.n, STRIP) * STRIP);
  for (int64_t i = 0; i < QUERIES; i++) {
    w->max[i] = -(REAL)INFINITY;
    w->sum[i] = 0;
  }
  for (int64_t b = 0; b < key_spans; b++) {
    const Meeting m = meeting_of(t, block, span_of(t->keys, KEY_TILE, KEYS, b));
    const REAL *kb = k + m.k.start * t->k_step.position;
    for (int64_t z = 0; z < chunks; z++) {
      const Span chunk = span_of(t->width, 1, CHUNK, z);
      if (b == 0 || chunks > 1)
        FN(transpose_rows)(block.n, chunk.n, q + block.start * t->q_step.position + chunk.start,
                           t->q_step.position, &columns, w->q[0]);
      for (int64_t key = 0; key < m.k.n; key += KEY_TILE) {
        const KeyTile tile = key_tile(&m, key);
        FN(scores)(tile, chunk, kb, t->k_step.position, w->q[0], &columns, w->s);
        if (z == chunks - 1) FN(mask)(&m, tile, w->s);
      }
    }
    FN(online_softmax)(&m, blind, scale, w);
    const bool last = b == key_spans - 1;
    if (last)
      for (int64_t i = 0; i < m.columns; i++) w->factor[i] = i < blind ? 0 : 1 / w->sum[i];
    FN(add_to_queries)(w->s[0], &m, t->width, v, t->v_step.position, y, t->y_step.position, b > 0,
                       w->keep, last ? w->factor : NULL, w);
  }
  for (int64_t i = 0; i < QUERIES; i++) w->lse[i] = scale * w->max[i] + FN(log_positive)(w->sum[i]);
  for (int64_t i = 0; i < block.n; i++)
    lse[block.start + i] = i < blind ? -(REAL)INFINITY : w->lse[i];
}

void FN(attention)(const Attention *t, int64_t first, int64_t end, void *scratch) {
  const int64_t group = t->heads / t->kv_heads;
  for (int64_t pair = first; pair < end; pair++) {
    const int64_t sample = pair / t->heads, head = pair % t->heads, kv_head = head / group;
    const REAL *q = FN(head_of)(t->q, t->q_step, sample, head),
               *k = FN(head_of)(t->k, t->k_step, sample, kv_head);
    const REAL *v = FN(head_of)(t->v, t->v_step, sample, kv_head);
    REAL *y = FN(head_of)(t->y, t->y_step, sample, head), *lse = (REAL *)t->lse + pair * t->queries;
    for (int64_t b = 0; b < spans(t->queries, STRIP, QUERIES); b++)
      FN(query_block)(t, span_of(t->queries, STRIP, QUERIES, b), q, k, v, y, lse, scratch);
  }
}

/* ---- backward ---------------------------------------------------------------------------------- */

/* One head of the queries with its keys. */
typedef struct FN(Backward) {
  const Attention *t;
  const AttentionGrad *g;
  const REAL *q, *k, *v, *y, *lse, *dy;
  REAL *dq, *dk, *dv; /* NULL: not wanted */
  bool first_head;    /* of those that share the keys */
  FN(Work) *w;
} FN(Backward);

/* Scores to p, dp to ds. */
static void FN(gradient)(int64_t n, int64_t first, int64_t columns, REAL scale,
                         const REAL *restrict lse, const REAL *restrict delta,
                         REAL (*restrict s)[QUERIES], REAL (*restrict ds)[QUERIES]) {
  for (int64_t c = first; c < columns; c += STRIP)
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = c; i < c + STRIP; i++) {
        const REAL p = FN(exp_nonpositive)(s[j][i] * scale - lse[i]);
        s[j][i] = p;
        ds[j][i] = p * (ds[j][i] - delta[i]) * scale;
      }
}

/* delta and lse of a block of queries; those that see no key have only scores of -inf, of which exp is
 * 0 with any lse. */
static void FN(read_queries)(const FN(Backward) *x, Span block) {
  const Attention *t = x->t;
  FN(Work) *w = x->w;
  const int64_t blind = blind_queries(t, block);
  for (int64_t i = 0; i < QUERIES; i++) w->lse[i] = w->delta[i] = 0;
  for (int64_t i = blind; i < block.n; i++) w->lse[i] = x->lse[block.start + i];
  for (int64_t i = 0; i < block.n; i++) {
    const REAL *y = x->y + (block.start + i) * t->y_step.position;
    const REAL *dy = x->dy + (block.start + i) * x->g->dy_step.position;
    REAL part[STRIP] = {0};
    int64_t j = 0;
    for (; j + STRIP <= t->width; j += STRIP)
      for (int l = 0; l < STRIP; l++) part[l] += dy[j + l] * y[j + l];
    for (int l = 0; j + l < t->width; l++) part[l] += dy[j + l] * y[j + l];
    for (int half = STRIP / 2; half > 0; half /= 2)
      for (int l = 0; l < half; l++) part[l] += part[l + half];
    w->delta[i] = part[0];
  }
}

/* p and ds of a block of keys. */
static void FN(recompute)(const FN(Backward) *x, const Meeting *m, const FN(Panels) *columns,
                          bool transpose) {
  const Attention *t = x->t;
  FN(Work) *w = x->w;
  const int64_t chunks = spans(t->width, 1, CHUNK);
  const int64_t ldk = t->k_step.position, ldv = t->v_step.position, ldy = x->g->dy_step.position;
  const REAL *k = x->k + m->k.start * ldk, *v = x->v + m->k.start * ldv;
  for (int64_t z = 0; z < chunks; z++) {
    const Span chunk = span_of(t->width, 1, CHUNK, z);
    if (transpose || chunks > 1) {
      FN(transpose_rows)(m->q.n, chunk.n, x->q + m->q.start * t->q_step.position + chunk.start,
                         t->q_step.position, columns, w->q[0]);
      FN(transpose_rows)(m->q.n, chunk.n, x->dy + m->q.start * ldy + chunk.start, ldy, columns,
                         w->dy[0]);
    }
    for (int64_t key = 0; key < m->k.n; key += KEY_TILE) {
      const KeyTile tile = key_tile(m, key);
      FN(scores)(tile, chunk, k, ldk, w->q[0], columns, w->s);
      FN(scores)(tile, chunk, v, ldv, w->dy[0], columns, w->ds);
      if (z < chunks - 1) continue;
      FN(mask)(m, tile, w->s);
      FN(gradient)(tile.n, tile.first, m->columns, (REAL)t->scale, w->lse, w->delta, &w->s[key],
                   &w->ds[key]);
    }
  }
}

/* out[key] (+)= sum over the block's queries of a[key][query] b[query] */
static void FN(add_to_keys)(const FN(Backward) *x, const Meeting *m, REAL (*a)[QUERIES],
                            const REAL *b, int64_t ldb, REAL *out, int64_t ld_out, bool add) {
  const int64_t panels = spans(x->t->width, LANES, NV * LANES);
  for (int64_t i = 0; i < panels; i++) {
    const Span p = span_of(x->t->width, LANES, NV * LANES, i);
    const int64_t pitch = FN(panel)(m->q.n, p, b + m->q.start * ldb, ldb, x->w->panel);
    for (int64_t key = 0; key < m->k.n; key += KEY_TILE) {
      const int64_t from = min_i64(first_query(m, key), m->q.n);
      REAL *to = out + (m->k.start + key) * ld_out + p.start;
      FN(rows)(min_i64(KEY_TILE, m->k.n - key), p.n, m->q.n - from,
               (FN(Product)){.a = &a[key][from],
                             .a_row = QUERIES,
                             .a_step = 1,
                             .b = (const REAL *)x->w->panel + from * pitch,
                             .ldb = pitch,
                             .c = to,
                             .ldc = ld_out,
                             .start = add ? to : NULL});
    }
  }
}

static void FN(query_block_grad)(const FN(Backward) *x, Span block, Span before) {
  const Attention *t = x->t;
  const AttentionGrad *g = x->g;
  const FN(Panels) columns = FN(panels_of)(parts_of(block.n, STRIP) * STRIP);
  const int64_t key_spans = key_spans_seen(t, block);
  /* blocks of keys that were written before, by a head or block of queries */
  const int64_t written = !x->first_head ? INT64_MAX : before.n > 0 ? key_spans_seen(t, before) : 0;
  FN(read_queries)(x, block);
  for (int64_t b = 0; b < key_spans; b++) {
    const Meeting m = meeting_of(t, block, span_of(t->keys, KEY_TILE, KEYS, b));
    FN(recompute)(x, &m, &columns, b == 0);
    if (x->dv != NULL)
      FN(add_to_keys)(x, &m, x->w->s, x->dy, g->dy_step.position, x->dv, g->dv_step.position,
                      g->add_dv || b < written);
    if (x->dk != NULL)
      FN(add_to_keys)(x, &m, x->w->ds, x->q, t->q_step.position, x->dk, g->dk_step.position,
                      g->add_dk || b < written);
    if (x->dq != NULL)
      FN(add_to_queries)(x->w->ds[0], &m, t->width, x->k, t->k_step.position, x->dq,
                         g->dq_step.position, g->add_dq || b > 0, NULL, NULL, x->w);
  }
}

/* Keys that no query sees. */
static void FN(clear)(const Attention *t, REAL *out, int64_t ld) {
  const Span last = span_of(t->queries, STRIP, QUERIES, spans(t->queries, STRIP, QUERIES) - 1);
  const int64_t seen = key_spans_seen(t, last), all = spans(t->keys, KEY_TILE, KEYS);
  if (seen == all) return;
  for (int64_t j = span_of(t->keys, KEY_TILE, KEYS, seen).start; j < t->keys; j++)
    for (int64_t i = 0; i < t->width; i++) out[j * ld + i] = 0;
}

void FN(attention_grad)(const AttentionGrad *g, int64_t first, int64_t end, void *scratch) {
  const Attention *t = g->t;
  const int64_t group = t->heads / t->kv_heads, blocks = spans(t->queries, STRIP, QUERIES);
  for (int64_t pair = first; pair < end; pair++) {
    const int64_t sample = pair / t->kv_heads, kv_head = pair % t->kv_heads;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
      const FN(Backward) x = {.t = t,
                              .g = g,
                              .q = FN(head_of)(t->q, t->q_step, sample, head),
                              .k = FN(head_of)(t->k, t->k_step, sample, kv_head),
                              .v = FN(head_of)(t->v, t->v_step, sample, kv_head),
                              .y = FN(head_of)(t->y, t->y_step, sample, head),
                              .lse = (const REAL *)t->lse + (sample * t->heads + head) * t->queries,
                              .dy = FN(head_of)(g->dy, g->dy_step, sample, head),
                              .dq = FN(head_of)(g->dq, g->dq_step, sample, head),
                              .dk = FN(head_of)(g->dk, g->dk_step, sample, kv_head),
                              .dv = FN(head_of)(g->dv, g->dv_step, sample, kv_head),
                              .first_head = head == kv_head * group,
                              .w = scratch};
      if (x.first_head && x.dk != NULL && !g->add_dk) FN(clear)(t, x.dk, g->dk_step.position);
      if (x.first_head && x.dv != NULL && !g->add_dv) FN(clear)(t, x.dv, g->dv_step.position);
      for (int64_t b = 0; b < blocks; b++)
        FN(query_block_grad)(&x, span_of(t->queries, STRIP, QUERIES, b),
                             b > 0 ? span_of(t->queries, STRIP, QUERIES, b - 1) : (Span){0});
    }
  }
}

#endif
