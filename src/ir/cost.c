/* Roofline: whichever of arithmetic and memory takes longer, on top of a fixed price a node. */
#include "ir/cost.h"

#include "ir/bucket.h"

/* One core of the machines that Piper is developed on (a 2.6 GHz AVX-512 server core): matrix
 * products reach 95 to 150 GFLOP/s in f32, one core streams some 10 GB/s. A hand-over between two
 * threads takes 0.1 us while both spin, 40 us when one sleeps; 5 us stands for the usual mix. */
const CostTable COST_CPU = {.name = "cpu",
                            .flops_per_second = 100e9,
                            .bytes_per_second = 10e9,
                            .launch_seconds = 2e-6,
                            .link_latency = 5e-6,
                            .link_bytes_per_second = 10e9};

static double run_seconds(const CostTable *t, OpCost c) {
  const double compute = c.flops / t->flops_per_second, memory = c.bytes / t->bytes_per_second;
  return t->launch_seconds + (compute > memory ? compute : memory);
}

static double program_seconds(const CostTable *t, const Programs *programs, uint32_t id) {
  const Program *p = programs_at(programs, id);
  return p->n_calls == 0 ? 0 : run_seconds(t, (OpCost){p->flops, p->bytes});
}

static double compute_seconds(const CostTable *t, Programs *programs, NodeId n) {
  uint32_t id;
  if (programs_node(programs, n, 0, &id, NULL) != PIPER_OK) return 0;
  return program_seconds(t, programs, id);
}

static double count_seconds(const CostTable *t, Programs *programs, const Dag *d, NodeId n) {
  const uint32_t size = devsets_size(d->devsets, d->devs[n.i]);
  const int64_t samples = (d->hi[n.i] - d->lo[n.i]) / (size > 0 ? size : 1);
  uint32_t id;
  if (programs_targets(programs, (ChunkId){d->chunk[n.i]}, samples, &id, NULL) != PIPER_OK) return 0;
  return program_seconds(t, programs, id);
}

/* What the busiest pair of ranks exchanges: the smaller one of the two sides' parts. */
static double transfer_seconds(const CostTable *t, const Programs *programs, const Dag *d,
                               NodeId n) {
  const uint32_t from = devsets_size(d->devsets, d->src_devs[n.i]),
                 to = devsets_size(d->devsets, d->devs[n.i]);
  const Tensor *tensor = &d->tensors.at[d->tensor[n.i]];
  if (tensor->value.i == 0 || from == 0 || to == 0) return t->link_latency;
  const Value *v = graph_value(d->graph, tensor->value);
  const double sent = (double)(d->src_hi[n.i] - d->src_lo[n.i]) / from,
               got = (double)(d->hi[n.i] - d->lo[n.i]) / to;
  const double samples = !v->shape.batched ? 1 : sent < got ? sent : got;
  const double element =
      (double)dtype_bytes(dtype_concrete(v->dtype, programs_spec(programs)->dtype));
  const double bytes = (double)shape_elements_per_sample(&v->shape) * samples * element;
  return t->link_latency + bytes / t->link_bytes_per_second;
}

/* Of a device's rows in use, which are taken to spread evenly, it keeps its own part. */
static double all_to_all_seconds(const CostTable *t, const Programs *programs, const Dag *d,
                                 NodeId n) {
  const uint32_t size = devsets_size(d->devsets, d->devs[n.i]), parts = d->parts[n.i];
  const Tensor *tensor = &d->tensors.at[d->tensor[n.i]];
  if (size == 0 || parts < 2 || tensor->value.i == 0) return t->link_latency;
  const Shape *s = &graph_value(d->graph, tensor->value)->shape;
  const double rows = (double)graph_chunk(d->graph, (ChunkId){d->chunk[n.i]})->packed_rows;
  const double bytes = rows * (double)(d->hi[n.i] - d->lo[n.i]) / size *
                       (double)s->dim[s->rank - 1] *
                       (double)dtype_bytes(programs_spec(programs)->dtype);
  return t->link_latency + bytes * (parts - 1) / parts / t->link_bytes_per_second;
}

/* A ring: every member passes on the parts of all others, twice where the sum goes to all. */
static double collective_seconds(const CostTable *t, const Programs *programs, const Dag *d,
                                 NodeId n) {
  uint32_t size = devsets_size(d->devsets, d->devs[n.i]);
  if (size < 2) return 0;
  const Tensor *what = &d->tensors.at[d->tensor[n.i]];
  double bytes = 0;
  if (what->kind == TENSOR_METRICS) {
    bytes = (double)(graph_n_metrics(d->graph) * sizeof(double));
  } else if (what->kind == TENSOR_COUNTS) {
    bytes = (double)(graph_chunk(d->graph, what->chunk)->n_counts * sizeof(double));
  } else {
    const BucketId b = {d->bucket[n.i]};
    bytes =
        (double)d->buckets.at[b.i].elements * (double)dtype_bytes(programs_spec(programs)->dtype);
    if (bucket_node_joins(d, n)) { /* the first group's shares, over one member of each group */
      bytes /= devsets_size(d->devsets, bucket_group(d, b, 0));
      size = bucket_n_groups(d, b);
    }
  }
  const double rounds = d->kind[n.i] == NODE_ALL_REDUCE ? 2 : 1;
  return t->link_latency + rounds * bytes * (size - 1) / size / t->link_bytes_per_second;
}

/* On the first device: shares differ by an element. */
static double bucket_seconds(const CostTable *t, Programs *programs, const Dag *d, NodeId n) {
  const BucketId bucket = {d->bucket[n.i]};
  const bool placed = devsets_size(d->devsets, d->devs[n.i]) > 0;
  const int32_t rank = placed ? devsets_ranks(d->devsets, d->devs[n.i])[0] : 0;
  const Share share = bucket_updated(d, bucket, rank);
  uint32_t id;
  const PiperStatus st = d->kind[n.i] == NODE_NORM
                             ? programs_norm(programs, bucket, share, &id, NULL)
                             : programs_update(programs, bucket, share, &id, NULL);
  return st == PIPER_OK ? program_seconds(t, programs, id) : 0;
}

double cost_node(const CostTable *t, Programs *programs, const Dag *d, NodeId n) {
  switch ((NodeKind)d->kind[n.i]) {
  case NODE_COMPUTE:
    return compute_seconds(t, programs, n);
  case NODE_COUNT:
    return count_seconds(t, programs, d, n);
  case NODE_TRANSFER:
    return transfer_seconds(t, programs, d, n);
  case NODE_ALL_TO_ALL:
    return all_to_all_seconds(t, programs, d, n);
  case NODE_ALL_REDUCE:
  case NODE_REDUCE_SCATTER:
  case NODE_ALL_GATHER:
    return collective_seconds(t, programs, d, n);
  case NODE_NORM:
  case NODE_UPDATE:
    return bucket_seconds(t, programs, d, n);
  case NODE_JOIN:
  case NODE_NONE:
  case NODE_KIND_COUNT:
    break;
  }
  return 0;
}
