/* Storage of a chunk's values.
 *
 * A value lies in the first of these that fits:
 *
 *   another chunk's value, a model input, a parameter   its own binding (a stack of parameters lies
 *                                                       where each of them does)
 *   output of the chunk                                 its own VALUE binding
 *   read by a gradient of CLASS_BW                      SAVED_W
 *   read by gradients of CLASS_BI only                  SAVED_I
 *   otherwise                                           workspace
 *
 * and all members of a RESHAPE group lie where their root lies. When the root is computed here, the
 * first output of the group (the root, if it is one) lends the group its VALUE binding; every other
 * output gets a copy, which only its consumers in other chunks read. Nothing here depends on the
 * pass, so F, B, BI and BW agree about offsets.
 *
 * Of a chunk that is recomputed nothing is kept but its inputs: its F has all but the outputs in
 * workspace (PROGRAM_LEAN), and R and the backward passes have no outputs, which lie where other
 * values lie (PROGRAM_AGAIN).
 *
 * Classes. The gradient of a value is CLASS_BI when gradient flows from it to an input of the chunk
 * that needs one, otherwise CLASS_BW: parameters, what depends on parameters only, and all of a
 * chunk whose inputs need no gradients. A gradient of CLASS_BI is computed from gradients of
 * CLASS_BI only, since what a value passes its gradient to lies on the same way.
 *
 * The operands of a joint op get their gradients from one call, so they are of one class: CLASS_BI
 * when any of them is. Parameters are not among them (graph.h), so theirs all stay CLASS_BW. */
#include "ir/program_build.h"

#include "ir/grad_flow.h"

StackPart build_stack(const ProgramBuild *b, ValueId stack) {
  StackPart part = {0};
  if (stack.i != 0 && graph_value(b->graph, stack)->kind == VALUE_STACK)
    part.params = graph_value_params(b->graph, stack, &part.n);
  if (b->parts < 2 || part.params == NULL) return part;
  part.n /= b->parts;
  part.params += b->part * part.n;
  return part;
}

static uint64_t aligned(uint64_t at) {
  return (at + PROGRAM_ALIGN - 1) / PROGRAM_ALIGN * PROGRAM_ALIGN;
}

static void collect_values(ProgramBuild *b) {
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  for (uint32_t o = c->first_op; o < c->end_op; o++) {
    const Op *op = graph_op(b->graph, (OpId){o});
    for (int i = 0; i < 3; i++) {
      if (op->in[i].i == 0 || build_find(b, op->in[i]) != 0) continue;
      if (!build_add(b, op->in[i], 0, false)) return;
      const StackPart part = build_stack(b, op->in[i]);
      for (uint32_t k = 0; k < part.n; k++) {
        const ValueId p = graph_param(b->graph, (ParamId){part.params[k]})->value;
        if (build_find(b, p) == 0 && !build_add(b, p, 0, false)) return;
      }
    }
    const uint32_t root = op_is_view(op) ? b->values.at[build_find(b, op->in[0])].root : 0;
    if (!build_add(b, op->out, root, true)) return;
    if (op->aux.i != 0 && !build_add(b, op->aux, 0, true)) return;
  }
}

static void mark_outputs(ProgramBuild *b) {
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  for (uint32_t i = 0; i < c->n_out; i++) {
    const ValueId v = {b->graph->chunk_values.at[c->out_first + i]};
    b->values.at[build_find(b, v)].output = true;
    ChunkValue *root = build_root(b, v);
    if (root->computed && root->owner.i == 0 && b->mode != PROGRAM_AGAIN) root->owner = v;
    uint32_t n;
    const uint32_t *readers = build_grad_readers(b, v, &n);
    for (uint32_t j = 0; j < n; j++) {
      const uint32_t id = (uint32_t)b->incoming.n;
      if (!vec_push(&b->incoming, ((Incoming){v, {readers[j]}, 0}))) {
        build_fail(b, PIPER_ENOMEM, NULL);
        return;
      }
      if (root->first_incoming == 0) root->first_incoming = id;
      else b->incoming.at[root->last_incoming].next = id;
      root->last_incoming = id;
      root->n_grads++;
    }
  }
}

static int class_of(const ChunkValue *target) { return target->up ? CLASS_BI : CLASS_BW; }

/* Whether that changed the class of an operand computed here: other readers of it may come before. */
static bool mark_up(ProgramBuild *b, const Op *op) {
  const bool joint = OP_INFO[op->kind].flags & OPF_JOINT;
  bool up = false, changed = false;
  for (int wrt = 0; wrt < 3; wrt++) {
    if (!op_grad_flows(b->graph, op, wrt)) continue;
    ChunkValue *in = build_root(b, op->in[wrt]);
    if (!in->computed && graph_value(b->graph, in->value)->kind == VALUE_OP) in->up = true;
    up |= in->up;
  }
  if (!up) return false;
  build_root(b, op->out)->up = true;
  for (int wrt = 0; wrt < 3 && joint; wrt++) {
    if (!op_grad_flows(b->graph, op, wrt)) continue;
    ChunkValue *in = build_root(b, op->in[wrt]);
    changed |= !in->up;
    in->up = true;
  }
  return changed;
}

