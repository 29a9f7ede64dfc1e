/* The ops of a mixture of experts as kernel calls: a chain of them on random numbers against the
 * definition in long double, on every instruction set, in f32 and f64, on one thread and on several.
 * Blocks start out poisoned, and the rows behind their tokens have to stay so. (Gradients against
 * central differences: tests/c/ir_program_grad.c, tests/lua/moe_naive.lua.) */
#include "device/cpu_isa.h"
#include "device/ops_cpu.h"
#include "random_data.h"

#include <math.h>
#include <string.h>

enum { THREADS = 3 };
static unsigned char *scratch; /* of so many threads */

typedef struct Sizes {
  int64_t n, tokens, experts, k, capacity, width, hidden, rows;
  bool normalize;
} Sizes;

/* Every array of the chain: values, then gradients. */
typedef enum Array {
  LOGITS, X, DY, SLOTS, WEIGHTS, BALANCE, BLOCKS, ENDS, PACKED, W_GATE, W_UP, W_DOWN, GATE, UP, HIDDEN, OUT,
  OUT_BLOCKS, Y, D_BALANCE, D_LOGITS, D_WEIGHTS, D_BLOCKS, D_OUT, D_HIDDEN, D_GATE, D_UP, D_PACKED,
  D_IN_BLOCKS, D_X, DW_GATE, DW_UP, DW_DOWN, DROPPED, N_ARRAYS
} Array;

typedef struct Chain {
  Sizes s;
  DType t;
  const OpsCpu *cpu;
  unsigned char *at[N_ARRAYS];
  bool ok;
} Chain;

static KernelArg shape_of(const Chain *c, Array a) {
  const Sizes *s = &c->s;
#define DIMS(...)                                                                                  \
  (KernelArg) {                                                                                    \
    .dtype = (uint8_t)c->t, .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),            \
    .dim = { __VA_ARGS__ }                                                                         \
  }
  KernelArg arg = {.dtype = (uint8_t)c->t};
  switch (a) {
  case LOGITS: case D_LOGITS: return DIMS(s->n, s->tokens, s->experts);
  case X: case DY: case Y: case D_X: return DIMS(s->n, s->tokens, s->width);
  case WEIGHTS: case D_WEIGHTS: return DIMS(s->n, s->tokens, s->k);
  case BLOCKS: case OUT_BLOCKS: case D_BLOCKS: case D_IN_BLOCKS:
    return DIMS(s->n, s->experts, 1 + s->capacity, s->width);
  case PACKED: case OUT: case D_OUT: case D_PACKED: return DIMS(s->n, s->rows, s->width);
  case GATE: case UP: case HIDDEN: case D_GATE: case D_UP: case D_HIDDEN:
    return DIMS(s->n, s->rows, s->hidden);
  case W_GATE: case W_UP: case DW_GATE: case DW_UP: return DIMS(s->experts, s->hidden, s->width);
  case W_DOWN: case DW_DOWN: return DIMS(s->experts, s->width, s->hidden);
  case SLOTS: arg = DIMS(s->n, s->tokens, s->k); break;
  case ENDS: arg = DIMS(s->n, s->experts); break;
  case DROPPED: arg = DIMS(1); arg.dtype = DT_F64; return arg;
  case BALANCE: case D_BALANCE: case N_ARRAYS: return arg;
  }
  arg.dtype = DT_I32;
  return arg;
}

static int64_t elements(const KernelArg *a) {
  int64_t n = 1;
  for (int i = 0; i < a->rank; i++) n *= a->dim[i];
  return n;
}

static int64_t count(const Chain *c, Array a) {
  const KernelArg s = shape_of(c, a);
  return elements(&s);
}

static double get(const Chain *c, Array a, int64_t i) {
  return c->t == DT_F32 ? (double)((float *)c->at[a])[i] : ((double *)c->at[a])[i];
}

static void set(Chain *c, Array a, int64_t i, double v) {
  if (c->t == DT_F32) ((float *)c->at[a])[i] = (float)v;
  else ((double *)c->at[a])[i] = v;
}

static uint64_t bytes_of(const Chain *c, Array a) {
  const KernelArg s = shape_of(c, a);
  return (uint64_t)elements(&s) * dtype_bytes((DType)s.dtype);
}

