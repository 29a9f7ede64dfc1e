/* What programs bind and call, on models small enough to say so in full. That they compute the right
 * numbers is shown in ir_program_grad.c. */
#include "ir/program.h"

#include "lib/buckets.h"
#include "lib/stages.h"
#include "tap.h"

static const char *const KIND[] = {"workspace", "saved_i", "saved_w", "kept",  "value",  "input",
                                   "grad",      "param",   "pgrad",   "state", "metrics"};

/* "value 4 rw 64, grad 4>2 r 64": bindings, access and bytes. */
static const char *bindings_text(const Program *p) {
  static char text[1024];
  size_t n = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < p->n_bindings; i++) {
    const Binding *b = &p->bindings[i];
    n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i > 0 ? ", " : "", KIND[b->kind]);
    if (b->value.i != 0) n += (size_t)snprintf(text + n, sizeof text - n, " %u", b->value.i);
    if (b->chunk.i != 0) n += (size_t)snprintf(text + n, sizeof text - n, ">%u", b->chunk.i);
    if (b->bucket.i != 0) n += (size_t)snprintf(text + n, sizeof text - n, " b%u", b->bucket.i);
    if (b->kind == BIND_STATE) n += (size_t)snprintf(text + n, sizeof text - n, ".%u", b->slot);
    n += (size_t)snprintf(text + n, sizeof text - n, " %s%s %llu", b->access & BIND_READ ? "r" : "",
                          b->access & BIND_WRITE ? "w" : "", (unsigned long long)b->bytes);
  }
  return text;
}

/* "linear(0 1 . 2) relu'0(. 2 3+)": bases of the arguments; ' a gradient and of which operand, + adds,
 * ? adds unless the instruction is first. */
static const char *calls_text(const Program *p) {
  static char text[1024];
  size_t n = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < p->n_calls; i++) {
    const KernelCall *c = &p->calls[i];
    n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i > 0 ? " " : "", OP_INFO[c->op].name);
    if (c->part == KERNEL_B)
      n += c->wrt == KERNEL_WRT_ALL ? (size_t)snprintf(text + n, sizeof text - n, "'all")
                                    : (size_t)snprintf(text + n, sizeof text - n, "'%d", c->wrt);
    for (uint32_t a = 0; a < c->n_args; a++) {
      n += (size_t)snprintf(text + n, sizeof text - n, "%s", a == 0 ? "(" : " ");
      if (c->args[a].base == KERNEL_NO_BASE) n += (size_t)snprintf(text + n, sizeof text - n, ".");
      else n += (size_t)snprintf(text + n, sizeof text - n, "%u", c->args[a].base);
    }
    n += (size_t)snprintf(text + n, sizeof text - n, "%s)",
                          c->first_base != KERNEL_NO_BASE ? "?"
                          : c->accumulate                 ? "+"
                                                          : "");
  }
  return text;
}

static const Program *chunk_program(Programs *p, uint32_t chunk, Pass pass, int64_t samples) {
  PiperErr err = {0};
  uint32_t id;
  if (programs_chunk(p, (ChunkId){chunk}, pass, PROGRAM_KEEP, samples, &id, &err) != PIPER_OK) bail(err.text);
  return programs_at(p, id);
}

static void chunk_is(Programs *p, uint32_t chunk, Pass pass, const char *bindings,
                     const char *calls) {
  const Program *got = chunk_program(p, chunk, pass, 2);
  is_str(bindings_text(got), bindings, "bindings of %s of chunk %u", PASS_NAME[pass], chunk);
  is_str(calls_text(got), calls, "calls of %s of chunk %u", PASS_NAME[pass], chunk);
}

static Programs *programs_of(const Dag *d, OptimizerSpec optimizer, double clip) {
  PiperErr err = {0};
  Programs *p;
  const ProgramSpec spec = {.dag = d, .dtype = DT_F32, .optimizer = optimizer, .clip_norm = clip};
  if (programs_new(&spec, &p, &err) != PIPER_OK) bail(err.text);
  return p;
}

/* Two stages of y = relu(x W^T), the loss sum_squares(y) in the second. Values: 1 x, 2 w0, 3 linear,
 * 4 relu, 5 w1, 6 linear, 7 relu, 8 loss. */
