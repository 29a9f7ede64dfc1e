/* ops_cpu_moe.c - mixture of experts: choosing experts, sending tokens to them and back, the experts'
 * products. Axis 0 of every argument counts samples; base/ops.def has the other axes.
 *
 * Blocks are mostly room: nothing here is proportional to it, and rows that no token is in are neither
 * read nor written. */
#include "device/ops_cpu_op.h"

#define MAX_INDEX 0x7fffffff /* slots and ends are i32 */

/* ---- the router ------------------------------------------------------------------------------- */

/* Logits are [samples, S, E], slots [samples, S, k]. */
static MoeShape router(const Op *o, int logits, int slots, double capacity) {
  return (MoeShape){last(o, logits, 1), last(o, logits, 0), last(o, slots, 0), (int64_t)capacity};
}

static bool router_fits(const Op *o, int logits, int slots, double capacity) {
  if (!is_real(o, logits) || !is(o, slots, DT_I32)) return false;
  const KernelArg *x = arg(o, logits), *s = arg(o, slots);
  return x->rank == 3 && s->rank == 3 && x->dim[0] == s->dim[0] && x->dim[1] == s->dim[1] &&
         s->dim[2] <= x->dim[2] && x->dim[2] <= KERNEL_MAX_EXPERTS && capacity >= 1 &&
         capacity <= (double)x->dim[1] && capacity * (double)x->dim[2] <= MAX_INDEX;
}

/* Work of one sample: some 20 for each exponential, 1 for each comparison. */
static double router_work(const MoeShape *m, double each) {
  return each * (double)m->tokens * (double)m->experts;
}

/* Sample s of a router's arguments. */
static const int32_t *slots_at(const Op *o, int slots, const MoeShape *m, int64_t s) {
  return (const int32_t *)o->at[slots] + s * m->tokens * m->top_k;
}

static void *logits_at(const Op *o, int a, const MoeShape *m, int64_t s) {
  return op_at(o, a, s * m->tokens * m->experts);
}

static void route_samples(const Op *o, const void *arg_, int64_t lo, int64_t hi, uint32_t thread) {
  enum { LOGITS, N };
  const MoeShape *m = arg_;
  (void)thread;
  for (int64_t s = lo; s < hi; s++)
    o->k->moe_route(m, logits_at(o, LOGITS, m, s), (int32_t *)slots_at(o, OUT(N), m, s));
}

PiperStatus run_route(Op *o) {
  enum { LOGITS, N };
  const double *d = o->call->attrs.d;
  NEED(!backward(o) && router_fits(o, LOGITS, OUT(N), d[1]) && d[0] == (double)last(o, OUT(N), 0));
  COMPUTE();
  const MoeShape m = router(o, LOGITS, OUT(N), d[1]);
  op_split(o, arg(o, LOGITS)->dim[0], 1, router_work(&m, (double)m.top_k), route_samples, &m);
  return PIPER_OK;
}

enum { LOGITS, SLOTS, N_ROUTED }; /* operands of gate and balance */

static void gate_samples(const Op *o, const void *arg_, int64_t lo, int64_t hi, uint32_t thread) {
  const MoeShape *m = arg_;
  const bool normalize = o->call->attrs.d[0] != 0;
  const int64_t each = m->tokens * m->top_k;
  (void)thread;
  for (int64_t s = lo; s < hi; s++) {
    const void *x = logits_at(o, LOGITS, m, s);
    const int32_t *slots = slots_at(o, SLOTS, m, s);
    if (backward(o))
      o->k->moe_gate_grad(m, normalize, x, slots, op_at(o, DY(N_ROUTED), s * each),
                          logits_at(o, DX(N_ROUTED), m, s), o->add);
    else o->k->moe_gate(m, normalize, x, slots, op_at(o, OUT(N_ROUTED), s * each));
  }
}

PiperStatus run_gate(Op *o) {
  const double *d = o->call->attrs.d;
  const int y = backward(o) ? DY(N_ROUTED) : OUT(N_ROUTED);
  NEED(router_fits(o, LOGITS, SLOTS, d[1]));
  const DType t = (DType)arg(o, LOGITS)->dtype;
  NEED(is(o, y, t) && same_shape(o, y, SLOTS));
  if (backward(o))
    NEED(o->call->wrt == LOGITS && is(o, DX(N_ROUTED), t) && same_shape(o, DX(N_ROUTED), LOGITS));
  COMPUTE();
  const MoeShape m = router(o, LOGITS, SLOTS, d[1]);
  op_split(o, arg(o, LOGITS)->dim[0], 1, router_work(&m, 20), gate_samples, &m);
  return PIPER_OK;
}

