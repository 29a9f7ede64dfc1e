/* One call on all threads of a stream's team. How work is cut depends on the number of threads; what
 * an element, a row or a block of a sum becomes does not. */
#include "device/ops_cpu_op.h"

#include "device/team.h"

/* Work (see op_split) that takes one thread about as long as two need to hand it over and back,
 * measured as some 0.6 us: less is no piece of its own. */
#define LEAST_WORK 32768.0
#define LEAST_FLOPS 2e5

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- ranges ------------------------------------------------------------------------------------ */

typedef struct Split {
  const Op *o;
  OpPart *part;
  const void *arg;
  int64_t n, unit, n_units;
  uint32_t n_pieces;
} Split;

static void split_piece(void *arg, uint32_t piece, uint32_t thread) {
  const Split *s = arg;
  const int64_t lo = s->n_units * piece / s->n_pieces * s->unit;
  const int64_t hi = min_i64(s->n_units * (piece + 1) / s->n_pieces * s->unit, s->n);
  if (lo < hi) s->part(s->o, s->arg, lo, hi, thread);
}

void op_split(const Op *o, int64_t n, int64_t unit, double work, OpPart *part, const void *arg) {
  const int64_t n_units = (n + unit - 1) / unit;
  const double worth = work * (double)n / LEAST_WORK;
  int64_t pieces = min_i64(team_threads(o->team), n_units);
  if (worth < (double)pieces) pieces = worth < 1 ? 1 : (int64_t)worth;
  Split s = {o, part, arg, n, unit, n_units, (uint32_t)pieces};
  team_run(o->team, s.n_pieces, split_piece, &s);
}

typedef struct Copy {
  int from, to;
} Copy;

static void copy_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const Copy *c = arg;
  (void)thread;
  memcpy(op_at(o, c->to, lo), op_at(o, c->from, lo), (size_t)(hi - lo) * o->real_bytes);
}

static void add_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const Copy *c = arg;
  void *y = op_at(o, c->to, lo);
  (void)thread;
  o->k->add(hi - lo, op_at(o, c->from, lo), 1, y, 1, y);
}

void op_copy_or_add(const Op *o, int from, int to) {
  const Copy c = {from, to};
  if (o->add) op_split(o, count(o, to), OP_LINE, 3, add_part, &c);
  else if (o->at[from] != o->at[to]) op_split(o, count(o, to), OP_LINE, 2, copy_part, &c);
}

typedef struct Fill {
  int to;
  double value;
  bool add;
} Fill;

static void fill_part(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const Fill *f = arg;
  (void)thread;
  o->k->fill(hi - lo, f->value, op_at(o, f->to, lo), f->add);
}

void op_fill(const Op *o, int to, double value, bool add) {
  const Fill f = {to, value, add};
  op_split(o, count(o, to), OP_LINE, add ? 2 : 1, fill_part, &f);
}

/* ---- sums -------------------------------------------------------------------------------------- */

enum { MAX_BLOCKS = 64 };

typedef struct Sum {
  const Op *o;
  OpTerm *term;
  const void *arg;
  int64_t n, n_blocks;
  double block[MAX_BLOCKS];
} Sum;

static void sum_blocks(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  Sum *s = *(Sum *const *)arg;
  (void)o;
  (void)thread;
  for (int64_t b = lo; b < hi; b++)
    s->block[b] = s->term(s->o, s->arg, s->n * b / s->n_blocks, s->n * (b + 1) / s->n_blocks);
}

double op_sum(const Op *o, int64_t n, double work, OpTerm *term, const void *arg) {
  const double worth = work * (double)n / LEAST_WORK;
  const int64_t most = min_i64(n, MAX_BLOCKS);
  Sum s = {.o = o, .term = term, .arg = arg, .n = n};
  Sum *self = &s;
  s.n_blocks = worth < (double)most ? (int64_t)worth : most;
  if (s.n_blocks <= 1) return term(o, arg, 0, n);
  op_split(o, s.n_blocks, 1, LEAST_WORK, sum_blocks, &self);
  double sum = 0;
  for (int64_t b = 0; b < s.n_blocks; b++) sum += s.block[b];
  return sum;
}

/* ---- products ---------------------------------------------------------------------------------- */

/* Cuts are where the kernel's tiles end, so that no piece has more edges than the whole. */
enum { ROW_UNIT = 8, COLUMN_UNIT = 48 };

typedef struct Grid {
  const Op *o;
  const Gemm *g;
  int64_t rows, columns; /* of pieces */
} Grid;

/* Where part i of 'parts' begins. */
static int64_t cut(int64_t n, int64_t unit, int64_t parts, int64_t i) {
  return min_i64((n + unit - 1) / unit * i / parts * unit, n);
}

static int64_t largest_part(int64_t n, int64_t unit, int64_t parts) {
  const int64_t units = (n + unit - 1) / unit;
  return min_i64((units + parts - 1) / parts * unit, n);
}

static void *offset(const void *p, int64_t elements, size_t bytes) {
  return (unsigned char *)p + (size_t)elements * bytes;
}

static void gemm_piece(void *arg, uint32_t piece, uint32_t thread) {
  const Grid *grid = arg;
  const Gemm *whole = grid->g;
  const size_t bytes = grid->o->real_bytes;
  const int64_t r = piece / grid->columns, q = piece % grid->columns;
  const int64_t i = cut(whole->m, ROW_UNIT, grid->rows, r);
  const int64_t j = cut(whole->n, COLUMN_UNIT, grid->columns, q);
  Gemm g = *whole;
  g.m = cut(whole->m, ROW_UNIT, grid->rows, r + 1) - i;
  g.n = cut(whole->n, COLUMN_UNIT, grid->columns, q + 1) - j;
  if (g.m == 0 || g.n == 0) return;
  g.a = offset(g.a, g.a_trans ? i : i * g.lda, bytes);
  g.b = offset(g.b, g.b_trans ? j * g.ldb : j, bytes);
  g.c = offset(g.c, i * g.ldc + j, bytes);
  if (g.start != NULL) g.start = offset(g.start, i * g.ld_start + j, bytes);
  grid->o->k->gemm(&g, op_scratch(grid->o, thread));
}

/* What the largest piece costs, for each step of k: the multiply-adds, and packing both operands,
 * an element of which takes as long as some 24 multiply-adds. */
static int64_t grid_cost(const Grid *grid) {
  const int64_t m = largest_part(grid->g->m, ROW_UNIT, grid->rows);
  const int64_t n = largest_part(grid->g->n, COLUMN_UNIT, grid->columns);
  return m * n + 24 * (m + n);
}

void op_gemm(const Op *o, const Gemm *g) {
  const double worth = 2.0 * (double)g->m * (double)g->n * (double)g->k / LEAST_FLOPS;
  int64_t threads = team_threads(o->team);
  if (worth < (double)threads) threads = worth < 1 ? 1 : (int64_t)worth;
  Grid best = {o, g, 1, threads};
  for (int64_t rows = 2; rows <= threads; rows++) {
    const Grid other = {o, g, rows, threads / rows};
    if (grid_cost(&other) < grid_cost(&best)) best = other;
  }
  team_run(o->team, (uint32_t)(best.rows * best.columns), gemm_piece, &best);
}
