/* The programs of a random model, run chunk by chunk on buffers of exactly the sizes they ask for,
 * compute the gradients of the losses:
 *
 *   against central differences of the losses, in f64;
 *   the same bits from B as from BI and BW, with whatever BI ends poisoned before BW;
 *   the same within rounding wherever the ops are cut into chunks, and for 1, 2 and 4 microbatches.
 *
 * Every buffer starts as NaN, so reading what was not written shows. PIPER_TEST_SEED=n PIPER_TEST_MODELS=k
 * tries models n .. n + k - 1 instead of the first ones. */
#include "device/ops_cpu.h"
#include "ir/grad_flow.h"
#include "ir/program.h"

#include "lib/buckets.h"
#include "lib/random_model.h"
#include "tap.h"

enum { BATCH = 4 };

/* ---- buffers --------------------------------------------------------------------------------- */

typedef struct Buf {
  unsigned char *at;
  uint64_t bytes;
} Buf;

static OpsCpu cpu;
static unsigned char *scratch;

/* What one microbatch, and the whole step, hold. */
typedef struct Step {
  const Graph *g;
  const Dag *d;
  Programs *programs;
  Buf *values, *inputs;          /* by value, of this microbatch */
  Buf *grads;                    /* by chunk * values + value */
  Buf *saved_i, *saved_w, *kept; /* by chunk */
  Buf *params, *pgrads;          /* by bucket */
  bool *pgrad_written;
  Buf metrics, *counts;          /* counts: by chunk */
  unsigned char **input_data; /* by value: the whole batch */
  int64_t lo, hi;
} Step;

static void poison(Buf b) {
  if (b.at != NULL) memset(b.at, 0xff, b.bytes); /* NaN, and -1 as an id */
}

static void buf_free(Buf *b) {
  free(b->at);
  *b = (Buf){0};
}

/* The buffer has exactly these bytes from its first use on. */
static unsigned char *buf_at(Buf *b, uint64_t bytes) {
  if (b->at == NULL) {
    *b = (Buf){malloc(bytes), bytes};
    if (b->at == NULL) bail("no memory");
    poison(*b);
  }
  if (bytes > b->bytes) bail("a program asks for more than the buffer has");
  return b->at;
}

static uint64_t value_bytes(const Step *s, ValueId v) {
  const Value *value = graph_value(s->g, v);
  return (uint64_t)shape_elements(&value->shape, s->hi - s->lo) *
         dtype_bytes(dtype_concrete(value->dtype, DT_F64));
}

static unsigned char *exactly(Buf *b, uint64_t want, uint64_t bytes) {
  if (bytes != want) bail("a binding's size is not its value's");
  return buf_at(b, bytes);
}

static unsigned char *bind(Step *s, const Binding *b, uint32_t chunk, Buf *workspace) {
  const uint64_t value = b->value.i != 0 ? value_bytes(s, b->value) : 0;
  switch ((BindKind)b->kind) {
  case BIND_WORKSPACE:
    return buf_at(workspace, b->bytes);
  case BIND_SAVED_I:
    return buf_at(&s->saved_i[chunk], b->bytes);
  case BIND_SAVED_W:
    return buf_at(&s->saved_w[chunk], b->bytes);
  case BIND_KEPT:
    return buf_at(&s->kept[chunk], b->bytes);
  case BIND_VALUE:
    return exactly(&s->values[b->value.i], value, b->bytes);
  case BIND_INPUT:
    return exactly(&s->inputs[b->value.i], value, b->bytes);
  case BIND_GRAD:
    return exactly(&s->grads[b->chunk.i * s->g->values.n + b->value.i], value, b->bytes);
  case BIND_PARAM:
    return buf_at(&s->params[b->bucket.i], b->bytes);
  case BIND_PGRAD:
    return buf_at(&s->pgrads[b->bucket.i], b->bytes);
  case BIND_METRICS:
    return buf_at(&s->metrics, b->bytes);
  case BIND_COUNTS:
    return buf_at(&s->counts[b->chunk.i], b->bytes);
  case BIND_STATE:
    break;
  }
  bail("a chunk has no business with optimizer state");
  return NULL;
}

/* How often each came up: models that never show a case prove nothing about it. */
static struct {
  long kept, saved_i, saved_w, copies, sums, in_place, empty, tied, frozen, aux, joint, half, over,
      experts, counted;
} seen;

