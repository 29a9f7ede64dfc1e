/* step.c - whole training steps against the multiply-add peak of the same threads.
 *
 *   make bench/step && bench/step [--model large|small|both] [--threads N[,N...]] [--batch N]
 *                                 [--context N] [--rounds N] [--microbatches N] [--ops] [--cpu-time]
 *
 * A step is forward, backward and AdamW in f32, of a transformer as GPT-2 is: learned positions,
 * layernorm, attention, gelu, biases, the head tied to the embedding. "large" is GPT-2's size (12
 * layers, width 768, 12 heads, vocabulary 50257), "small" has 4 layers, width 128, 4 heads and bytes.
 * Floating-point operations are counted as
 *
 *   6 tokens (12 layers width^2 + vocabulary width) + 6 layers batch context^2 width
 *
 * the weights' three products and causal attention's; norms, the optimizer and so on count nothing.
 *
 * Each configuration runs in a process of its own, so that its memory is its own. Peak and step are
 * measured in turns, since the clock of a shared machine drifts; figures are medians of the rounds,
 * "best" is the fastest step against the highest peak of all rounds. Afterwards the calls of a step are timed one by one: the rate of the
 * products, and the share of the step that is spent on anything else (attention is no product here;
 * --ops shows each op).
 *
 * --cpu-time measures the processor time of the process, which with one thread leaves out what other
 * programs take; with more threads it counts waiting as well. */
#include "base/cores.h"
#include "base/rng.h"
#include "bind/bind.h"
#include "bind/bind_plan.h"
#include "device/cpu_isa.h"
#include "device/ops_cpu.h"
#include "runtime/job.h"

#include <lauxlib.h>
#include <lualib.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ROUNDS = 101, MOST_THREADS = 64 };

typedef struct Config {
  const char *model;
  int layers, width, heads, vocab;
  int batch, context, microbatches;
  int threads, rounds;
  bool ops;
} Config;

static const char MODEL[] =
    "local c = ...\n"
    "local piper = require 'piper'\n"
    "local nn = piper.nn\n"
    "local model = piper.model('gpt', function(m)\n"
    "  local tokens = m:input('tokens', { 'batch', c.context }, 'i32')\n"
    "  local targets = m:input('targets', { 'batch', c.context }, 'i32')\n"
    "  local h = nn.embedding(tokens, 'wte', { vocab = c.vocab, width = c.width })\n"
    "  h = h + nn.param('wpe.weight', { c.context, c.width })\n"
    "  for l = 1, c.layers do\n"
    "    local name = 'h.' .. l\n"
    "    h = h + nn.attention(nn.layernorm(h, name .. '.ln_1'), name .. '.attn', { heads = c.heads, head_width = c.width // c.heads, bias = true })\n"
    "    local up = nn.gelu(nn.linear(nn.layernorm(h, name .. '.ln_2'), name .. '.mlp.up', { out = 4 * c.width }))\n"
    "    h = h + nn.linear(up, name .. '.mlp.down', { out = c.width })\n"
    "  end\n"
    "  h = nn.layernorm(h, 'ln_f')\n"
    "  m:loss(nn.cross_entropy(nn.linear(h, 'wte', { out = c.vocab, bias = false }), targets))\n"
    "end)\n"
    "local s = piper.strategy()\n"
    "if c.microbatches > 1 then s:split { num_microbatches = c.microbatches } end\n"
    "return piper.compile(model, s, { batch = c.batch, threads_per_rank = c.threads,\n"
    "  optimizer = piper.adamw { lr = 1e-4, weight_decay = 0.1 } })\n";

static void die(const char *what, const char *why) {
  fprintf(stderr, "step: %s: %s\n", what, why);
  exit(1);
}

static clockid_t clock_used = CLOCK_MONOTONIC;

static double seconds(void) {
  struct timespec t;
  clock_gettime(clock_used, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, ascending);
  return x[n / 2];
}

/* ---- the plan ----------------------------------------------------------------------------------- */