static double balance_term(const Op *o, const void *arg_, int64_t lo, int64_t hi) {
  const MoeShape *m = arg_;
  double sum = 0;
  for (int64_t s = lo; s < hi; s++)
    sum += o->k->moe_balance(m, logits_at(o, LOGITS, m, s), slots_at(o, SLOTS, m, s));
  return sum;
}

static void balance_gradients(const Op *o, const void *arg_, int64_t lo, int64_t hi,
                              uint32_t thread) {
  const MoeShape *m = arg_;
  const double dy = real_at(o->at[DY(N_ROUTED)], (DType)arg(o, LOGITS)->dtype);
  (void)thread;
  for (int64_t s = lo; s < hi; s++)
    o->k->moe_balance_grad(m, dy / o->call->attrs.d[0], logits_at(o, LOGITS, m, s),
                           slots_at(o, SLOTS, m, s), logits_at(o, DX(N_ROUTED), m, s), o->add);
}

PiperStatus run_balance(Op *o) {
  const double *d = o->call->attrs.d;
  NEED(router_fits(o, LOGITS, SLOTS, d[1]) && d[0] > 0);
  const DType t = (DType)arg(o, LOGITS)->dtype;
  const MoeShape m = router(o, LOGITS, SLOTS, d[1]);
  const int64_t samples = arg(o, LOGITS)->dim[0];
  if (!backward(o)) {
    NEED(is_scalar(o, OUT(N_ROUTED), t));
    COMPUTE();
    set_real(o->at[OUT(N_ROUTED)], t,
             op_sum(o, samples, router_work(&m, 20), balance_term, &m) / d[0]);
    return PIPER_OK;
  }
  NEED(o->call->wrt == LOGITS && is_scalar(o, DY(N_ROUTED), t));
  NEED(is(o, DX(N_ROUTED), t) && same_shape(o, DX(N_ROUTED), LOGITS));
  COMPUTE();
  op_split(o, samples, 1, router_work(&m, 25), balance_gradients, &m);
  return PIPER_OK;
}

static double dropped_term(const Op *o, const void *arg_, int64_t lo, int64_t hi) {
  const int32_t *slots = arg_;
  (void)o;
  double n = 0;
  for (int64_t i = lo; i < hi; i++) n += slots[i] < 0;
  return n;
}

PiperStatus run_dropped(Op *o) {
  NEED(is(o, 0, DT_I32) && is_scalar(o, 1, DT_F64));
  COMPUTE();
  double *metric = o->at[1];
  const double n = op_sum(o, count(o, 0), 1, dropped_term, o->at[0]);
  *metric = o->add ? *metric + n : n;
  return PIPER_OK;
}

/* ---- to the experts and back ------------------------------------------------------------------ */

/* Blocks are [samples, E, 1 + capacity, width]; their count takes 4 bytes. */
static bool are_blocks(const Op *o, int a, DType t) {
  const KernelArg *b = arg(o, a);
  return is(o, a, t) && b->rank == 4 && b->dim[1] <= KERNEL_MAX_EXPERTS && b->dim[2] >= 2 &&
         b->dim[1] * (b->dim[2] - 1) <= MAX_INDEX;
}

static MoeBlocks blocks_of(const Op *o, int a) {
  const KernelArg *b = arg(o, a);
  return (MoeBlocks){o->at[a], b->dim[1], b->dim[2] - 1, b->dim[3]};
}

/* Tokens are [samples, S, width], slots [samples, S, k], and they go to these blocks. */
static bool tokens_fit(const Op *o, int tokens, int slots, int blocks) {
  const KernelArg *x = arg(o, tokens), *s = arg(o, slots), *b = arg(o, blocks);
  return is_real(o, tokens) && are_blocks(o, blocks, (DType)x->dtype) && is(o, slots, DT_I32) &&
         x->rank == 3 && s->rank == 3 && x->dim[0] == s->dim[0] && x->dim[0] == b->dim[0] &&
         x->dim[1] == s->dim[1] && x->dim[2] == b->dim[3];
}

typedef struct Trip {
  MoeBlocks blocks;
  MoeTokens tokens;
} Trip;