/* Operands come before results, so one walk in op order would do, were it not for joint ops. */
static void find_classes(ProgramBuild *b) {
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t o = c->first_op; o < c->end_op; o++)
      changed |= mark_up(b, graph_op(b->graph, (OpId){o}));
  }
}

static void mark_reads(ProgramBuild *b, const Op *op, int wrt, int class) {
  for (const char *s = OP_INFO[op->kind].saves[wrt]; *s != '\0'; s++) {
    ValueId v = {0};
    if (*s == 'y') v = op->out;
    if (*s == 'a') v = op->aux;
    if (*s >= '0' && *s <= '2') v = op->in[*s - '0'];
    if (v.i == 0) continue;
    ChunkValue *root = build_root(b, v);
    root->readers |= (uint8_t) class;
    root->n_reads++;
  }
}

static void mark_gradients(ProgramBuild *b, const Op *op) {
  ChunkValue *out = build_root(b, op->out);
  if (build_loss(b, op->out) != 0 && graph_value(b->graph, op->out)->needs_grad) {
    out->n_seeds++;
    out->n_grads++;
  }
  if (op_is_view(op)) return;
  for (int wrt = 0; wrt < 3; wrt++) {
    if (!op_grad_flows(b->graph, op, wrt)) continue;
    ChunkValue *in = build_root(b, op->in[wrt]);
    in->n_grads++;
    in->over |= wrt == 0 && OP_INFO[op->kind].flags & OPF_OVER;
    if (out->up && !in->up) out->kept = true;
    mark_reads(b, op, wrt, class_of(in));
  }
}

static void place_values(ProgramBuild *b) {
  uint64_t end_i = 0, end_w = 0, end_kept = 0;
  for (uint32_t i = 1; i < b->values.n; i++) {
    ChunkValue *v = &b->values.at[i];
    if (v->root != i || !v->computed) continue;
    const uint64_t bytes = aligned(build_bytes(b, v->value));
    if (v->owner.i == 0 && v->readers != 0) {
      uint64_t *end = v->readers & CLASS_BW ? &end_w : &end_i;
      v->saved_at = *end;
      *end += bytes;
    }
    if (grad_in_place(v)) v->kept = false; /* BW reads it where it arrived */
    if (v->kept) {
      v->kept_at = end_kept;
      end_kept += bytes;
    }
  }
}

void build_layout(ProgramBuild *b) {
  if (!vec_push(&b->values, (ChunkValue){0}) || !vec_push(&b->incoming, (Incoming){0}))
    build_fail(b, PIPER_ENOMEM, NULL);
  if (b->failed == PIPER_OK) collect_values(b);
  if (b->failed == PIPER_OK) mark_outputs(b);
  if (b->failed != PIPER_OK) return;
  find_classes(b);
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  for (uint32_t o = c->first_op; o < c->end_op; o++)
    mark_gradients(b, graph_op(b->graph, (OpId){o}));
  place_values(b);
}

Place build_value(ProgramBuild *b, ValueId v) {
  ChunkValue *root = build_root(b, v);
  const Value *value = graph_value(b->graph, root->value);
  if (!root->computed) {
    switch (value->kind) {
    case VALUE_INPUT:
      return build_place(b, (Binding){.kind = BIND_INPUT, .value = root->value}, 0);
    case VALUE_OP:
      return build_place(b, (Binding){.kind = BIND_VALUE, .value = root->value}, 0);
    case VALUE_STACK:
      build_fail(b, PIPER_EBUG, "a stack of parameters has no place of its own");
      return (Place){KERNEL_NO_BASE, 0};
    case VALUE_PARAM:
      break;
    }
    const ParamHome *home = &b->dag->home[value->param.i];
    return build_place(b, (Binding){.kind = BIND_PARAM, .bucket = home->bucket},
                       (uint64_t)home->offset * b->float_bytes);
  }
  if (root->owner.i != 0)
    return build_place(b, (Binding){.kind = BIND_VALUE, .value = root->owner}, 0);
  if (b->mode == PROGRAM_LEAN) return build_temp(b, &root->temp, root->value);
  if (root->readers & CLASS_BW)
    return build_place(b, (Binding){.kind = BIND_SAVED_W}, root->saved_at);
  if (root->readers != 0) return build_place(b, (Binding){.kind = BIND_SAVED_I}, root->saved_at);
  return build_temp(b, &root->temp, root->value);
}

OpAttrs build_attrs(const ProgramBuild *b, const Op *op) {
  OpAttrs attrs = op->attrs;
  if (op->per_element_mean) {
    const bool batched = graph_value(b->graph, op->in[0])->shape.batched;
    attrs.d[0] = op->divisor_per_sample * (batched ? (double)b->dag->batch : 1);
  }
  return attrs;
}

Place build_count(ProgramBuild *b, const Op *op) {
  return build_place(b, (Binding){.kind = BIND_COUNTS, .chunk = b->chunk},
                     (op->count - 1) * sizeof(double));
}
