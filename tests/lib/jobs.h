/* jobs.h - small jobs for tests of the runtime: a chain of stages y = relu(x W^T) that ends in
 * sum_squares, on small integers, so that every strategy computes the same bits (in f64, for two
 * steps). Any failure to set up ends the test program. */
#ifndef PIPER_TESTS_JOBS_H
#define PIPER_TESTS_JOBS_H

#include "base/hash.h"
#include "compile/compile.h"
#include "runtime/job.h"

#include "tap.h"

#define JOBS_BATCH 24
#define JOBS_WIDTH 4

typedef struct Layout {
  uint32_t stages, devices, microbatches; /* devices: of each stage */
  int32_t first_rank, stride;             /* rank of device 0, and from one rank to the next; 0: 1 */
  uint32_t threads; /* of each rank; 0: as compile chooses */
  bool single_stream;
  const Plan *trains;      /* evaluation with the parameters of that one's job */
  OptimizerSpec optimizer; /* kind OPTIMIZER_NONE: sgd */
} Layout;

static inline void jobs_need(PiperStatus st, const PiperErr *err) {
  if (st != PIPER_OK) bail(err->text);
}

/* A small integer, different for each i. */
static inline double jobs_number(uint32_t salt, uint64_t i) {
  Hash h = HASH_START;
  hash_u32(&h, salt);
  hash_u64(&h, i);
  return (double)(hash_end(&h) % 4) - 1;
}

static inline ValueId jobs_op(Graph *g, OpKind kind, ValueId a, ValueId b) {
  PiperErr err = {PIPER_OK, ""};
  ValueId out;
  const OpSpec spec = {.kind = kind, .in = {a, b}};
  jobs_need(graph_add_op(g, &spec, intern_id(g->names, "train.lua:7"), &out, &err), &err);
  return out;
}

/* Parameters "w0", "w1", ...; "frozen", which the last stage adds. INIT_VALUES: the small integers;
 * otherwise as 'init' says, with 0.5. */
static inline Graph *jobs_graph_init(uint32_t n_stages, InitKind init) {
  PiperErr err = {PIPER_OK, ""};
  Graph *g = graph_new("jobs");
  ValueId h, w;
  double values[JOBS_WIDTH * JOBS_WIDTH];
  const Shape in = {.rank = 2, .batched = true, .axis = {AXIS_BATCH, AXIS_FEATURE},
                    .dim = {1, JOBS_WIDTH}};
  if (g == NULL) bail("no memory");
  jobs_need(graph_add_input(g, "x", &in, DT_FLOAT, 0, &h, &err), &err);
  for (uint32_t i = 0; i <= n_stages; i++) {
    char name[16];
    for (int k = 0; k < JOBS_WIDTH * JOBS_WIDTH; k++) values[k] = jobs_number(i, (uint64_t)k);
    snprintf(name, sizeof name, i < n_stages ? "w%u" : "frozen", i);
    ParamSpec spec = {.name = name, .shape = {.rank = 2, .dim = {JOBS_WIDTH, JOBS_WIDTH}},
                      .init = init, .init_arg = 0.5, .values = values};
    if (i == n_stages) spec.shape = (Shape){.rank = 1, .dim = {JOBS_WIDTH}};
    if (i < n_stages) jobs_need(graph_enter(g, "PP", &err), &err);
    jobs_need(graph_add_param(g, &spec, 0, &w, &err), &err);
    if (i < n_stages) h = jobs_op(g, OP_RELU, jobs_op(g, OP_LINEAR, h, w), (ValueId){0});
    if (i + 1 < n_stages) jobs_need(graph_leave(g, "PP", &err), &err);
  }
  graph_param(g, graph_value(g, w)->param)->frozen = true;
  h = jobs_op(g, OP_SUM_SQUARES, jobs_op(g, OP_ADD, h, w), (ValueId){0});
  jobs_need(graph_add_loss(g, h, 0, &err), &err);
  jobs_need(graph_leave(g, "PP", &err), &err);
  jobs_need(graph_cut(g, &err), &err);
  return g;
}

static inline Graph *jobs_graph(uint32_t n_stages) { return jobs_graph_init(n_stages, INIT_VALUES); }

static inline Plan *jobs_plan(const Graph *g, const Layout *l) {
  PiperErr err = {PIPER_OK, ""};
  Plan *out = NULL;
  char *dump = NULL;
  const int32_t stride = l->stride != 0 ? l->stride : 1;
  int32_t stage[16], devices[16][16];
  FilterTerm term[16];
  Directive d[20] = {0};
  Strategy s = {d, 0};
  for (uint32_t i = 0; i < l->stages && l->devices != 0; i++) {
    stage[i] = (int32_t)i;
    term[i] = (FilterTerm){.tag = "PP", .kind = TERM_INDEX, .indices = &stage[i], .n_indices = 1};
    for (uint32_t j = 0; j < l->devices; j++) {
      devices[i][j] = l->first_rank + (int32_t)(i * l->devices + j) * stride;
    }
    d[s.n++] = (Directive){.kind = DIRECTIVE_PLACE, .line = "train.lua:20",
                           .filter = {.terms = &term[i], .n_terms = 1}, .devices = devices[i],
                           .n_devices = l->devices};
    if (l->devices == 1) continue;
    d[s.n++] = (Directive){.kind = DIRECTIVE_REPLICATE, .line = "train.lua:21",
                           .filter = {.terms = &term[i], .n_terms = 1}, .devices = devices[i],
                           .n_devices = l->devices, .bucket_bytes = 25 << 20};
  }
  if (l->microbatches > 1) {
    d[s.n++] = (Directive){.kind = DIRECTIVE_SPLIT, .line = "train.lua:22", .dim_name = "MB",
                           .num_microbatches = l->microbatches};
  }
  CompileOptions o = {
      .batch = JOBS_BATCH,
      .plan = {.dtype = DT_F64, .single_stream = l->single_stream, .optimizer = l->optimizer,
               .threads_per_rank = l->threads},
      .trains = l->trains,
      .verify = true,
  };
  if (o.plan.optimizer.kind == OPTIMIZER_NONE && o.trains == NULL) {
    o.plan.optimizer = (OptimizerSpec){.kind = OPTIMIZER_SGD, .lr = 0.125};
  }
  jobs_need(compile_plan(g, &s, &o, &out, &dump, &err), &err);
  free(dump);
  return out;
}

static inline Job *jobs_open(const Plan *p) {
  PiperErr err = {PIPER_OK, ""};
  const JobConfig cfg = {.seed = 3};
  Job *job = NULL;
  jobs_need(job_open(p, &cfg, &job, &err), &err);
  return job;
}

static inline PiperStatus jobs_step(Job *job, int64_t step, double *metrics, PiperErr *err) {
  double x[JOBS_BATCH * JOBS_WIDTH];
  const void *inputs[2] = {NULL, x};
  const JobStep s = {.step = step, .lr = 0.125, .seed = 3, .inputs = inputs};
  for (uint64_t i = 0; i < JOBS_BATCH * JOBS_WIDTH; i++) {
    x[i] = jobs_number(100 + (uint32_t)step, i);
  }
  return job_step(job, &s, metrics, err);
}

static inline ParamId jobs_param(const Graph *g, const char *name) {
  for (uint32_t i = 1; i < g->params.n; i++) {
    if (strcmp(graph_name(g, g->params.at[i].name), name) == 0) return (ParamId){i};
  }
  bail("no such parameter");
  return (ParamId){0};
}

#endif