/* One call: 'args' by position, -1 for those that are absent. An argument at index 100 * expert + a of
 * a stack is the weight of that expert. */
static void call_op(Chain *c, KernelCall call, const int *args, int n) {
  unsigned char *bases[KERNEL_MAX_ARGS];
  uint64_t bytes[KERNEL_MAX_ARGS];
  uint8_t first[KERNEL_MAX_ARGS] = {0};
  PiperErr err = {0};
  call.n_args = (uint16_t)n;
  call.first_base = KERNEL_NO_BASE;
  for (int i = 0; i < n; i++) {
    call.args[i].base = KERNEL_NO_BASE;
    bases[i] = NULL, bytes[i] = 0;
    if (args[i] < 0) continue;
    const Array a = (Array)(args[i] % 100);
    call.args[i] = shape_of(c, a);
    call.args[i].base = (uint16_t)i;
    bases[i] = c->at[a];
    bytes[i] = bytes_of(c, a);
    if (a == W_GATE || a == W_UP || a == W_DOWN || a == DW_GATE || a == DW_UP || a == DW_DOWN) {
      bytes[i] /= (uint64_t)c->s.experts;
      bases[i] += (uint64_t)(args[i] / 100) * bytes[i];
      call.args[i].rank = 2;
      call.args[i].dim[0] = call.args[i].dim[1];
      call.args[i].dim[1] = call.args[i].dim[2];
    }
  }
  PiperStatus st = ops_cpu_check(&call, 1, bytes, (uint32_t)n, &err);
  const KernelRun run = {
      .calls = &call, .n_calls = 1, .bases = bases, .first = first, .scratch = scratch};
  if (st == PIPER_OK) st = ops_cpu_run(&run, c->cpu, &err);
  if (st != PIPER_OK) diag("%s", err.text), c->ok = false;
}

#define CALL(c, ...) call_op(c, (KernelCall)__VA_ARGS__
#define ARGS(...) (int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

static void forward(Chain *c) {
  const Sizes *s = &c->s;
  const double k = (double)s->k, cap = (double)s->capacity, experts = (double)s->experts;
  CALL(c, {.op = OP_ROUTE, .attrs = {{k, cap}}}), ARGS(LOGITS, SLOTS);
  CALL(c, {.op = OP_DROPPED}), ARGS(SLOTS, DROPPED);
  CALL(c, {.op = OP_GATE, .attrs = {{s->normalize, cap}}}), ARGS(LOGITS, SLOTS, WEIGHTS);
  CALL(c, {.op = OP_BALANCE, .attrs = {{(double)s->n, cap}}}), ARGS(LOGITS, SLOTS, BALANCE);
  CALL(c, {.op = OP_DISPATCH, .attrs = {{experts, 1 + cap}}}), ARGS(X, SLOTS, BLOCKS);
  CALL(c, {.op = OP_EXPERT_ENDS}), ARGS(BLOCKS, ENDS);
  CALL(c, {.op = OP_PACK}), ARGS(BLOCKS, ENDS, PACKED);
  for (int e = 0; e < s->experts; e++) {
    CALL(c, {.op = OP_EXPERT_LINEAR, .attrs = {{e}}}), ARGS(PACKED, W_GATE + 100 * e, ENDS, GATE);
    CALL(c, {.op = OP_EXPERT_LINEAR, .attrs = {{e}}}), ARGS(PACKED, W_UP + 100 * e, ENDS, UP);
  }
  CALL(c, {.op = OP_EXPERT_SWIGLU}), ARGS(GATE, UP, ENDS, HIDDEN);
  for (int e = 0; e < s->experts; e++)
    CALL(c, {.op = OP_EXPERT_LINEAR, .attrs = {{e}}}), ARGS(HIDDEN, W_DOWN + 100 * e, ENDS, OUT);
  CALL(c, {.op = OP_UNPACK}), ARGS(OUT, ENDS, OUT_BLOCKS);
  CALL(c, {.op = OP_COMBINE}), ARGS(OUT_BLOCKS, WEIGHTS, SLOTS, Y);
}

