#include "ir/cost.h"

#include "lib/buckets.h"
#include "lib/models.h"
#include "lib/stages.h"
#include "tap.h"

static uint32_t devs(Dag *d, int32_t first, uint32_t n) {
  int32_t ranks[8];
  for (uint32_t i = 0; i < n; i++) ranks[i] = first + (int32_t)i;
  return devsets_id(d->devsets, ranks, n);
}

/* Two tokens of width 2 a sample, each to one of four experts; two samples a device. */
static void experts(const CostTable *t) {
  PiperErr err = {0};
  Graph *g = model_new();
  const ValueId y = model_moe(g, "moe", model_input(g, "x"), 4);
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, y, MODEL_NONE));
  model_cut(g);
  Dag *d = dag_new(g, 8);
  if (d == NULL) bail("no memory");
  buckets_fill(d);
  Programs *p;
  const ProgramSpec spec = {.dag = d, .dtype = DT_F32, .optimizer = {.kind = OPTIMIZER_SGD}};
  if (programs_new(&spec, &p, &err) != PIPER_OK) bail(err.text);
  const ChunkId c = {2};
  const NodeId f = stages_compute(d, c, PASS_F, 0, 1), x = dag_add_node(d, NODE_ALL_TO_ALL, 0);
  const ValueId blocks = {g->chunk_values.at[graph_chunk(g, c)->in_first]};
  d->chunk[x.i] = c.i;
  d->tensor[x.i] = dag_tensor(d, (Tensor){.kind = TENSOR_VALUE, .value = blocks}).i;
  d->hi[x.i] = 8;
  d->devs[f.i] = d->devs[x.i] = devs(d, 0, 4);
  d->parts[f.i] = d->parts[x.i] = 2;
  is_near(cost_node(t, p, d, x), 2 + 2 * 2 * 2 * 4 * 0.5 / 10, 1e-12,
          "an exchange: latency and the tokens for the other device of its group");
  const double spread = cost_node(t, p, d, f);
  d->parts[f.i] = 0;
  const double whole = cost_node(t, p, d, f);
  ok(spread > 0.9 * whole && spread < 1.1 * whole, "half of the experts on twice the samples");
  programs_free(p);
  dag_free(d);
  graph_free(g);
}

/* Stages of y = relu(x W^T), x [batch, 4], W [4, 4], in f32; a table of round numbers. */
int main(void) {
  const CostTable t = {"test",
                       .flops_per_second = 1000,
                       .bytes_per_second = 100,
                       .launch_seconds = 0.5,
                       .link_latency = 2,
                       .link_bytes_per_second = 10};
  PiperErr err = {0};
  Graph *g = stages_graph(2, true);
  Dag *d = dag_new(g, 8);
  if (d == NULL) bail("no memory");
  buckets_fill(d);
  Programs *p;
  const ProgramSpec spec = {.dag = d, .dtype = DT_F32, .optimizer = {.kind = OPTIMIZER_SGD}};
  if (programs_new(&spec, &p, &err) != PIPER_OK) bail(err.text);

  NodeId n = stages_compute(d, (ChunkId){1}, PASS_F, 0, 2);
  d->devs[n.i] = devs(d, 0, 1);
  const OpCost one = programs_cost(p, (ChunkId){1}, PASS_F, PROGRAM_KEEP, 4);
  ok(one.flops > 0 && one.bytes > 0, "a chunk has flops and bytes");
  is_near(cost_node(&t, p, d, n), 0.5 + one.bytes / 100, 1e-12, "slow memory: launch and bytes");
  CostTable slow = t;
  slow.flops_per_second = 1;
  is_near(cost_node(&slow, p, d, n), 0.5 + one.flops, 1e-12, "slow arithmetic: launch and flops");
  d->devs[n.i] = devs(d, 0, 2);
  is_near(cost_node(&t, p, d, n), 0.5 + programs_cost(p, (ChunkId){1}, PASS_F, PROGRAM_KEEP, 2).bytes / 100,
          1e-12, "two devices: half of the samples");
  n = stages_compute(d, (ChunkId){1}, PASS_BI, 0, 2);
  is_near(cost_node(&t, p, d, n), 0, 0, "a pass with nothing to do costs nothing");

  n = dag_add_node(d, NODE_TRANSFER, 0);
  d->src_devs[n.i] = devs(d, 0, 1);
  d->devs[n.i] = devs(d, 1, 2);
  d->hi[n.i] = d->src_hi[n.i] = 8;
  const ValueId relu = {graph_op(g, (OpId){2})->out.i};
  d->tensor[n.i] = dag_tensor(d, (Tensor){.kind = TENSOR_VALUE, .value = relu}).i;
  is_near(cost_node(&t, p, d, n), 2 + 4 * 4 * 4 / 10., 1e-12,
          "a transfer: latency and the larger side's share");
  d->devs[n.i] = devs(d, 1, 1);
  d->hi[n.i] = d->src_hi[n.i] = 2;
  is_near(cost_node(&t, p, d, n), 2 + 2 * 4 * 4 / 10., 1e-12, "of its samples");

  n = dag_add_node(d, NODE_ALL_REDUCE, 0);
  d->bucket[n.i] = 1;
  d->devs[n.i] = devs(d, 0, 4);
  is_near(cost_node(&t, p, d, n), 2 + 2 * 64 * 0.75 / 10, 1e-12,
          "an all_reduce: twice the bytes but a share");
  d->devs[n.i] = devs(d, 0, 1);
  is_near(cost_node(&t, p, d, n), 0, 0, "of one rank: nothing");
  d->devs[n.i] = devs(d, 0, 2);
  d->tensor[n.i] = dag_tensor(d, (Tensor){.kind = TENSOR_METRICS}).i;
  is_near(cost_node(&t, p, d, n), 2 + 2 * 24 * 0.5 / 10, 1e-12,
          "of the metrics: a loss, the norm and what was dropped, in f64");

  n = dag_add_node(d, NODE_UPDATE, 0);
  d->bucket[n.i] = 1;
  is_near(cost_node(&t, p, d, n), 0.5 + 3 * 64 / 100., 1e-12,
          "an update reads twice and writes once");
  n = dag_add_node(d, NODE_NORM, 0);
  d->bucket[n.i] = 1;
  is_near(cost_node(&t, p, d, n), 0.5 + 64 / 100., 1e-12, "a norm reads once");
  n = dag_add_node(d, NODE_JOIN, 0);
  is_near(cost_node(&t, p, d, n), 0, 0, "a join costs nothing");
  programs_free(p);
  dag_free(d);
  graph_free(g);
  experts(&t);
  return done_testing();
}
