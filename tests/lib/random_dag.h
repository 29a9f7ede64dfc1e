/* random_dag.h - a whole DAG of a random model, built the plain way and without the passes: splits
 * that differ between chunks, split backward passes, device sets, transfers, buckets, reductions.
 * What moves is found sample by sample. */
#ifndef PIPER_TESTS_RANDOM_DAG_H
#define PIPER_TESTS_RANDOM_DAG_H

#include "ir/dag.h"
#include "ir/grad_flow.h"

#include "lib/random_model.h"
#include "lib/stages.h"

enum { RANDOM_BATCH = 24 };

typedef struct RandomDag {
  Dag *d;
  uint64_t state;
  uint32_t *n_mb;     /* by chunk */
  uint32_t *devs;     /* by chunk */
  U32Vec *f, *b, *bw; /* by chunk: its nodes in order of samples; b: B or BI, bw: B or BW */
} RandomDag;

static inline uint32_t rdag_below(RandomDag *r, uint32_t n) {
  RandomModel m = {.state = r->state};
  const uint64_t x = model_next(&m);
  r->state = m.state;
  return (uint32_t)(x % n);
}

static inline void rdag_push(U32Vec *v, uint32_t x) {
  if (!vec_push(v, x)) bail("no memory");
}

static inline TensorId rdag_tensor(Dag *d, Tensor t) {
  const TensorId id = dag_tensor(d, t);
  if (id.i == 0) bail("no memory");
  return id;
}

static inline void rdag_edge(Dag *d, uint32_t src, uint32_t dst, Tensor t) {
  if (dag_add_edge(d, (NodeId){src}, (NodeId){dst}, rdag_tensor(d, t)).i == 0) bail("no memory");
}

/* Chunks that exchange a tensor without a batch axis are split alike: all that do, into common. */
static inline void rdag_choose_splits(RandomDag *r) {
  static const uint32_t PARTS[] = {1, 2, 3, 4, 6};
  const Graph *g = r->d->graph;
  const uint32_t common = PARTS[rdag_below(r, 5)];
  for (uint32_t c = 1; c < g->chunks.n; c++) r->n_mb[c] = PARTS[rdag_below(r, 5)];
  if (rdag_below(r, 2) == 0)
    for (uint32_t c = 1; c < g->chunks.n; c++) r->n_mb[c] = common;
  for (uint32_t c = 1; c < g->chunks.n; c++)
    for (uint32_t i = 0; i < graph_chunk(g, (ChunkId){c})->n_in; i++) {
      const ValueId v = {g->chunk_values.at[graph_chunk(g, (ChunkId){c})->in_first + i]};
      const Value *value = graph_value(g, v);
      if (value->kind != VALUE_OP || value->batch == BATCH_SPLIT) continue;
      r->n_mb[c] = r->n_mb[graph_op(g, value->op)->chunk.i] = common;
    }
}

/* Sets of one size, so that what has no batch axis can move. */
static inline void rdag_choose_devices(RandomDag *r) {
  const uint32_t width = 1 + rdag_below(r, 2), spread = 1 + rdag_below(r, 4);
  for (uint32_t c = 1; c < r->d->graph->chunks.n; c++) {
    const int32_t first = (int32_t)rdag_below(r, spread);
    const bool turned = rdag_below(r, 4) == 0;
    const int32_t ranks[2] = {first + turned, first + !turned};
    r->devs[c] = devsets_id(r->d->devsets, width == 1 ? &first : ranks, width);
  }
}

static inline void rdag_nodes(RandomDag *r) {
  Dag *d = r->d;
  for (uint32_t c = 1; c < d->graph->chunks.n; c++)
    for (uint32_t mb = 0; mb < r->n_mb[c]; mb++) {
      const ChunkId chunk = {c};
      const uint32_t f = stages_compute(d, chunk, PASS_F, mb, r->n_mb[c]).i;
      const bool split = rdag_below(r, 3) == 0;
      const uint32_t b = stages_compute(d, chunk, split ? PASS_BI : PASS_B, mb, r->n_mb[c]).i;
      const uint32_t bw = split ? stages_compute(d, chunk, PASS_BW, mb, r->n_mb[c]).i : b;
      d->devs[f] = d->devs[b] = d->devs[bw] = r->devs[c];
      rdag_push(&r->f[c], f);
      rdag_push(&r->b[c], b);
      rdag_push(&r->bw[c], bw);
      rdag_edge(d, f, b, (Tensor){.kind = TENSOR_SAVED, .chunk = chunk});
      if (split) {
        rdag_edge(d, f, bw, (Tensor){.kind = TENSOR_SAVED, .chunk = chunk});
        rdag_edge(d, b, bw, (Tensor){.kind = TENSOR_KEPT, .chunk = chunk});
      }
    }
}