static void stages(void) {
  Graph *g = stages_graph(2, false);
  Dag *d = dag_new(g, 8);
  if (d == NULL) bail("no memory");
  buckets_fill(d);
  Programs *p = programs_of(
      d,
      (OptimizerSpec){
          .kind = OPTIMIZER_ADAMW, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
      1.0);
  chunk_is(p, 1, PASS_F, "input 1 r 32, param b1 r 64, workspace rw 32, value 4 w 32",
           "linear(0 1 . 2) relu(2 3)");
  chunk_is(p, 1, PASS_B,
           "value 4 r 32, grad 4>2 r 32, workspace rw 32, input 1 r 32, pgrad b1 rw 64",
           "relu'0(. 0 1 2) linear'1(3 . . . 2 4?)");
  chunk_is(p, 1, PASS_BI, "", "");
  chunk_is(p, 1, PASS_BW,
           "value 4 r 32, grad 4>2 r 32, workspace rw 32, input 1 r 32, pgrad b1 rw 64",
           "relu'0(. 0 1 2) linear'1(3 . . . 2 4?)");
  chunk_is(p, 2, PASS_F,
           "value 4 r 32, param b2 r 64, workspace rw 32, saved_i rw 32, metrics rw 8",
           "linear(0 1 . 2) relu(2 3) sum_squares(3 2) loss(2 4+)");
  chunk_is(
      p, 2, PASS_B,
      "workspace rw 96, saved_i r 32, param b2 r 64, grad 4>2 w 32, value 4 r 32, pgrad b2 rw 64",
      "fill(0) sum_squares'0(1 . 0 0) relu'0(. 1 0 0) linear'0(. 2 . . 0 3) "
      "linear'1(4 . . . 0 5?)");
  chunk_is(p, 2, PASS_BI, "workspace rw 96, saved_i r 32, kept rw 32, param b2 r 64, grad 4>2 w 32",
           "fill(0) sum_squares'0(1 . 0 0) relu'0(. 1 0 2) linear'0(. 3 . . 2 4)");
  chunk_is(p, 2, PASS_BW, "value 4 r 32, kept r 32, pgrad b2 rw 64", "linear'1(0 . . . 1 2?)");

  PiperErr err = {0};
  uint32_t id, again;
  const Share all = {0, 16};
  if (programs_update(p, (BucketId){2}, all, &id, &err) != PIPER_OK) bail(err.text);
  is_str(bindings_text(programs_at(p, id)),
         "param b2 rw 64, pgrad b2 r 64, metrics r 16, state b2.0 rw 64, state b2.1 rw 64",
         "bindings of AdamW with clipping");
  is_str(calls_text(programs_at(p, id)), "adamw(0 1 2 3 4)", "and its call");
  is_near(programs_at(p, id)->calls[0].attrs.d[0], 0.1, 0, "a matrix decays");
  if (programs_norm(p, (BucketId){1}, all, &id, &err) != PIPER_OK) bail(err.text);
  is_str(bindings_text(programs_at(p, id)), "pgrad b1 r 64, metrics rw 16",
         "norm reads a whole bucket");
  if (programs_zero_grad(p, (BucketId){1}, 16, &id, &err) != PIPER_OK) bail(err.text);
  is_str(bindings_text(programs_at(p, id)), "pgrad b1 w 64", "zeros cover a whole bucket");
  if (programs_zero_grad(p, (BucketId){1}, 16, &again, &err) != PIPER_OK) bail(err.text);
  is_int(again, id, "the same program is built once");
  if (programs_update(p, (BucketId){2}, (Share){3, 9}, &id, &err) != PIPER_OK) bail(err.text);
  is_str(bindings_text(programs_at(p, id)),
         "param b2 rw 24, pgrad b2 r 24, metrics r 16, state b2.0 rw 24, state b2.1 rw 24",
         "of a share only its elements are updated, and bindings begin at its first");
  if (programs_norm(p, (BucketId){2}, (Share){3, 9}, &again, &err) != PIPER_OK) bail(err.text);
  is_str(bindings_text(programs_at(p, again)), "pgrad b2 r 24, metrics rw 16", "so does its norm");
  if (programs_update(p, (BucketId){2}, (Share){16, 16}, &id, &err) != PIPER_OK) bail(err.text);
  is_int(programs_at(p, id)->n_calls, 0, "of an empty share there is nothing to update");
  const Program *small = chunk_program(p, 1, PASS_F, 2), *large = chunk_program(p, 1, PASS_F, 4);
  ok(small != large, "programs of other numbers of samples differ");
  is_int(large->bindings[3].bytes, 64, "sizes follow the samples");
  is_int(large->calls[1].args[0].dim[0], 4, "so do shapes");
  const OpCost c2 = programs_cost(p, (ChunkId){1}, PASS_B, PROGRAM_KEEP, 2),
               c4 = programs_cost(p, (ChunkId){1}, PASS_B, PROGRAM_KEEP, 4);
  ok(c2.flops > 0 && c4.flops == 2 * c2.flops, "flops follow the samples");
  programs_free(p);

  p = programs_of(d, (OptimizerSpec){.kind = OPTIMIZER_SGD}, 0);
  if (programs_update(p, (BucketId){1}, all, &id, &err) != PIPER_OK) bail(err.text);
  is_str(calls_text(programs_at(p, id)), "sgd(0 1 . .)",
         "plain SGD reads no norm and has no state");
  programs_free(p);
  p = programs_of(d, (OptimizerSpec){.kind = OPTIMIZER_NONE}, 0);
  if (programs_update(p, (BucketId){1}, all, &id, &err) != PIPER_OK) bail(err.text);
  is_int(programs_at(p, id)->n_calls, 0, "without optimizer an update does nothing");
  const PiperStatus st = programs_chunk(p, (ChunkId){1}, PASS_F, PROGRAM_KEEP, INT64_MAX / 2, &id, &err);
  is_int(st, PIPER_EUSER, "a size that overflows is refused");
  ok(strstr(err.text, "too large") != NULL, "with words: %s", err.text);
  programs_free(p);
  dag_free(d);
  graph_free(g);
}

/* swiglu gives both gradients at once: of its gate, which is wanted upstream, and of its other operand,
 * which a weight alone wants; so both come in BI and are kept. rmsnorm has an auxiliary output. */
static void joint(void) {
  PiperErr err = {0};
  Graph *g = graph_new("joint");
  ValueId x, n;
  const Shape shape = {.rank = 2, .batched = true, .dim = {1, 4}}, row = {.rank = 1, .dim = {4}};
  if (graph_add_input(g, "x", &shape, DT_FLOAT, 0, &x, &err) != PIPER_OK) bail(err.text);
  if (graph_enter(g, "PP", &err) != PIPER_OK) bail(err.text);
  const ValueId h = stages_op(g, OP_LINEAR, NULL, x, stages_param(g, "w0", 4, 4));
  if (graph_leave(g, "PP", &err) != PIPER_OK) bail(err.text);
  const ParamSpec norm = {.name = "n", .shape = row};
  if (graph_add_param(g, &norm, 0, &n, &err) != PIPER_OK) bail(err.text);
  const ValueId a = stages_op(g, OP_RMSNORM, NULL, h, n);
  const ValueId b = stages_op(g, OP_LINEAR, NULL, x, stages_param(g, "w1", 4, 4));
  const ValueId y = stages_op(g, OP_SWIGLU, NULL, a, b);
  const ValueId loss = stages_op(g, OP_SUM, NULL, y, (ValueId){0});
  if (graph_add_loss(g, loss, 0, &err) != PIPER_OK || graph_cut(g, &err) != PIPER_OK)
    bail(err.text);
  Dag *d = dag_new(g, 8);
  if (d == NULL) bail("no memory");
  buckets_fill(d);
  Programs *p = programs_of(d, (OptimizerSpec){.kind = OPTIMIZER_NONE}, 0);
  chunk_is(
      p, 2, PASS_F,
      "value 3 r 32, param b2 r 80, saved_i rw 96, saved_w w 8, input 1 r 32, workspace rw 68, "
      "metrics rw 8",
      "rmsnorm(0 1 2 3) linear(4 1 . 2) swiglu(2 2 5) sum(5 5) loss(5 6+)");
  chunk_is(p, 2, PASS_B,
           "workspace rw 160, saved_i r 96, input 1 r 32, pgrad b2 rw 80, value 3 r 32, "
           "param b2 r 16, saved_w r 8, grad 3>2 w 32",
           "fill(0) sum'0(. . 0 0) swiglu'all(1 1 . 0 . . 0 0) linear'1(2 . . . 0 3?) "
           "rmsnorm'0(4 5 . 0 7 6) rmsnorm'1(4 . . 0 3 6?)");
  chunk_is(p, 2, PASS_BI,
           "workspace rw 96, saved_i r 96, kept rw 96, value 3 r 32, param b2 r 16, saved_w r 8, "
           "grad 3>2 w 32",
           "fill(0) sum'0(. . 0 0) swiglu'all(1 1 . 0 . . 2 2) rmsnorm'0(3 4 . 2 6 5)");
  chunk_is(p, 2, PASS_BW, "input 1 r 32, kept r 96, pgrad b2 rw 80, value 3 r 32, saved_w r 8",
           "linear'1(0 . . . 1 2?) rmsnorm'1(3 . . 1 2 4?)");
  programs_free(p);
  dag_free(d);
  graph_free(g);
}

/* "adamw 32+52 decay 0.1": first element and number of elements of each call, where in the bucket. */
static const char *updates_text(const Program *p) {
  static char text[1024];
  size_t n = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < p->n_calls; i++) {
    const KernelArg *w = &p->calls[i].args[0];
    n += (size_t)snprintf(text + n, sizeof text - n, "%s%d+%d decay %g", i > 0 ? ", " : "",
                          (int)(w->offset / 4), (int)w->dim[0], p->calls[i].attrs.d[0]);
  }
  return text;
}