/* 'add': every gradient that other ops may contribute to is added to what is there. */
static void backward(Chain *c, bool add) {
  enum { B = KERNEL_B };
  const Sizes *s = &c->s;
  const double cap = (double)s->capacity;
  CALL(c, {.op = OP_COMBINE, .part = B, .wrt = 0}),
      ARGS(-1, WEIGHTS, SLOTS, -1, DY, D_BLOCKS);
  CALL(c, {.op = OP_COMBINE, .part = B, .wrt = 1, .accumulate = add}),
      ARGS(OUT_BLOCKS, -1, SLOTS, -1, DY, D_WEIGHTS);
  CALL(c, {.op = OP_UNPACK, .part = B}), ARGS(-1, ENDS, -1, D_BLOCKS, D_OUT);
  for (int e = 0; e < s->experts; e++) {
    const int w = 100 * e;
    CALL(c, {.op = OP_EXPERT_LINEAR, .part = B, .wrt = 0, .attrs = {{e}}}),
        ARGS(-1, W_DOWN + w, ENDS, -1, D_OUT, D_HIDDEN);
    CALL(c, {.op = OP_EXPERT_LINEAR, .part = B, .wrt = 1, .accumulate = add, .attrs = {{e}}}),
        ARGS(HIDDEN, -1, ENDS, -1, D_OUT, DW_DOWN + w);
  }
  CALL(c, {.op = OP_EXPERT_SWIGLU, .part = B, .wrt = KERNEL_WRT_ALL}),
      ARGS(GATE, UP, ENDS, -1, D_HIDDEN, -1, -1, D_GATE, D_UP, -1);
  for (int e = 0; e < s->experts; e++) {
    const int w = 100 * e;
    CALL(c, {.op = OP_EXPERT_LINEAR, .part = B, .wrt = 0, .attrs = {{e}}}),
        ARGS(-1, W_UP + w, ENDS, -1, D_UP, D_PACKED);
    CALL(c, {.op = OP_EXPERT_LINEAR, .part = B, .wrt = 1, .accumulate = add, .attrs = {{e}}}),
        ARGS(PACKED, -1, ENDS, -1, D_UP, DW_UP + w);
  }
  for (int e = 0; e < s->experts; e++) {
    const int w = 100 * e;
    CALL(c, {.op = OP_EXPERT_LINEAR, .part = B, .wrt = 0, .accumulate = 1, .attrs = {{e}}}),
        ARGS(-1, W_GATE + w, ENDS, -1, D_GATE, D_PACKED);
    CALL(c, {.op = OP_EXPERT_LINEAR, .part = B, .wrt = 1, .accumulate = add, .attrs = {{e}}}),
        ARGS(PACKED, -1, ENDS, -1, D_GATE, DW_GATE + w);
  }
  CALL(c, {.op = OP_PACK, .part = B}), ARGS(-1, ENDS, -1, D_PACKED, D_IN_BLOCKS);
  CALL(c, {.op = OP_DISPATCH, .part = B, .accumulate = add}),
      ARGS(-1, SLOTS, -1, D_IN_BLOCKS, D_X);
  CALL(c, {.op = OP_BALANCE, .part = B, .accumulate = add, .attrs = {{(double)s->n, cap}}}),
      ARGS(LOGITS, SLOTS, -1, D_BALANCE, D_LOGITS);
  CALL(c, {.op = OP_GATE, .part = B, .accumulate = 1, .attrs = {{s->normalize, cap}}}),
      ARGS(LOGITS, SLOTS, -1, D_WEIGHTS, D_LOGITS);
}

static const Array GRADIENTS[] = {D_LOGITS, D_WEIGHTS, D_X, DW_GATE, DW_UP, DW_DOWN};
enum { N_GRADIENTS = sizeof GRADIENTS / sizeof *GRADIENTS };

/* ---- the definition -------------------------------------------------------------------------- */

typedef struct Naive {
  long double *y, *weights, balance;
  int32_t *slots;
  int64_t dropped;
} Naive;

