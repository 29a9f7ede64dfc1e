/* The nodes of each trained bucket. Between the backward passes that contribute to its gradients and
 * its NORM and UPDATE stand, in this order and as far as they apply:
 *
 *   of each group of several devices   one reduction after the last backward, or one after each:
 *                                      ALL_REDUCE, or REDUCE_SCATTER where the update is divided
 *   between several groups             one that joins them: REDUCE_SCATTER where they divide the
 *                                      update of the shares that they all have, otherwise ALL_REDUCE;
 *                                      where gradients are kept whole the groups then ALL_GATHER them
 *
 * and behind UPDATE an ALL_GATHER of the parameters that others have updated. ir/bucket.h says what
 * each of them does with which elements. */
#include "ir/bucket.h"
#include "passes/pass.h"

typedef struct Maker {
  Dag *d;
  const BucketUses *uses;
  bool clip;
  uint32_t default_stream;
  NodeId metrics;
  TensorId sums; /* the metrics */
  /* Of the bucket at hand: */
  BucketId b;
  TensorId grads, params;
  U32Vec sources; /* its contributing backward passes */
  U32Vec ends;    /* who has the gradients that its next stage takes */
  U32Vec reduces; /* by group; 0: none yet */
} Maker;

static NodeId add_node(Maker *w, NodeKind kind, uint32_t devs, TensorId tensor) {
  Dag *d = w->d;
  const Bucket *bucket = &d->buckets.at[w->b.i];
  const NodeId n = dag_add_node(d, kind, bucket->line);
  d->bucket[n.i] = w->b.i;
  d->devs[n.i] = devs;
  d->tensor[n.i] = tensor.i;
  d->stream[n.i] = !NODE_KIND_COMMUNICATES[kind] ? w->default_stream
                   : kind == NODE_ALL_GATHER     ? bucket->gather_stream
                                                 : bucket->reduce_stream;
  return n;
}

static bool add_edge(Dag *d, NodeId src, NodeId dst, TensorId t) {
  return src.i != 0 && dst.i != 0 && dag_add_edge(d, src, dst, t).i != 0;
}

/* A pass that computes gradients of weights. */
static bool is_backward(const Dag *d, uint32_t n) {
  return d->pass[n] == PASS_B || d->pass[n] == PASS_BW;
}

static bool find_sources(Maker *w, size_t first, size_t end) {
  const Dag *d = w->d;
  const BucketUses *uses = w->uses;
  w->sources.n = 0;
  for (size_t u = first; u < end; u++) {
    const BucketUse *use = &uses->at.at[u];
    if (!use->contributes) continue;
    for (uint32_t i = uses->nodes_first[use->chunk]; i < uses->nodes_first[use->chunk + 1]; i++)
      if (is_backward(d, uses->chunk_nodes[i]) && !vec_push(&w->sources, uses->chunk_nodes[i]))
        return false;
  }
  return true;
}

/* A reduction in the group, of one backward pass or (source 0) of all. */
static NodeId add_reduce(Maker *w, uint32_t group, uint32_t source) {
  Dag *d = w->d;
  const NodeKind kind =
      d->buckets.at[w->b.i].zero == ZERO_NONE ? NODE_ALL_REDUCE : NODE_REDUCE_SCATTER;
  const NodeId n = add_node(w, kind, bucket_group(d, w->b, group), w->grads);
  if (n.i == 0 || source == 0) return n;
  d->chunk[n.i] = d->chunk[source];
  d->pass[n.i] = d->pass[source];
  d->mb[n.i] = d->mb[source];
  d->tags[n.i] = d->tags[source];
  return n;
}