/* Parameters w0, w1 [4, 4], b [4], w2 [4, 4], of one bucket. */
static void spans(void) {
  PiperErr err = {0};
  Graph *g = graph_new("spans");
  ValueId h, b;
  const Shape shape = {
      .rank = 2, .batched = true, .axis = {AXIS_BATCH, AXIS_FEATURE}, .dim = {1, 4}};
  if (g == NULL || graph_add_input(g, "x", &shape, DT_FLOAT, 0, &h, &err) != PIPER_OK) bail(err.text);
  h = stages_op(g, OP_LINEAR, "layer0", h, stages_param(g, "w0", 4, 4));
  h = stages_op(g, OP_LINEAR, "layer1", h, stages_param(g, "w1", 4, 4));
  const ParamSpec bias = {.name = "b", .shape = {.rank = 1, .dim = {4}}};
  if (graph_add_param(g, &bias, 0, &b, &err) != PIPER_OK) bail(err.text);
  h = stages_op(g, OP_ADD, NULL, h, b);
  h = stages_op(g, OP_LINEAR, "layer2", h, stages_param(g, "w2", 4, 4));
  h = stages_op(g, OP_SUM_SQUARES, NULL, h, (ValueId){0});
  if (graph_add_loss(g, h, 0, &err) != PIPER_OK || graph_cut(g, &err) != PIPER_OK) bail(err.text);
  Dag *d = dag_new(g, 8);
  if (d == NULL) bail("no memory");
  buckets_fill(d);
  for (int decays = 0; decays < 2; decays++) {
    uint32_t id;
    Programs *p = programs_of(
        d, (OptimizerSpec){.kind = OPTIMIZER_ADAMW, .weight_decay = decays ? 0.1 : 0, .eps = 1e-8}, 0);
    if (programs_update(p, (BucketId){1}, (Share){0, d->buckets.at[1].elements}, &id, &err) !=
        PIPER_OK)
      bail(err.text);
    is_str(updates_text(programs_at(p, id)),
           decays ? "0+32 decay 0.1, 32+4 decay 0, 36+16 decay 0.1" : "0+52 decay 0",
           decays ? "neighbours that decay alike are updated by one call"
                  : "without weight decay a bucket is updated by one call");
    programs_free(p);
  }
  dag_free(d);
  graph_free(g);
}

int main(void) {
  stages();
  joint();
  spans();
  return done_testing();
}
