/* Attention on every instruction set, f32 and f64: against the plain formula and its central
 * differences, with lengths and widths around every block edge; what it writes, what it leaves alone,
 * and that the bits of a head depend on nothing but its numbers. */
#include "device/cpu_isa.h"

#include "random_data.h"

enum { GAP = 7 }; /* elements at most between heads, rows and samples */

typedef struct Case {
  int samples, queries, keys, heads, kv_heads, width;
  bool causal;
  int query_position, key_position;
} Case;

/* One array, dense: [sample][position][head][width]. */
typedef struct Data {
  Case c;
  long double *q, *k, *v, *dy;           /* exact in f32 */
  long double *y, *lse, *dq, *dk, *dv;   /* by the formula */
} Data;

typedef struct Result {
  double *y, *lse, *dq, *dk, *dv;
} Result;

static void *scratch;

static int64_t wide(const Case *c) { return (int64_t)c->samples * c->queries * c->heads * c->width; }
static int64_t narrow(const Case *c) { return (int64_t)c->samples * c->keys * c->kv_heads * c->width; }
static int64_t rows(const Case *c) { return (int64_t)c->samples * c->heads * c->queries; }

static void describe(const Case *c, char *buf, size_t n) {
  snprintf(buf, n, "%d x %d queries at %d, %d keys at %d, %d/%d heads of %d%s", c->samples, c->queries,
           c->query_position, c->keys, c->key_position, c->heads, c->kv_heads, c->width,
           c->causal ? ", causal" : "");
}

/* ---- the formula ------------------------------------------------------------------------------- */

static long double scale_of(const Case *c) { return 1 / sqrtl(c->width); }

