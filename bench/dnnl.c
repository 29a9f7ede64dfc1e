/* dnnl.c - Piper's own matrix products against those of oneDNN, each against the multiply-add peak.
 *
 *   make bench/dnnl && bench/dnnl [FILTER]       (needs libdnnl-dev when configure runs)
 *
 * Products are those of a transformer's layers: y = x W^T (NT), dx = dy W (NN), dW (+)= dy^T x (TN).
 * Both libraries get plain row-major matrices and as many threads: Piper cuts the product itself, as
 * in training; oneDNN uses its OpenMP threads, and is left time to let go of the cores. Peak, Piper and oneDNN are measured in turns, the best
 * of the rounds each, since the machine may be busy with other things. */
#include "base/cores.h"
#include "device/cpu_isa.h"
#include "device/ops_cpu.h"

#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 25 };
#define ROUND_FLOPS 5e8 /* at least so many in each measurement */

typedef struct Layer {
  const char *what;
  char kind[3]; /* NT, NN, TN */
  int64_t rows, in, out; /* of the layer */
} Layer;

static const Layer LAYERS[] = {
    {"width 768, 256 tokens", "NT", 256, 768, 768},
    {"width 768, 256 tokens", "NN", 256, 768, 768},
    {"width 768, 256 tokens", "TN", 256, 768, 768},
    {"qkv", "NT", 256, 768, 2304},
    {"qkv", "NN", 256, 768, 2304},
    {"qkv", "TN", 256, 768, 2304},
    {"up", "NT", 256, 768, 3072},
    {"up", "NN", 256, 768, 3072},
    {"up", "TN", 256, 768, 3072},
    {"down", "NT", 256, 3072, 768},
    {"down", "NN", 256, 3072, 768},
    {"down", "TN", 256, 3072, 768},
    {"head", "NT", 256, 768, 50257},
    {"head", "NN", 256, 768, 50257},
    {"head", "TN", 256, 768, 50257},
    {"up, 64 tokens", "NT", 64, 768, 3072},
    {"up, 64 tokens", "NN", 64, 768, 3072},
    {"up, 64 tokens", "TN", 64, 768, 3072},
    {"up, 1024 tokens", "NT", 1024, 768, 3072},
    {"up, 1024 tokens", "NN", 1024, 768, 3072},
    {"up, 1024 tokens", "TN", 1024, 768, 3072},
    {"width 128, 256 tokens", "NT", 256, 128, 512},
    {"width 128, 256 tokens", "NN", 256, 128, 512},
    {"width 128, 256 tokens", "TN", 256, 128, 512},
    {"8 tokens", "NT", 8, 768, 3072},
    {"1 token", "NT", 1, 768, 3072},
};

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(dnnl_status_t st, const char *what) {
  if (st == dnnl_success) return;
  fprintf(stderr, "oneDNN: %s: status %d\n", what, (int)st);
  exit(1);
}

static float *matrix(int64_t n) {
  float *p = aligned_alloc(64, ((size_t)n * sizeof *p + 63) / 64 * 64);
  if (p == NULL) exit(1);
  for (int64_t i = 0; i < n; i++) p[i] = (float)(i % 7) - 3;
  return p;
}

/* ---- the peak, on all threads ------------------------------------------------------------------- */

typedef struct Peak {
  const Kernels *k;
  double sink[64], done[64];
} Peak;

static void peak_piece(void *arg, uint32_t piece, uint32_t thread) {
  Peak *p = arg;
  (void)thread;
  p->done[piece] = p->k->peak(ROUND_FLOPS, &p->sink[piece]);
}

static double peak(const Kernels *k, Team *team) {
  Peak p = {.k = k};
  const double t = seconds();
  team_run(team, team_threads(team), peak_piece, &p);
  const double took = seconds() - t;
  double done = 0;
  for (uint32_t i = 0; i < team_threads(team); i++) done += p.done[i];
  return done / took;
}

/* ---- a product, both ways ----------------------------------------------------------------------- */

