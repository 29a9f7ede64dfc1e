/* attention.c - attention against the multiply-add peak of one thread, as a ratio.
 *
 *   make bench/attention && bench/attention
 *
 * Flops are those of the products that the formula needs, 2 a multiply-add: 2 products forward, 5
 * backward; of a causal one, the pairs of query and key that count. Peak and kernel are measured in
 * turns, since the clock of a shared machine drifts; the ratio is the median of the rounds. */
#include "device/cpu_isa.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 25 };

typedef struct Size {
  int samples, length, heads, kv_heads, width;
  bool causal;
} Size;

static const Size SIZES[] = {
    {4, 64, 12, 12, 64, true},  {8, 128, 12, 12, 64, true}, {4, 64, 4, 4, 32, true},
    {1, 512, 16, 8, 64, true},  {1, 2048, 8, 2, 64, true},  {1, 1024, 8, 8, 128, true},
    {1, 1024, 8, 8, 64, false}, {4, 64, 12, 12, 64, false},
};

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Numbers between -1 and 1. */
static void *numbers(size_t n, bool f64) {
  void *p = aligned_alloc(64, (n * (f64 ? 8 : 4) + 63) / 64 * 64);
  if (p == NULL) exit(1);
  for (size_t i = 0; i < n; i++) {
    const double x = (double)rand() / RAND_MAX * 2 - 1;
    if (f64) ((double *)p)[i] = x;
    else ((float *)p)[i] = (float)x;
  }
  return p;
}

static HeadSteps steps(int length, int heads, int width) {
  return (HeadSteps){(int64_t)length * heads * width, (int64_t)heads * width, width};
}

static void measure(const Kernels *k, const char *isa, bool f64, const Size *s, void *scratch) {
  const size_t nq = (size_t)s->samples * (size_t)s->length * (size_t)(s->heads * s->width);
  const size_t nk = nq / (size_t)s->heads * (size_t)s->kv_heads;
  enum { Q, Y, DY, DQ, K, V, DK, DV, ARRAYS };
  void *at[ARRAYS], *lse = numbers(nq / (size_t)s->width, f64);
  for (int i = 0; i < ARRAYS; i++) at[i] = numbers(i < K ? nq : nk, f64);
  const HeadSteps wide = steps(s->length, s->heads, s->width);
  const HeadSteps narrow = steps(s->length, s->kv_heads, s->width);
  const Attention t = {.samples = s->samples,
                       .queries = s->length,
                       .keys = s->length,
                       .heads = s->heads,
                       .kv_heads = s->kv_heads,
                       .width = s->width,
                       .scale = 0.125,
                       .causal = s->causal,
                       .q = at[Q],
                       .k = at[K],
                       .v = at[V],
                       .y = at[Y],
                       .lse = lse,
                       .q_step = wide,
                       .k_step = narrow,
                       .v_step = narrow,
                       .y_step = wide};
  const AttentionGrad g = {.t = &t,
                           .dy = at[DY],
                           .dq = at[DQ],
                           .dk = at[DK],
                           .dv = at[DV],
                           .dy_step = wide,
                           .dq_step = wide,
                           .dk_step = narrow,
                           .dv_step = narrow};
  const double met =
      s->causal ? 0.5 * s->length * (s->length + 1.0) : (double)s->length * s->length;
  const double product = 2.0 * s->samples * s->heads * s->width * met;
  double ratio[2][ROUNDS], rate[2][ROUNDS], sink;
  for (int r = -1; r < ROUNDS; r++)
    for (int part = 0; part < 2; part++) {
      double t0 = seconds();
      const double peak = k->peak(2e8, &sink) / (seconds() - t0);
      double done = 0;
      for (t0 = seconds(); done < 2e8; done += (part == 0 ? 2 : 5) * product) {
        if (part == 0) k->attention(&t, 0, s->samples * s->heads, scratch);
        else k->attention_grad(&g, 0, s->samples * s->kv_heads, scratch);
      }
      if (r < 0) continue;
      rate[part][r] = done / (seconds() - t0);
      ratio[part][r] = rate[part][r] / peak;
    }
  printf("%s %s  %d x %4d, %2d/%-2d heads of %3d%s", isa, f64 ? "f64" : "f32", s->samples,
         s->length, s->heads, s->kv_heads, s->width, s->causal ? ", causal" : "        ");
  for (int part = 0; part < 2; part++) {
    qsort(ratio[part], ROUNDS, sizeof *ratio[part], ascending);
    qsort(rate[part], ROUNDS, sizeof *rate[part], ascending);
    printf("  %s %6.1f GFLOP/s %3.0f%% of peak", part == 0 ? "forward" : "backward",
           rate[part][ROUNDS / 2] * 1e-9, ratio[part][ROUNDS / 2] * 100);
  }
  printf("\n");
  for (int i = 0; i < ARRAYS; i++) free(at[i]);
  free(lse);
}

int main(void) {
  void *scratch = aligned_alloc(64, KERNEL_SCRATCH_BYTES);
  if (scratch == NULL) return 1;
  int runs;
  for (int i = 0; cpu_isa_at(i, &runs) != NULL; i++) {
    const KernelTable *table = cpu_isa_at(i, NULL);
    if (!runs) continue;
    for (int f64 = 0; f64 < 2; f64++)
      for (size_t j = 0; j < sizeof SIZES / sizeof *SIZES; j++)
        measure(f64 ? &table->f64 : &table->f32, table->isa, f64, &SIZES[j], scratch);
  }
  free(scratch);
  return 0;
}
