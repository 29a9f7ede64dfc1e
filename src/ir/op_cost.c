/* flops come from the op's row in op_rules.c; bytes are those of each operand and result, once. */
#include "ir/op_rules.h"

#include <string.h>

static double elements(const Graph *g, ValueId v, int64_t samples) {
  if (v.i == 0) return 0;
  const Shape *s = &graph_value(g, v)->shape;
  return (double)shape_elements_per_sample(s) * (s->batched ? (double)samples : 1);
}

static double value_bytes(const Graph *g, ValueId v, int64_t samples, size_t float_bytes) {
  if (v.i == 0) return 0;
  const DType t = graph_value(g, v)->dtype;
  return elements(g, v, samples) * (double)(t == DT_FLOAT ? float_bytes : dtype_bytes(t));
}

/* Of its table an embedding touches one row an id. */
static double operand_bytes(const Graph *g, const Op *op, int i, int64_t samples,
                            size_t float_bytes) {
  const ValueId v = op->kind == OP_EMBEDDING && i == 1 ? op->out : op->in[i];
  return value_bytes(g, v, samples, float_bytes);
}

static double flop_space(const Graph *g, const Op *op, FlopSpace space, int64_t samples) {
  if (space == SPACE_IN) return elements(g, op->in[0], samples);
  const double out = elements(g, op->out, samples);
  if (space == SPACE_OUT) return out;
  const Shape *s = &graph_value(g, op->in[0])->shape;
  return out * (double)s->dim[s->rank - 1];
}

static OpCost forward_cost(const Graph *g, const Op *op, int64_t samples, size_t float_bytes) {
  const OpFlops f = op_flops(op->kind);
  OpCost c = {.flops = f.f * flop_space(g, op, f.space, samples),
              .bytes = value_bytes(g, op->out, samples, float_bytes)};
  for (int i = 0; i < OP_INFO[op->kind].n_operands; i++)
    c.bytes += operand_bytes(g, op, i, samples, float_bytes);
  return c;
}

static OpCost gradient_cost(const Graph *g, const Op *op, int wrt, int64_t samples,
                            size_t float_bytes) {
  const OpInfo *info = &OP_INFO[op->kind];
  if (wrt >= info->n_operands || op->in[wrt].i == 0 || info->saves[wrt][0] == '!')
    return (OpCost){0};
  const OpFlops f = op_flops(op->kind);
  OpCost c = {.flops = f.b[wrt] * flop_space(g, op, f.space, samples),
              .bytes = value_bytes(g, op->out, samples, float_bytes) +
                       operand_bytes(g, op, wrt, samples, float_bytes)};
  if (op->kind == OP_LINEAR && wrt == 2) c.flops = elements(g, op->out, samples);
  for (const char *s = info->saves[wrt]; *s != '\0'; s++) {
    if (*s >= '0' && *s <= '9') c.bytes += operand_bytes(g, op, *s - '0', samples, float_bytes);
    if (*s == 'y') c.bytes += value_bytes(g, op->out, samples, float_bytes);
  }
  return c;
}

OpCost graph_op_cost(const Graph *g, OpId id, KernelPart part, int wrt, int64_t samples,
                     size_t float_bytes) {
  const Op *op = graph_op(g, id);
  if (OP_INFO[op->kind].flags & OPF_VIEW) return (OpCost){0};
  return part == KERNEL_F ? forward_cost(g, op, samples, float_bytes)
                          : gradient_cost(g, op, wrt, samples, float_bytes);
}