static long double dot(int n, const long double *a, const long double *b) {
  long double sum = 0;
  for (int i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

/* p[j]: what query i of a head makes of key j; a query that sees no key makes nothing of any. */
static long double weights(const Case *c, const long double *q, const long double *k, int i, long double *p) {
  long double most = -INFINITY, sum = 0;
  for (int j = 0; j < c->keys; j++) {
    const bool seen = !c->causal || c->key_position + j <= c->query_position + i;
    p[j] = seen ? scale_of(c) * dot(c->width, q, k + (int64_t)j * c->kv_heads * c->width) : -INFINITY;
    most = fmaxl(most, p[j]);
  }
  for (int j = 0; j < c->keys; j++) sum += p[j] == -INFINITY ? 0 : expl(p[j] - most);
  for (int j = 0; j < c->keys; j++) p[j] = p[j] == -INFINITY ? 0 : expl(p[j] - most) / sum;
  return most + logl(sum);
}

static void naive_forward(const Data *d, long double *y, long double *lse) {
  const Case *c = &d->c;
  long double *p = malloc((size_t)c->keys * sizeof *p);
  for (int s = 0; s < c->samples; s++)
    for (int h = 0; h < c->heads; h++)
      for (int i = 0; i < c->queries; i++) {
        const int64_t at = (((int64_t)s * c->queries + i) * c->heads + h) * c->width;
        const int64_t kv = ((int64_t)s * c->keys * c->kv_heads + h / (c->heads / c->kv_heads)) * c->width;
        const long double l = weights(c, d->q + at, d->k + kv, i, p);
        if (lse != NULL) lse[((int64_t)s * c->heads + h) * c->queries + i] = l;
        for (int w = 0; w < c->width; w++) {
          y[at + w] = 0;
          for (int j = 0; j < c->keys; j++) y[at + w] += p[j] * d->v[kv + (int64_t)j * c->kv_heads * c->width + w];
        }
      }
  free(p);
}

static void naive_backward(const Data *d) {
  const Case *c = &d->c;
  long double *p = malloc((size_t)c->keys * sizeof *p);
  memset(d->dq, 0, (size_t)wide(c) * sizeof *p);
  memset(d->dk, 0, (size_t)narrow(c) * sizeof *p);
  memset(d->dv, 0, (size_t)narrow(c) * sizeof *p);
  for (int s = 0; s < c->samples; s++)
    for (int h = 0; h < c->heads; h++)
      for (int i = 0; i < c->queries; i++) {
        const int64_t at = (((int64_t)s * c->queries + i) * c->heads + h) * c->width;
        const int64_t kv = ((int64_t)s * c->keys * c->kv_heads + h / (c->heads / c->kv_heads)) * c->width;
        weights(c, d->q + at, d->k + kv, i, p);
        const long double mean = dot(c->width, d->dy + at, d->y + at);
        for (int j = 0; j < c->keys; j++) {
          const int64_t key = kv + (int64_t)j * c->kv_heads * c->width;
          const long double ds = p[j] * (dot(c->width, d->dy + at, d->v + key) - mean) * scale_of(c);
          for (int w = 0; w < c->width; w++) {
            d->dv[key + w] += p[j] * d->dy[at + w];
            d->dk[key + w] += ds * d->q[at + w];
            d->dq[at + w] += ds * d->k[key + w];
          }
        }
      }
  free(p);
}

static long double *numbers(int64_t n, double size) {
  long double *p = malloc((size_t)n * sizeof *p);
  for (int64_t i = 0; i < n; i++) p[i] = (float)((random_uniform() * 2 - 1) * size);
  return p;
}

static Data data_new(Case c) {
  Data d = {.c = c, .q = numbers(wide(&c), 2), .k = numbers(narrow(&c), 2), .v = numbers(narrow(&c), 1),
            .dy = numbers(wide(&c), 1), .y = numbers(wide(&c), 0), .lse = numbers(rows(&c), 0),
            .dq = numbers(wide(&c), 0), .dk = numbers(narrow(&c), 0), .dv = numbers(narrow(&c), 0)};
  naive_forward(&d, d.y, d.lse);
  naive_backward(&d);
  return d;
}

static void data_free(Data *d) {
  long double *all[] = {d->q, d->k, d->v, d->dy, d->y, d->lse, d->dq, d->dk, d->dv};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- the kernel -------------------------------------------------------------------------------- */

/* How the arrays lie, what gradients are added to, and how pairs are spread over calls. */
typedef struct How {
  int gap;            /* 0: dense */
  bool heads_outside; /* [sample][head][position] */
  int shift;          /* elements by which everything misses its alignment */
  bool add[3], want[3]; /* dq, dk, dv */
  int parts;
} How;

static const How PLAIN = {.want = {true, true, true}, .parts = 1};

typedef struct Array {
  unsigned char *memory;
  void *at;
  HeadSteps step;
  int64_t room; /* elements */
} Array;

static double element(bool f64, const void *p, int64_t i) {
  return f64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static void set_element(bool f64, void *p, int64_t i, double x) {
  if (f64) ((double *)p)[i] = x;
  else ((float *)p)[i] = (float)x;
}

static const double NOTHING = -12345; /* between the rows */

/* 'from' NULL: every element is 'fill'. */
static Array array_new(bool f64, const How *how, int samples, int positions, int heads, int width,
                       const long double *from, double fill) {
  Array a;
  const int64_t head = width + (how->gap > 0 ? random_int(0, how->gap) : 0);
  a.step.head = how->heads_outside ? positions * head : head;
  a.step.position = how->heads_outside ? head : heads * head + how->gap;
  a.step.sample = heads * positions * head + positions * how->gap + how->gap;
  a.room = samples * a.step.sample + 64;
  a.memory = aligned_alloc(64, ((size_t)a.room * 8 + 63) / 64 * 64);
  a.at = a.memory + (size_t)how->shift * (f64 ? 8 : 4);
  for (int64_t i = 0; i < a.room - how->shift; i++) set_element(f64, a.at, i, NOTHING);
  for (int64_t i = 0; i < (int64_t)samples * positions * heads * width; i++) {
    const int64_t w = i % width, h = i / width % heads, p = i / width / heads % positions;
    const int64_t s = i / width / heads / positions;
    set_element(f64, a.at, s * a.step.sample + p * a.step.position + h * a.step.head + w,
                from != NULL ? (double)from[i] : fill);
  }
  return a;
}

/* Takes the elements out, dense; false where something between them was written. */
static bool array_end(bool f64, const How *how, Array *a, int samples, int positions, int heads, int width,
                      double *to) {
  for (int64_t i = 0; to != NULL && i < (int64_t)samples * positions * heads * width; i++) {
    const int64_t w = i % width, h = i / width % heads, p = i / width / heads % positions;
    const int64_t s = i / width / heads / positions;
    const int64_t at = s * a->step.sample + p * a->step.position + h * a->step.head + w;
    to[i] = element(f64, a->at, at);
    set_element(f64, a->at, at, NOTHING);
  }
  bool clean = true;
  for (int64_t i = 0; to != NULL && i < a->room - how->shift; i++)
    clean = clean && element(f64, a->at, i) == NOTHING;
  free(a->memory);
  return clean;
}

static Result result_new(const Case *c) {
  const size_t w = (size_t)wide(c), n = (size_t)narrow(c), size = sizeof(double);
  return (Result){malloc(w * size), malloc((size_t)rows(c) * size), malloc(w * size), malloc(n * size),
                  malloc(n * size)};
}

static void result_free(Result *r) {
  free(r->y);
  free(r->lse);
  free(r->dq);
  free(r->dk);
  free(r->dv);
}

/* Forward and backward; false where memory was touched that is not the kernel's. Gradients that are
 * not wanted stay as they were. */
static bool run(const KernelTable *table, bool f64, const Data *d, const How *how, Result *r) {
  const Case *c = &d->c;
  const Kernels *k = f64 ? &table->f64 : &table->f32;
  const int s = c->samples, nq = c->queries, nk = c->keys, h = c->heads, g = c->kv_heads, w = c->width;
  Array q = array_new(f64, how, s, nq, h, w, d->q, 0), key = array_new(f64, how, s, nk, g, w, d->k, 0);
  Array v = array_new(f64, how, s, nk, g, w, d->v, 0), y = array_new(f64, how, s, nq, h, w, NULL, NAN);
  Array dy = array_new(f64, how, s, nq, h, w, d->dy, 0);
  Array dq = array_new(f64, how, s, nq, h, w, NULL, how->add[0] ? 1 : NAN);
  Array dk = array_new(f64, how, s, nk, g, w, NULL, how->add[1] ? 2 : NAN);
  Array dv = array_new(f64, how, s, nk, g, w, NULL, how->add[2] ? 3 : NAN);
  const How dense = {.shift = how->shift};
  Array lse = array_new(f64, &dense, s, h, 1, nq, NULL, NAN);
  const Attention t = {.samples = s, .queries = nq, .keys = nk, .heads = h, .kv_heads = g, .width = w,
                       .scale = (double)scale_of(c), .causal = c->causal, .query_position = c->query_position,
                       .key_position = c->key_position, .q = q.at, .k = key.at, .v = v.at, .y = y.at,
                       .lse = lse.at, .q_step = q.step, .k_step = key.step, .v_step = v.step, .y_step = y.step};
  const AttentionGrad grad = {.t = &t, .dy = dy.at, .dq = how->want[0] ? dq.at : NULL,
                              .dk = how->want[1] ? dk.at : NULL, .dv = how->want[2] ? dv.at : NULL,
                              .dy_step = dy.step, .dq_step = dq.step, .dk_step = dk.step, .dv_step = dv.step,
                              .add_dq = how->add[0], .add_dk = how->add[1], .add_dv = how->add[2]};
  for (int i = how->parts; i-- > 0;) /* the last first */
    k->attention(&t, s * h * i / how->parts, s * h * (i + 1) / how->parts, scratch);
  for (int i = how->parts; i-- > 0;)
    k->attention_grad(&grad, s * g * i / how->parts, s * g * (i + 1) / how->parts, scratch);
  bool clean = array_end(f64, how, &y, s, nq, h, w, r->y);
  clean = array_end(f64, &dense, &lse, s, h, 1, nq, r->lse) && clean;
  clean = array_end(f64, how, &dq, s, nq, h, w, r->dq) && clean;
  clean = array_end(f64, how, &dk, s, nk, g, w, r->dk) && clean;
  clean = array_end(f64, how, &dv, s, nk, g, w, r->dv) && clean;
  array_end(f64, how, &q, s, nq, h, w, NULL);
  array_end(f64, how, &key, s, nk, g, w, NULL);
  array_end(f64, how, &v, s, nk, g, w, NULL);
  array_end(f64, how, &dy, s, nq, h, w, NULL);
  return clean;
}

/* ---- comparisons ------------------------------------------------------------------------------- */

/* Within 'tolerance' of the largest entry, at least of 'least'. */
static bool near(const Case *c, const char *what, const double *got, const long double *want, int64_t n,
                 double tolerance, double least) {
  long double most = least;
  for (int64_t i = 0; i < n; i++) most = isinf(want[i]) ? most : fmaxl(most, fabsl(want[i]));
  for (int64_t i = 0; i < n; i++)
    if (!(got[i] == want[i] || fabsl(got[i] - want[i]) <= tolerance * most)) {
      char name[200];
      describe(c, name, sizeof name);
      diag("%s: %s: element %lld is %.17g, not %.17Lg", name, what, (long long)i, got[i], want[i]);
      return false;
    }
  return true;
}

static bool same(const Case *c, const char *what, const Result *a, const Result *b) {
  const size_t w = (size_t)wide(c) * 8, n = (size_t)narrow(c) * 8;
  if (memcmp(a->y, b->y, w) == 0 && memcmp(a->lse, b->lse, (size_t)rows(c) * 8) == 0 &&
      memcmp(a->dq, b->dq, w) == 0 && memcmp(a->dk, b->dk, n) == 0 && memcmp(a->dv, b->dv, n) == 0)
    return true;
  char name[200];
  describe(c, name, sizeof name);
  diag("%s: other bits: %s", name, what);
  return false;
}

/* The gradient of sum(dy y) by central differences, in long double: the step leaves an error of some
 * 1e-8 of the third derivative. */
static bool differences(const Data *d) {
  const Case *c = &d->c;
  const long double step = 1e-4L;
  long double *y = malloc((size_t)wide(c) * sizeof *y), *const x[3] = {d->q, d->k, d->v};
  const long double *const grad[3] = {d->dq, d->dk, d->dv};
  bool right = true;
  for (int operand = 0; operand < 3; operand++) {
    const int64_t n = operand == 0 ? wide(c) : narrow(c);
    double *numeric = malloc((size_t)n * sizeof *numeric);
    for (int64_t i = 0; i < n; i++) {
      const long double before = x[operand][i];
      long double slope = 0;
      for (int side = -1; side <= 1; side += 2) {
        x[operand][i] = before + side * step;
        naive_forward(d, y, NULL);
        for (int64_t j = 0; j < wide(c); j++) slope += side * d->dy[j] * y[j];
      }
      x[operand][i] = before;
      numeric[i] = (double)(slope / (2 * step));
    }
    right = near(c, "difference", numeric, grad[operand], n, 1e-6, 1e-3) && right;
    free(numeric);
  }
  free(y);
  return right;
}

typedef struct Verdict {
  bool forward, gradient, f32, bits, ranges, layouts;
} Verdict;

static void try_case(Case c, Verdict *v) {
  Data d = data_new(c);
  Result r = result_new(&c), other = result_new(&c), first = result_new(&c);
  int runs;
  for (int f64 = 0; f64 < 2; f64++) {
    bool have_first = false;
    for (int i = 0; cpu_isa_at(i, &runs) != NULL; i++) {
      if (!runs) continue;
      const KernelTable *table = cpu_isa_at(i, NULL);
      /* f64: up to 600 keys; f32: rounded products of the width, and their exponential */
      const double limit = f64 ? 1e-13 : 5e-6;
      bool *forward = f64 ? &v->forward : &v->f32, *gradient = f64 ? &v->gradient : &v->f32;
      v->layouts = run(table, f64, &d, &PLAIN, &r) && v->layouts;
      *forward = near(&c, "y", r.y, d.y, wide(&c), limit, 1) && near(&c, "lse", r.lse, d.lse, rows(&c), limit, 1) &&
                 *forward;
      *gradient = near(&c, "dq", r.dq, d.dq, wide(&c), limit, 1) && *gradient;
      *gradient = near(&c, "dk", r.dk, d.dk, narrow(&c), limit, 1) && *gradient;
      *gradient = near(&c, "dv", r.dv, d.dv, narrow(&c), limit, 1) && *gradient;
      How how = PLAIN;
      how.parts = random_int(2, 5);
      run(table, f64, &d, &how, &other);
      v->ranges = same(&c, "in several ranges", &r, &other) && v->ranges;
      how = (How){.want = {true, true, true}, .parts = 1, .gap = random_int(1, GAP), .shift = random_int(1, 9),
                  .heads_outside = random_int(0, 1)};
      v->layouts = run(table, f64, &d, &how, &other) && same(&c, "another layout", &r, &other) && v->layouts;
      if (have_first) v->bits = same(&c, "another instruction set", &first, &r) && v->bits;
      Result swap = first;
      if (!have_first) first = r, r = swap;
      have_first = true;
    }
  }
  result_free(&r);
  result_free(&other);
  result_free(&first);
  data_free(&d);
}

/* ---- tests ------------------------------------------------------------------------------------- */

static void report(const Verdict *v, const char *what) {
  ok(v->forward, "%s: f64 is the formula's", what);
  ok(v->gradient, "%s: so are the gradients in f64", what);
  ok(v->f32, "%s: f32 agrees", what);
  bits_of_isas(v->bits, what);
  ok(v->ranges, "%s: same bits however the heads are spread over calls", what);
  ok(v->layouts, "%s: same bits in any layout, and nothing else is written", what);
}

static const Verdict RIGHT = {true, true, true, true, true, true};

static void test_lengths(void) {
  static const int LENGTHS[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 257};
  enum { N = sizeof LENGTHS / sizeof *LENGTHS };
  Verdict v = RIGHT;
  for (int i = 0; i < N; i++)
    for (int causal = 0; causal < 2; causal++) {
      const int width = LENGTHS[i] > 100 ? 5 : random_int(1, 20);
      try_case((Case){1, LENGTHS[i], LENGTHS[i], 2, 1, width, causal, 0, 0}, &v);
      try_case((Case){2, LENGTHS[i], LENGTHS[random_int(0, N - 1)], 1, 1, 3, causal, 0, 0}, &v);
    }
  report(&v, "lengths");
}

static void test_widths(void) {
  static const int WIDTHS[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 25, 48, 49, 64, 80, 96, 127, 128, 129, 256, 300};
  Verdict v = RIGHT;
  for (size_t i = 0; i < sizeof WIDTHS / sizeof *WIDTHS; i++)
    for (int causal = 0; causal < 2; causal++)
      try_case((Case){1, random_int(1, 40), random_int(1, 40), 2, 2, WIDTHS[i], causal, random_int(0, 30), 0}, &v);
  try_case((Case){1, 130, 130, 1, 1, 80, true, 0, 0}, &v);
  try_case((Case){1, 130, 270, 1, 1, 300, true, 140, 0}, &v);
  report(&v, "widths");
}

static void test_groups(void) {
  static const int HEADS[][2] = {{2, 1}, {4, 2}, {6, 2}, {8, 8}, {3, 1}};
  Verdict v = RIGHT;
  for (size_t i = 0; i < sizeof HEADS / sizeof *HEADS; i++)
    for (int causal = 0; causal < 2; causal++)
      try_case((Case){random_int(1, 3), random_int(1, 150), random_int(1, 150), HEADS[i][0], HEADS[i][1], 8,
                      causal, 0, 0}, &v);
  try_case((Case){2, 33, 33, 4, 2, 64, true, 0, 0}, &v);
  report(&v, "grouped heads");
}

/* Positions that put the diagonal anywhere, some keys and queries on the wrong side of it entirely. */
static void test_positions(void) {
  Verdict v = RIGHT;
  for (int i = 0; i < 40; i++)
    try_case((Case){1, random_int(1, 140), random_int(1, 290), 2, 1, 4, true, random_int(0, 300), random_int(0, 300)},
             &v);
  try_case((Case){1, 20, 300, 2, 1, 4, true, 0, 500}, &v);
  try_case((Case){1, 300, 20, 2, 1, 4, true, 0, 290}, &v);
  report(&v, "positions");
}

/* The plain gradients are the slopes of the plain forward pass, over the edges of blocks as well. */
static void test_differences(void) {
  static const Case CASES[] = {
      {1, 1, 1, 1, 1, 1, true, 0, 0},     {2, 5, 7, 4, 2, 3, false, 0, 0},   {1, 9, 9, 2, 1, 8, true, 0, 0},
      {1, 17, 17, 1, 1, 5, true, 0, 0},   {1, 16, 15, 2, 2, 2, false, 0, 0}, {1, 8, 12, 2, 1, 4, true, 7, 4},
      {1, 6, 9, 1, 1, 3, true, 0, 3},     {1, 129, 129, 1, 1, 1, true, 0, 0}, {1, 1, 33, 3, 1, 2, true, 32, 0},
      {1, 3, 4, 2, 1, 64, true, 1, 0},    {1, 3, 4, 1, 1, 80, false, 0, 0}};
  bool right = true;
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    Data d = data_new(CASES[i]);
    right = differences(&d) && right;
    data_free(&d);
    Verdict v = RIGHT;
    try_case(CASES[i], &v);
    right = v.forward && v.gradient && right;
  }
  ok(right, "gradients in f64 are the central differences");
}

static void test_sums(const KernelTable *table, bool f64) {
  const Case c = {2, 140, 150, 4, 2, 10, true, 0, 0};
  Data d = data_new(c);
  Result all = result_new(&c), r = result_new(&c);
  run(table, f64, &d, &PLAIN, &all);
  bool right = true;
  for (int bits = 0; bits < 8; bits++) {
    const How how = {.want = {true, true, true}, .parts = 1, .add = {bits & 1, bits & 2, bits & 4}};
    run(table, f64, &d, &how, &r);
    double *const got[3] = {r.dq, r.dk, r.dv};
    const double *const plain[3] = {all.dq, all.dk, all.dv};
    for (int i = 0; i < 3; i++)
      for (int64_t j = 0; j < (i == 0 ? wide(&c) : narrow(&c)); j++)
        right = right && fabs(got[i][j] - plain[i][j] - (how.add[i] ? i + 1 : 0)) <= (f64 ? 1e-14 : 1e-6) * 8 &&
                (how.add[i] || got[i][j] == plain[i][j]);
  }
  ok(right, "%s %s: gradients are added to what is there, or written", table->isa, f64 ? "f64" : "f32");
  right = true;
  for (int bits = 0; bits < 8; bits++) {
    const How how = {.want = {bits & 1, bits & 2, bits & 4}, .parts = 1};
    run(table, f64, &d, &how, &r);
    double *const got[3] = {r.dq, r.dk, r.dv};
    const double *const plain[3] = {all.dq, all.dk, all.dv};
    for (int i = 0; i < 3; i++)
      for (int64_t j = 0; j < (i == 0 ? wide(&c) : narrow(&c)); j++)
        right = right && (how.want[i] ? got[i][j] == plain[i][j] : isnan(got[i][j]));
  }
  ok(right, "%s %s: only the gradients that are wanted", table->isa, f64 ? "f64" : "f32");
  result_free(&all);
  result_free(&r);
  data_free(&d);
}

/* A sequence cut into two parts of keys, joined by their log-sum-exps, is the whole. */
static void test_join(const KernelTable *table) {
  const Case c = {1, 90, 90, 2, 1, 12, true, 0, 0};
  Data d = data_new(c);
  Result whole = result_new(&c), part[2] = {result_new(&c), result_new(&c)};
  run(table, true, &d, &PLAIN, &whole);
  const int cut = 37, row = c.kv_heads * c.width;
  for (int i = 0; i < 2; i++) {
    Data half = d;
    half.c.keys = i == 0 ? cut : c.keys - cut;
    half.c.key_position = i == 0 ? 0 : cut;
    half.k += i * cut * row;
    half.v += i * cut * row;
    run(table, true, &half, &PLAIN, &part[i]);
  }
  double worst = 0;
  for (int i = 0; i < c.queries; i++)
    for (int h = 0; h < c.heads; h++) {
      const int64_t l = h * c.queries + i;
      const double lse = whole.lse[l];
      const double a = exp(part[0].lse[l] - lse), b = exp(part[1].lse[l] - lse);
      worst = fmax(worst, fabs(a + b - 1));
      for (int w = 0; w < c.width; w++) {
        const int64_t at = ((int64_t)i * c.heads + h) * c.width + w;
        worst = fmax(worst, fabs(a * part[0].y[at] + b * part[1].y[at] - whole.y[at]));
      }
    }
  is_near(worst, 0, 1e-14, "%s: two parts of the keys join to the whole", table->isa);
  for (int i = 0; i < 2; i++) result_free(&part[i]);
  result_free(&whole);
  data_free(&d);
}

/* Scores far beyond what exp can hold, and numbers that are none. */
static void test_extremes(const KernelTable *table, bool f64) {
  const char *type = f64 ? "f64" : "f32";
  const Case c = {1, 200, 200, 1, 1, 2, true, 0, 0};
  Data d = data_new(c);
  Result r = result_new(&c);
  for (int64_t i = 0; i < wide(&c); i++) d.q[i] *= 300, d.k[i] *= 300;
  naive_forward(&d, d.y, d.lse);
  naive_backward(&d);
  run(table, f64, &d, &PLAIN, &r);
  bool right = near(&c, "y", r.y, d.y, wide(&c), f64 ? 1e-9 : 0.1, 1);
  right = near(&c, "lse", r.lse, d.lse, rows(&c), f64 ? 1e-14 : 1e-6, 1) && right;
  right = near(&c, "dv", r.dv, d.dv, narrow(&c), f64 ? 1e-9 : 0.1, 1) && right;
  ok(right, "%s %s: scores of a hundred thousand do not overflow", table->isa, type);
  /* key 150 is seen by queries from 150 on; the tile of keys around it begins at 144 */
  d.k[300] = NAN;
  run(table, f64, &d, &PLAIN, &r);
  right = true;
  for (int i = 0; i < c.queries; i++)
    right = right && isnan(r.y[2 * i]) == (i >= 150) && isnan(r.lse[i]) == (i >= 150);
  ok(right, "%s %s: a key that is nan makes nan what sees it, and no more", table->isa, type);
  result_free(&r);
  data_free(&d);
}

int main(void) {
  random_start();
  scratch = aligned_alloc(64, KERNEL_SCRATCH_BYTES);
  if (scratch == NULL) bail("no memory");
  test_differences();
  test_lengths();
  test_widths();
  test_groups();
  test_positions();
  int runs;
  for (int i = 0; cpu_isa_at(i, &runs) != NULL; i++) {
    const KernelTable *table = cpu_isa_at(i, NULL);
    if (!runs) {
      skip("this processor lacks an instruction set");
      continue;
    }
    for (int f64 = 0; f64 < 2; f64++) {
      test_sums(table, f64);
      test_extremes(table, f64);
    }
    test_join(table);
  }
  free(scratch);
  return done_testing();
}