typedef struct Product {
  KernelCall call;
  unsigned char *bases[6];
  StepBlock step;
  KernelRun run;
  dnnl_primitive_t primitive;
  dnnl_exec_arg_t args[3];
  dnnl_stream_t stream;
} Product;

static KernelArg array(uint16_t base, int64_t rows, int64_t columns) {
  return (KernelArg){.base = base, .dtype = DT_F32, .rank = 2, .dim = {rows, columns}};
}

/* As a linear op: NT its forward, NN the gradient of its operand, TN that of its weight. */
static void make_own(Product *p, unsigned char *scratch, const Layer *l, float *x, float *w, float *y) {
  const bool forward = strcmp(l->kind, "NT") == 0, of_x = strcmp(l->kind, "NN") == 0;
  for (int i = 0; i < KERNEL_MAX_ARGS; i++) p->call.args[i].base = KERNEL_NO_BASE;
  p->call.op = OP_LINEAR;
  p->call.first_base = KERNEL_NO_BASE;
  p->call.part = forward ? KERNEL_F : KERNEL_B;
  p->call.wrt = forward || of_x ? 0 : 1;
  p->call.n_args = forward ? 4 : 6;
  KernelArg *a = p->call.args;
  if (forward || !of_x) a[0] = array(0, l->rows, l->in);
  if (forward || of_x) a[1] = array(1, l->out, l->in);
  if (forward) a[3] = array(2, l->rows, l->out);
  else a[4] = array(2, l->rows, l->out);
  if (!forward && of_x) a[5] = array(0, l->rows, l->in);
  if (!forward && !of_x) a[5] = array(1, l->out, l->in);
  p->bases[0] = (unsigned char *)x;
  p->bases[1] = (unsigned char *)w;
  p->bases[2] = (unsigned char *)y;
  p->run = (KernelRun){.calls = &p->call, .n_calls = 1, .bases = p->bases, .step = &p->step,
                       .scratch = scratch};
}

static dnnl_memory_t memory(dnnl_engine_t engine, int64_t rows, int64_t columns, bool trans,
                            dnnl_memory_desc_t *md, float *data) {
  dnnl_memory_t m;
  const dnnl_dims_t dims = {rows, columns};
  need(dnnl_memory_desc_init_by_tag(md, 2, dims, dnnl_f32, trans ? dnnl_ba : dnnl_ab), "shape");
  need(dnnl_memory_create(&m, md, engine, data), "memory");
  return m;
}

/* C [m, n] = A [m, k] B [k, n] */
static void make_dnnl(Product *p, dnnl_engine_t engine, const Layer *l, float *x, float *w, float *y) {
  const bool forward = strcmp(l->kind, "NT") == 0, of_x = strcmp(l->kind, "NN") == 0;
  dnnl_memory_desc_t a, b, c;
  dnnl_memory_t ma, mb, mc;
  if (forward) {
    ma = memory(engine, l->rows, l->in, false, &a, x);
    mb = memory(engine, l->in, l->out, true, &b, w);
    mc = memory(engine, l->rows, l->out, false, &c, y);
  } else if (of_x) {
    ma = memory(engine, l->rows, l->out, false, &a, y);
    mb = memory(engine, l->out, l->in, false, &b, w);
    mc = memory(engine, l->rows, l->in, false, &c, x);
  } else {
    ma = memory(engine, l->out, l->rows, true, &a, y);
    mb = memory(engine, l->rows, l->in, false, &b, x);
    mc = memory(engine, l->out, l->in, false, &c, w);
  }
  dnnl_matmul_desc_t desc;
  dnnl_primitive_desc_t pd;
  need(dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c), "matmul");
  need(dnnl_primitive_desc_create(&pd, &desc, NULL, engine, NULL), "matmul");
  need(dnnl_primitive_create(&p->primitive, pd), "matmul");
  need(dnnl_stream_create(&p->stream, engine, dnnl_stream_default_flags), "stream");
  p->args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, ma};
  p->args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, mb};
  p->args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, mc};
  dnnl_primitive_desc_destroy(pd);
}

