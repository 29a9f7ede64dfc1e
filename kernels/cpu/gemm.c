/* gemm.c - C = start + op(A) op(B), blocked and packed.
 *
 * The plan of Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008):
 * K is cut into blocks of at most KC; for each, a block of B (KC x NC) and blocks of A (MC x KC) are
 * copied into panels that the innermost loop reads from end to end:
 *
 *   panel of B: for each p, 'width' neighbours of row p, width = 1 to NV vectors; zeros fill the last
 *   panel of A: for each p, 'rows' neighbours of column p, rows = 1 to MR
 *
 * The micro kernel keeps a tile of rows x width sums in registers over the whole K block: one vector
 * load for each vector of B's row, one broadcast for each element of A's column. Where A's rows lie
 * row by row they are read as they are, since MR rows are few enough to be followed at once.
 *
 * A block of A stays in the second-level cache; MC is chosen for that. A panel of B is packed right
 * before the first block of A is multiplied by it, and later blocks of A find it in the block of B,
 * wherever that is by then. What is packed next is fetched meanwhile, a few lines every few steps:
 * with operands that no cache holds, as the weights of a model, packing takes twice as long without.
 * So is the tile of C that is next, where C is added to.
 *
 * Each element of C is the same chain whatever m, n, the transposes, the tile it falls into, the
 * vector width and the alignment: over the K blocks, whose sizes follow from k alone,
 *   sum = 0; for each p of the block: sum = fma(a, b, sum);   c = (c or start) + sum
 * so splitting a batch into microbatches leaves every bit of a row as it was. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#define SELF "gemm.c"

#define KC 384
#define B_BLOCK_BYTES (2048 * 1024)
#define A_BLOCK_BYTES (384 * 1024)
_Static_assert(A_BLOCK_BYTES + B_BLOCK_BYTES == KERNEL_SCRATCH_BYTES, "see kernels.h");

#include "ahead.h"
#include "both.h"

#else

#include "panel.h"
#include "tile.h"

static void FN(pack)(bool columns, int64_t kc, int64_t n, int64_t width, const REAL *src, int64_t ld,
                     REAL *dst) {
  if (columns)
    FN(pack_columns)(kc, n, width, src, ld, dst);
  else if (n == width && width == NV * LANES)
    FN(pack_rows)(kc, NV * LANES, NV * LANES, src, ld, dst);
  else if (n == width && width == MR)
    FN(pack_rows)(kc, MR, MR, src, ld, dst);
  else
    FN(pack_rows)(kc, n, width, src, ld, dst);
}

/* ---- micro kernel ------------------------------------------------------------------------------ */

/* A tile of C: start + rows of A times a panel of B. A is packed, or lies as it is, row by row. */
typedef void FN(Micro)(int64_t kc, const REAL *a, int64_t lda, const REAL *b, REAL *c, int64_t ldc,
                       const REAL *start, int64_t ld_start, Ahead *ahead);

#define MICRO(rows, vectors)                                                                       \
  static void FN(packed_##rows##x##vectors)(                                                       \
      int64_t kc, const REAL *a, int64_t lda, const REAL *b, REAL *c, int64_t ldc,                 \
      const REAL *start, int64_t ld_start, Ahead *ahead) {                                         \
    (void)lda;                                                                                     \
    FN(tile)(rows, vectors, kc, a, 1, rows, b, vectors * LANES, c, ldc, start, ld_start, NULL,     \
             NULL, ahead);                                                                         \
  }                                                                                                \
  static void FN(plain_##rows##x##vectors)(                                                        \
      int64_t kc, const REAL *a, int64_t lda, const REAL *b, REAL *c, int64_t ldc,                 \
      const REAL *start, int64_t ld_start, Ahead *ahead) {                                         \
    FN(tile)(rows, vectors, kc, a, lda, 1, b, vectors * LANES, c, ldc, start, ld_start, NULL,      \
             NULL, ahead);                                                                         \
  }
#define MICROS(rows) MICRO(rows, 1) MICRO(rows, 2) MICRO(rows, 3)
MICROS(1) MICROS(2) MICROS(3) MICROS(4)
#if MR == 8
MICROS(5) MICROS(6) MICROS(7) MICROS(8)
#endif
#undef MICRO
#undef MICROS

