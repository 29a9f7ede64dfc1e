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
 * load for each vector of B's row, one broadcast for each element of A's column.
 *
 * Each element of C is the same chain whatever m, n, the transposes, the tile it falls into, the
 * vector width and the alignment: over the K blocks, whose sizes follow from k alone,
 *   sum = 0; for each p of the block: sum = fma(a, b, sum);   c = (c or start) + sum
 * so splitting a batch into microbatches leaves every bit of a row as it was. */
#ifndef REAL

#include "kernels/cpu/isa.h"

#define SELF "gemm.c"

#define KC 256
#define B_BLOCK_BYTES (512 * 1024)
#define A_BLOCK_BYTES (256 * 1024)
_Static_assert(A_BLOCK_BYTES + B_BLOCK_BYTES == KERNEL_SCRATCH_BYTES, "see kernels.h");

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

/* A tile of C: start + panel of A times panel of B. */
typedef void FN(Micro)(int64_t kc, const REAL *a, const REAL *b, REAL *c, int64_t ldc,
                       const REAL *start, int64_t ld_start);

#define MICRO(rows, vectors)                                                                       \
  static void FN(micro_##rows##x##vectors)(int64_t kc, const REAL *a, const REAL *b, REAL *c,      \
                                           int64_t ldc, const REAL *start, int64_t ld_start) {     \
    FN(tile)(rows, vectors, kc, a, 1, rows, b, vectors * LANES, c, ldc, start, ld_start, NULL,     \
             NULL);                                                                                \
  }
#define MICROS(rows) MICRO(rows, 1) MICRO(rows, 2) MICRO(rows, 3)
MICROS(1) MICROS(2) MICROS(3) MICROS(4)
#if MR == 8
MICROS(5) MICROS(6) MICROS(7) MICROS(8)
#endif
#undef MICRO
#undef MICROS

static FN(Micro) *const FN(MICROS)[MR + 1][NV + 1] = {
#define MICRO(rows, vectors) FN(micro_##rows##x##vectors)
#define MICROS(rows) [rows] = {NULL, MICRO(rows, 1), MICRO(rows, 2), MICRO(rows, 3)},
    MICROS(1) MICROS(2) MICROS(3) MICROS(4)
#if MR == 8
    MICROS(5) MICROS(6) MICROS(7) MICROS(8)
#endif
#undef MICRO
#undef MICROS
};

/* A tile at the right edge of C, of which 'columns' exist. */
static void FN(micro_edge)(FN(Micro) *micro, int64_t rows, int64_t columns, int64_t kc,
                           const REAL *a, const REAL *b, REAL *c, int64_t ldc, const REAL *start,
                           int64_t ld_start) {
  REAL tile[MR * NV * (VECTOR_BYTES / sizeof(REAL))];
  micro(kc, a, b, tile, NV * LANES, NULL, 0);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      const REAL sum = tile[i * NV * LANES + j];
      c[i * ldc + j] = start != NULL ? start[i * ld_start + j] + sum : sum;
    }
}

/* ---- blocks ------------------------------------------------------------------------------------ */

/* One block of A, packed here, times a packed block of B. */
static void FN(block)(const Gemm *g, int64_t i0, int64_t mc, int64_t j0, int64_t nc, int64_t p0,
                      int64_t kc, REAL *a_pack, const REAL *b_pack) {
  const REAL *a = g->a;
  const int64_t a_panels = parts_of(mc, MR);
  for (int64_t q = 0; q < a_panels; q++) {
    const int64_t first = part_start(mc, a_panels, q), i = i0 + first;
    const int64_t rows = part_start(mc, a_panels, q + 1) - first;
    FN(pack)(!g->a_trans, kc, rows, rows, g->a_trans ? a + p0 * g->lda + i : a + i * g->lda + p0,
             g->lda, a_pack + first * kc);
  }
  const int64_t vectors = parts_of(nc, LANES), b_panels = parts_of(vectors, NV);
  for (int64_t r = 0; r < b_panels; r++) {
    const int64_t v0 = part_start(vectors, b_panels, r);
    const int64_t nv = part_start(vectors, b_panels, r + 1) - v0;
    const int64_t j = j0 + v0 * LANES, columns = min_i64(nv * LANES, nc - v0 * LANES);
    for (int64_t q = 0; q < a_panels; q++) {
      const int64_t first = part_start(mc, a_panels, q), i = i0 + first;
      const int64_t rows = part_start(mc, a_panels, q + 1) - first;
      REAL *c = (REAL *)g->c + i * g->ldc + j;
      const REAL *start = p0 > 0           ? c
                          : g->start != NULL ? (const REAL *)g->start + i * g->ld_start + j
                                             : NULL;
      const int64_t ld_start = p0 > 0 ? g->ldc : g->ld_start;
      FN(Micro) *micro = FN(MICROS)[rows][nv];
      if (columns == nv * LANES)
        micro(kc, a_pack + first * kc, b_pack + v0 * LANES * kc, c, g->ldc, start, ld_start);
      else
        FN(micro_edge)(micro, rows, columns, kc, a_pack + first * kc, b_pack + v0 * LANES * kc, c,
                       g->ldc, start, ld_start);
    }
  }
}

void FN(gemm)(const Gemm *g, void *scratch) {
  REAL *b_pack = scratch;
  REAL *a_pack = (REAL *)((unsigned char *)scratch + B_BLOCK_BYTES);
  const REAL *b = g->b;
  const int64_t k_blocks = parts_of(g->k, KC);
  const int64_t n_blocks = parts_of(parts_of(g->n, LANES), B_BLOCK_BYTES / (KC * VECTOR_BYTES));
  const int64_t m_blocks = parts_of(g->m, A_BLOCK_BYTES / (KC * (int64_t)sizeof(REAL)));
  for (int64_t y = 0; y < n_blocks; y++) {
    const int64_t all = parts_of(g->n, LANES);
    const int64_t j0 = part_start(all, n_blocks, y) * LANES;
    const int64_t nc = min_i64(part_start(all, n_blocks, y + 1) * LANES, g->n) - j0;
    for (int64_t z = 0; z < k_blocks; z++) {
      const int64_t p0 = part_start(g->k, k_blocks, z);
      const int64_t kc = part_start(g->k, k_blocks, z + 1) - p0;
      const int64_t vectors = parts_of(nc, LANES), b_panels = parts_of(vectors, NV);
      for (int64_t r = 0; r < b_panels; r++) {
        const int64_t v0 = part_start(vectors, b_panels, r);
        const int64_t width = (part_start(vectors, b_panels, r + 1) - v0) * LANES;
        const int64_t j = j0 + v0 * LANES, n = min_i64(width, nc - v0 * LANES);
        FN(pack)(g->b_trans, kc, n, width, g->b_trans ? b + j * g->ldb + p0 : b + p0 * g->ldb + j,
                 g->ldb, b_pack + v0 * LANES * kc);
      }
      for (int64_t x = 0; x < m_blocks; x++) {
        const int64_t i0 = part_start(g->m, m_blocks, x);
        FN(block)(g, i0, part_start(g->m, m_blocks, x + 1) - i0, j0, nc, p0, kc, a_pack, b_pack);
      }
    }
  }
}

#endif