static void look(const Step *s, const Program *p, Pass pass) {
  seen.empty += p->n_calls == 0;
  for (uint32_t i = 0; i < p->n_bindings; i++) {
    const Binding *b = &p->bindings[i];
    seen.kept += b->kind == BIND_KEPT;
    seen.saved_i += b->kind == BIND_SAVED_I && pass != PASS_F;
    seen.saved_w += b->kind == BIND_SAVED_W && pass != PASS_F;
    seen.tied += b->kind == BIND_PGRAD && s->d->buckets.at[b->bucket.i].chunk.i == 0;
    seen.frozen +=
        b->kind == BIND_PARAM && !s->d->buckets.at[b->bucket.i].trained && pass != PASS_F;
  }
  for (uint32_t i = 0; i < p->n_calls; i++) {
    const KernelCall *c = &p->calls[i];
    seen.counted += c->op == OP_COUNT;
    seen.copies += c->op == OP_RESHAPE;
    seen.sums += c->op == OP_ACCUMULATE;
    seen.experts += c->op == OP_EXPERT_LINEAR;
    if (c->part != KERNEL_B) continue;
    const Binding *dy = &p->bindings[c->args[OP_INFO[c->op].n_operands + 1].base];
    seen.in_place += dy->kind == BIND_GRAD;
    const int n = OP_INFO[c->op].n_operands;
    seen.over += OP_INFO[c->op].flags & OPF_OVER && c->args[0].base == c->args[n + 2].base;
    seen.aux += c->n_args == n + 4 && c->args[n + 3].base != KERNEL_NO_BASE;
    if (c->wrt != KERNEL_WRT_ALL || c->op == OP_EXPERT_SWIGLU) continue; /* its third has none */
    int gradients = 0;
    for (int q = n + 4; q < c->n_args; q++) gradients += c->args[q].base != KERNEL_NO_BASE;
    seen.joint += gradients == n && pass == PASS_BI;
    seen.half += gradients < n;
  }
}

/* Sizes are exact: with one byte less a buffer no longer holds what the calls touch. */
static bool needs_every_byte(const Program *p, uint64_t *bytes) {
  for (uint32_t i = 0; i < p->n_bindings; i++) {
    PiperErr err = {0};
    bytes[i]--;
    const PiperStatus st = ops_cpu_check(p->calls, p->n_calls, bytes, p->n_bindings, &err);
    bytes[i]++;
    if (st == PIPER_OK) return false;
  }
  return true;
}

static uint64_t arg_end(const KernelArg *a) {
  uint64_t bytes = dtype_bytes((DType)a->dtype);
  for (int i = 0; i < a->rank; i++) bytes *= (uint64_t)a->dim[i];
  return a->offset + bytes;
}

static bool is_result(const KernelCall *c, int i) {
  const int n = OP_INFO[c->op].n_operands;
  if (n == 0) return i == c->n_args - 1; /* of the compiler's ops */
  if (c->part == KERNEL_F) return i >= n;
  return c->wrt == KERNEL_WRT_ALL ? i >= n + 4 : i == n + 2;
}

static bool may_overlap(const KernelCall *c, int result, int other) {
  const KernelArg *to = &c->args[result], *from = &c->args[other];
  return c->part == KERNEL_B && OP_INFO[c->op].flags & OPF_OVER && other == 0 && !c->accumulate &&
         to->offset == from->offset;
}

/* No call writes over anything else that it is given, but for OPF_OVER. */
static bool results_apart(const Program *p) {
  for (uint32_t i = 0; i < p->n_calls; i++) {
    const KernelCall *c = &p->calls[i];
    for (int r = 0; r < c->n_args; r++) {
      const KernelArg *to = &c->args[r];
      if (!is_result(c, r) || to->base == KERNEL_NO_BASE) continue;
      for (int a = 0; a < c->n_args; a++)
        if (a != r && c->args[a].base == to->base && c->args[a].offset < arg_end(to) &&
            to->offset < arg_end(&c->args[a]) && !may_overlap(c, r, a))
          return false;
    }
  }
  return true;
}

