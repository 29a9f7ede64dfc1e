/* What happens to a bucket, or a share of it, once a step: the norm of its gradients, the optimizer's
 * step, zeros where nothing contributed. A bucket is one flat buffer, so shapes are one-dimensional. */
#include "ir/program_build.h"

static Place norm_place(ProgramBuild *b) {
  return build_place(b, (Binding){.kind = BIND_METRICS},
                     graph_metric_norm(b->graph) * sizeof(double));
}

static void flat_cost(ProgramBuild *b, int64_t elements, double flops, double moves) {
  build_cost(b, (OpCost){.flops = flops * (double)elements,
                         .bytes = moves * (double)elements * (double)b->float_bytes});
}

void build_norm(ProgramBuild *b, BucketId bucket, Share share) {
  const int64_t n = share_size(share);
  if (n == 0) return;
  const Place grad = build_place(b, (Binding){.kind = BIND_PGRAD, .bucket = bucket}, 0);
  const Place norm = norm_place(b);
  KernelCall *call = build_call(b, OP_NORM, KERNEL_F, 2);
  if (call == NULL) return;
  call->accumulate = true;
  build_arg_flat(b, 0, grad, b->dtype, n, BIND_READ);
  build_arg_flat(b, 1, norm, DT_F64, 1, BIND_READ | BIND_WRITE);
  flat_cost(b, n, 2, 1);
}

void build_zero_grad(ProgramBuild *b, BucketId bucket, int64_t elements) {
  if (elements == 0) return;
  const Place grad = build_place(b, (Binding){.kind = BIND_PGRAD, .bucket = bucket}, 0);
  if (build_call(b, OP_FILL, KERNEL_F, 1) == NULL) return;
  build_arg_flat(b, 0, grad, b->dtype, elements, BIND_WRITE);
  flat_cost(b, elements, 0, 1);
}

uint32_t optimizer_n_slots(const OptimizerSpec *o) {
  switch (o->kind) {
  case OPTIMIZER_NONE:
    return 0;
  case OPTIMIZER_SGD:
    return o->momentum != 0 ? 1 : 0;
  case OPTIMIZER_ADAMW:
    return 2;
  }
  return 0;
}

static double decay_of(const ProgramSpec *spec, const Param *param) {
  return param->shape.rank >= 2 ? spec->optimizer.weight_decay : 0;
}

static OpAttrs update_attrs(const ProgramSpec *spec, double decay) {
  const OptimizerSpec *o = &spec->optimizer;
  OpAttrs attrs = {{0}};
  attrs.d[0] = decay;
  attrs.d[1] = o->kind == OPTIMIZER_SGD ? o->momentum : o->beta1;
  attrs.d[2] = spec->clip_norm;
  if (o->kind == OPTIMIZER_ADAMW) {
    attrs.d[3] = o->beta2;
    attrs.d[4] = o->eps;
  }
  return attrs;
}

/* Neighbours in a share whose weights decay alike. */
typedef struct Span {
  int64_t offset, elements; /* from the share's start */
  double decay;
} Span;

static void update_span(ProgramBuild *b, BucketId bucket, const Span *span) {
  const ProgramSpec *spec = programs_spec(b->p);
  const OpKind op = spec->optimizer.kind == OPTIMIZER_SGD ? OP_SGD : OP_ADAMW;
  const uint32_t n_slots = optimizer_n_slots(&spec->optimizer);
  const int64_t n = span->elements;
  const uint64_t at = (uint64_t)span->offset * b->float_bytes;
  const Place w = build_place(b, (Binding){.kind = BIND_PARAM, .bucket = bucket}, at);
  const Place g = build_place(b, (Binding){.kind = BIND_PGRAD, .bucket = bucket}, at);
  KernelCall *call = build_call(b, op, KERNEL_F, op == OP_SGD ? 4 : 5);
  if (call == NULL) return;
  call->attrs = update_attrs(spec, span->decay);
  build_arg_flat(b, 0, w, b->dtype, n, BIND_READ | BIND_WRITE);
  build_arg_flat(b, 1, g, b->dtype, n, BIND_READ);
  /* Without clipping nothing waits for the norm, so it is not there to be read. */
  if (spec->clip_norm != 0) build_arg_flat(b, 2, norm_place(b), DT_F64, 1, BIND_READ);
  for (uint32_t s = 0; s < n_slots; s++) {
    const Place state =
        build_place(b, (Binding){.kind = BIND_STATE, .bucket = bucket, .slot = (uint8_t)s}, at);
    build_arg_flat(b, 3 + s, state, b->dtype, n, BIND_READ | BIND_WRITE);
  }
  flat_cost(b, n, op == OP_SGD ? 4 : 12, 3 + 2 * n_slots);
}

void build_update(ProgramBuild *b, BucketId bucket, Share share) {
  const ProgramSpec *spec = programs_spec(b->p);
  const Bucket *k = &b->dag->buckets.at[bucket.i];
  Span span = {0};
  if (spec->optimizer.kind == OPTIMIZER_NONE || !k->trained) return;
  for (uint32_t i = 0; i < k->n_params && b->failed == PIPER_OK; i++) {
    const ParamId id = {b->dag->bucket_params.at[k->param_first + i]};
    const Param *param = graph_param(b->graph, id);
    const int64_t first = b->dag->home[id.i].offset;
    const Share mine =
        share_common(share, (Share){first, first + shape_elements(&param->shape, 1)});
    const int64_t offset = mine.lo - share.lo, n = share_size(mine);
    const double decay = decay_of(spec, param);
    if (n == 0) continue;
    if (span.elements > 0 && span.decay == decay && span.offset + span.elements == offset) {
      span.elements += n;
      continue;
    }
    if (span.elements > 0) update_span(b, bucket, &span);
    span = (Span){offset, n, decay};
  }
  if (span.elements > 0) update_span(b, bucket, &span);
}