static void set_int(lua_State *L, const char *name, int v) {
  lua_pushinteger(L, v);
  lua_setfield(L, -2, name);
}

/* Lives as long as 'L'. */
static const Plan *compile(lua_State *L, const Config *c) {
  luaL_openlibs(L);
  bind_open(L, NULL);
  if (luaL_loadbuffer(L, MODEL, sizeof MODEL - 1, "=model") != LUA_OK) die("model", lua_tostring(L, -1));
  lua_newtable(L);
  set_int(L, "layers", c->layers);
  set_int(L, "width", c->width);
  set_int(L, "heads", c->heads);
  set_int(L, "vocab", c->vocab);
  set_int(L, "batch", c->batch);
  set_int(L, "context", c->context);
  set_int(L, "microbatches", c->microbatches);
  set_int(L, "threads", c->threads);
  if (lua_pcall(L, 1, 1, 0) != LUA_OK) die("model", lua_tostring(L, -1));
  lua_getfield(L, -1, "core");
  return bind_check_plan(L, -1);
}

static double step_flops(const Config *c) {
  const double tokens = (double)c->batch * c->context, width = c->width;
  return 6 * tokens * (12.0 * c->layers * width * width + c->vocab * width) +
         6.0 * c->layers * tokens * c->context * width;
}

/* ---- the peak ----------------------------------------------------------------------------------- */

typedef struct Peak {
  const Kernels *k;
  double flops;
  double sink[MOST_THREADS], done[MOST_THREADS];
} Peak;

static void peak_piece(void *arg, uint32_t piece, uint32_t thread) {
  Peak *p = arg;
  (void)thread;
  p->done[piece] = p->k->peak(p->flops, &p->sink[piece]);
}

/* Operations a second of all threads of the team together. */
static double peak(const Kernels *k, Team *team) {
  Peak p = {.k = k, .flops = 5e9};
  const uint32_t n = team_threads(team);
  double done = 0;
  const double begin = seconds();
  team_run(team, n, peak_piece, &p);
  const double took = seconds() - begin;
  for (uint32_t i = 0; i < n; i++) done += p.done[i];
  return done / took;
}

/* ---- whole steps -------------------------------------------------------------------------------- */

typedef struct Feed {
  int32_t *tokens, *targets;
  const void *inputs[3];
} Feed;

static Feed feed_new(const Config *c) {
  const size_t n = (size_t)c->batch * (size_t)c->context;
  Feed f = {malloc(n * sizeof(int32_t)), malloc(n * sizeof(int32_t)), {NULL}};
  if (f.tokens == NULL || f.targets == NULL) die("inputs", "no memory");
  for (size_t i = 0; i < n; i++) {
    f.tokens[i] = (int32_t)(rng_uniform(1, 0, i) * c->vocab);
    f.targets[i] = (int32_t)(rng_uniform(1, 1, i) * c->vocab);
  }
  f.inputs[1] = f.tokens;
  f.inputs[2] = f.targets;
  return f;
}

static void one_step(Job *job, int64_t step, const Feed *f) {
  PiperErr err = {0};
  double metrics[3];
  const JobStep s = {.step = step, .lr = 1e-4, .seed = 1, .inputs = f->inputs};
  if (job_step(job, &s, metrics, &err) != PIPER_OK) die("step", err.text);
}

typedef struct Speed {
  double peak, step_seconds, of_peak, best;
} Speed;

