/* Plans of DAGs of 100,000 nodes on 32 ranks. Lowering and memory planning are parts of the half
 * second that a compilation may take. */
#include "lib/plans.h"
#include "lib/stages.h"

#include <time.h>

enum { STAGES = 32, MICROBATCHES = 640 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* GPipe: every backward after every forward, as the oldest-first order makes it. */
static void gpipe(TestStrategy *t) {
  strategy_split(t, "", "MB", MICROBATCHES);
  for (int i = 0; i < STAGES; i++) {
    char filter[16], device[16];
    snprintf(filter, sizeof filter, "PP=%d", i);
    snprintf(device, sizeof device, "%d", i);
    strategy_place(t, filter, device);
  }
}

static void measure(const char *name, TestStrategy *t, bool scheduled, bool single_stream) {
  Graph *g = stages_graph(STAGES, false);
  double best[4] = {1e9, 1e9, 1e9, 1e9};
  PlanProof proof = {0};
  uint64_t arena = 0, live = 0, added = 0;
  uint32_t n_nodes = 0;
  for (int i = 0; i < 3; i++) {
    PiperErr err = {0};
    double start = now();
    Plan *p = plans_lowered(g, t,
                            (PlanSpec){.batch = MICROBATCHES,
                                       .scheduled = scheduled,
                                       .options.single_stream = single_stream},
                            &err);
    if (p == NULL) bail(err.text);
    /* Lowering once more, alone. */
    for (uint32_t r = 0; r < p->n_ranks; r++) {
      RankPlan *x = &p->ranks[r];
      vec_free(&x->instrs), vec_free(&x->waits), vec_free(&x->bind_offset), vec_free(&x->accesses);
      vec_free(&x->bind_first_write), vec_free(&x->buffers), vec_free(&x->streams);
    }
    free(p->ranks);
    p->ranks = NULL;
    start = now();
    if (plan_lower(p, &err) != PIPER_OK) bail(err.text);
    double seconds[4] = {now() - start};
    start = now();
    if (plan_place_memory(p, &err) != PIPER_OK) bail(err.text);
    seconds[1] = now() - start;
    start = now();
    if (plan_compute_digest(p, &err) != PIPER_OK) bail(err.text);
    seconds[2] = now() - start;
    start = now();
    if (plan_verify(p, &proof, &err) != PIPER_OK) bail(err.text);
    seconds[3] = now() - start;
    for (int k = 0; k < 4; k++)
      if (seconds[k] < best[k]) best[k] = seconds[k];
    n_nodes = p->dag->n - 1;
    arena = live = added = 0;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
      arena += p->ranks[r].arena_bytes;
      for (int c = 0; c < MEM_COUNT; c++) live += c == MEM_WORKSPACE ? 0 : p->ranks[r].at_peak[c];
      added += p->ranks[r].waits_added;
    }
    plan_free(p);
  }
  diag("%s: %u nodes, %llu instructions: lower %.0f ms, memory %.0f ms, digest %.0f ms, proof %.0f "
       "ms",
       name, n_nodes, (unsigned long long)proof.instrs, best[0] * 1e3, best[1] * 1e3, best[2] * 1e3,
       best[3] * 1e3);
  diag("%s: arenas %llu bytes, %llu without workspace, %llu waits added", name,
       (unsigned long long)arena, (unsigned long long)live, (unsigned long long)added);
  const char *sanitized = getenv("SANITIZED");
  const double limit = sanitized != NULL && *sanitized != 0 ? 30 : 2; /* seconds */
  ok(best[0] + best[1] + best[2] + best[3] < limit, "%s: in time, also on a busy machine", name);
  strategy_clear(t);
  graph_free(g);
}

int main(void) {
  TestStrategy t = {0};
  plans_1f1b(&t, STAGES, MICROBATCHES, true);
  measure("1F1B, backward in halves", &t, true, false);
  plans_1f1b(&t, STAGES, MICROBATCHES, false);
  measure("1F1B, one stream", &t, true, true);
  gpipe(&t);
  measure("oldest first", &t, false, false);
  return done_testing();
}
