/* The forward pass of a chunk: its ops in trace order. A RESHAPE is a call only where it has to copy
 * (program_chunk.c says where), and a loss is handed to the metrics as soon as it is known. What some
 * losses divide by is counted by a program of its own, from the targets alone.
 *
 * R, the forward pass once more, runs only the ops that the backward passes need; it neither copies
 * outputs nor counts losses and dropped tokens a second time. */
#include "ir/program_build.h"

static bool needs_copy(const ProgramBuild *b, ValueId out) {
  const ChunkValue *v = &b->values.at[build_find(b, out)];
  return v->output && b->values.at[v->root].owner.i != out.i;
}

static void copy_output(ProgramBuild *b, const Op *op) {
  const Place from = build_value(b, op->in[0]);
  const Place to = build_place(b, (Binding){.kind = BIND_VALUE, .value = op->out}, 0);
  build_call(b, op->kind, KERNEL_F, 2);
  build_arg(b, 0, from, op->in[0], BIND_READ);
  build_arg(b, 1, to, op->out, BIND_WRITE);
  build_cost(b, (OpCost){.bytes = 2 * (double)build_bytes(b, op->out)});
}

/* One call for each expert, with its own weight. */
static void run_experts(ProgramBuild *b, OpId id) {
  enum { ROWS, WEIGHTS, ENDS, N };
  const Op *op = graph_op(b->graph, id);
  const Place rows = build_value(b, op->in[ROWS]), ends = build_value(b, op->in[ENDS]);
  const Place out = build_value(b, op->out);
  const StackPart part = build_stack(b, op->in[WEIGHTS]);
  for (uint32_t k = 0; k < part.n; k++) {
    const ValueId weight = graph_param(b->graph, (ParamId){part.params[k]})->value;
    const Place w = build_value(b, weight);
    KernelCall *call = build_call(b, op->kind, KERNEL_F, N + 1);
    if (call == NULL) return;
    call->attrs.d[0] = k;
    build_arg(b, ROWS, rows, op->in[ROWS], BIND_READ);
    build_arg(b, WEIGHTS, w, weight, BIND_READ);
    build_arg(b, ENDS, ends, op->in[ENDS], BIND_READ);
    build_arg(b, N, out, op->out, BIND_WRITE);
  }
  build_cost(b, graph_op_cost(b->graph, id, KERNEL_F, 0, b->samples, b->float_bytes));
}

static void run_op(ProgramBuild *b, OpId id) {
  const Op *op = graph_op(b->graph, id);
  if (op->kind == OP_EXPERT_LINEAR) {
    run_experts(b, id);
    return;
  }
  const uint32_t n = (uint32_t)OP_INFO[op->kind].n_operands;
  Place in[3] = {{0}};
  for (uint32_t i = 0; i < n; i++)
    if (op->in[i].i != 0) in[i] = build_value(b, op->in[i]);
  const Place out = build_value(b, op->out);
  const Place aux = op->aux.i != 0 ? build_value(b, op->aux) : out;
  const Place count = op->count != 0 ? build_count(b, op) : out;
  const bool copies = op->kind == OP_DROPOUT && b->dag->forward_only; /* drops nothing */
  KernelCall *call = build_call(b, copies ? OP_RESHAPE : op->kind, KERNEL_F,
                                op->count != 0   ? n + 3
                                : op->aux.i != 0 ? n + 2
                                                 : n + 1);
  if (call == NULL) return;
  if (!copies) call->attrs = build_attrs(b, op);
  for (uint32_t i = 0; i < n; i++)
    if (op->in[i].i != 0) build_arg(b, i, in[i], op->in[i], BIND_READ);
  build_arg(b, n, out, op->out, BIND_WRITE);
  if (op->aux.i != 0) build_arg(b, n + 1, aux, op->aux, BIND_WRITE);
  if (op->count != 0) build_arg_flat(b, n + 2, count, DT_F64, 1, BIND_READ);
  build_cost(b, graph_op_cost(b->graph, id, KERNEL_F, 0, b->samples, b->float_bytes));
}

static void add_to_metrics(ProgramBuild *b, ValueId value, uint32_t loss) {
  const Place from = build_value(b, value);
  const Place to = build_place(b, (Binding){.kind = BIND_METRICS}, (loss - 1) * sizeof(double));
  KernelCall *call = build_call(b, OP_LOSS, KERNEL_F, 2);
  if (call == NULL) return;
  call->accumulate = true; /* the host zeroes the metrics before each step */
  build_arg(b, 0, from, value, BIND_READ);
  build_arg_flat(b, 1, to, DT_F64, 1, BIND_READ | BIND_WRITE);
}