static void naive_expert(const Chain *c, int64_t e, int64_t token, long double *y) {
  const Sizes *s = &c->s;
  const int64_t w = e * s->hidden * s->width;
  for (int64_t i = 0; i < s->width; i++) y[i] = 0;
  for (int64_t h = 0; h < s->hidden; h++) {
    long double g = 0, u = 0;
    for (int64_t i = 0; i < s->width; i++) {
      g += (long double)get(c, W_GATE, w + h * s->width + i) * get(c, X, token * s->width + i);
      u += (long double)get(c, W_UP, w + h * s->width + i) * get(c, X, token * s->width + i);
    }
    const long double a = g / (1 + expl(-g)) * u;
    for (int64_t i = 0; i < s->width; i++) y[i] += get(c, W_DOWN, w + i * s->hidden + h) * a;
  }
}

static Naive naive_new(const Chain *c) {
  const Sizes *s = &c->s;
  Naive v = {.y = calloc((size_t)count(c, Y), sizeof *v.y),
             .weights = calloc((size_t)count(c, WEIGHTS), sizeof *v.weights),
             .slots = calloc((size_t)count(c, SLOTS), sizeof *v.slots)};
  long double *p = calloc((size_t)s->experts, sizeof *p), *mean = calloc((size_t)s->experts, sizeof *p);
  long double *part = calloc((size_t)s->width, sizeof *part);
  int64_t *used = calloc((size_t)s->experts, sizeof *used), *chosen = calloc((size_t)s->experts, sizeof *used);
  for (int64_t n = 0; n < s->n; n++) {
    for (int64_t e = 0; e < s->experts; e++) used[e] = chosen[e] = 0, mean[e] = 0;
    for (int64_t t = n * s->tokens; t < (n + 1) * s->tokens; t++) {
      long double sum = 0, kept = 0;
      for (int64_t e = 0; e < s->experts; e++) sum += p[e] = expl(get(c, LOGITS, t * s->experts + e));
      for (int64_t e = 0; e < s->experts; e++) mean[e] += p[e] /= sum;
      for (int64_t j = 0; j < s->k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < s->experts; e++) {
          bool taken = false;
          for (int64_t i = 0; i < j; i++) taken |= v.slots[t * s->k + i] == e;
          if (!taken && (best < 0 || p[e] > p[best])) best = e;
        }
        v.slots[t * s->k + j] = (int32_t)best;
        kept += p[best];
      }
      for (int64_t j = 0; j < s->k; j++) {
        const int64_t e = v.slots[t * s->k + j], at = t * s->k + j;
        v.weights[at] = p[e] / (s->normalize ? kept : 1);
        chosen[e]++;
        if (used[e] == s->capacity) {
          v.slots[at] = (int32_t)(-1 - e);
          v.dropped++;
          continue;
        }
        v.slots[at] = (int32_t)(e * s->capacity + used[e]++);
        naive_expert(c, e, t, part);
        for (int64_t i = 0; i < s->width; i++) v.y[t * s->width + i] += v.weights[at] * part[i];
      }
    }
    for (int64_t e = 0; e < s->experts; e++)
      v.balance += (long double)(s->experts * chosen[e]) / (s->k * s->tokens) * mean[e] / s->tokens / s->n;
  }
  free(p), free(mean), free(part), free(used), free(chosen);
  return v;
}

static void naive_free(Naive *v) { free(v->y), free(v->weights), free(v->slots); }

/* ---- comparisons ------------------------------------------------------------------------------ */

typedef struct Verdict {
  bool runs, routes, forward, f32, bits, adds, padding;
} Verdict;

static void chain_new(Chain *c) {
  for (int a = 0; a < N_ARRAYS; a++) {
    c->at[a] = malloc(bytes_of(c, (Array)a));
    memset(c->at[a], 0xff, bytes_of(c, (Array)a));
  }
  *(double *)c->at[DROPPED] = 0;
  c->ok = true;
}

static void chain_free(Chain *c) {
  for (int a = 0; a < N_ARRAYS; a++) free(c->at[a]);
}

/* Numbers that are exact in f32; logits may be equal. */
static void fill(Chain *c, const float *numbers) {
  static const Array GIVEN[] = {LOGITS, X, DY, W_GATE, W_UP, W_DOWN, D_BALANCE};
  for (size_t g = 0; g < sizeof GIVEN / sizeof *GIVEN; g++)
    for (int64_t i = 0; i < count(c, GIVEN[g]); i++) {
      const float v = *numbers++;
      set(c, GIVEN[g], i, GIVEN[g] == LOGITS ? roundf(v * 8) / 4 : v);
    }
}