/* A backward program writes the gradients that chunk_grad_flows promises, and no others. */
static bool writes_what_flows(const Step *s, const Program *p, uint32_t chunk) {
  const Chunk *c = graph_chunk(s->g, (ChunkId){chunk});
  uint32_t want = 0, got = 0;
  for (uint32_t i = 0; i < c->n_in; i++) {
    const ValueId v = {s->g->chunk_values.at[c->in_first + i]};
    want += graph_value(s->g, v)->kind == VALUE_OP && chunk_grad_flows(s->g, (ChunkId){chunk}, v);
  }
  for (uint32_t i = 0; i < p->n_bindings; i++) {
    const Binding *b = &p->bindings[i];
    if (b->kind != BIND_GRAD || !(b->access & BIND_WRITE)) continue;
    if (b->chunk.i != chunk || !chunk_grad_flows(s->g, (ChunkId){chunk}, b->value)) return false;
    got++;
  }
  return got == want;
}

/* PASS_NONE: the chunk's targets are counted. */
static void run_program(Step *s, uint32_t chunk, Pass pass) {
  PiperErr err = {0};
  const ChunkId c = {chunk};
  uint32_t id;
  if ((pass != PASS_NONE ? programs_chunk(s->programs, c, pass, PROGRAM_KEEP, s->hi - s->lo, &id, &err)
                         : programs_targets(s->programs, c, s->hi - s->lo, &id, &err)) != PIPER_OK)
    bail(err.text);
  const Program *p = programs_at(s->programs, id);
  unsigned char **bases = calloc(p->n_bindings + 1, sizeof *bases);
  uint8_t *first = calloc(p->n_bindings + 1, 1);
  uint64_t *bytes = calloc(p->n_bindings + 1, sizeof *bytes);
  Buf workspace = {0};
  for (uint32_t i = 0; i < p->n_bindings; i++) {
    const Binding *b = &p->bindings[i];
    bases[i] = bind(s, b, chunk, &workspace);
    bytes[i] = b->bytes;
    if (b->kind != BIND_PGRAD) continue;
    first[i] = !s->pgrad_written[b->bucket.i];
    s->pgrad_written[b->bucket.i] = true;
  }
  if (ops_cpu_check(p->calls, p->n_calls, bytes, p->n_bindings, &err) != PIPER_OK) bail(err.text);
  if (!needs_every_byte(p, bytes)) bail("a binding is larger than what the program touches");
  if (!results_apart(p)) bail("a call writes over what it reads");
  if ((pass == PASS_B || pass == PASS_BI) && !writes_what_flows(s, p, chunk))
    bail("a backward program writes other gradients than flow");
  look(s, p, pass);
  const StepBlock step = {.step = 1};
  const KernelRun run = {p->calls, p->n_calls, bases, first, s->lo, &step, p->scratch ? scratch : NULL};
  if (ops_cpu_run(&run, &cpu, &err) != PIPER_OK) bail(err.text);
  buf_free(&workspace);
  free(bases);
  free(first);
  free(bytes);
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct Data {
  double *params; /* parameters one after another, by ParamId */
  size_t *offset; /* of each */
  size_t n;
  unsigned char **inputs; /* by value */
  uint64_t state;
} Data;

static double data_uniform(Data *data) {
  data->state = data->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (double)(data->state >> 11) * 0x1p-53 * 2 - 1;
}

static Data data_new(const Graph *g, uint64_t seed) {
  Data data = {.state = seed};
  data.offset = calloc(g->params.n + 1, sizeof *data.offset);
  for (uint32_t p = 1; p < g->params.n; p++) {
    data.offset[p] = data.n;
    data.n += (size_t)shape_elements(&g->params.at[p].shape, 1);
  }
  data.params = calloc(data.n + 1, sizeof *data.params);
  for (size_t i = 0; i < data.n; i++) data.params[i] = data_uniform(&data);
  data.inputs = calloc(g->values.n, sizeof *data.inputs);
  for (uint32_t i = 1; i < g->inputs.n; i++) {
    const ValueId v = g->inputs.at[i].value;
    const size_t n = (size_t)shape_elements(&graph_value(g, v)->shape, BATCH);
    data.inputs[v.i] = malloc(n * 8);
    for (size_t k = 0; k < n; k++) {
      const double u = data_uniform(&data);
      if (graph_value(g, v)->dtype == DT_I32) {
        const int64_t limit = g->inputs.at[i].limit > 0 ? g->inputs.at[i].limit : 2;
        ((int32_t *)data.inputs[v.i])[k] = (int32_t)((u + 1) / 2 * (double)limit);
      } else {
        ((double *)data.inputs[v.i])[k] = u;
      }
    }
  }
  return data;
}

static void data_free(const Graph *g, Data *data) {
  for (uint32_t i = 1; i < g->inputs.n; i++) free(data->inputs[g->inputs.at[i].value.i]);
  free(data->inputs);
  free(data->params);
  free(data->offset);
}

typedef enum Backward { NO_BACKWARD, FUSED, SPLIT } Backward;

static void begin_microbatch(Step *s, const Data *data) {
  for (uint32_t i = 1; i < s->g->inputs.n; i++) {
    const ValueId v = s->g->inputs.at[i].value;
    const uint64_t bytes = value_bytes(s, v), sample = bytes / (uint64_t)(s->hi - s->lo);
    memcpy(buf_at(&s->inputs[v.i], bytes), data->inputs[v.i] + (uint64_t)s->lo * sample, bytes);
  }
}

static void end_microbatch(Step *s) {
  for (uint32_t v = 0; v < s->g->values.n; v++) {
    buf_free(&s->values[v]);
    buf_free(&s->inputs[v]);
  }
  for (size_t i = 0; i < s->g->values.n * s->g->chunks.n; i++) buf_free(&s->grads[i]);
  for (uint32_t c = 0; c < s->g->chunks.n; c++) {
    buf_free(&s->saved_i[c]);
    buf_free(&s->saved_w[c]);
    buf_free(&s->kept[c]);
  }
}

static void backward(Step *s, Backward how) {
  const uint32_t n = graph_n_chunks(s->g);
  if (how == FUSED)
    for (uint32_t c = n; c >= 1; c--) run_program(s, c, PASS_B);
  if (how != SPLIT) return;
  for (uint32_t c = n; c >= 1; c--) {
    run_program(s, c, PASS_BI);
    poison(s->saved_i[c]);
  }
  for (uint32_t c = n; c >= 1; c--)
    run_program(s, c, PASS_BW); /* tied parameters: sums in B's order */
}

/* The sum of the losses; gradients in the order of data->params where 'grads' is not NULL. */
static double run_step(const Dag *d, Programs *programs, const Data *data,
                       int n_mb, Backward how, double *grads) {
  const Graph *g = d->graph;
  const size_t values = g->values.n, chunks = g->chunks.n, buckets = d->buckets.n;
  Step s = {.g = g, .d = d, .programs = programs};
  s.values = calloc(values, sizeof(Buf));
  s.inputs = calloc(values, sizeof(Buf));
  s.grads = calloc(values * chunks, sizeof(Buf));
  s.saved_i = calloc(chunks, sizeof(Buf));
  s.saved_w = calloc(chunks, sizeof(Buf));
  s.kept = calloc(chunks, sizeof(Buf));
  s.counts = calloc(chunks, sizeof(Buf));
  s.params = calloc(buckets, sizeof(Buf));
  s.pgrads = calloc(buckets, sizeof(Buf));
  s.pgrad_written = calloc(buckets, sizeof(bool));
  memset(buf_at(&s.metrics, graph_n_metrics(g) * 8), 0, graph_n_metrics(g) * 8);
  for (uint32_t b = 1; b < buckets; b++) {
    buf_at(&s.params[b], (uint64_t)d->buckets.at[b].elements * 8);
    buf_at(&s.pgrads[b], (uint64_t)d->buckets.at[b].elements * 8);
  }
  for (uint32_t p = 1; p < g->params.n; p++)
    memcpy(s.params[d->home[p].bucket.i].at + d->home[p].offset * 8, data->params + data->offset[p],
           (size_t)shape_elements(&g->params.at[p].shape, 1) * 8);
  for (uint32_t c = 1; c < chunks; c++) {
    const uint64_t bytes = g->chunks.at[c].n_counts * 8;
    if (bytes > 0) memset(buf_at(&s.counts[c], bytes), 0, bytes);
  }
  for (int mb = 0; mb < n_mb; mb++) {
    s.lo = BATCH / n_mb * mb;
    s.hi = s.lo + BATCH / n_mb;
    begin_microbatch(&s, data);
    for (uint32_t c = 1; c < chunks; c++)
      if (g->chunks.at[c].n_counts > 0) run_program(&s, c, PASS_NONE);
    end_microbatch(&s);
  }
  for (int mb = 0; mb < n_mb; mb++) {
    s.lo = BATCH / n_mb * mb;
    s.hi = s.lo + BATCH / n_mb;
    begin_microbatch(&s, data);
    for (uint32_t c = 1; c < chunks; c++) run_program(&s, c, PASS_F);
    backward(&s, how);
    end_microbatch(&s);
  }
  double loss = 0;
  for (uint32_t l = 1; l < g->losses.n; l++) loss += ((double *)(void *)s.metrics.at)[l - 1];
  for (uint32_t p = 1; grads != NULL && p < g->params.n; p++) {
    const size_t n = (size_t)shape_elements(&g->params.at[p].shape, 1);
    if (g->params.at[p].reached)
      memcpy(grads + data->offset[p], s.pgrads[d->home[p].bucket.i].at + d->home[p].offset * 8,
             n * 8);
    else
      for (size_t i = 0; i < n; i++) grads[data->offset[p] + i] = 0;
  }
  for (uint32_t b = 0; b < buckets; b++) {
    buf_free(&s.params[b]);
    buf_free(&s.pgrads[b]);
  }
  buf_free(&s.metrics);
  for (uint32_t c = 0; c < chunks; c++) buf_free(&s.counts[c]);
  free(s.counts);
  free(s.values);
  free(s.inputs);
  free(s.grads);
  free(s.saved_i);
  free(s.saved_w);
  free(s.kept);
  free(s.params);
  free(s.pgrads);
  free(s.pgrad_written);
  return loss;
}

/* ---- comparisons ----------------------------------------------------------------------------- */

typedef struct Compiled {
  Graph *g;
  Dag *d;
  Programs *programs;
} Compiled;

static Compiled compile(uint64_t seed, uint64_t cuts, int *n_ops) {
  PiperErr err = {0};
  Compiled c = {.g = random_model(seed, cuts, n_ops)};
  c.d = dag_new(c.g, BATCH);
  if (c.d == NULL) bail("no memory");
  buckets_fill(c.d);
  const ProgramSpec spec = {.dag = c.d, .dtype = DT_F64};
  if (programs_new(&spec, &c.programs, &err) != PIPER_OK) bail(err.text);
  return c;
}

static void compiled_free(Compiled *c) {
  programs_free(c->programs);
  dag_free(c->d);
  graph_free(c->g);
}

static double largest(const double *x, size_t n) {
  double m = 0;
  for (size_t i = 0; i < n; i++) m = fabs(x[i]) > m ? fabs(x[i]) : m;
  return m;
}

static bool near_all(const double *got, const double *want, size_t n, double tol) {
  const double unit = tol * (1 + largest(want, n));
  for (size_t i = 0; i < n; i++)
    if (!(fabs(got[i] - want[i]) <= unit)) {
      diag("element %zu: got %.17g, want %.17g", i, got[i], want[i]);
      return false;
    }
  return true;
}

/* A difference over a kink of relu is wrong by any amount, over a smaller step it is not. */
static bool differences_agree(const Compiled *c, Data *data,
                              const double *grads) {
  const double unit = 1 + largest(grads, data->n);
  for (uint32_t p = 1; p < c->g->params.n; p++) {
    const size_t n = (size_t)shape_elements(&c->g->params.at[p].shape, 1);
    for (size_t i = data->offset[p]; i < data->offset[p] + n && !c->g->params.at[p].frozen; i++) {
      const double at = data->params[i];
      double off = INFINITY, slope = 0;
      for (double h = 1e-4; h > 1e-7 && off > 1e-6 * unit; h /= 10) {
        data->params[i] = at + h;
        slope = run_step(c->d, c->programs, data, 1, NO_BACKWARD, NULL);
        data->params[i] = at - h;
        slope -= run_step(c->d, c->programs, data, 1, NO_BACKWARD, NULL);
        slope /= 2 * h;
        off = fabs(slope - grads[i]);
      }
      data->params[i] = at;
      if (off <= 1e-6 * unit) continue;
      diag("parameter p%u, element %zu: %.12g, by differences %.12g", p, i - data->offset[p],
           grads[i], slope);
      return false;
    }
  }
  return true;
}

typedef struct Tally {
  int cuts, split_bits, fused, microbatches, differences;
} Tally;

static void try_cuts(uint64_t seed, uint64_t cuts, const double *want,
                     double want_loss, Tally *bad) {
  int n_ops;
  Compiled c = compile(seed, cuts, &n_ops);
  Data data = data_new(c.g, seed);
  double *fused = calloc(data.n + 1, 8), *split = calloc(data.n + 1, 8);
  for (int n_mb = 1; n_mb <= 4; n_mb *= 2) {
    const double loss = run_step(c.d, c.programs, &data, n_mb, FUSED, fused);
    run_step(c.d, c.programs, &data, n_mb, SPLIT, split);
    const double unit = 1e-11 * (1 + fabs(want_loss));
    const bool same = near_all(fused, want, data.n, 1e-11) && fabs(loss - want_loss) <= unit;
    const bool bits = memcmp(fused, split, data.n * 8) == 0;
    if (!same && n_mb == 1) bad->fused++;
    if (!same && n_mb > 1) bad->microbatches++;
    if (!bits) bad->split_bits++;
    if (!same || !bits)
      diag("model %llu, cuts %llx, %d microbatches: %s %s, loss %.17g for %.17g",
           (unsigned long long)seed, (unsigned long long)cuts, n_mb, same ? "" : "gradients",
           bits ? "" : "bits", loss, want_loss);
  }
  bad->cuts++;
  free(fused);
  free(split);
  data_free(c.g, &data);
  compiled_free(&c);
}

static void try_model(uint64_t seed, Tally *bad) {
  int n_ops;
  Compiled c = compile(seed, 0, &n_ops);
  Data data = data_new(c.g, seed);
  double *grads = calloc(data.n + 1, 8);
  const double loss = run_step(c.d, c.programs, &data, 1, FUSED, grads);
  if (!differences_agree(&c, &data, grads)) {
    diag("model %llu", (unsigned long long)seed);
    bad->differences++;
  }
  uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15);
  for (int i = 1; i < n_ops; i++) {
    try_cuts(seed, UINT64_C(1) << i, grads, loss, bad);
    random = random * UINT64_C(6364136223846793005) + 1;
    if (i % 4 == 0) try_cuts(seed, random >> 7, grads, loss, bad);
  }
  try_cuts(seed, UINT64_MAX, grads, loss, bad);
  free(grads);
  data_free(c.g, &data);
  compiled_free(&c);
}