/* What the backward passes read, and what it is computed from. Groups of RESHAPEs are one value. */
static void find_wanted(ProgramBuild *b) {
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  for (uint32_t i = 1; i < b->values.n; i++) b->values.at[i].wanted = b->values.at[i].readers != 0;
  for (uint32_t o = c->end_op; o-- > c->first_op;) {
    const Op *op = graph_op(b->graph, (OpId){o});
    const bool wanted =
        build_root(b, op->out)->wanted || (op->aux.i != 0 && build_root(b, op->aux)->wanted);
    for (int i = 0; i < 3 && wanted; i++)
      if (op->in[i].i != 0) build_root(b, op->in[i])->wanted = true;
  }
}

void build_again(ProgramBuild *b) {
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  find_wanted(b);
  for (uint32_t o = c->first_op; o < c->end_op && b->failed == PIPER_OK; o++) {
    const Op *op = graph_op(b->graph, (OpId){o});
    if (op_is_view(op)) continue;
    if (build_root(b, op->out)->wanted || (op->aux.i != 0 && build_root(b, op->aux)->wanted))
      run_op(b, (OpId){o});
  }
}

/* Experts that were full are counted where the choice is made. */
static void count_dropped(ProgramBuild *b, const Op *op) {
  const Place from = build_value(b, op->out);
  const Place to = build_place(b, (Binding){.kind = BIND_METRICS},
                               graph_metric_dropped(b->graph) * sizeof(double));
  KernelCall *call = build_call(b, OP_DROPPED, KERNEL_F, 2);
  if (call == NULL) return;
  call->accumulate = true; /* as above */
  build_arg(b, 0, from, op->out, BIND_READ);
  build_arg_flat(b, 1, to, DT_F64, 1, BIND_READ | BIND_WRITE);
}

/* The targets: an input of the model, or an input under another shape, or a part of it. */
static Place build_ids(ProgramBuild *b, ValueId v) {
  const Value *value = graph_value(b->graph, v);
  if (value->kind == VALUE_INPUT) return build_place(b, (Binding){.kind = BIND_INPUT, .value = v}, 0);
  const Op *op = graph_op(b->graph, value->op);
  const Place from = build_ids(b, op->in[0]);
  if (op_is_view(op)) return from;
  uint32_t temp = 0;
  const Place to = build_temp(b, &temp, v);
  KernelCall *call = build_call(b, op->kind, KERNEL_F, 2);
  if (call == NULL) return from;
  call->attrs = op->attrs;
  build_arg(b, 0, from, op->in[0], BIND_READ);
  build_arg(b, 1, to, v, BIND_WRITE);
  build_cost(b, graph_op_cost(b->graph, value->op, KERNEL_F, 0, b->samples, b->float_bytes));
  return to;
}

void build_targets(ProgramBuild *b) {
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  for (uint32_t o = c->first_op; o < c->end_op && b->failed == PIPER_OK; o++) {
    const Op *op = graph_op(b->graph, (OpId){o});
    if (op->count == 0) continue;
    const Place targets = build_ids(b, op->in[1]), count = build_count(b, op);
    KernelCall *call = build_call(b, OP_COUNT, KERNEL_F, 2);
    if (call == NULL) return;
    call->attrs.d[0] = op->attrs.d[1];
    call->accumulate = true; /* the host zeroes the counts before each step */
    build_arg(b, 0, targets, op->in[1], BIND_READ);
    build_arg_flat(b, 1, count, DT_F64, 1, BIND_READ | BIND_WRITE);
    build_cost(b, (OpCost){.bytes = (double)build_bytes(b, op->in[1])});
  }
}

void build_forward(ProgramBuild *b) {
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  for (uint32_t o = c->first_op; o < c->end_op && b->failed == PIPER_OK; o++) {
    const Op *op = graph_op(b->graph, (OpId){o});
    if (!op_is_view(op)) run_op(b, (OpId){o});
    else if (needs_copy(b, op->out)) copy_output(b, op);
    if (op_may_drop(b->graph, op)) count_dropped(b, op);
    const uint32_t loss = build_loss(b, op->out);
    if (loss != 0) add_to_metrics(b, op->out, loss);
  }
}
