/* random_model.h - random op graphs: the same ops for the same seed, however they are cut. Skip
 * connections, shared and unused values, tied and frozen parameters, reshapes at both ends of a
 * chunk, several losses all come up. */
#ifndef PIPER_TESTS_RANDOM_MODEL_H
#define PIPER_TESTS_RANDOM_MODEL_H

#include "ir/graph.h"

#include "tap.h"

enum { MODEL_POOL = 64 };

typedef struct RandomModel {
  Graph *g;
  uint64_t state;
  uint64_t cuts;                              /* bit i: a chunk ends before op i */
  int n_ops;                                  /* added so far */
  int cut_at;                                 /* the op before which the newest chunk began */
  ValueId pool[MODEL_POOL], sums[MODEL_POOL]; /* with a batch axis or none; sums over samples */
  int n_pool, n_sums;
  ValueId ids;
  char name[16];
} RandomModel;

static inline uint64_t model_next(RandomModel *m) { /* splitmix64 */
  uint64_t z = m->state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static inline int model_int(RandomModel *m, int n) { return (int)(model_next(m) % (uint64_t)n); }

static inline void model_boundary(RandomModel *m) {
  PiperErr err = {0};
  if (m->n_ops >= 64 || !(m->cuts >> m->n_ops & 1) || m->cut_at == m->n_ops) return;
  if (m->n_ops > 0 && graph_leave(m->g, "PP", &err) != PIPER_OK) bail(err.text);
  if (graph_enter(m->g, "PP", &err) != PIPER_OK) bail(err.text);
  m->cut_at = m->n_ops;
}

/* 0: the op does not take these operands; nothing changed. */
static inline ValueId model_op(RandomModel *m, OpSpec spec) {
  ValueId out;
  model_boundary(m);
  if (graph_add_op(m->g, &spec, 0, &out, NULL) != PIPER_OK) return (ValueId){0};
  m->n_ops++;
  const Value *v = graph_value(m->g, out);
  if (v->batch == BATCH_PARTIAL) {
    if (m->n_sums < MODEL_POOL) m->sums[m->n_sums++] = out;
  } else if (m->n_pool < MODEL_POOL) {
    m->pool[m->n_pool++] = out;
  }
  return out;
}

/* A new parameter, or (tied) one that has this shape already. */
static inline ValueId model_param(RandomModel *m, Shape shape) {
  PiperErr err = {0};
  ValueId out;
  const bool tie = model_int(m, 3) == 0;
  for (uint32_t p = 1; tie && p < m->g->params.n; p++)
    if (shape_equal(&m->g->params.at[p].shape, &shape)) return m->g->params.at[p].value;
  snprintf(m->name, sizeof m->name, "p%u", (unsigned)m->g->params.n);
  const ParamSpec spec = {.name = m->name, .shape = shape};
  if (graph_add_param(m->g, &spec, 0, &out, &err) != PIPER_OK) bail(err.text);
  return out;
}

static inline Shape model_shape(int rank, int64_t a, int64_t b) {
  return (Shape){.rank = (uint8_t)rank, .dim = {a, b}};
}

static inline ValueId model_pick(RandomModel *m) { return m->pool[model_int(m, m->n_pool)]; }

static inline void model_layer(RandomModel *m, ValueId x, const Shape *s) {
  const int64_t in = s->dim[s->rank - 1], out = 1 + model_int(m, 4);
  OpSpec spec = {.kind = OP_LINEAR, .in = {x, model_param(m, model_shape(2, out, in))}};
  if (model_int(m, 2)) spec.in[2] = model_param(m, model_shape(1, out, 0));
  model_op(m, spec);
}

static inline void model_reshape(RandomModel *m, ValueId x, const Shape *s) {
  Shape to = *s;
  switch (model_int(m, 4)) {
  case 0: /* [.., a, b] -> [.., a * b] */
    if (s->rank < 2 || (s->rank == 2 && s->batched)) return;
    to.rank--;
    to.dim[to.rank - 1] = s->dim[s->rank - 2] * s->dim[s->rank - 1];
    break;
  case 1: /* [batch, a, ..] -> [batch * a, ..] */
    if (s->rank < 3) return;
    to.rank--;
    to.dim[0] = s->dim[0] * s->dim[1];
    for (int i = 1; i < to.rank; i++) to.dim[i] = s->dim[i + 1];
    break;
  case 2: /* one more axis */
    if (s->rank >= 4) return;
    to.dim[to.rank++] = 1;
    break;
  default: /* the same again */
    break;
  }
  model_op(m, (OpSpec){.kind = OP_RESHAPE, .in = {x}, .reshape_to = &to});
}

/* Ops with an auxiliary output, ops with one call for all gradients, and others of transformers. */
static inline void model_transformer_step(RandomModel *m, ValueId x, const Shape *s) {
  const int64_t last = s->rank > 0 ? s->dim[s->rank - 1] : 0;
  const int first_axis = s->batched ? 1 : 0, n_axes = s->rank - first_axis;
  const OpKind smooth[] = {OP_GELU, OP_SILU};
  OpSpec spec = {.in = {x}};
  switch (model_int(m, 6)) {
  case 0:
    spec.kind = smooth[model_int(m, 2)];
    break;
  case 1:
    if (n_axes < 1) return;
    spec.kind = OP_SOFTMAX;
    break;
  case 2:
    if (n_axes < 1) return;
    spec.kind = model_int(m, 2) ? OP_RMSNORM : OP_LAYERNORM;
    spec.in[1] = model_param(m, model_shape(1, last, 0));
    if (spec.kind == OP_LAYERNORM && model_int(m, 2))
      spec.in[2] = model_param(m, model_shape(1, last, 0));
    spec.attrs.d[0] = 0.5; /* a row may be nearly constant */
    break;
  case 3: /* with any value of that shape: itself, a parameter reshaped, ... */
    spec.kind = OP_SWIGLU;
    spec.in[1] = model_pick(m);
    for (int i = 0; i < 8 && !shape_equal(&graph_value(m->g, spec.in[1])->shape, s); i++)
      spec.in[1] = model_pick(m);
    break;
  case 4:
    spec.kind = OP_DROPOUT;
    spec.attrs.d[0] = 0.4;
    break;
  default:
    if (n_axes < 1) return;
    spec.kind = model_int(m, 2) ? OP_TRANSPOSE : OP_SLICE;
    spec.attrs.d[0] = first_axis + model_int(m, n_axes);
    spec.attrs.d[1] = first_axis + model_int(m, n_axes);
    if (spec.kind == OP_SLICE) {
      const int size = (int)s->dim[(int)spec.attrs.d[0]];
      spec.attrs.d[1] = model_int(m, size);
      spec.attrs.d[2] = spec.attrs.d[1] + 1 + model_int(m, size - (int)spec.attrs.d[1]);
    }
    break;
  }
  model_op(m, spec);
}

/* An op of a mixture of experts: what lies between them is not for others to use. */
static inline ValueId model_moe_op(RandomModel *m, OpSpec spec) {
  PiperErr err = {0};
  ValueId out;
  model_boundary(m);
  if (graph_add_op(m->g, &spec, 0, &out, &err) != PIPER_OK) bail(err.text);
  m->n_ops++;
  return out;
}

static inline ValueId model_stack(RandomModel *m, int64_t experts, int64_t out, int64_t in) {
  PiperErr err = {0};
  ValueId params[4], stack;
  for (int64_t i = 0; i < experts; i++) params[i] = model_param(m, model_shape(2, out, in));
  if (graph_add_stack(m->g, params, (uint32_t)experts, &stack, &err) != PIPER_OK) bail(err.text);
  return stack;
}

/* As nn.moe, of x [batch, S, C]: one to four experts, some of them with less room than tokens. */
static inline void model_moe(RandomModel *m, ValueId x, const Shape *s) {
  if (s->rank != 3 || !s->batched || s->dim[0] != 1) return;
  const int64_t tokens = s->dim[1], width = s->dim[2], experts = 1 + model_int(m, 4), hidden = 2;
  const double k = 1 + model_int(m, experts < 2 ? 1 : 2);
  const double capacity = 1 + model_int(m, (int)tokens), e = (double)experts;
  double rows = k * (double)tokens;
  if (rows > e * capacity) rows = e * capacity;
  const ValueId router = model_param(m, model_shape(2, experts, width));
  const ValueId logits = model_moe_op(m, (OpSpec){.kind = OP_LINEAR, .in = {x, router}});
  const ValueId slots =
      model_moe_op(m, (OpSpec){.kind = OP_ROUTE, .in = {logits}, .attrs = {{k, capacity}}});
  const ValueId weights = model_moe_op(
      m, (OpSpec){
             .kind = OP_GATE, .in = {logits, slots}, .attrs = {{model_int(m, 2), capacity}}});
  model_op(m, (OpSpec){.kind = OP_BALANCE, .in = {logits, slots}, .attrs = {{0, capacity}}});
  ValueId blocks = model_moe_op(
      m, (OpSpec){.kind = OP_DISPATCH, .in = {x, slots}, .attrs = {{e, 1 + capacity}}});
  const ValueId ends = model_moe_op(m, (OpSpec){.kind = OP_EXPERT_ENDS, .in = {blocks}});
  const ValueId packed =
      model_moe_op(m, (OpSpec){.kind = OP_PACK, .in = {blocks, ends}, .attrs = {{rows}}});
  ValueId h[2];
  for (int i = 0; i < 2; i++)
    h[i] = model_moe_op(m, (OpSpec){.kind = OP_EXPERT_LINEAR,
                                    .in = {packed, model_stack(m, experts, hidden, width), ends}});
  h[0] = model_moe_op(m, (OpSpec){.kind = OP_EXPERT_SWIGLU, .in = {h[0], h[1], ends}});
  h[0] = model_moe_op(m, (OpSpec){.kind = OP_EXPERT_LINEAR,
                                  .in = {h[0], model_stack(m, experts, width, hidden), ends}});
  blocks = model_moe_op(
      m, (OpSpec){.kind = OP_UNPACK, .in = {h[0], ends}, .attrs = {{1 + capacity}}});
  model_op(m, (OpSpec){.kind = OP_COMBINE, .in = {blocks, weights, slots}});
}

static inline void model_step(RandomModel *m) {
  const ValueId x = model_pick(m);
  const Shape s = graph_value(m->g, x)->shape;
  const int64_t last = s.rank > 0 ? s.dim[s.rank - 1] : 0;
  const bool feature = s.rank > (s.batched ? 1 : 0); /* the last axis is not the batch */
  const OpKind binary[] = {OP_ADD, OP_SUB, OP_MUL};
  const OpKind sum[] = {OP_SUM, OP_MEAN, OP_SUM_SQUARES};
  switch (model_int(m, 17)) {
  case 16:
    model_moe(m, x, &s);
    return;
  case 12:
  case 13:
  case 14:
  case 15:
    model_transformer_step(m, x, &s);
    return;
  case 0:
  case 1:
    if (s.rank >= 2) model_layer(m, x, &s);
    return;
  case 2:
    model_op(m, (OpSpec){.kind = OP_RELU, .in = {x}});
    return;
  case 3:
    model_op(m, (OpSpec){.kind = OP_SCALE, .in = {x}, .attrs = {{0.5}}});
    return;
  case 4:
  case 5:
    model_reshape(m, x, &s);
    return;
  case 6:
    model_op(m, (OpSpec){.kind = binary[model_int(m, 3)], .in = {x, model_pick(m)}});
    return;
  case 7:
    if (feature)
      model_op(m, (OpSpec){.kind = binary[model_int(m, 3)],
                           .in = {x, model_param(m, model_shape(1, last, 0))}});
    return;
  case 8:
    if (feature && s.rank >= 2)
      model_op(m, (OpSpec){.kind = OP_MATMUL, .in = {x, model_param(m, model_shape(2, last, 2))}});
    return;
  case 9:
    model_op(m,
             (OpSpec){.kind = OP_EMBEDDING, .in = {m->ids, model_param(m, model_shape(2, 5, 3))}});
    return;
  case 10: { /* a parameter reshaped: an independent value that may cross chunks */
    const ValueId p = model_param(m, model_shape(2, 3, 2));
    const Shape flat = model_shape(1, 6, 0);
    model_op(m, (OpSpec){.kind = OP_RESHAPE, .in = {p}, .reshape_to = &flat});
    return;
  }
  default:
    model_op(m, (OpSpec){.kind = sum[model_int(m, 3)], .in = {x}});
    return;
  }
}

static inline void model_loss(RandomModel *m, ValueId v) {
  PiperErr err = {0};
  model_boundary(m);
  if (graph_add_loss(m->g, v, 0, &err) != PIPER_OK) bail(err.text);
}

static inline void model_losses(RandomModel *m) {
  const ValueId h = model_pick(m);
  model_op(m, (OpSpec){.kind = OP_MSE, .in = {h, h}});
  OpSpec entropy = {.kind = OP_CROSS_ENTROPY, .in = {m->pool[1], m->ids}};
  if (model_int(m, 2)) { /* a class that is ignored: the divisor is counted */
    entropy.attrs.d[1] = model_int(m, 2);
    entropy.attrs.d[2] = 1;
  }
  model_op(m, entropy);
  for (int i = 0; i < 3; i++) {
    ValueId s =
        model_op(m, (OpSpec){.kind = OP_SUM_SQUARES, .in = {m->pool[m->n_pool - 1 - i * 2]}});
    s = model_op(m, (OpSpec){.kind = OP_SCALE, .in = {s}, .attrs = {{0.25}}});
    const ValueId t = m->sums[model_int(m, m->n_sums)];
    if (model_int(m, 2)) s = model_op(m, (OpSpec){.kind = OP_ADD, .in = {s, t}});
    if (model_int(m, 3) == 0)
      s = model_op(m, (OpSpec){.kind = OP_RESHAPE, .in = {s}, .reshape_to = &(Shape){0}});
    if (i == 0 || model_int(m, 2)) model_loss(m, s);
  }
  for (uint32_t p = 1; p < m->g->params.n; p++) { /* each parameter has to have a use */
    bool used = false;
    for (uint32_t o = 1; o < m->g->ops.n; o++)
      for (int i = 0; i < 3; i++) {
        uint32_t n;
        const uint32_t *params = graph_value_params(m->g, m->g->ops.at[o].in[i], &n);
        for (uint32_t k = 0; k < n; k++) used |= params[k] == p;
      }
    if (!used)
      model_loss(m, model_op(m, (OpSpec){.kind = OP_SUM, .in = {m->g->params.at[p].value}}));
  }
}

/* 'cuts' bit i: a chunk ends before op i; *n_ops: how many ops there were to cut between. */
static inline Graph *random_model(uint64_t seed, uint64_t cuts, int *n_ops) {
  PiperErr err = {0};
  RandomModel m = {.g = graph_new("random"), .state = seed, .cuts = cuts | 1, .cut_at = -1};
  if (m.g == NULL) bail("no memory");
  const Shape x = {.rank = 2, .batched = true, .dim = {1, 3}};
  const Shape y = {.rank = 3, .batched = true, .dim = {1, 2, 5}};
  const Shape ids = {.rank = 2, .batched = true, .dim = {1, 2}};
  if (graph_add_input(m.g, "x", &x, DT_FLOAT, 0, &m.pool[0], &err) != PIPER_OK ||
      graph_add_input(m.g, "y", &y, DT_FLOAT, 0, &m.pool[1], &err) != PIPER_OK ||
      graph_add_input(m.g, "ids", &ids, DT_I32, 0, &m.ids, &err) != PIPER_OK)
    bail(err.text);
  m.n_pool = 2;
  if (model_int(&m, 2)) model_layer(&m, m.pool[1], &y);
  while (m.n_ops < 14) model_step(&m);
  while (m.n_pool < 5 || m.n_sums < 1) model_step(&m);
  model_losses(&m);
  if (graph_leave(m.g, "PP", &err) != PIPER_OK) bail(err.text);
  for (uint32_t p = 1; p < m.g->params.n; p++) m.g->params.at[p].frozen = model_int(&m, 4) == 0;
  if (graph_cut(m.g, &err) != PIPER_OK) bail(err.text);
  *n_ops = m.n_ops < 64 ? m.n_ops : 64;
  return m.g;
}

#endif
