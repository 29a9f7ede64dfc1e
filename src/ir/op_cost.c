/* flops come from the op's row in op_rules.c; bytes are those of each operand and result, once. Of
 * blocks of experts only the rows in use count: as many as there are choices, or as there is room for. */
#include "ir/grad_flow.h"
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

/* The sum of 0, 1, 2, ..., last, where nothing counts more than 'most'. */
static double ramp(double last, double most) {
  if (last <= 0) return 0;
  return last <= most ? last * (last + 1) / 2 : most * (most + 1) / 2 + (last - most) * most;
}

/* Keys that a query of attention sees, on average: of a causal one, those up to its own position. */
static double keys_seen(const Graph *g, const Op *op) {
  const Shape *q = &graph_value(g, op->in[0])->shape, *k = &graph_value(g, op->in[1])->shape;
  const double queries = (double)q->dim[q->rank - 3], keys = (double)k->dim[k->rank - 3];
  if (op->attrs.d[0] == 0) return keys;
  const double before = op->attrs.d[1] - op->attrs.d[2]; /* keys that lie before the first query */
  return (ramp(before + queries, keys) - ramp(before, keys)) / queries;
}

static double flop_space(const Graph *g, const Op *op, FlopSpace space, int64_t samples) {
  if (space == SPACE_IN) return elements(g, op->in[0], samples);
  const double out = elements(g, op->out, samples);
  if (space == SPACE_OUT) return out;
  if (space == SPACE_OUT_BY_KEYS) return out * keys_seen(g, op);
  const Shape *s = &graph_value(g, op->in[0])->shape;
  return out * (double)s->dim[s->rank - 1];
}

/* Ops whose blocks are mostly padding: elements of the rows in use; < 0: no such op. */
static double used_elements(const Graph *g, const Op *op, int64_t samples) {
  if (op->kind == OP_PACK) return elements(g, op->out, samples);
  if (op->kind == OP_UNPACK) return elements(g, op->in[0], samples);
  if (op->kind == OP_EXPERT_ENDS) return elements(g, op->out, samples);
  if (op->kind != OP_DISPATCH && op->kind != OP_COMBINE) return -1;
  const ValueId blocks = op->kind == OP_DISPATCH ? op->out : op->in[0];
  const Shape *s = &graph_value(g, blocks)->shape;
  const double room = elements(g, blocks, samples);
  const double chosen = elements(g, op->in[1], samples) * (double)s->dim[s->rank - 1];
  return chosen < room ? chosen : room;
}

/* They read and write each of these once. */
static OpCost used_cost(const Op *op, double used, float per_element, size_t float_bytes) {
  if (op->kind == OP_EXPERT_ENDS) return (OpCost){used, 64 * used}; /* a cache line for each count */
  return (OpCost){per_element * used, 2 * used * (double)float_bytes};
}

static OpCost forward_cost(const Graph *g, const Op *op, int64_t samples, size_t float_bytes) {
  const OpFlops f = op_flops(op->kind);
  const double used = used_elements(g, op, samples);
  if (used >= 0) return used_cost(op, used, f.f, float_bytes);
  OpCost c = {.flops = f.f * flop_space(g, op, f.space, samples),
              .bytes = value_bytes(g, op->out, samples, float_bytes) +
                       value_bytes(g, op->aux, samples, float_bytes)};
  for (int i = 0; i < OP_INFO[op->kind].n_operands; i++)
    c.bytes += operand_bytes(g, op, i, samples, float_bytes);
  return c;
}

static double gradient_flops(const Graph *g, const Op *op, int wrt, int64_t samples) {
  const OpFlops f = op_flops(op->kind);
  if (op->kind == OP_LINEAR && wrt == 2) return elements(g, op->out, samples);
  return f.b[wrt] * flop_space(g, op, f.space, samples);
}

/* Of the operands in the mask, in one call: what several of them read is read once. */
static OpCost gradient_cost(const Graph *g, const Op *op, unsigned wrt_mask, int64_t samples,
                            size_t float_bytes) {
  const OpInfo *info = &OP_INFO[op->kind];
  OpCost c = {0};
  unsigned reads = 0; /* bits: operands; then the output, the auxiliary output */
  for (int wrt = 0; wrt < info->n_operands; wrt++) {
    if (!(wrt_mask & 1u << wrt) || op->in[wrt].i == 0 || info->saves[wrt][0] == '!') continue;
    c.flops += gradient_flops(g, op, wrt, samples);
    c.bytes += operand_bytes(g, op, wrt, samples, float_bytes);
    for (const char *s = info->saves[wrt]; *s != '\0'; s++) {
      if (*s >= '0' && *s <= '2') reads |= 1u << (*s - '0');
      if (*s == 'y') reads |= 1u << 3;
      if (*s == 'a') reads |= 1u << 4;
    }
  }
  if (c.bytes == 0) return c;
  c.bytes += value_bytes(g, op->out, samples, float_bytes); /* its gradient */
  for (int i = 0; i < 3; i++)
    if (reads & 1u << i) c.bytes += operand_bytes(g, op, i, samples, float_bytes);
  if (reads & 1u << 3) c.bytes += value_bytes(g, op->out, samples, float_bytes);
  if (reads & 1u << 4) c.bytes += value_bytes(g, op->aux, samples, float_bytes);
  return c;
}

static unsigned flowing(const Graph *g, const Op *op) {
  unsigned mask = 0;
  for (int wrt = 0; wrt < 3; wrt++) mask |= (unsigned)op_grad_flows(g, op, wrt) << wrt;
  return mask;
}

OpCost graph_op_cost(const Graph *g, OpId id, KernelPart part, int wrt, int64_t samples,
                     size_t float_bytes) {
  const Op *op = graph_op(g, id);
  if (OP_INFO[op->kind].flags & OPF_VIEW) return (OpCost){0};
  if (part == KERNEL_F) return forward_cost(g, op, samples, float_bytes);
  const double used = used_elements(g, op, samples);
  if (used >= 0) return used_cost(op, used, op_flops(op->kind).b[wrt], float_bytes);
  const unsigned mask = wrt == KERNEL_WRT_ALL ? flowing(g, op) : 1u << wrt;
  return gradient_cost(g, op, mask, samples, float_bytes);
}