/* The rank that works on a sample for node n. */
static inline int32_t rdag_rank_of(const Dag *d, uint32_t n, int64_t sample) {
  const uint32_t size = devsets_size(d->devsets, d->devs[n]);
  for (uint32_t j = 0; j < size; j++)
    if (sample < part_lo(d->lo[n], d->hi[n], j + 1, size))
      return devsets_ranks(d->devsets, d->devs[n])[j];
  return -1;
}

static inline void rdag_connect(RandomDag *r, uint32_t src, uint32_t dst, Tensor t) {
  Dag *d = r->d;
  const int64_t lo = d->lo[src] > d->lo[dst] ? d->lo[src] : d->lo[dst];
  const int64_t hi = d->hi[src] < d->hi[dst] ? d->hi[src] : d->hi[dst];
  if (lo >= hi) return;
  bool moves = d->devs[src] != d->devs[dst];
  if (graph_value(d->graph, t.value)->batch == BATCH_SPLIT) {
    moves = false;
    for (int64_t s = lo; s < hi; s++) moves |= rdag_rank_of(d, src, s) != rdag_rank_of(d, dst, s);
  }
  if (!moves) {
    rdag_edge(d, src, dst, t);
    return;
  }
  const uint32_t x = dag_add_node(d, NODE_TRANSFER, 0).i;
  d->tensor[x] = rdag_tensor(d, t).i;
  d->pass[x] = t.kind == TENSOR_GRAD ? PASS_B : PASS_F;
  d->devs[x] = d->devs[dst], d->src_devs[x] = d->devs[src];
  d->lo[x] = d->lo[dst], d->hi[x] = d->hi[dst];
  d->src_lo[x] = d->lo[src], d->src_hi[x] = d->hi[src];
  d->stream[x] = intern_id(d->names, "pp_stream");
  rdag_edge(d, src, x, t);
  rdag_edge(d, x, dst, t);
}

static inline void rdag_flows(RandomDag *r) {
  const Graph *g = r->d->graph;
  for (uint32_t c = 1; c < g->chunks.n; c++)
    for (uint32_t i = 0; i < graph_chunk(g, (ChunkId){c})->n_in; i++) {
      const ValueId v = {g->chunk_values.at[graph_chunk(g, (ChunkId){c})->in_first + i]};
      if (graph_value(g, v)->kind != VALUE_OP) continue;
      const uint32_t p = graph_op(g, graph_value(g, v)->op)->chunk.i;
      const bool grad = chunk_grad_flows(g, (ChunkId){c}, v);
      for (size_t j = 0; j < r->f[p].n; j++)
        for (size_t k = 0; k < r->f[c].n; k++) {
          rdag_connect(r, r->f[p].at[j], r->f[c].at[k], (Tensor){.kind = TENSOR_VALUE, .value = v});
          if (grad)
            rdag_connect(r, r->b[c].at[k], r->b[p].at[j],
                         (Tensor){.kind = TENSOR_GRAD, .value = v, .chunk = {c}});
        }
    }
}

/* Parameter p of chunk c. */
static inline bool rdag_reads(const Graph *g, uint32_t c, uint32_t p) {
  const Chunk *chunk = graph_chunk(g, (ChunkId){c});
  for (uint32_t i = 0; i < chunk->n_params; i++)
    if (g->chunk_params.at[chunk->param_first + i] == p) return true;
  return false;
}

/* A bucket for each parameter, or (half of the time) together with its predecessor in the chunk. */
static inline void rdag_buckets(RandomDag *r) {
  Dag *d = r->d;
  const Graph *g = d->graph;
  for (uint32_t p = 1; p < g->params.n; p++) {
    const Param *param = graph_param(g, (ParamId){p});
    Bucket b = {.param_first = (uint32_t)d->bucket_params.n,
                .trained = param->reached && !param->frozen};
    uint32_t readers = 0;
    for (uint32_t c = 1; c < g->chunks.n; c++) {
      if (!rdag_reads(g, c, p)) continue;
      b.chunk.i = readers++ == 0 ? c : 0;
      b.holders = devsets_union(d->devsets, b.holders, r->devs[c]);
    }
    if (readers == 0) continue;
    Bucket *last = &d->buckets.at[d->buckets.n - 1];
    const bool joins = d->buckets.n > 1 && b.chunk.i != 0 && last->chunk.i == b.chunk.i &&
                       last->trained == b.trained && rdag_below(r, 2) == 0;
    if (!joins && !vec_push(&d->buckets, b)) bail("no memory");
    last = &d->buckets.at[d->buckets.n - 1];
    d->home[p] = (ParamHome){{(uint32_t)d->buckets.n - 1}, last->elements};
    last->elements += shape_elements_per_sample(&param->shape);
    last->n_params++;
    rdag_push(&d->bucket_params, p);
  }
}