static FN(Micro) *const FN(MICROS)[2][MR + 1][NV + 1] = {
#define MICROS(rows) [rows] = {NULL, MICRO(rows, 1), MICRO(rows, 2), MICRO(rows, 3)},
#if MR == 8
#define ALL_MICROS MICROS(1) MICROS(2) MICROS(3) MICROS(4) MICROS(5) MICROS(6) MICROS(7) MICROS(8)
#else
#define ALL_MICROS MICROS(1) MICROS(2) MICROS(3) MICROS(4)
#endif
    {
#define MICRO(rows, vectors) FN(plain_##rows##x##vectors)
        ALL_MICROS
#undef MICRO
    },
    {
#define MICRO(rows, vectors) FN(packed_##rows##x##vectors)
        ALL_MICROS
#undef MICRO
    },
#undef ALL_MICROS
#undef MICROS
};

/* A tile at the right edge of C, of which 'columns' exist. */
static void FN(micro_edge)(FN(Micro) *micro, int64_t rows, int64_t columns, int64_t kc,
                           const REAL *a, int64_t lda, const REAL *b, REAL *c, int64_t ldc,
                           const REAL *start, int64_t ld_start, Ahead *ahead) {
  REAL tile[MR * NV * (VECTOR_BYTES / sizeof(REAL))];
  micro(kc, a, lda, b, tile, NV * LANES, NULL, 0, ahead);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      const REAL sum = tile[i * NV * LANES + j];
      c[i * ldc + j] = start != NULL ? start[i * ld_start + j] + sum : sum;
    }
}

/* ---- blocks ------------------------------------------------------------------------------------ */

/* Part 'index' of nc columns of B. */
typedef struct FN(Panel) {
  int64_t at;      /* first column */
  int64_t vectors;
  int64_t columns; /* that exist */
} FN(Panel);

static FN(Panel) FN(panel)(int64_t nc, int64_t panels, int64_t index) {
  const int64_t all = parts_of(nc, LANES), first = part_start(all, panels, index);
  const int64_t vectors = part_start(all, panels, index + 1) - first;
  return (FN(Panel)){first * LANES, vectors, min_i64(vectors * LANES, nc - first * LANES)};
}

/* A block of the product: columns j0 .. j0 + nc - 1 of C, steps p0 .. p0 + kc - 1 of K. */
typedef struct FN(Block) {
  int64_t j0, nc, p0, kc;
} FN(Block);

/* The tile of C that is added to next: its rows are apart, so no processor guesses them. Only where the
 * caller adds to C: further blocks of K find it in a cache. */
static void FN(fetch_tile)(const REAL *c, int64_t ldc, int64_t rows, int64_t vectors) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t v = 0; v < vectors; v++) __builtin_prefetch(c + i * ldc + v * LANES, 1);
}

/* Rows i0 .. i0 + mc - 1 of A, packed if transposed, times a packed panel of B. */
static void FN(panel_product)(const Gemm *g, const FN(Block) *k, int64_t i0, int64_t mc,
                              const FN(Panel) *b, const REAL *a_pack, const REAL *b_pack,
                              Ahead *ahead) {
  const int64_t a_panels = parts_of(mc, MR), j = k->j0 + b->at;
  const bool added_to = g->start == g->c && k->p0 == 0;
  for (int64_t q = 0; q < a_panels; q++) {
    const int64_t first = part_start(mc, a_panels, q), i = i0 + first;
    const int64_t rows = part_start(mc, a_panels, q + 1) - first;
    REAL *c = (REAL *)g->c + i * g->ldc + j;
    const REAL *start = k->p0 > 0          ? c
                        : g->start != NULL ? (const REAL *)g->start + i * g->ld_start + j
                                           : NULL;
    const int64_t ld_start = k->p0 > 0 ? g->ldc : g->ld_start;
    const REAL *a = g->a_trans ? a_pack + first * k->kc : (const REAL *)g->a + i * g->lda + k->p0;
    if (added_to && q + 1 < a_panels) FN(fetch_tile)(c + rows * g->ldc, g->ldc, MR, b->vectors);
    FN(Micro) *micro = FN(MICROS)[g->a_trans][rows][b->vectors];
    if (b->columns == b->vectors * LANES)
      micro(k->kc, a, g->lda, b_pack, c, g->ldc, start, ld_start, ahead);
    else
      FN(micro_edge)(micro, rows, b->columns, k->kc, a, g->lda, b_pack, c, g->ldc, start, ld_start,
                     ahead);
  }
}