static bool reduce_in_groups(Maker *w) {
  Dag *d = w->d;
  const bool each = d->buckets.at[w->b.i].per_microbatch;
  const uint32_t n_groups = bucket_n_groups(d, w->b);
  w->ends.n = w->reduces.n = 0;
  for (uint32_t k = 0; k < n_groups; k++)
    if (!vec_push(&w->reduces, 0)) return false;
  for (size_t s = 0; s < w->sources.n; s++) {
    const uint32_t source = w->sources.at[s];
    const int32_t rank = bucket_first_user(d, w->b, (NodeId){source});
    const uint32_t k = n_groups == 1 ? 0 : bucket_place(d, w->b, rank).group;
    if (devsets_size(d->devsets, bucket_group(d, w->b, k)) == 1) {
      if (!vec_push(&w->ends, source)) return false;
      continue;
    }
    uint32_t *reduce = &w->reduces.at[k];
    if (*reduce == 0 || each) {
      *reduce = add_reduce(w, k, each ? source : 0).i;
      if (*reduce == 0 || !vec_push(&w->ends, *reduce)) return false;
    }
    if (!add_edge(d, (NodeId){source}, (NodeId){*reduce}, w->grads)) return false;
  }
  return true;
}

static bool feed(Maker *w, NodeId to) {
  for (size_t k = 0; k < w->ends.n; k++)
    if (!add_edge(w->d, (NodeId){w->ends.at[k]}, to, w->grads)) return false;
  return to.i != 0;
}

static bool join_groups(Maker *w) {
  Dag *d = w->d;
  const Bucket bucket = d->buckets.at[w->b.i];
  const uint32_t n_groups = bucket_n_groups(d, w->b);
  if (n_groups == 1) return true;
  const bool divide = bucket.zero != ZERO_NONE && bucket_groups_even(d, w->b);
  const NodeId join =
      add_node(w, divide ? NODE_REDUCE_SCATTER : NODE_ALL_REDUCE, bucket.holders, w->grads);
  if (!feed(w, join)) return false;
  w->ends.n = 0;
  if (!vec_push(&w->ends, join.i)) return false;
  for (uint32_t k = 0; bucket.zero == ZERO_NONE && k < n_groups; k++) {
    const uint32_t devs = bucket_group(d, w->b, k);
    if (devsets_size(d->devsets, devs) == 1) continue;
    const NodeId gather = add_node(w, NODE_ALL_GATHER, devs, w->grads);
    if (!add_edge(d, join, gather, w->grads) || !vec_push(&w->ends, gather.i)) return false;
  }
  return true;
}

/* Each element on one device: of those that keep whole gradients the first; of groups whose shares
 * coincide and are not divided those of the first. */
static uint32_t norm_devs(const Maker *w) {
  Dag *d = w->d;
  const Bucket *bucket = &d->buckets.at[w->b.i];
  const int32_t first = devsets_ranks(d->devsets, bucket->holders)[0];
  if (devsets_size(d->devsets, bucket->holders) == 1) return bucket->holders;
  if (bucket->zero == ZERO_NONE) return devsets_id(d->devsets, &first, 1);
  const bool each = bucket_n_groups(d, w->b) == 1 || bucket_groups_even(d, w->b);
  return each ? bucket->holders : bucket_group(d, w->b, 0);
}

/* After the update. */
static bool gather_params(Maker *w, NodeId update) {
  Dag *d = w->d;
  const Bucket bucket = d->buckets.at[w->b.i];
  const uint32_t n_groups = bucket_n_groups(d, w->b);
  const bool even = bucket_groups_even(d, w->b);
  if (bucket.zero == ZERO_NONE || (bucket.zero == ZERO_PARAMS && !even)) return true;
  if (n_groups == 1 || even) {
    const NodeId n = add_node(w, NODE_ALL_GATHER, bucket.holders, w->params);
    return add_edge(d, update, n, w->params);
  }
  for (uint32_t k = 0; k < n_groups; k++) {
    const uint32_t devs = bucket_group(d, w->b, k);
    if (devsets_size(d->devsets, devs) == 1) continue;
    if (!add_edge(d, update, add_node(w, NODE_ALL_GATHER, devs, w->params), w->params))
      return false;
  }
  return true;
}

