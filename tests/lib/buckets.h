/* buckets.h - buckets of a DAG without passes: one for the parameters that a chunk alone uses, split
 * by whether they are trained, and one for each parameter that several chunks use. */
#ifndef PIPER_TESTS_BUCKETS_H
#define PIPER_TESTS_BUCKETS_H

#include "ir/dag.h"

#include "tap.h"

static inline BucketId buckets_add(Dag *d, ChunkId chunk, bool trained) {
  const Bucket b = {
      .param_first = (uint32_t)d->bucket_params.n, .chunk = chunk, .trained = trained};
  if (!vec_push(&d->buckets, b)) bail("no memory");
  return (BucketId){(uint32_t)d->buckets.n - 1};
}

static inline void buckets_put(Dag *d, BucketId id, ParamId p) {
  Bucket *b = &d->buckets.at[id.i];
  if (!vec_push(&d->bucket_params, p.i)) bail("no memory");
  d->home[p.i] = (ParamHome){id, b->elements};
  b->elements += shape_elements(&graph_param(d->graph, p)->shape, 1);
  b->n_params++;
}

/* The chunk that alone uses the parameter; 0: several. */
static inline ChunkId buckets_user(const Graph *g, ParamId p) {
  ChunkId user = {0};
  for (uint32_t c = 1; c < g->chunks.n; c++)
    for (uint32_t i = 0; i < g->chunks.at[c].n_params; i++) {
      if (g->chunk_params.at[g->chunks.at[c].param_first + i] != p.i) continue;
      if (user.i != 0) return (ChunkId){0};
      user.i = c;
    }
  return user;
}

static inline void buckets_fill(Dag *d) {
  const Graph *g = d->graph;
  for (uint32_t c = 1; c < g->chunks.n; c++)
    for (int trained = 0; trained < 2; trained++) {
      BucketId id = {0};
      for (uint32_t p = 1; p < g->params.n; p++) {
        if (g->params.at[p].reached != trained || buckets_user(g, (ParamId){p}).i != c) continue;
        if (id.i == 0) id = buckets_add(d, (ChunkId){c}, trained);
        buckets_put(d, id, (ParamId){p});
      }
    }
  for (uint32_t p = 1; p < g->params.n; p++)
    if (d->home[p].bucket.i == 0)
      buckets_put(d, buckets_add(d, (ChunkId){0}, g->params.at[p].reached), (ParamId){p});
}

#endif