/* What has no token is as it was: poison. */
static bool padding_untouched(const Chain *c, Array a) {
  const Sizes *s = &c->s;
  const uint64_t row = (uint64_t)s->width * dtype_bytes(c->t);
  for (int64_t b = 0; b < s->n * s->experts; b++) {
    const unsigned char *block = c->at[a] + (uint64_t)(b * (1 + s->capacity)) * row;
    int32_t n;
    memcpy(&n, block, sizeof n);
    if (n < 0 || n > s->capacity) return false;
    for (uint64_t i = (uint64_t)(1 + n) * row; i < (uint64_t)(1 + s->capacity) * row; i++)
      if (block[i] != 0xff) return false;
    for (uint64_t i = sizeof n; i < row; i++)
      if (block[i] != 0xff) return false;
  }
  return true;
}

static bool near(const Chain *c, Array a, int64_t i, long double want, double tolerance) {
  if (fabs(get(c, a, i) - (double)want) <= tolerance * (1 + fabs((double)want))) return true;
  diag("array %d, element %d is %.17g, not %.17g", (int)a, (int)i, get(c, a, i), (double)want);
  return false;
}

static void judge_forward(const Chain *c, const Naive *v, Verdict *out) {
  bool *close = c->t == DT_F64 ? &out->forward : &out->f32;
  const double tolerance = c->t == DT_F64 ? 1e-12 : 2e-5;
  for (int64_t i = 0; i < count(c, SLOTS); i++)
    out->routes = ((int32_t *)c->at[SLOTS])[i] == v->slots[i] && out->routes;
  out->routes = *(double *)c->at[DROPPED] == (double)v->dropped && out->routes;
  for (int64_t i = 0; i < count(c, WEIGHTS); i++)
    *close = near(c, WEIGHTS, i, v->weights[i], tolerance) && *close;
  for (int64_t i = 0; i < count(c, Y); i++) *close = near(c, Y, i, v->y[i], tolerance) && *close;
  *close = near(c, BALANCE, 0, v->balance, tolerance) && *close;
  out->padding = padding_untouched(c, BLOCKS) && padding_untouched(c, OUT_BLOCKS) && out->padding;
}

/* 'first' is of the same type, on another instruction set or number of threads. */
static void judge_gradients(Chain *c, const Chain *first, const Chain *f64, Verdict *out) {
  out->padding = padding_untouched(c, D_BLOCKS) && padding_untouched(c, D_IN_BLOCKS) && out->padding;
  for (int g = 0; g < N_GRADIENTS; g++) {
    const Array a = GRADIENTS[g];
    out->bits = memcmp(c->at[a], first->at[a], bytes_of(c, a)) == 0 && out->bits;
    if (c->t == DT_F32)
      for (int64_t i = 0; i < count(c, a); i++)
        out->f32 = near(c, a, i, get(f64, a, i), 1e-4) && out->f32;
  }
  /* added to 1: twice what DW is elsewhere (D_WEIGHTS changes what D_LOGITS gets) */
  for (int g = 1; g < N_GRADIENTS; g++)
    for (int64_t i = 0; i < count(c, GRADIENTS[g]); i++) set(c, GRADIENTS[g], i, 1);
  for (int64_t i = 0; i < count(c, D_LOGITS); i++) set(c, D_LOGITS, i, 0);
  backward(c, true);
  for (int g = 1; g < N_GRADIENTS; g++)
    for (int64_t i = 0; i < count(c, GRADIENTS[g]); i++)
      out->adds = near(c, GRADIENTS[g], i, 1 + get(first, GRADIENTS[g], i),
                       c->t == DT_F64 ? 1e-12 : 1e-4) && out->adds;
}

