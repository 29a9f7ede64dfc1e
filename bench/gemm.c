/* gemm.c - Piper's own matrix product against the multiply-add peak of one thread, as a ratio.
 *
 *   make bench/gemm && bench/gemm
 *
 * Peak and product are measured in turns, since the clock of a shared machine drifts; the ratio is
 * the median of the rounds. Products are those of a layer: y = x W^T (NT), dx = dy W (NN) and
 * dW += dy^T x (TN). */
#include "device/cpu_isa.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 9 };

typedef struct Size {
  bool a_trans, b_trans, add;
  int m, n, k;
} Size;

static const Size SIZES[] = {
    {false, true, false, 256, 768, 768},  {false, false, false, 256, 768, 768},
    {true, false, true, 768, 768, 256},   {false, true, false, 64, 768, 768},
    {false, true, false, 256, 3072, 768}, {false, true, false, 1024, 1024, 1024},
    {false, true, false, 64, 64, 64},     {false, true, false, 8, 3072, 768},
    {false, true, false, 1, 3072, 768},
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

static void *zeros(size_t bytes) {
  void *p = calloc(bytes + 64, 1);
  if (p == NULL) exit(1);
  return p;
}

static void measure(const Kernels *k, const char *isa, const char *type, size_t bytes, const Size *s,
                    void *scratch) {
  const size_t m = (size_t)s->m, n = (size_t)s->n, depth = (size_t)s->k;
  void *a = zeros(m * depth * bytes), *b = zeros(depth * n * bytes), *c = zeros(m * n * bytes);
  const Gemm g = {.m = s->m, .n = s->n, .k = s->k, .a = a, .b = b, .c = c,
                  .start = s->add ? c : NULL, .ld_start = s->n, .lda = s->a_trans ? s->m : s->k,
                  .ldb = s->b_trans ? s->k : s->n, .ldc = s->n, .a_trans = s->a_trans,
                  .b_trans = s->b_trans};
  const double flops = 2.0 * (double)m * (double)n * (double)depth;
  double ratio[ROUNDS], rate[ROUNDS], sink;
  k->gemm(&g, scratch);
  for (int r = 0; r < ROUNDS; r++) {
    double t = seconds();
    const double peak = k->peak(5e8, &sink) / (seconds() - t);
    double done = 0;
    for (t = seconds(); done < 5e8; done += flops) k->gemm(&g, scratch);
    rate[r] = done / (seconds() - t);
    ratio[r] = rate[r] / peak;
  }
  qsort(ratio, ROUNDS, sizeof *ratio, ascending);
  qsort(rate, ROUNDS, sizeof *rate, ascending);
  printf("%-8s %s  %c%c  %5d x %5d x %5d  %6.1f GFLOP/s  %3.0f%% of peak\n", isa, type,
         s->a_trans ? 'T' : 'N', s->b_trans ? 'T' : 'N', s->m, s->n, s->k, rate[ROUNDS / 2] * 1e-9,
         ratio[ROUNDS / 2] * 100);
  free(a);
  free(b);
  free(c);
}

int main(void) {
  void *scratch = aligned_alloc(64, KERNEL_SCRATCH_BYTES);
  if (scratch == NULL) return 1;
  int runs;
  for (int i = 0; cpu_isa_at(i, &runs) != NULL; i++) {
    const KernelTable *table = cpu_isa_at(i, NULL);
    if (!runs) continue;
    for (size_t j = 0; j < sizeof SIZES / sizeof *SIZES; j++) {
      measure(&table->f32, table->isa, "f32", sizeof(float), &SIZES[j], scratch);
      measure(&table->f64, table->isa, "f64", sizeof(double), &SIZES[j], scratch);
    }
  }
  free(scratch);
  return 0;
}
