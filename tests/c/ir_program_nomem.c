/* Memory that runs out at any allocation of the programs or of the global order is reported, and
 * nothing leaks (a build with --enable-asan sees it). */
#include "ir/cost.h"
#include "ir/global_order.h"

#include "lib/buckets.h"
#include "lib/stages.h"
#include "nomem.h"
#include "tap.h"

static PiperStatus build_all(const Dag *d, PiperErr *err) {
  const ProgramSpec spec = {.dag = d, .dtype = DT_F32, .optimizer = {.kind = OPTIMIZER_ADAMW}};
  Programs *p;
  uint32_t id;
  TRY(programs_new(&spec, &p, err));
  PiperStatus st = PIPER_OK;
  for (int64_t samples = 1; samples <= 8 && st == PIPER_OK; samples++)
    for (uint32_t c = 1; c <= 3 && st == PIPER_OK; c++)
      for (int pass = PASS_F; pass <= PASS_BW && st == PIPER_OK; pass++)
        st = programs_chunk(p, (ChunkId){c}, (Pass)pass, PROGRAM_KEEP, samples, &id, err);
  if (st == PIPER_OK) st = programs_update(p, (BucketId){1}, (Share){0, 4}, &id, err);
  if (st == PIPER_OK) st = programs_norm(p, (BucketId){1}, (Share){0, 4}, &id, err);
  if (st == PIPER_OK) st = programs_zero_grad(p, (BucketId){1}, 4, &id, err);
  programs_free(p);
  return st;
}

static PiperStatus order_all(const Dag *d, PiperErr *err) {
  const double seconds[64] = {0};
  GlobalOrder o;
  TRY(global_order(d, seconds, ORDER_BEST, &o, err));
  global_order_free(&o);
  return PIPER_OK;
}

static void each_allocation(const char *what, PiperStatus (*run)(const Dag *, PiperErr *),
                            const Dag *d) {
  bool reported = true, finished = false;
  long n = 0;
  for (; !finished && n < 100000; n++) {
    PiperErr err = {0};
    nomem_at(n);
    const PiperStatus st = run(d, &err);
    finished = !nomem_struck();
    nomem_at(-1);
    reported = reported && st == (finished ? PIPER_OK : PIPER_ENOMEM);
  }
  ok(finished, "%s: run through when nothing fails", what);
  ok(reported, "%s: each of %ld allocations that fails is reported", what, n - 1);
}

int main(void) {
  Graph *g = stages_graph(3, false);
  Dag *d = dag_new(g, 24);
  if (d == NULL) bail("no memory");
  buckets_fill(d);
  each_allocation("programs", build_all, d);
  const int32_t ranks[3] = {0, 1, 2};
  for (uint32_t c = 1; c <= 3; c++)
    for (uint32_t mb = 0; mb < 8; mb++) {
      const NodeId n = stages_compute(d, (ChunkId){c}, PASS_F, mb, 8);
      d->devs[n.i] = devsets_id(d->devsets, ranks + c % 2, 1 + c / 3);
      if (n.i > 1) dag_add_edge(d, (NodeId){n.i / 2}, n, (TensorId){0});
    }
  each_allocation("global order", order_all, d);
  dag_free(d);
  graph_free(g);
  return done_testing();
}