static Trip trip_of(const Op *o, int slots, int blocks) {
  const KernelArg *s = arg(o, slots);
  return (Trip){blocks_of(o, blocks), {o->at[slots], s->dim[1], s->dim[2]}};
}

static void count_samples(const Op *o, const void *arg_, int64_t lo, int64_t hi, uint32_t thread) {
  const Trip *t = arg_;
  (void)thread;
  o->k->moe_counts(&t->blocks, t->tokens.tokens * t->tokens.top_k, lo, hi, t->tokens.slots);
}

/* The counts of the blocks, where a call makes them. */
static void write_counts(const Op *o, const Trip *t, int64_t samples) {
  op_split(o, samples, 1, (double)(t->tokens.tokens * t->tokens.top_k), count_samples, t);
}

/* Every token is on its way alone. */
static void for_tokens(const Op *o, const Trip *t, int64_t samples, OpPart *part) {
  const double work = 3 * (double)(t->tokens.top_k * t->blocks.width);
  op_split(o, samples * t->tokens.tokens, OP_LINE, work, part, t);
}

static void dispatch_tokens(const Op *o, const void *arg_, int64_t lo, int64_t hi,
                            uint32_t thread) {
  enum { TOKENS, SLOTS_, N };
  const Trip *t = arg_;
  (void)thread;
  if (backward(o)) o->k->moe_dispatch_grad(&t->blocks, &t->tokens, lo, hi, o->at[DX(N)], o->add);
  else o->k->moe_dispatch(&t->blocks, &t->tokens, lo, hi, o->at[TOKENS]);
}

PiperStatus run_dispatch(Op *o) {
  enum { TOKENS, WHERE, N };
  const int blocks = backward(o) ? DY(N) : OUT(N), tokens = backward(o) ? DX(N) : TOKENS;
  NEED(has(o, tokens) && has(o, WHERE) && has(o, blocks) && tokens_fit(o, tokens, WHERE, blocks));
  NEED(!backward(o) || o->call->wrt == TOKENS);
  COMPUTE();
  const Trip t = trip_of(o, WHERE, blocks);
  const int64_t samples = arg(o, WHERE)->dim[0];
  if (!backward(o)) write_counts(o, &t, samples);
  for_tokens(o, &t, samples, dispatch_tokens);
  return PIPER_OK;
}

enum { BLOCKS, WEIGHTS, WHERE, N_COMBINED }; /* operands of combine */

static void combine_tokens(const Op *o, const void *arg_, int64_t lo, int64_t hi,
                           uint32_t thread) {
  const Trip *t = arg_;
  (void)thread;
  if (!backward(o))
    o->k->moe_combine(&t->blocks, &t->tokens, lo, hi, o->at[WEIGHTS], o->at[OUT(N_COMBINED)]);
  else if (o->call->wrt == BLOCKS)
    o->k->moe_combine_grad(&t->blocks, &t->tokens, lo, hi, o->at[WEIGHTS], o->at[DY(N_COMBINED)],
                           o->add);
  else
    o->k->moe_combine_weight_grad(&t->blocks, &t->tokens, lo, hi, o->at[DY(N_COMBINED)],
                                  o->at[DX(N_COMBINED)], o->add);
}

PiperStatus run_combine(Op *o) {
  const int wrt = o->call->wrt, y = backward(o) ? DY(N_COMBINED) : OUT(N_COMBINED);
  const int blocks = backward(o) && wrt == BLOCKS ? DX(N_COMBINED) : BLOCKS;
  const int weights = backward(o) && wrt == WEIGHTS ? DX(N_COMBINED) : WEIGHTS;
  NEED(wrt <= WEIGHTS && has(o, blocks) && has(o, weights) && has(o, WHERE) && has(o, y));
  NEED(tokens_fit(o, y, WHERE, blocks) && is(o, weights, (DType)arg(o, y)->dtype));
  NEED(same_shape(o, weights, WHERE));
  COMPUTE();
  const Trip t = trip_of(o, WHERE, blocks);
  const int64_t samples = arg(o, WHERE)->dim[0];
  if (blocks != BLOCKS) write_counts(o, &t, samples);
  for_tokens(o, &t, samples, combine_tokens);
  return PIPER_OK;
}

/* ---- the experts ------------------------------------------------------------------------------ */