/* Who reads the bucket and does not contribute comes before its update. */
static bool order_readers(const Maker *w, size_t first, size_t end, NodeId update) {
  Dag *d = w->d;
  const BucketUses *uses = w->uses;
  for (size_t u = first; u < end; u++) {
    const BucketUse *use = &uses->at.at[u];
    if (use->contributes) continue;
    for (uint32_t i = uses->nodes_first[use->chunk]; i < uses->nodes_first[use->chunk + 1]; i++) {
      const NodeId n = {uses->chunk_nodes[i]};
      const bool forward = d->pass[n.i] == PASS_F || d->pass[n.i] == PASS_R;
      if (forward && dag_add_temporal(d, n, update, d->line[update.i]).i == 0) return false;
    }
  }
  return true;
}

/* The nodes of a trained bucket, whose uses are at[first .. end). */
static bool add_bucket(Maker *w, BucketId b, size_t first, size_t end) {
  Dag *d = w->d;
  w->b = b;
  w->grads = dag_tensor(d, (Tensor){.kind = TENSOR_BUCKET, .bucket = b});
  w->params = dag_tensor(d, (Tensor){.kind = TENSOR_PARAMS, .bucket = b});
  if (w->grads.i == 0 || w->params.i == 0) return false;
  if (!find_sources(w, first, end) || !reduce_in_groups(w) || !join_groups(w)) return false;
  const uint32_t devs = norm_devs(w);
  const NodeId norm = add_node(w, NODE_NORM, devs, (TensorId){0});
  const NodeId update = add_node(w, NODE_UPDATE, d->buckets.at[b.i].holders, (TensorId){0});
  return devs != 0 && update.i != 0 && order_readers(w, first, end, update) && feed(w, norm) &&
         feed(w, update) && add_edge(d, norm, w->metrics, w->sums) &&
         (!w->clip || add_edge(d, w->metrics, update, w->sums)) && gather_params(w, update);
}

/* Every F with a loss or a count gives it to the reduction of the metrics. */
static bool add_metrics(Maker *w) {
  Dag *d = w->d;
  const Graph *g = d->graph;
  const uint32_t line =
      g->losses.n > 1 ? intern_id(d->names, graph_name(g, g->losses.at[1].line)) : 0;
  w->sums = dag_tensor(d, (Tensor){.kind = TENSOR_METRICS});
  w->metrics = dag_add_node(d, NODE_ALL_REDUCE, line);
  if (w->sums.i == 0 || w->metrics.i == 0 || (line == 0 && g->losses.n > 1)) return false;
  d->tensor[w->metrics.i] = w->sums.i;
  d->devs[w->metrics.i] = w->uses->all_devs;
  d->stream[w->metrics.i] = intern_id(d->names, "dp_stream");
  if (d->stream[w->metrics.i] == 0) return false;
  for (uint32_t c = 1; c <= graph_n_chunks(g); c++) {
    if (!chunk_has_metrics(graph_chunk(g, (ChunkId){c}))) continue;
    for (uint32_t i = w->uses->nodes_first[c]; i < w->uses->nodes_first[c + 1]; i++) {
      const NodeId n = {w->uses->chunk_nodes[i]};
      if (d->pass[n.i] == PASS_F && !add_edge(d, n, w->metrics, w->sums)) return false;
    }
  }
  return true;
}

bool add_bucket_nodes(Dag *d, const BucketUses *uses, bool clip) {
  Maker w = {.d = d, .uses = uses, .clip = clip};
  w.default_stream = intern_id(d->names, "default_stream");
  bool held = w.default_stream != 0 && add_metrics(&w);
  size_t use = 0;
  for (uint32_t b = 1; held && b < d->buckets.n; b++) {
    const size_t first = use;
    while (use < uses->at.n && uses->at.at[use].bucket == b) use++;
    if (d->buckets.at[b].trained && !d->forward_only) held = add_bucket(&w, (BucketId){b}, first, use);
  }
  vec_free(&w.sources);
  vec_free(&w.ends);
  vec_free(&w.reduces);
  return held;
}