static void run_own(Product *p, const OpsCpu *cpu) {
  PiperErr err = {0};
  if (ops_cpu_run(&p->run, cpu, &err) == PIPER_OK) return;
  fprintf(stderr, "%s\n", err.text);
  exit(1);
}

static void run_dnnl(Product *p) {
  need(dnnl_primitive_execute(p->primitive, p->stream, 3, p->args), "execute");
  need(dnnl_stream_wait(p->stream), "wait");
}

typedef struct Setting {
  const Kernels *k;
  dnnl_engine_t engine;
  Team *team;
  OpsCpu cpu;
  unsigned char *scratch; /* of all threads */
  double log_ratio; /* sum over the layers */
  int n;
} Setting;

static void measure(Setting *s, const Layer *l) {
  Product p = {.stream = NULL};
  float *x = matrix(l->rows * l->in), *w = matrix(l->out * l->in), *y = matrix(l->rows * l->out);
  double own = 0, other = 0, top = 0;
  make_own(&p, s->scratch, l, x, w, y);
  make_dnnl(&p, s->engine, l, x, w, y);
  const double flops = 2.0 * (double)l->rows * (double)l->in * (double)l->out;
  const int n = 1 + (int)(ROUND_FLOPS / flops);
  run_own(&p, &s->cpu);
  run_dnnl(&p);
  for (int r = 0; r < ROUNDS; r++) {
    top = fmax(top, peak(s->k, s->team));
    double t = seconds();
    for (int i = 0; i < n; i++) run_own(&p, &s->cpu);
    own = fmax(own, n * flops / (seconds() - t));
    t = seconds();
    for (int i = 0; i < n; i++) run_dnnl(&p);
    other = fmax(other, n * flops / (seconds() - t));
    /* Its threads go on spinning for a while, on cores that Piper's are to have. */
    if (omp_get_max_threads() > 1) nanosleep(&(struct timespec){0, 20000000}, NULL);
  }
  printf("%-22s %s  %4d x %5d -> %5d  %5.1f%%  %5.1f%%  %5.2f   (peak %.0f GFLOP/s)\n", l->what, l->kind,
         (int)l->rows, (int)l->in, (int)l->out, 100 * own / top, 100 * other / top, own / other,
         top * 1e-9);
  fflush(stdout);
  s->log_ratio += log(own / other);
  s->n++;
  free(x);
  free(w);
  free(y);
}

int main(int argc, char **argv) {
  PiperErr err = {0};
  const KernelTable *table;
  const int cores = cores_available();
  Crowd crowd = {.n_cores = cores, .runnable = 1};
  Setting s = {0};
  if (cpu_isa_select(&table, &err) != PIPER_OK) return fprintf(stderr, "%s\n", err.text), 1;
  s.k = &table->f32;
  for (int threads = 1; threads <= cores && threads <= 64; threads *= 2) {
    omp_set_num_threads(threads);
    need(dnnl_engine_create(&s.engine, dnnl_cpu, 0), "engine");
    s.log_ratio = s.n = 0;
    s.scratch = aligned_alloc(64, (size_t)threads * OP_SCRATCH_BYTES);
    if (s.scratch == NULL) return 1;
    if (team_new((uint32_t)threads, &crowd, "bench", &s.team, &err) != PIPER_OK ||
        ops_cpu_init(&s.cpu, table, s.team, &err) != PIPER_OK)
      return fprintf(stderr, "%s\n", err.text), 1;
    printf("%d thread%s, f32, %s%*sPiper  oneDNN  Piper/oneDNN\n", threads, threads > 1 ? "s" : "", table->isa,
           25, "");
    for (size_t i = 0; i < sizeof LAYERS / sizeof *LAYERS; i++)
      if (argc < 2 || strstr(LAYERS[i].what, argv[1]) != NULL) measure(&s, &LAYERS[i]);
    if (s.n > 0) printf("geometric mean of Piper/oneDNN: %.2f\n\n", exp(s.log_ratio / s.n));
    free(s.scratch);
    team_free(s.team);
    dnnl_engine_destroy(s.engine);
  }
  return 0;
}
