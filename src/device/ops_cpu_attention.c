/* ops_cpu_attention.c - attention and the positions that enter it. Arrays are (.., positions, heads,
 * width); the leading axes are samples. */
#include "device/ops_cpu_op.h"

#include <math.h>

static int64_t samples_of(const Op *o, int i) {
  return count(o, i) / (last(o, i, 0) * last(o, i, 1) * last(o, i, 2));
}

static HeadSteps steps_of(const Op *o, int i) {
  const int64_t head = last(o, i, 0), position = last(o, i, 1) * head;
  return (HeadSteps){last(o, i, 2) * position, position, head};
}

/* ---- rope -------------------------------------------------------------------------------------- */

static void rope_positions(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const HeadSteps step = steps_of(o, TO(o));
  (void)arg;
  (void)thread;
  o->k->rope(&(Rope){.samples = samples_of(o, TO(o)),
                     .positions = hi - lo,
                     .heads = last(o, TO(o), 1),
                     .width = last(o, TO(o), 0),
                     .position = (int64_t)o->call->attrs.d[1] + lo,
                     .base = o->call->attrs.d[0],
                     .backward = backward(o),
                     .add = backward(o) && o->add,
                     .x = op_at(o, FROM(o), lo * step.position),
                     .y = op_at(o, TO(o), lo * step.position),
                     .x_step = step,
                     .y_step = step});
}

/* The gradient turns back by the same angles and reads nothing else. */
PiperStatus run_rope(Op *o) {
  int from, to;
  const double base = o->call->attrs.d[0], position = o->call->attrs.d[1];
  TRY(unary(o, &from, &to));
  NEED(same_shape(o, from, to) && arg(o, to)->rank >= 3 && last(o, to, 0) % 2 == 0);
  NEED(base > 0 && isfinite(base) && position >= 0 && position <= 0x1p52);
  COMPUTE();
  const int64_t positions = last(o, to, 2);
  op_split(o, positions, 1, 3 * (double)(count(o, to) / positions), rope_positions, NULL);
  return PIPER_OK;
}

/* ---- attention --------------------------------------------------------------------------------- */

enum { Q, K, V, N };

static Attention attention_of(const Op *o) {
  const double *d = o->call->attrs.d;
  return (Attention){.samples = samples_of(o, Q),
                     .queries = last(o, Q, 2),
                     .keys = last(o, K, 2),
                     .heads = last(o, Q, 1),
                     .kv_heads = last(o, K, 1),
                     .width = last(o, Q, 0),
                     .scale = 1 / sqrt((double)last(o, Q, 0)),
                     .causal = d[0] != 0,
                     .query_position = (int64_t)d[1],
                     .key_position = (int64_t)d[2],
                     .q = o->at[Q],
                     .k = o->at[K],
                     .v = o->at[V],
                     .y = o->at[OUT(N)],
                     .lse = o->at[backward(o) ? AUX(N) : OUT_AUX(N)],
                     .q_step = steps_of(o, Q),
                     .k_step = steps_of(o, K),
                     .v_step = steps_of(o, V),
                     .y_step = steps_of(o, Q)};
}

static void attention_heads(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  o->k->attention(arg, lo, hi, op_scratch(o, thread));
}

static void attention_kv_heads(const Op *o, const void *arg, int64_t lo, int64_t hi, uint32_t thread) {
  const Attention *t = arg;
  const AttentionGrad g = {.t = t,
                           .dy = o->at[DY(N)],
                           .dq = o->at[DX_JOINT(N, Q)],
                           .dk = o->at[DX_JOINT(N, K)],
                           .dv = o->at[DX_JOINT(N, V)],
                           .dy_step = t->q_step,
                           .dq_step = t->q_step,
                           .dk_step = t->k_step,
                           .dv_step = t->v_step,
                           .add_dq = adds(o, Q),
                           .add_dk = adds(o, K),
                           .add_dv = adds(o, V)};
  o->k->attention_grad(&g, lo, hi, op_scratch(o, thread));
}

PiperStatus run_attention(Op *o) {
  const int lse = backward(o) ? AUX(N) : OUT_AUX(N);
  const double *d = o->call->attrs.d;
  NEED(is_real(o, Q) && arg(o, Q)->rank >= 3);
  const DType t = (DType)arg(o, Q)->dtype;
  NEED(is(o, K, t) && is(o, V, t) && same_shape(o, K, V) && arg(o, K)->rank >= 3);
  NEED(last(o, K, 0) == last(o, Q, 0) && last(o, Q, 1) % last(o, K, 1) == 0);
  NEED(samples_of(o, K) == samples_of(o, Q));
  NEED(is(o, OUT(N), t) && same_shape(o, Q, OUT(N)));
  NEED(is(o, lse, t) && count(o, lse) == count(o, Q) / last(o, Q, 0));
  NEED((d[0] == 0 || d[0] == 1) && d[1] >= 0 && d[1] <= 0x1p52 && d[2] >= 0 && d[2] <= 0x1p52);
  if (backward(o)) {
    const int dq = DX_JOINT(N, Q), dk = DX_JOINT(N, K), dv = DX_JOINT(N, V);
    NEED(is(o, DY(N), t) && same_shape(o, Q, DY(N)) && (has(o, dq) || has(o, dk) || has(o, dv)));
    NEED(!has(o, dq) || (is(o, dq, t) && same_shape(o, Q, dq)));
    NEED(!has(o, dk) || (is(o, dk, t) && same_shape(o, K, dk)));
    NEED(!has(o, dv) || (is(o, dv, t) && same_shape(o, V, dv)));
  }
  COMPUTE();
  const Attention a = attention_of(o);
  const double flops = (a.causal ? 2.0 : 4.0) * (double)(a.queries * a.keys * a.width);
  const double work = flops / OP_FLOPS_PER_WORK; /* of a head */
  if (backward(o))
    op_split(o, a.samples * a.kv_heads, 1, 2.5 * work * (double)(a.heads / a.kv_heads),
             attention_kv_heads, &a);
  else op_split(o, a.samples * a.heads, 1, work, attention_heads, &a);
  return PIPER_OK;
}