static Speed measure_steps(const Config *c, const Plan *plan, const Feed *f, const Kernels *k, Team *team) {
  PiperErr err = {0};
  Job *job;
  double top[MOST_ROUNDS], took[MOST_ROUNDS], ratio[MOST_ROUNDS];
  const double flops = step_flops(c);
  if (job_open(plan, &(JobConfig){.seed = 1}, &job, &err) != PIPER_OK) die("open", err.text);
  for (int64_t step = 1; step <= 2; step++) one_step(job, step, f); /* memory is touched */
  const int repeat = flops < 1e10 ? 10 : 1;
  for (int r = 0; r < c->rounds; r++) {
    top[r] = peak(k, team);
    const double begin = seconds();
    for (int i = 0; i < repeat; i++) one_step(job, 3 + r * repeat + i, f);
    took[r] = (seconds() - begin) / repeat;
    ratio[r] = flops / took[r] / top[r];
  }
  job_close(job);
  const Speed s = {median(top, c->rounds), median(took, c->rounds), median(ratio, c->rounds), 0};
  return (Speed){s.peak, s.step_seconds, s.of_peak, flops / took[0] / top[c->rounds - 1]}; /* sorted */
}

/* ---- call by call --------------------------------------------------------------------------------- */

typedef struct Profile {
  double seconds[OP_KIND_COUNT][2]; /* by op and part */
  uint64_t calls[OP_KIND_COUNT][2];
  double product_flops;
} Profile;

static double product_flops(const KernelCall *c) {
  double all = 2;
  if (c->op != OP_LINEAR) return 0;
  const KernelArg *w = &c->args[c->part == KERNEL_B && c->wrt == 1 ? 5 : 1];
  const KernelArg *y = &c->args[c->part == KERNEL_B ? 4 : 3];
  if (c->part == KERNEL_B && c->wrt == 2) return 0; /* a bias */
  for (int i = 0; i < y->rank; i++) all *= (double)y->dim[i];
  return all * (double)w->dim[1];
}

/* Something that a model could hold: matrices small, norms one. */
static void initial_values(const Plan *plan, const RankPlan *r, unsigned char *arena) {
  const Graph *g = plan->graph;
  memset(arena, 0, r->arena_bytes);
  for (uint32_t p = 1; p < g->params.n; p++) {
    const ParamHome home = plan->dag->home[p];
    const Shape *shape = &graph_param(g, (ParamId){p})->shape;
    const char *name = graph_name(g, graph_param(g, (ParamId){p})->name);
    for (size_t i = 0; i < r->buffers.n; i++) {
      const Buffer *b = &r->buffers.at[i];
      if (b->role != BUFFER_PARAMS || b->id != home.bucket.i) continue;
      float *to = (float *)(arena + b->offset) + home.offset;
      const int64_t n = shape_elements(shape, 1);
      for (int64_t j = 0; j < n; j++)
        to[j] = shape->rank > 1 ? (float)(0.07 * rng_uniform(2, p, (uint64_t)j) - 0.035)
                : strstr(name, "weight") != NULL ? 1
                                                 : 0;
    }
  }
}

static void put_inputs(const Plan *plan, const RankPlan *r, const Feed *f, unsigned char *arena) {
  for (size_t i = 0; i < r->buffers.n; i++) {
    const Buffer *b = &r->buffers.at[i];
    if (b->role != BUFFER_INPUT) continue;
    const Value *v = graph_value(plan->graph, plan->graph->inputs.at[b->id].value);
    const size_t row = (size_t)shape_elements_per_sample(&v->shape) * sizeof(int32_t);
    memcpy(arena + b->offset, (const unsigned char *)f->inputs[b->id] + row * (size_t)b->lo,
           row * (size_t)(b->hi - b->lo));
  }
}

static void profile_instr(const Plan *plan, const RankPlan *r, const Instr *x, unsigned char *arena,
                          const OpsCpu *cpu, Profile *out) {
  const Program *p = programs_at(plan->programs, x->program);
  unsigned char **bases = malloc((p->n_bindings + 1) * sizeof *bases);
  PiperErr err = {0};
  for (uint32_t b = 0; b < p->n_bindings; b++) bases[b] = arena + r->bind_offset.at[x->bind_first + b];
  for (uint32_t i = 0; i < p->n_calls; i++) {
    const KernelCall *c = &p->calls[i];
    const KernelRun run = {.calls = c,
                           .n_calls = 1,
                           .bases = bases,
                           .first = r->bind_first_write.at + x->bind_first,
                           .sample_lo = x->sample_lo,
                           .step = (const StepBlock *)(arena + r->step_offset),
                           .scratch = arena + r->scratch_offset};
    const double begin = seconds();
    if (ops_cpu_run(&run, cpu, &err) != PIPER_OK) die(OP_INFO[c->op].name, err.text);
    if (out == NULL) continue;
    const bool bias = c->op == OP_LINEAR && product_flops(c) == 0;
    const OpKind op = bias ? OP_NONE : (OpKind)c->op;
    out->seconds[op][c->part] += seconds() - begin;
    out->calls[op][c->part]++;
    out->product_flops += product_flops(c);
  }
  free(bases);
}