static void FN(pack_a)(const Gemm *g, const FN(Block) *k, int64_t i0, int64_t mc, REAL *to) {
  const int64_t panels = parts_of(mc, MR);
  for (int64_t q = 0; q < panels; q++) {
    const int64_t first = part_start(mc, panels, q), rows = part_start(mc, panels, q + 1) - first;
    FN(pack)(false, k->kc, rows, rows, (const REAL *)g->a + k->p0 * g->lda + i0 + first, g->lda,
             to + first * k->kc);
  }
}

static void FN(pack_b)(const Gemm *g, const FN(Block) *k, const FN(Panel) *panel, REAL *to) {
  const int64_t j = k->j0 + panel->at;
  const REAL *b = g->b;
  b += g->b_trans ? j * g->ldb + k->p0 : k->p0 * g->ldb + j;
  FN(pack)(g->b_trans, k->kc, panel->columns, panel->vectors * LANES, b, g->ldb, to);
}

/* The part of a stored matrix x that is 'rows' from i on and 'columns' from j on, or the other way
 * round, within n tiles. */
static Ahead FN(ahead_of)(const void *x, int64_t ld, bool trans, int64_t i, int64_t rows, int64_t j,
                          int64_t columns, int64_t n_tiles, int64_t kc) {
  const int64_t size = sizeof(REAL), n = n_tiles * parts_of(kc, AHEAD_EVERY);
  const REAL *at = x;
  return trans ? ahead_of(at + j * ld + i, columns, rows * size, ld * size, n)
               : ahead_of(at + i * ld + j, rows, columns * size, ld * size, n);
}

static void FN(block)(const Gemm *g, const FN(Block) *k, REAL *a_pack, REAL *b_pack) {
  const int64_t b_panels = parts_of(parts_of(k->nc, LANES), NV);
  const int64_t m_blocks = parts_of(g->m, A_BLOCK_BYTES / (KC * (int64_t)sizeof(REAL)));
  for (int64_t x = 0; x < m_blocks; x++) {
    const int64_t i0 = part_start(g->m, m_blocks, x), i1 = part_start(g->m, m_blocks, x + 1);
    const int64_t a_panels = parts_of(i1 - i0, MR);
    Ahead next_a = {0};
    if (g->a_trans) FN(pack_a)(g, k, i0, i1 - i0, a_pack);
    if (x + 1 < m_blocks)
      next_a = FN(ahead_of)(g->a, g->lda, g->a_trans, i1, part_start(g->m, m_blocks, x + 2) - i1,
                            k->p0, k->kc, a_panels * b_panels, k->kc);
    for (int64_t r = 0; r < b_panels; r++) {
      const FN(Panel) panel = FN(panel)(k->nc, b_panels, r);
      const bool more = x == 0 && r + 1 < b_panels;
      REAL *packed = b_pack + (m_blocks > 1 ? panel.at * k->kc : 0);
      Ahead next_b = {0};
      if (x == 0) FN(pack_b)(g, k, &panel, packed);
      if (more && a_panels > 1) { /* one tile is too short */
        const FN(Panel) next = FN(panel)(k->nc, b_panels, r + 1);
        next_b = FN(ahead_of)(g->b, g->ldb, g->b_trans, k->p0, k->kc, k->j0 + next.at, next.columns,
                              a_panels, k->kc);
      }
      FN(panel_product)(g, k, i0, i1 - i0, &panel, a_pack, packed, more ? &next_b : &next_a);
    }
  }
}

void FN(gemm)(const Gemm *g, void *scratch) {
  REAL *b_pack = scratch;
  REAL *a_pack = (REAL *)((unsigned char *)scratch + B_BLOCK_BYTES);
  const int64_t all = parts_of(g->n, LANES), k_blocks = parts_of(g->k, KC);
  const int64_t n_blocks = parts_of(all, B_BLOCK_BYTES / (KC * VECTOR_BYTES));
  for (int64_t y = 0; y < n_blocks; y++) {
    const int64_t j0 = part_start(all, n_blocks, y) * LANES;
    const int64_t nc = min_i64(part_start(all, n_blocks, y + 1) * LANES, g->n) - j0;
    for (int64_t z = 0; z < k_blocks; z++) {
      const int64_t p0 = part_start(g->k, k_blocks, z);
      FN(block)(g, &(FN(Block)){j0, nc, p0, part_start(g->k, k_blocks, z + 1) - p0}, a_pack, b_pack);
    }
  }
}

#endif
