/* broadcast.c - axes of y that lie behind one another in every array are merged into one; what is
 * left is a small nest of loops around a kernel that runs along the last axis, where every array
 * advances by 1 element or stands still.
 *
 * A gradient is computed term by term (dy b, -dy a / b^2, ...) in y's shape, a tile at a time, and
 * summed over the repeated axes in f64, in an order that follows from the shapes alone.
 *
 * Items are positions of the outermost axis; of a gradient, of the outermost one that dx has. */
#include "device/broadcast.h"

#include <string.h>

enum { TILE = 256, ARRAYS = 3 };

typedef struct Nest {
  int n;                              /* >= 1 */
  int64_t size[SHAPE_MAX_RANK];       /* outermost first */
  int64_t step[ARRAYS][SHAPE_MAX_RANK]; /* in elements; 0: repeated. Absent arrays: all 0 */
} Nest;

bool broadcast_fits(const KernelArg *a, const KernelArg *out) {
  if (a->rank > out->rank) return false;
  for (int i = 1; i <= a->rank; i++) {
    const int64_t n = a->dim[a->rank - i];
    if (n != 1 && n != out->dim[out->rank - i]) return false;
  }
  return true;
}

/* The loops over y with the steps of up to three arrays. */
static Nest nest_of(const KernelArg *out, const KernelArg *const arrays[ARRAYS]) {
  Nest inside_out = {.n = 0};
  int64_t below[ARRAYS] = {1, 1, 1}; /* elements of each array in the axes done so far */
  for (int i = 1; i <= out->rank; i++) {
    const int64_t size = out->dim[out->rank - i];
    int64_t step[ARRAYS];
    for (int q = 0; q < ARRAYS; q++) {
      const KernelArg *a = arrays[q];
      const int64_t n = a != NULL && i <= a->rank ? a->dim[a->rank - i] : 1;
      step[q] = n == 1 ? 0 : below[q];
      below[q] *= n;
    }
    if (size == 1) continue;
    const int last = inside_out.n - 1;
    bool merges = last >= 0;
    for (int q = 0; q < ARRAYS && merges; q++)
      merges = step[q] == inside_out.step[q][last] * inside_out.size[last];
    if (merges) {
      inside_out.size[last] *= size;
      continue;
    }
    inside_out.size[inside_out.n] = size;
    for (int q = 0; q < ARRAYS; q++) inside_out.step[q][inside_out.n] = step[q];
    inside_out.n++;
  }
  if (inside_out.n == 0) inside_out.size[inside_out.n++] = 1;
  Nest nest = {.n = inside_out.n};
  for (int d = 0; d < nest.n; d++) {
    const int from = nest.n - 1 - d;
    nest.size[d] = inside_out.size[from];
    for (int q = 0; q < ARRAYS; q++) nest.step[q][d] = inside_out.step[q][from];
  }
  return nest;
}

/* A walk over some axes of a nest, row-major: positions in the three arrays and in y. Of the first
 * of the axes it sees positions lo .. hi - 1 only. */
typedef struct Walk {
  int n;
  int axis[SHAPE_MAX_RANK];
  int64_t lo, hi;
  int64_t at[SHAPE_MAX_RANK];
  int64_t offset[ARRAYS], y;
} Walk;

static void walk_advance(Walk *w, const Nest *nest, const int64_t *y_step, int d, int64_t by) {
  for (int q = 0; q < ARRAYS; q++) w->offset[q] += by * nest->step[q][d];
  w->y += by * y_step[d];
}

/* Restricts a walk that has not begun, and goes to its first position. */
static void walk_restrict(Walk *w, const Nest *nest, const int64_t *y_step, int64_t lo, int64_t hi) {
  w->lo = w->at[0] = lo;
  w->hi = hi;
  walk_advance(w, nest, y_step, w->axis[0], lo);
}

static void walk_add_axis(Walk *w, const Nest *nest, int d) {
  if (w->n == 0) w->hi = nest->size[d];
  w->axis[w->n++] = d;
}

/* The next position; false: that was the last one, and the walk stands at the first again. */
static bool walk_next(Walk *w, const Nest *nest, const int64_t *y_step) {
  for (int i = w->n - 1; i >= 0; i--) {
    const int d = w->axis[i];
    const int64_t begin = i == 0 ? w->lo : 0, end = i == 0 ? w->hi : nest->size[d];
    const bool carry = ++w->at[i] == end;
    walk_advance(w, nest, y_step, d, carry ? 1 + begin - end : 1);
    if (!carry) return true;
    w->at[i] = begin;
  }
  return false;
}

static void y_steps(const Nest *nest, int64_t *y_step) {
  int64_t below = 1;
  for (int d = nest->n - 1; d >= 0; d--) {
    y_step[d] = below;
    below *= nest->size[d];
  }
}

static const void *element(const void *p, int64_t i, size_t bytes) {
  return p == NULL ? NULL : (const unsigned char *)p + (size_t)i * bytes;
}

static Nest nest_of_y(const Broadcast *y) {
  return nest_of(y->out, (const KernelArg *const[ARRAYS]){y->a, y->b, NULL});
}

int64_t broadcast_items(const Broadcast *y) { return nest_of_y(y).size[0]; }

