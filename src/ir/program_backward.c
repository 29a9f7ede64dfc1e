/* The backward passes of a chunk: the gradients of its ops, in reverse order of the ops.
 *
 * The gradient of a value is the sum of its contributions in this order, whatever the pass: 1 where
 * it is a loss; what other chunks contribute, by output and then by consumer; what the chunk's own
 * ops contribute, last op first, operands of one op in order. The first writes, the others add. B
 * is the calls of both classes in this order, BI those of CLASS_BI, BW those of CLASS_BW; no sum is
 * spread over two classes, so B gives the bits of BI and BW.
 *
 * Where a gradient lies:
 *
 *   of an input of the chunk       GRAD (value, this chunk)
 *   of a parameter                 PGRAD; the instruction says whether the first contribution of
 *                                  this program is the step's first to the bucket
 *   only one incoming contribution where that lies; BW binds it again
 *   kept (program_chunk.c), and the pass is split      KEPT
 *   of one OPF_OVER call, nothing else reads the value where the value is saved
 *   otherwise                      workspace
 *
 * A contribution is begun only when the first call needs it, which keeps temporaries short-lived. */
#include "ir/program_build.h"

#include "ir/grad_flow.h"

typedef struct Backward {
  ProgramBuild *b;
  int classes; /* of the calls that belong to this pass */
} Backward;

static int class_of(const ChunkValue *target) { return target->up ? CLASS_BI : CLASS_BW; }

static bool is_param(const ProgramBuild *b, const ChunkValue *root) {
  return graph_value(b->graph, root->value)->kind == VALUE_PARAM;
}

static Place incoming_place(ProgramBuild *b, const Incoming *in) {
  return build_place(b, (Binding){.kind = BIND_GRAD, .value = in->value, .chunk = in->consumer}, 0);
}

static Place grad_place(const Backward *w, ChunkValue *root) {
  ProgramBuild *b = w->b;
  if (!root->computed && is_param(b, root)) {
    const ParamHome *home = &b->dag->home[graph_value(b->graph, root->value)->param.i];
    return build_place(b, (Binding){.kind = BIND_PGRAD, .bucket = home->bucket},
                       (uint64_t)home->offset * b->float_bytes);
  }
  if (!root->computed)
    return build_place(b, (Binding){.kind = BIND_GRAD, .value = root->value, .chunk = b->chunk}, 0);
  if (grad_in_place(root)) return incoming_place(b, &b->incoming.at[root->first_incoming]);
  if (root->kept && w->classes != (CLASS_BI | CLASS_BW))
    return build_place(b, (Binding){.kind = BIND_KEPT}, root->kept_at);
  if (grad_over_value(root)) return build_value(b, root->value);
  return build_temp(b, &root->grad_temp, root->value);
}

/* A destination of the newest call: the gradient of 'root', in the shape of its member v. 'bit' of
 * accumulate is this destination's. */
static void write_grad(Backward *w, KernelCall *call, uint32_t arg, unsigned bit, ChunkValue *root,
                       Place at, ValueId v) {
  ProgramBuild *b = w->b;
  const bool from_step = !root->computed && is_param(b, root); /* others may have begun the sum */
  const bool add = root->grad_written || from_step;
  call->accumulate |= (uint8_t)((unsigned)add << bit);
  if (from_step && !root->grad_written) call->first_base = at.base;
  build_arg(b, arg, at, v, add ? BIND_READ | BIND_WRITE : BIND_WRITE);
  root->grad_written = true;
}

/* d loss / d loss, once for each loss that the group holds. */
static void write_seed(Backward *w, ChunkValue *root) {
  if (is_param(w->b, root)) {
    build_fail(w->b, PIPER_EBUG, "a loss is a parameter");
    return;
  }
  const Place to = grad_place(w, root);
  KernelCall *call = build_call(w->b, OP_FILL, KERNEL_F, 1);
  if (call == NULL) return;
  call->attrs.d[0] = root->n_seeds;
  write_grad(w, call, 0, 0, root, to, root->value);
  build_cost(w->b, (OpCost){.bytes = (double)build_bytes(w->b, root->value)});
}