/* What chunk c has to do with a bucket: 0 nothing, 1 it reads it, 2 it has gradients for it. */
static inline int rdag_use(const Dag *d, uint32_t c, const Bucket *b) {
  int use = 0;
  for (uint32_t i = 0; i < b->n_params; i++) {
    const uint32_t p = d->bucket_params.at[b->param_first + i];
    if (!rdag_reads(d->graph, c, p)) continue;
    if (use == 0) use = 1;
    if (chunk_grad_flows(d->graph, (ChunkId){c}, graph_param(d->graph, (ParamId){p})->value))
      use = 2;
  }
  return use;
}

static inline void rdag_updates(RandomDag *r) {
  Dag *d = r->d;
  const Graph *g = d->graph;
  const bool clip = rdag_below(r, 2) == 0;
  const Tensor sums = {.kind = TENSOR_METRICS};
  const uint32_t metrics = dag_add_node(d, NODE_ALL_REDUCE, 0).i;
  d->tensor[metrics] = rdag_tensor(d, sums).i;
  for (uint32_t c = 1; c < g->chunks.n; c++) {
    d->devs[metrics] = devsets_union(d->devsets, d->devs[metrics], r->devs[c]);
    for (size_t i = 0; chunk_has_metrics(graph_chunk(g, (ChunkId){c})) && i < r->f[c].n; i++)
      rdag_edge(d, r->f[c].at[i], metrics, sums);
  }
  for (uint32_t b = 1; b < d->buckets.n; b++) {
    const Bucket *bucket = &d->buckets.at[b];
    const Tensor grads = {.kind = TENSOR_BUCKET, .bucket = {b}};
    if (!bucket->trained) continue;
    const bool several = devsets_size(d->devsets, bucket->holders) > 1;
    const int32_t first = devsets_ranks(d->devsets, bucket->holders)[0];
    const uint32_t norm = dag_add_node(d, NODE_NORM, 0).i;
    const uint32_t update = dag_add_node(d, NODE_UPDATE, 0).i;
    const uint32_t reduce = several ? dag_add_node(d, NODE_ALL_REDUCE, 0).i : 0;
    d->bucket[norm] = d->bucket[update] = b;
    d->devs[norm] = devsets_id(d->devsets, &first, 1);
    d->devs[update] = bucket->holders;
    if (several) {
      d->bucket[reduce] = b;
      d->tensor[reduce] = rdag_tensor(d, grads).i;
      d->devs[reduce] = bucket->holders;
      rdag_edge(d, reduce, norm, grads);
      rdag_edge(d, reduce, update, grads);
    }
    rdag_edge(d, norm, metrics, sums);
    if (clip) rdag_edge(d, metrics, update, sums);
    for (uint32_t c = 1; c < g->chunks.n; c++) {
      const int use = rdag_use(d, c, bucket);
      for (size_t i = 0; i < r->f[c].n; i++) {
        if (use == 1) dag_add_temporal(d, (NodeId){r->f[c].at[i]}, (NodeId){update}, 0);
        if (use == 2 && several) rdag_edge(d, r->bw[c].at[i], reduce, grads);
        if (use == 2 && !several) rdag_edge(d, r->bw[c].at[i], norm, grads);
        if (use == 2 && !several) rdag_edge(d, r->bw[c].at[i], update, grads);
      }
    }
  }
}

static inline Dag *random_dag(const Graph *g, uint64_t seed) {
  const size_t n = g->chunks.n;
  RandomDag r = {.d = dag_new(g, RANDOM_BATCH), .state = seed};
  r.n_mb = calloc(n, sizeof *r.n_mb);
  r.devs = calloc(n, sizeof *r.devs);
  r.f = calloc(n, sizeof *r.f);
  r.b = calloc(n, sizeof *r.b);
  r.bw = calloc(n, sizeof *r.bw);
  if (r.d == NULL || r.n_mb == NULL || r.devs == NULL || r.f == NULL || r.b == NULL || r.bw == NULL)
    bail("no memory");
  rdag_choose_splits(&r);
  rdag_choose_devices(&r);
  rdag_nodes(&r);
  rdag_flows(&r);
  rdag_buckets(&r);
  rdag_updates(&r);
  r.d->n_dims = 1;
  for (size_t c = 0; c < n; c++) {
    vec_free(&r.f[c]);
    vec_free(&r.b[c]);
    vec_free(&r.bw[c]);
  }
  free(r.n_mb), free(r.devs), free(r.f), free(r.b), free(r.bw);
  return r.d;
}

#endif