void broadcast_forward(const Kernels *k, const Broadcast *y, int64_t lo, int64_t hi) {
  const Nest nest = nest_of_y(y);
  const size_t bytes = dtype_bytes((DType)y->out->dtype);
  const int inner = nest.n - 1;
  const int a_step = (int)nest.step[0][inner], b_step = (int)nest.step[1][inner];
  void (*run)(int64_t, const void *, int, const void *, int, void *) = y->op == OP_ADD   ? k->add
                                                                       : y->op == OP_SUB ? k->sub
                                                                       : y->op == OP_MUL ? k->mul
                                                                                         : k->div;
  int64_t y_step[SHAPE_MAX_RANK];
  y_steps(&nest, y_step);
  Walk w = {.n = 0};
  for (int d = 0; d < inner; d++) walk_add_axis(&w, &nest, d);
  if (w.n > 0) walk_restrict(&w, &nest, y_step, lo, hi);
  const int64_t from = w.n > 0 ? 0 : lo, n = w.n > 0 ? nest.size[inner] : hi - lo;
  do {
    run(n, element(y->a_data, w.offset[0] + from * a_step, bytes), a_step,
        element(y->b_data, w.offset[1] + from * b_step, bytes), b_step,
        (unsigned char *)y->y + (size_t)(w.y + from) * bytes);
  } while (walk_next(&w, &nest, y_step));
}

/* Terms of n neighbours along the last axis, written to 'to' or, when they are dy itself, found
 * there. */
static const void *terms(const Kernels *k, const BroadcastGrad *g, int64_t n, const void *dy,
                         const void *a, int a_step, const void *b, int b_step, void *to) {
  switch (g->op) {
  case OP_ADD: return dy;
  case OP_SUB:
    if (g->wrt == 0) return dy;
    k->scale(n, -1, dy, to, false);
    return to;
  case OP_MUL:
    if (g->wrt == 0)
      k->mul(n, dy, 1, b, b_step, to);
    else
      k->mul(n, dy, 1, a, a_step, to);
    return to;
  default:
    if (g->wrt == 0)
      k->div(n, dy, 1, b, b_step, to);
    else
      k->div_grad(n, dy, a, a_step, b, b_step, to);
    return to;
  }
}

static Nest nest_of_dx(const BroadcastGrad *g) {
  return nest_of(g->out, (const KernelArg *const[ARRAYS]){g->a, g->b, g->dst});
}

/* The first axis that dx has; -1: it is one number. */
static int first_kept(const Nest *nest) {
  for (int d = 0; d < nest->n; d++)
    if (nest->step[2][d] != 0) return d;
  return -1;
}

int64_t broadcast_grad_items(const BroadcastGrad *g) {
  const Nest nest = nest_of_dx(g);
  const int d = first_kept(&nest);
  return d >= 0 ? nest.size[d] : 1;
}

void broadcast_grad(const Kernels *k, const BroadcastGrad *g, int64_t lo, int64_t hi) {
  const Nest nest = nest_of_dx(g);
  const size_t bytes = dtype_bytes((DType)g->out->dtype);
  const int inner = nest.n - 1;
  const int a_step = (int)nest.step[0][inner], b_step = (int)nest.step[1][inner];
  const bool inner_kept = nest.step[2][inner] != 0 || nest.size[inner] == 1;
  int64_t y_step[SHAPE_MAX_RANK];
  y_steps(&nest, y_step);
  Walk kept = {.n = 0}, summed = {.n = 0};
  for (int d = 0; d < inner; d++) walk_add_axis(nest.step[2][d] != 0 ? &kept : &summed, &nest, d);
  if (kept.n > 0) walk_restrict(&kept, &nest, y_step, lo, hi);
  const bool along_inner = kept.n == 0 && first_kept(&nest) == inner;
  const int64_t begin = along_inner ? lo : 0, end = along_inner ? hi : nest.size[inner];
  union {
    float f32[TILE];
    double f64[TILE];
  } tile;
  double sums[TILE];
  do {
    unsigned char *dx = (unsigned char *)g->dx + (size_t)kept.offset[2] * bytes;
    double total = 0;
    for (int64_t j = begin; j < end; j += TILE) {
      const int64_t n = end - j < TILE ? end - j : TILE;
      if (inner_kept && summed.n > 0) memset(sums, 0, (size_t)n * sizeof *sums);
      do {
        const void *term =
            terms(k, g, n, element(g->dy, kept.y + summed.y + j, bytes),
                  element(g->a_data, kept.offset[0] + summed.offset[0] + j * a_step, bytes), a_step,
                  element(g->b_data, kept.offset[1] + summed.offset[1] + j * b_step, bytes), b_step,
                  &tile);
        if (!inner_kept)
          total += k->sum(n, term);
        else if (summed.n > 0)
          k->widen_add(n, term, sums);
        else
          k->scale(n, 1, term, dx + (size_t)j * bytes, g->add);
      } while (walk_next(&summed, &nest, y_step));
      if (inner_kept && summed.n > 0) k->narrow(n, sums, dx + (size_t)j * bytes, g->add);
    }
    if (!inner_kept) k->narrow(1, &total, dx, g->add);
  } while (walk_next(&kept, &nest, y_step));
}