/* The instructions of the plan's only rank, in their order, several steps. */
static void profile(const Plan *plan, const Feed *f, int n_steps, const OpsCpu *cpu, Profile *out) {
  const RankPlan *r = &plan->ranks[0];
  void *arena = NULL;
  if (posix_memalign(&arena, 64, r->arena_bytes) != 0) die("profile", "no memory");
  initial_values(plan, r, arena);
  for (int step = -1; step < n_steps; step++) { /* the first is not counted */
    const StepBlock block = {.step = step + 2, .lr = 1e-5, .seed = 1, .bias_correction = {1, 1}};
    put_inputs(plan, r, f, arena);
    memcpy((unsigned char *)arena + r->step_offset, &block, sizeof block);
    memset((unsigned char *)arena + r->metrics_offset, 0, graph_n_metrics(plan->graph) * sizeof(double));
    for (size_t i = 0; i < r->instrs.n; i++)
      if (r->instrs.at[i].kind == INSTR_RUN)
        profile_instr(plan, r, &r->instrs.at[i], arena, cpu, step < 0 ? NULL : out);
  }
  free(arena);
}

static void print_ops(const Profile *p, int n_steps, double all) {
  for (int op = 0; op < OP_KIND_COUNT; op++)
    for (int part = 0; part < 2; part++) {
      if (p->calls[op][part] == 0) continue;
      printf("    %-16s %-8s %5d calls  %9.3f ms  %5.1f%%\n",
             op == OP_NONE ? "linear's bias" : OP_INFO[op].name, part == KERNEL_B ? "gradient" : "forward",
             (int)p->calls[op][part] / n_steps, 1e3 * p->seconds[op][part] / n_steps,
             100 * p->seconds[op][part] / all);
    }
}

/* ---- a configuration -------------------------------------------------------------------------------- */

static double peak_process_gib(void) {
  char line[200];
  double kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f != NULL && fgets(line, sizeof line, f) != NULL)
    if (sscanf(line, "VmHWM: %lf kB", &kib) == 1) break;
  if (f != NULL) fclose(f);
  return kib / (1 << 20);
}

static void run_config(const Config *c) {
  PiperErr err = {0};
  const KernelTable *table;
  Crowd crowd = {.n_cores = cores_available(), .runnable = 1};
  Team *team;
  OpsCpu cpu;
  lua_State *L = luaL_newstate();
  if (L == NULL || cpu_isa_select(&table, &err) != PIPER_OK ||
      team_new((uint32_t)c->threads, &crowd, "bench", &team, &err) != PIPER_OK ||
      ops_cpu_init(&cpu, table, team, &err) != PIPER_OK)
    die("start", err.text);
  const Plan *plan = compile(L, c);
  Feed f = feed_new(c);
  const Speed s = measure_steps(c, plan, &f, &table->f32, team);
  const double process = peak_process_gib();
  const double top = peak(&table->f32, team);
  Profile p = {.product_flops = 0};
  const int n_steps = step_flops(c) < 1e10 ? 20 : 3;
  profile(plan, &f, n_steps, &cpu, &p);
  double all = 0;
  for (int op = 0; op < OP_KIND_COUNT; op++) all += p.seconds[op][0] + p.seconds[op][1];
  const double products = p.seconds[OP_LINEAR][0] + p.seconds[OP_LINEAR][1];
  printf("%-6s %3d x %-4d %d thread%s  peak %6.1f GFLOP/s  products %3.0f%%  step %8.2f ms %6.0f tokens/s  "
         "%4.1f%% of peak (best %4.1f%%)  outside products %4.1f%%  memory %.2f GiB planned, %.2f process\n",
         c->model, c->batch, c->context, c->threads, c->threads > 1 ? "s" : " ", s.peak * 1e-9,
         100 * p.product_flops / products / top, 1e3 * s.step_seconds,
         (double)c->batch * c->context / s.step_seconds, 100 * s.of_peak, 100 * s.best,
         100 * (1 - products / all), (double)plan->ranks[0].arena_bytes / (1 << 30), process);
  if (c->ops) print_ops(&p, n_steps, all);
  fflush(stdout);
  team_free(team);
  free(f.tokens);
  free(f.targets);
  lua_close(L);
}