int main(void) {
  const char *from = getenv("PIPER_TEST_SEED"), *models = getenv("PIPER_TEST_MODELS");
  const uint64_t first = from != NULL ? strtoull(from, NULL, 10) : 1;
  const uint64_t n = models != NULL ? strtoull(models, NULL, 10) : 60;
  PiperErr err = {0};
  scratch = aligned_alloc(64, OP_SCRATCH_BYTES);
  if (ops_cpu_init(&cpu, NULL, NULL, &err) != PIPER_OK) bail(err.text);
  Tally bad = {0};
  for (uint64_t seed = first; seed < first + n; seed++) try_model(seed, &bad);
  diag("%llu models cut in %d ways; kept %ld, saved_i %ld, saved_w %ld, copies %ld, sums %ld, in "
       "place %ld, empty %ld, tied %ld, frozen %ld, aux %ld, joint %ld, half of a joint %ld, over "
       "%ld, experts %ld, counted %ld",
       (unsigned long long)n, bad.cuts, seen.kept, seen.saved_i, seen.saved_w, seen.copies,
       seen.sums, seen.in_place, seen.empty, seen.tied, seen.frozen, seen.aux, seen.joint,
       seen.half, seen.over, seen.experts, seen.counted);
  ok(seen.kept && seen.saved_i && seen.saved_w && seen.copies && seen.sums && seen.in_place &&
         seen.empty && seen.tied && seen.frozen && seen.aux && seen.joint && seen.half &&
         seen.over && seen.experts && seen.counted,
     "every case came up");
  is_int(bad.differences, 0, "gradients are those of central differences");
  is_int(bad.fused, 0, "gradients do not depend on where chunks end");
  is_int(bad.microbatches, 0, "nor on the number of microbatches");
  is_int(bad.split_bits, 0, "BI and BW give the bits of B");
  free(scratch);
  return done_testing();
}