static void add_incoming(Backward *w, ChunkValue *root, const Incoming *in) {
  const Place from = incoming_place(w->b, in), to = grad_place(w, root);
  KernelCall *call = build_call(w->b, OP_ACCUMULATE, KERNEL_F, 2);
  if (call == NULL) return;
  build_arg(w->b, 0, from, in->value, BIND_READ);
  write_grad(w, call, 1, 0, root, to, in->value);
  const double bytes = (double)build_bytes(w->b, in->value);
  build_cost(w->b, (OpCost){.flops = bytes / (double)w->b->float_bytes, .bytes = 3 * bytes});
}

/* The contributions that come before those of the chunk's ops. */
static void begin_grad(Backward *w, ChunkValue *root) {
  if (root->grad_begun) return;
  root->grad_begun = true;
  if (!(class_of(root) & w->classes) || grad_in_place(root)) return;
  ProgramBuild *b = w->b;
  if (root->n_seeds > 0) write_seed(w, root);
  for (uint32_t i = root->first_incoming; i != 0; i = b->incoming.at[i].next)
    add_incoming(w, root, &b->incoming.at[i]);
}

/* One call: the gradients of the operands in the mask (several of a joint op, otherwise one). */
static void run_gradient(Backward *w, OpId id, unsigned wrt_mask) {
  ProgramBuild *b = w->b;
  const Op *op = graph_op(b->graph, id);
  const uint32_t n = (uint32_t)OP_INFO[op->kind].n_operands, dy = n + 1, dx = n + 2, aux = n + 3;
  const bool joint = OP_INFO[op->kind].flags & OPF_JOINT;
  ValueId value[KERNEL_MAX_ARGS] = {{0}}; /* what may be read, by position */
  bool read[KERNEL_MAX_ARGS] = {false};
  Place place[KERNEL_MAX_ARGS], to[3];
  for (uint32_t i = 0; i < n; i++) value[i] = op->in[i];
  value[n] = op->out;
  value[aux] = op->aux;
  uint32_t wrt = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (!(wrt_mask & 1u << i)) continue;
    wrt = i;
    for (const char *s = OP_INFO[op->kind].saves[i]; *s != '\0'; s++) {
      if (*s == 'y') read[n] = true;
      if (*s == 'a') read[aux] = true;
      if (*s >= '0' && *s <= '2') read[*s - '0'] = true;
    }
  }
  for (uint32_t i = 0; i <= aux; i++) {
    read[i] &= value[i].i != 0;
    if (read[i]) place[i] = build_value(b, value[i]);
  }
  const Place count = op->count != 0 ? build_count(b, op) : (Place){0};
  const Place from = grad_place(w, build_root(b, op->out));
  for (uint32_t i = 0; i < n; i++)
    if (wrt_mask & 1u << i) to[i] = grad_place(w, build_root(b, op->in[i]));
  KernelCall *call = build_call(b, op->kind, KERNEL_B,
                                joint            ? n + 4 + n
                                : op->count != 0 ? n + 5
                                : op->aux.i != 0 ? n + 4
                                                 : n + 3);
  if (call == NULL) return;
  call->wrt = joint ? KERNEL_WRT_ALL : (uint8_t)wrt;
  call->attrs = build_attrs(b, op);
  for (uint32_t i = 0; i <= aux; i++) {
    if (read[i]) build_arg(b, i, place[i], value[i], BIND_READ);
    else build_arg_shape(b, i, value[i]);
  }
  if (op->count != 0) build_arg_flat(b, n + 4, count, DT_F64, 1, BIND_READ);
  build_arg(b, dy, from, op->out, BIND_READ);
  for (uint32_t i = 0; i < n; i++)
    if (wrt_mask & 1u << i)
      write_grad(w, call, joint ? n + 4 + i : dx, joint ? i : 0, build_root(b, op->in[i]), to[i],
                 op->in[i]);
  build_cost(b, graph_op_cost(b->graph, id, KERNEL_B, call->wrt, b->samples, b->float_bytes));
}