/* In a process of its own, which has not started a thread yet. */
static void run_alone(const Config *c) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    run_config(c);
    exit(0);
  }
  if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0) exit(1);
}

/* ---- options ------------------------------------------------------------------------------------------ */

static const char USAGE[] =
    "usage: step [--model large|small|both] [--threads N[,N...]] [--batch N] [--context N]\n"
    "            [--rounds N] [--microbatches N] [--ops] [--cpu-time]\n";

typedef struct Options {
  const char *model, *threads;
  int batch, context, rounds, microbatches;
  bool ops;
} Options;

static void usage(void) {
  fputs(USAGE, stderr);
  exit(2);
}

static int number(const char *text, int most) {
  char *end;
  const long n = strtol(text, &end, 10);
  if (end == text || *end != '\0' || n < 1 || n > most) usage();
  return (int)n;
}

static Options read_options(int argc, char **argv) {
  Options o = {.model = "both", .threads = NULL, .batch = 4, .context = 64, .rounds = 11, .microbatches = 1};
  for (int i = 1; i < argc; i++) {
    const char *name = argv[i];
    if (strcmp(name, "--ops") == 0) {
      o.ops = true;
      continue;
    }
    if (strcmp(name, "--cpu-time") == 0) {
      clock_used = CLOCK_PROCESS_CPUTIME_ID;
      continue;
    }
    if (++i == argc) usage();
    if (strcmp(name, "--model") == 0) o.model = argv[i];
    else if (strcmp(name, "--threads") == 0) o.threads = argv[i];
    else if (strcmp(name, "--batch") == 0) o.batch = number(argv[i], 1 << 20);
    else if (strcmp(name, "--context") == 0) o.context = number(argv[i], 1 << 20);
    else if (strcmp(name, "--rounds") == 0) o.rounds = number(argv[i], MOST_ROUNDS);
    else if (strcmp(name, "--microbatches") == 0) o.microbatches = number(argv[i], 1 << 20);
    else usage();
  }
  return o;
}

int main(int argc, char **argv) {
  static const Config MODELS[] = {{.model = "large", .layers = 12, .width = 768, .heads = 12, .vocab = 50257},
                                  {.model = "small", .layers = 4, .width = 128, .heads = 4, .vocab = 256}};
  const Options o = read_options(argc, argv);
  bool any = false;
  char threads[100];
  snprintf(threads, sizeof threads, "%s", o.threads != NULL ? o.threads : cores_available() > 1 ? "1,2" : "1");
  for (char *at = strtok(threads, ","); at != NULL; at = strtok(NULL, ","))
    for (size_t m = 0; m < sizeof MODELS / sizeof *MODELS; m++) {
      if (strcmp(o.model, "both") != 0 && strcmp(o.model, MODELS[m].model) != 0) continue;
      Config c = MODELS[m];
      c.batch = o.batch;
      c.context = o.context;
      c.rounds = o.rounds;
      c.microbatches = o.microbatches;
      c.ops = o.ops;
      c.threads = number(at, MOST_THREADS);
      run_alone(&c);
      any = true;
    }
  if (!any) usage();
  return 0;
}