PiperStatus run_expert_ends(Op *o) {
  enum { BLOCKS_, N };
  NEED(!backward(o) && is_real(o, BLOCKS_) && are_blocks(o, BLOCKS_, (DType)arg(o, BLOCKS_)->dtype));
  NEED(is(o, OUT(N), DT_I32) && arg(o, OUT(N))->rank == 2);
  NEED(arg(o, OUT(N))->dim[0] == arg(o, BLOCKS_)->dim[0]);
  NEED(arg(o, OUT(N))->dim[1] == arg(o, BLOCKS_)->dim[1]);
  NEED(count(o, BLOCKS_) / last(o, BLOCKS_, 0) <= MAX_INDEX);
  COMPUTE();
  const MoeBlocks b = blocks_of(o, BLOCKS_);
  const int64_t bad = o->k->moe_ends(&b, arg(o, BLOCKS_)->dim[0], o->at[OUT(N)]);
  if (bad < 0) return PIPER_OK;
  return err_set(o->err, PIPER_EBUG, "the count of expert %lld is none: its tokens were not written",
                 (long long)(bad % b.experts));
}

/* Ends are [samples, E], packed rows [samples, rows, width]. */
static bool ends_fit(const Op *o, int ends, int packed) {
  return is(o, ends, DT_I32) && arg(o, ends)->rank == 2 && has(o, packed) &&
         arg(o, packed)->rank == 3 && arg(o, packed)->dim[0] == arg(o, ends)->dim[0];
}

/* Rows in use, all experts together. */
static int64_t packed_rows(const Op *o, int ends) {
  return ((const int32_t *)o->at[ends])[count(o, ends) - 1];
}

static PiperStatus too_many(const Op *o, int64_t rows) {
  return err_set(o->err, PIPER_EBUG, "experts have %lld tokens, which is more than there is room for",
                 (long long)rows);
}

typedef struct Move {
  MoeBlocks blocks;
  int64_t samples;
  int ends, packed;
  bool pack;
} Move;

static void move_blocks(const Op *o, const void *arg_, int64_t lo, int64_t hi, uint32_t thread) {
  const Move *m = arg_;
  (void)thread;
  o->k->moe_move(&m->blocks, m->samples, lo, hi, o->at[m->ends], o->at[m->packed], m->pack, o->add);
}

/* Pack and unpack are each other's gradient. */
PiperStatus run_pack(Op *o) {
  enum { FROM, ENDS, N };
  const int from = backward(o) ? DY(N) : FROM, to = backward(o) ? DX(N) : OUT(N);
  const bool pack = (o->call->op == OP_PACK) != backward(o);
  const int blocks = pack ? from : to, packed = pack ? to : from;
  NEED(o->call->wrt == FROM && is_real(o, from) && is(o, to, (DType)arg(o, from)->dtype));
  NEED(are_blocks(o, blocks, (DType)arg(o, from)->dtype) && has(o, ENDS));
  NEED(ends_fit(o, ENDS, packed));
  NEED(arg(o, blocks)->dim[0] == arg(o, ENDS)->dim[0] && arg(o, blocks)->dim[1] == arg(o, ENDS)->dim[1]);
  NEED(last(o, packed, 0) == last(o, blocks, 0));
  COMPUTE();
  const int64_t samples = arg(o, ENDS)->dim[0], rows = packed_rows(o, ENDS);
  if (rows > samples * last(o, packed, 1)) return too_many(o, rows);
  const Move m = {blocks_of(o, blocks), samples, ENDS, packed, pack};
  const double each = (double)(rows * m.blocks.width) / (double)count(o, ENDS);
  op_split(o, count(o, ENDS), 1, 2 * each, move_blocks, &m);
  return PIPER_OK;
}