static void try_sizes(const Sizes *s, const OpsCpu *cpus, int n_cpus, Verdict *out) {
  Chain reference = {.s = *s, .t = DT_F64, .cpu = &cpus[0]}, f32 = reference;
  f32.t = DT_F32;
  const int64_t n = 3 * s->n * s->tokens * (s->experts + s->width) +
                    3 * s->experts * s->hidden * s->width + 1;
  float *numbers = malloc((size_t)n * sizeof *numbers);
  for (int64_t i = 0; i < n; i++) numbers[i] = (float)(random_uniform() * 2 - 1);
  Chain *firsts[] = {&reference, &f32};
  Naive v = {0};
  for (int t = 0; t < 2; t++) {
    Chain *first = firsts[t];
    chain_new(first);
    fill(first, numbers);
    if (t == 0) v = naive_new(first);
    forward(first);
    backward(first, false);
    judge_forward(first, &v, out);
    for (int i = 0; i < n_cpus; i++) {
      Chain c = {.s = *s, .t = first->t, .cpu = &cpus[i]};
      chain_new(&c);
      fill(&c, numbers);
      forward(&c);
      out->bits = memcmp(c.at[Y], first->at[Y], bytes_of(&c, Y)) == 0 && out->bits;
      backward(&c, false);
      judge_gradients(&c, first, &reference, out);
      out->runs = c.ok && first->ok && out->runs;
      chain_free(&c);
    }
  }
  naive_free(&v);
  chain_free(&reference);
  chain_free(&f32);
  free(numbers);
}

int main(void) {
  random_start();
  OpsCpu cpus[8];
  scratch = aligned_alloc(64, THREADS * OP_SCRATCH_BYTES);
  Team *team;
  Crowd crowd = {0};
  PiperErr err = {0};
  int n = 0, runs;
  for (int i = 0; cpu_isa_at(i, &runs) != NULL; i++)
    if (runs && ops_cpu_init(&cpus[n++], cpu_isa_at(i, NULL), NULL, &err) != PIPER_OK)
      bail(err.text);
  if (team_new(THREADS, &crowd, "piper test", &team, &err) != PIPER_OK ||
      ops_cpu_init(&cpus[n++], NULL, team, &err) != PIPER_OK)
    bail(err.text);
  Verdict v = {true, true, true, true, true, true, true};
  for (int i = 0; i < 60; i++) {
    Sizes s = {.n = random_int(1, 3), .tokens = random_int(1, 12), .experts = random_int(1, 9),
               .width = random_int(1, 9), .hidden = random_int(1, 9), .normalize = random_int(0, 1)};
    if (i == 0) /* enough work for several threads */
      s = (Sizes){.n = 2, .tokens = 150, .experts = 5, .width = 65, .hidden = 90};
    s.k = random_int(1, (int)(s.experts < 3 ? s.experts : 3));
    s.capacity = random_int(1, (int)s.tokens);
    s.rows = s.experts * s.capacity < s.k * s.tokens ? s.experts * s.capacity : s.k * s.tokens;
    try_sizes(&s, cpus, n, &v);
  }
  ok(v.runs, "all calls run");
  ok(v.routes, "tokens take the places that the definition says, and dropped ones are counted");
  ok(v.forward, "f64 is the definition");
  ok(v.f32, "f32 is near it, gradients near those of f64");
  ok(v.bits, "the same bits on every instruction set and number of threads");
  ok(v.adds, "gradients add to what is there");
  ok(v.padding, "rows without a token are never written");

  /* A count that was never written is noticed. */
  Chain c = {.s = {1, 2, 2, 1, 2, 3, 1, 2, false}, .t = DT_F32, .cpu = &cpus[0]};
  chain_new(&c);
  const uint64_t bytes[] = {bytes_of(&c, BLOCKS), bytes_of(&c, ENDS)};
  unsigned char *bases[] = {c.at[BLOCKS], c.at[ENDS]};
  KernelCall call = {.op = OP_EXPERT_ENDS, .n_args = 2, .first_base = KERNEL_NO_BASE};
  call.args[0] = shape_of(&c, BLOCKS);
  call.args[1] = shape_of(&c, ENDS);
  call.args[1].base = 1;
  const KernelRun run = {.calls = &call, .n_calls = 1, .bases = bases, .first = (uint8_t[2]){0}};
  is_int(ops_cpu_check(&call, 1, bytes, 2, &err), PIPER_OK, "a call fits");
  is_int(ops_cpu_run(&run, &cpus[0], &err), PIPER_EBUG, "poisoned blocks have no count");
  chain_free(&c);
  free(scratch);
  team_free(team);
  return done_testing();
}