/* A call for each expert: together they write the gradient of the rows, and each that of its own
 * weight. */
static void run_expert_gradients(Backward *w, OpId id, int wrt) {
  enum { ROWS, WEIGHTS, ENDS, N };
  ProgramBuild *b = w->b;
  const Op *op = graph_op(b->graph, id);
  const StackPart part = build_stack(b, op->in[WEIGHTS]);
  const Place ends = build_value(b, op->in[ENDS]), dy = grad_place(w, build_root(b, op->out));
  ChunkValue *rows = build_root(b, op->in[ROWS]);
  const bool written = rows->grad_written;
  const Place at = wrt == ROWS ? grad_place(w, rows) : build_value(b, op->in[ROWS]);
  for (uint32_t k = 0; k < part.n; k++) {
    const ParamId p = {part.params[k]};
    const ValueId weight = graph_param(b->graph, p)->value;
    if (wrt == WEIGHTS && !op_param_grad_flows(b->graph, op, wrt, p)) continue;
    const Place weight_at =
        wrt == ROWS ? build_value(b, weight) : grad_place(w, build_root(b, weight));
    KernelCall *call = build_call(b, op->kind, KERNEL_B, N + 3);
    if (call == NULL) return;
    call->wrt = (uint8_t)wrt;
    call->attrs.d[0] = k;
    build_arg_shape(b, N, op->out);
    build_arg(b, ENDS, ends, op->in[ENDS], BIND_READ);
    build_arg(b, N + 1, dy, op->out, BIND_READ);
    if (wrt == ROWS) {
      build_arg_shape(b, ROWS, op->in[ROWS]);
      build_arg(b, WEIGHTS, weight_at, weight, BIND_READ);
      rows->grad_written = written;
      write_grad(w, call, N + 2, 0, rows, at, op->in[ROWS]);
    } else {
      build_arg(b, ROWS, at, op->in[ROWS], BIND_READ);
      build_arg_shape(b, WEIGHTS, weight);
      write_grad(w, call, N + 2, 0, build_root(b, weight), weight_at, weight);
    }
  }
  build_cost(b, graph_op_cost(b->graph, id, KERNEL_B, wrt, b->samples, b->float_bytes));
}

/* Bit i: the gradient of operand i is of this pass. */
static unsigned gradients_here(const Backward *w, const Op *op) {
  unsigned mask = 0;
  for (int wrt = 0; wrt < 3; wrt++)
    if (op_grad_flows(w->b->graph, op, wrt) && class_of(build_root(w->b, op->in[wrt])) & w->classes)
      mask |= 1u << wrt;
  return mask;
}

void build_backward(ProgramBuild *b, int classes) {
  Backward w = {b, classes};
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  for (uint32_t o = c->end_op; o-- > c->first_op && b->failed == PIPER_OK;) {
    const Op *op = graph_op(b->graph, (OpId){o});
    if (op_is_view(op)) continue; /* its gradient is its operand's */
    const unsigned mask = gradients_here(&w, op);
    if (mask == 0) continue;
    ChunkValue *out = build_root(b, op->out);
    if (out->n_grads == 0) {
      build_fail(b, PIPER_EBUG, "a gradient that nothing contributes to is needed");
      return;
    }
    const bool joint = OP_INFO[op->kind].flags & OPF_JOINT;
    begin_grad(&w, out);
    for (int wrt = 0; wrt < 3; wrt++) {
      if (!(mask & 1u << wrt)) continue;
      begin_grad(&w, build_root(b, op->in[wrt]));
      if (op->kind == OP_EXPERT_LINEAR) run_expert_gradients(&w, (OpId){o}, wrt);
      else if (!joint) run_gradient(&w, (OpId){o}, 1u << wrt);
    }
    if (joint) run_gradient(&w, (OpId){o}, mask);
  }
  /* What no op of the chunk contributes to: inputs and parameters that are outputs reshaped. */
  for (uint32_t i = 1; i < b->values.n && b->failed == PIPER_OK; i++)
    if (b->values.at[i].root == i && !b->values.at[i].computed) begin_grad(&w, &b->values.at[i]);
}