PiperStatus run_expert_linear(Op *o) {
  enum { ROWS, W, ENDS, N };
  const int wrt = o->call->wrt, y = backward(o) ? DY(N) : OUT(N);
  const int x = backward(o) && wrt == ROWS ? DX(N) : ROWS, w = backward(o) && wrt == W ? DX(N) : W;
  NEED(wrt <= W && is_real(o, y));
  const DType t = (DType)arg(o, y)->dtype;
  NEED(is(o, x, t) && is(o, w, t) && has(o, ENDS) && arg(o, w)->rank == 2);
  NEED(ends_fit(o, ENDS, x) && ends_fit(o, ENDS, y) && last(o, x, 1) == last(o, y, 1));
  const int64_t in = last(o, w, 0), out = last(o, w, 1);
  NEED(last(o, x, 0) == in && last(o, y, 0) == out);
  const int64_t samples = arg(o, ENDS)->dim[0], experts = arg(o, ENDS)->dim[1];
  const double expert = o->call->attrs.d[0];
  NEED(expert >= 0 && expert < (double)experts && expert == (double)(int64_t)expert);
  COMPUTE();
  const int64_t e = (int64_t)expert;
  const int32_t *last_ends = (const int32_t *)o->at[ENDS] + (samples - 1) * experts;
  const int64_t lo = e > 0 ? last_ends[e - 1] : 0, n = last_ends[e] - lo;
  if (last_ends[e] > samples * last(o, x, 1)) return too_many(o, last_ends[e]);
  void *x_at = op_at(o, x, lo * in), *y_at = op_at(o, y, lo * out), *w_at = o->at[w];
  if (n == 0) { /* the gradient of a weight is written all the same */
    if (backward(o) && wrt == W && !o->add) op_fill(o, w, 0, false);
  } else if (!backward(o)) { /* x [n, in] w^T [in, out] */
    op_gemm(o, &(Gemm){.m = n, .n = out, .k = in, .a = x_at, .lda = in, .b = w_at, .ldb = in,
                       .b_trans = true, .c = y_at, .ldc = out});
  } else if (wrt == ROWS) { /* dy [n, out] w [out, in] */
    op_gemm(o, &(Gemm){.m = n, .n = in, .k = out, .a = y_at, .lda = out, .b = w_at, .ldb = in,
                       .c = x_at, .ldc = in, .start = o->add ? x_at : NULL, .ld_start = in});
  } else { /* dy^T [out, n] x [n, in] */
    op_gemm(o, &(Gemm){.m = out, .n = in, .k = n, .a = y_at, .lda = out, .a_trans = true, .b = x_at,
                       .ldb = in, .c = w_at, .ldc = in, .start = o->add ? w_at : NULL,
                       .ld_start = in});
  }
  return PIPER_OK;
}

enum { GATE, UP, ENDS, N_GATED };

static void *gated_at(const Op *o, int i, int64_t at) {
  return has(o, i) ? op_at(o, i, at) : NULL;
}

static void swiglu_part(const Op *o, const void *arg_, int64_t lo, int64_t hi, uint32_t thread) {
  const int dgate = DX_JOINT(N_GATED, GATE), dup = DX_JOINT(N_GATED, UP);
  const void *gate = op_at(o, GATE, lo), *up = gated_at(o, UP, lo);
  (void)arg_, (void)thread;
  if (!backward(o)) o->k->swiglu(hi - lo, gate, up, op_at(o, OUT(N_GATED), lo));
  else
    o->k->swiglu_grad(hi - lo, gate, up, op_at(o, DY(N_GATED), lo), gated_at(o, dgate, lo),
                      adds(o, GATE), gated_at(o, dup, lo), adds(o, UP));
}

/* As swiglu, of the rows in use. */
PiperStatus run_expert_swiglu(Op *o) {
  const int y = backward(o) ? DY(N_GATED) : OUT(N_GATED);
  NEED(is_real(o, GATE) && has(o, ENDS) && ends_fit(o, ENDS, GATE));
  const DType t = (DType)arg(o, GATE)->dtype;
  NEED(is(o, y, t) && same_shape(o, GATE, y));
  NEED(!has(o, UP) || (is(o, UP, t) && same_shape(o, GATE, UP)));
  if (backward(o)) {
    const int dgate = DX_JOINT(N_GATED, GATE), dup = DX_JOINT(N_GATED, UP);
    NEED((has(o, dgate) && has(o, UP)) || has(o, dup));
    NEED(!has(o, dgate) || (is(o, dgate, t) && same_shape(o, GATE, dgate)));
    NEED(!has(o, dup) || (is(o, dup, t) && same_shape(o, GATE, dup)));
  } else {
    NEED(has(o, UP));
  }
  COMPUTE();
  const int64_t rows = packed_rows(o, ENDS);
  if (rows > arg(o, GATE)->dim[0] * last(o, GATE, 1)) return too_many(o, rows);
  op_split(o, rows * last(o, GATE, 0), OP_LINE, 20, swiglu_part, NULL);
  return PIPER_OK;
}
