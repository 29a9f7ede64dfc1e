/* What holds of buckets.
 *
 *   BUCKETED   every parameter that is read has one home. A trained bucket has one UPDATE on all
 *              holders and one NORM where each element is counted once; between them and the
 *              backward passes that contribute stand the reductions that its groups and flags ask
 *              for (pass_reduce.c), each with edges to the next; behind UPDATE the gathers. Every
 *              contribution reaches the first of these; every reader of the bucket comes before its
 *              UPDATE; losses and norms reach the one reduction of the metrics
 *   GATHERED   every F gets the parameters of buckets that are divided within its group from one
 *              gather of that group, every other pass from one or none (what it reads is in its
 *              program: plan_lower.c) */
#include "ir/dag_verify_parts.h"

#include "ir/bucket.h"
#include "ir/grad_flow.h"

#include <stdlib.h>

typedef struct Checker {
  Verifier *v;
  uint32_t metrics; /* the ALL_REDUCE of the metrics; 0: none */
  uint32_t *norm, *update,
      *join;              /* by bucket: its nodes; join: of groups, where there are several */
  uint32_t *first, *next; /* by bucket, by node: the bucket's collectives; 0 ends the list */
} Checker;

/* Its parameters are updated here. */
static bool is_trained(const Dag *d, uint32_t b) {
  return d->buckets.at[b].trained && !d->forward_only;
}

/* ---- homes ----------------------------------------------------------------------------------- */

static const char *param_name(const Verifier *v, uint32_t p) {
  return graph_name(v->g, graph_param(v->g, (ParamId){p})->name);
}

/* By parameter, the chunk that reads it; 0: none does; MANY: several do. */
#define MANY UINT32_MAX
static void list_readers(const Verifier *v, uint32_t *reader) {
  const Graph *g = v->g;
  for (uint32_t c = 1; c < g->chunks.n; c++) {
    const Chunk *chunk = graph_chunk(g, (ChunkId){c});
    for (uint32_t k = 0; k < chunk->n_params; k++) {
      uint32_t *r = &reader[g->chunk_params.at[chunk->param_first + k]];
      *r = *r == 0 ? c : MANY;
    }
  }
}

/* Groups have no rank in common, and are all holders together. */
static PiperStatus check_groups(Verifier *v, uint32_t b) {
  const Dag *d = v->d;
  const Bucket *bucket = &d->buckets.at[b];
  const uint32_t n_holders = devsets_size(d->devsets, bucket->holders);
  uint32_t n = 0;
  if (n_holders == 0) return BROKEN(v, "bucket %u is held by no device", b);
  for (uint32_t k = 0; k < bucket->n_groups; k++) {
    const uint32_t devs = bucket_group(d, (BucketId){b}, k);
    n += devsets_size(d->devsets, devs);
    if (devsets_size(d->devsets, devs) == 0 || !is_subset(v, devs, bucket->holders))
      return BROKEN(v, "group %u of bucket %u is not of its holders", k, b);
    for (uint32_t i = 0; i < k; i++)
      for (uint32_t j = 0; j < devsets_size(d->devsets, devs); j++)
        if (devsets_position(d->devsets, bucket_group(d, (BucketId){b}, i),
                             devsets_ranks(d->devsets, devs)[j]) >= 0)
          return BROKEN(v, "groups %u and %u of bucket %u have a rank in common", i, k, b);
  }
  if (bucket->n_groups == 1 || (bucket->n_groups > 0 && n != n_holders))
    return BROKEN(v, "the groups of bucket %u are not all of its holders", b);
  if (n_holders == 1 && (bucket->zero != ZERO_NONE || bucket->per_microbatch))
    return BROKEN(v, "bucket %u is held by one device, but divided or reduced", b);
  return PIPER_OK;
}

static PiperStatus check_homes(Verifier *v, const uint32_t *reader) {
  const Dag *d = v->d;
  for (uint32_t p = 1; p < v->g->params.n; p++)
    if (reader[p] != 0 && d->home[p].bucket.i == 0)
      return BROKEN(v, "parameter %s is in no bucket", param_name(v, p));
  for (uint32_t b = 1; b < d->buckets.n; b++) {
    const Bucket *bucket = &d->buckets.at[b];
    int64_t offset = 0;
    for (uint32_t i = 0; i < bucket->n_params; i++) {
      const uint32_t p = d->bucket_params.at[bucket->param_first + i];
      const Param *param = graph_param(v->g, (ParamId){p});
      const bool trained = param->reached && !param->frozen;
      if (d->home[p].bucket.i != b || d->home[p].offset != offset)
        return BROKEN(v, "bucket %u holds parameter %s at %lld, but its home is bucket %u at %lld",
                      b, param_name(v, p), (long long)offset, d->home[p].bucket.i,
                      (long long)d->home[p].offset);
      if (trained != bucket->trained)
        return BROKEN(v, "parameter %s is %s, bucket %u is not", param_name(v, p),
                      trained ? "trained" : "not trained", b);
      if (reader[p] == MANY ? bucket->chunk.i != 0 || bucket->n_params != 1
                            : bucket->chunk.i != reader[p])
        return BROKEN(v, "bucket %u is of chunk %u, but its parameter %s is read by %s", b,
                      bucket->chunk.i, param_name(v, p),
                      reader[p] == MANY ? "several chunks" : "another one");
      const int64_t elements = shape_elements_per_sample(&param->shape);
      if (elements < 0 || elements > INT64_MAX - offset)
        return BROKEN(v, "bucket %u has too many elements", b);
      offset += elements;
    }
    if (offset != bucket->elements)
      return BROKEN(v, "bucket %u has %lld elements, its parameters have %lld", b,
                    (long long)bucket->elements, (long long)offset);
    TRY(check_groups(v, b));
  }
  return PIPER_OK;
}

/* ---- the nodes of a bucket ------------------------------------------------------------------- */

static PiperStatus list_bucket_nodes(Checker *w) {
  Verifier *v = w->v;
  const Dag *d = v->d;
  for (uint32_t n = d->n; n-- > 1;) {
    const Tensor *t = &d->tensors.at[d->tensor[n]];
    if (!NODE_KIND_COMMUNICATES[d->kind[n]] || t->bucket.i == 0 || d->bucket[n] == 0) continue;
    w->next[n] = w->first[d->bucket[n]];
    w->first[d->bucket[n]] = n;
  }
  for (uint32_t n = 1; n < d->n; n++) {
    uint32_t *of = NULL;
    if (is_metrics(v, n)) of = &w->metrics;
    else if (d->kind[n] == NODE_NORM) of = &w->norm[d->bucket[n]];
    else if (d->kind[n] == NODE_UPDATE) of = &w->update[d->bucket[n]];
    else if (d->kind[n] != NODE_ALL_GATHER && d->tensors.at[d->tensor[n]].kind == TENSOR_BUCKET &&
             bucket_node_joins(d, (NodeId){n}))
      of = &w->join[d->bucket[n]];
    if (of == NULL) continue;
    if (*of != 0)
      return BROKEN(v, "%s does what %s does already", node_name(v, n), node_name(v, *of));
    *of = n;
  }
  return w->metrics != 0 ? PIPER_OK : BROKEN(v, "nothing reduces the metrics");
}

/* The group whose device set this is; BUCKET_NOT_HELD: none. */
static uint32_t group_of(const Dag *d, BucketId b, uint32_t devs) {
  for (uint32_t k = 0; k < bucket_n_groups(d, b); k++)
    if (bucket_group(d, b, k) == devs) return k;
  return BUCKET_NOT_HELD;
}

static bool updates_divide(const Dag *d, BucketId b) {
  return bucket_n_groups(d, b) == 1 || bucket_groups_even(d, b);
}

static PiperStatus check_norm(const Checker *w, BucketId b) {
  Verifier *v = w->v;
  const Dag *d = v->d;
  const Bucket *bucket = &d->buckets.at[b.i];
  const uint32_t norm = w->norm[b.i], devs = d->devs[norm];
  if (bucket->zero == ZERO_NONE) {
    if (devsets_size(d->devsets, devs) == 1 &&
        devsets_ranks(d->devsets, devs)[0] == devsets_ranks(d->devsets, bucket->holders)[0])
      return PIPER_OK;
    return BROKEN(v, "%s is not on the first holder of bucket %u", node_name(v, norm), b.i);
  }
  if (devs == (updates_divide(d, b) ? bucket->holders : bucket_group(d, b, 0))) return PIPER_OK;
  return BROKEN(v, "%s is not where each element of bucket %u is updated once", node_name(v, norm),
                b.i);
}

/* The gradients that node n reduced, joined or gathered go on to the next stage. */
static PiperStatus check_next(const Checker *w, uint32_t n, bool to_join) {
  Verifier *v = w->v;
  const uint32_t b = v->d->bucket[n];
  const uint32_t to[2] = {to_join ? w->join[b] : w->norm[b], to_join ? w->join[b] : w->update[b]};
  for (int i = 0; i < 2; i++)
    if (!has_edge(v, n, to[i], TENSOR_BUCKET))
      return BROKEN(v, "%s does not get the reduced gradients", node_name(v, to[i]));
  return PIPER_OK;
}

static uint32_t count_sources(const Verifier *v, uint32_t n) {
  uint32_t count = 0;
  for (uint32_t k = v->adj.in_first[n]; k < v->adj.in_first[n + 1]; k++) {
    const Edge *e = &v->d->edges.at[v->adj.in_edge[k]];
    count += e->kind == EDGE_DATA && tensor_of(v, e)->kind == TENSOR_BUCKET;
  }
  return count;
}

static PiperStatus check_reduce(const Checker *w, uint32_t n) {
  Verifier *v = w->v;
  const Dag *d = v->d;
  const BucketId b = {d->bucket[n]};
  const Bucket *bucket = &d->buckets.at[b.i];
  const bool joins = n == w->join[b.i];
  const bool scatters = bucket->zero != ZERO_NONE && (!joins || bucket_groups_even(d, b));
  if (!joins) {
    if (group_of(d, b, d->devs[n]) == BUCKET_NOT_HELD)
      return BROKEN(v, "%s is not on the devices that hold bucket %u", node_name(v, n), b.i);
    if (devsets_size(d->devsets, d->devs[n]) == 1)
      return BROKEN(v, "%s reduces over one device", node_name(v, n));
    for (uint32_t m = w->next[n]; m != 0 && !bucket->per_microbatch; m = w->next[m])
      if (d->kind[m] != NODE_ALL_GATHER && d->devs[m] == d->devs[n])
        return BROKEN(v, "%s does what %s does already", node_name(v, m), node_name(v, n));
    if (bucket->per_microbatch && count_sources(v, n) == 0)
      return BROKEN(v, "%s reduces no backward pass", node_name(v, n));
  }
  if (d->kind[n] != (scatters ? NODE_REDUCE_SCATTER : NODE_ALL_REDUCE))
    return BROKEN(v, "%s should %s the gradients of bucket %u", node_name(v, n),
                  scatters ? "divide" : "keep whole", b.i);
  return check_next(w, n, !joins && w->join[b.i] != 0);
}

/* A gather of gradients follows the join, one of parameters the update; one that follows nothing
 * brings parameters to compute nodes. 'after': counts those after the update. */
static PiperStatus check_gather(const Checker *w, uint32_t n, uint32_t *after) {
  Verifier *v = w->v;
  const Dag *d = v->d;
  const BucketId b = {d->bucket[n]};
  const Bucket *bucket = &d->buckets.at[b.i];
  const bool in_group =
      group_of(d, b, d->devs[n]) != BUCKET_NOT_HELD && devsets_size(d->devsets, d->devs[n]) > 1;
  if (d->tensors.at[d->tensor[n]].kind == TENSOR_BUCKET) {
    if (!in_group || bucket->zero != ZERO_NONE || w->join[b.i] == 0 ||
        !has_edge(v, w->join[b.i], n, TENSOR_BUCKET))
      return BROKEN(v, "%s gathers gradients that are not divided", node_name(v, n));
    return check_next(w, n, false);
  }
  if (w->update[b.i] != 0 && has_edge(v, w->update[b.i], n, TENSOR_PARAMS)) {
    const bool all = d->devs[n] == bucket->holders && updates_divide(d, b);
    const bool group = in_group && !updates_divide(d, b) && bucket->zero < ZERO_PARAMS;
    if (bucket->zero == ZERO_NONE || !(all || group))
      return BROKEN(v, "%s gathers what was not divided", node_name(v, n));
    ++*after;
    return PIPER_OK;
  }
  if (bucket->zero == ZERO_PARAMS && in_group) return PIPER_OK;
  return BROKEN(v, "%s gathers parameters that are not divided", node_name(v, n));
}

/* How many gathers follow the update. */
static uint32_t gathers_after(const Dag *d, BucketId b) {
  const Bucket *bucket = &d->buckets.at[b.i];
  const uint32_t n_groups = bucket_n_groups(d, b);
  if (bucket->zero == ZERO_NONE) return 0;
  if (bucket->zero == ZERO_PARAMS) return n_groups > 1 && bucket_groups_even(d, b);
  if (updates_divide(d, b)) return 1;
  uint32_t n = 0;
  for (uint32_t k = 0; k < n_groups; k++) n += devsets_size(d->devsets, bucket_group(d, b, k)) > 1;
  return n;
}

static PiperStatus check_bucket_nodes(const Checker *w, uint32_t bucket_id) {
  Verifier *v = w->v;
  const Dag *d = v->d;
  const BucketId b = {bucket_id};
  const Bucket *bucket = &d->buckets.at[b.i];
  const uint32_t norm = w->norm[b.i], update = w->update[b.i];
  const bool trained = is_trained(d, b.i);
  uint32_t reduces = 0, after = 0;
  if (trained && (norm == 0 || update == 0))
    return BROKEN(v, "bucket %u has no %s", b.i, update == 0 ? "UPDATE" : "NORM");
  for (uint32_t n = w->first[b.i]; n != 0; n = w->next[n]) reduces += d->kind[n] != NODE_ALL_GATHER;
  if (!trained) {
    uint32_t n = norm != 0 ? norm : update;
    for (uint32_t m = w->first[b.i]; m != 0 && n == 0; m = w->next[m])
      if (d->kind[m] != NODE_ALL_GATHER) n = m;
    if (n != 0)
      return BROKEN(v, "%s works on bucket %u, which is not trained", node_name(v, n), b.i);
  } else if (bucket_n_groups(d, b) > 1
                 ? w->join[b.i] == 0
                 : reduces == 0 && devsets_size(d->devsets, bucket->holders) > 1) {
    return BROKEN(v, "bucket %u is held by several devices, but nothing reduces its gradients",
                  b.i);
  } else if (reduces > 0 && devsets_size(d->devsets, bucket->holders) == 1) {
    return BROKEN(v, "bucket %u is held by one device, but reduced", b.i);
  } else if (d->devs[update] != bucket->holders) {
    return BROKEN(v, "%s is not on the devices that hold bucket %u", node_name(v, update), b.i);
  }
  for (uint32_t n = w->first[b.i]; n != 0; n = w->next[n]) {
    if (d->kind[n] == NODE_ALL_GATHER) TRY(check_gather(w, n, &after));
    else TRY(check_reduce(w, n));
  }
  if (trained) TRY(check_norm(w, b));
  if (trained && after != gathers_after(d, b))
    return BROKEN(v, "%u gathers follow %s instead of %u", after, node_name(v, update),
                  gathers_after(d, b));
  return PIPER_OK;
}

/* ---- metrics --------------------------------------------------------------------------------- */

static PiperStatus check_metrics(Checker *w) {
  Verifier *v = w->v;
  const Dag *d = v->d;
  uint32_t clipped = 0, n_updates = 0;
  for (uint32_t n = 1; n < d->n; n++) {
    const bool loss =
        is_compute(v, n, F) && chunk_has_metrics(graph_chunk(v->g, (ChunkId){d->chunk[n]}));
    if (d->kind[n] == NODE_UPDATE) {
      n_updates++;
      clipped += has_edge(v, w->metrics, n, TENSOR_METRICS);
    }
    if (!loss && d->kind[n] != NODE_NORM) continue;
    if (!has_edge(v, n, w->metrics, TENSOR_METRICS))
      return BROKEN(v, "%s does not reach the reduction of the metrics", node_name(v, n));
    if (!is_subset(v, d->devs[n], d->devs[w->metrics]))
      return BROKEN(v, "%s is on devices that do not reduce the metrics", node_name(v, n));
  }
  if (clipped != 0 && clipped != n_updates)
    return BROKEN(v, "%u of %u updates wait for the metrics: all do, or none", clipped, n_updates);
  return PIPER_OK;
}

/* ---- uses ------------------------------------------------------------------------------------ */

/* A chunk and a bucket of which it reads parameters. */
typedef struct Use {
  uint32_t bucket;
  bool contributes;
} Use;
typedef VEC(Use) UseVec;

/* The trained buckets that chunk c reads, each once. mark: by bucket, 1 + index into uses. */
static PiperStatus list_uses(Verifier *v, uint32_t c, UseVec *uses, uint32_t *mark) {
  const Graph *g = v->g;
  const Chunk *chunk = graph_chunk(g, (ChunkId){c});
  for (size_t i = 0; i < uses->n; i++) mark[uses->at[i].bucket] = 0;
  uses->n = 0;
  for (uint32_t o = chunk->first_op; o < chunk->end_op; o++) {
    const Op *op = graph_op(g, (OpId){o});
    for (int wrt = 0; wrt < 3; wrt++) {
      uint32_t n;
      const uint32_t *params = graph_value_params(g, op->in[wrt], &n);
      for (uint32_t k = 0; k < n; k++) {
        const uint32_t b = v->d->home[params[k]].bucket.i;
        if (!is_trained(v->d, b)) continue;
        if (mark[b] == 0) {
          if (!vec_push(uses, ((Use){.bucket = b}))) return err_nomem(v->err, "dag_verify");
          mark[b] = (uint32_t)uses->n;
        }
        if (op_param_grad_flows(g, op, wrt, (ParamId){params[k]}))
          uses->at[mark[b] - 1].contributes = true;
      }
    }
  }
  return PIPER_OK;
}

/* Where the gradients of node n for bucket b have to go: a reduction of its group (then *to[0] is any
 * that it has an edge to), the join, or norm and update. */
static void find_sinks(const Checker *w, uint32_t n, BucketId b, uint32_t to[2], bool *in_group) {
  const Verifier *v = w->v;
  const Dag *d = v->d;
  const BucketPlace at = bucket_place(d, b, bucket_first_user(d, b, (NodeId){n}));
  *in_group = at.size > 1;
  to[0] = to[1] = 0;
  if (!*in_group) {
    to[0] = w->join[b.i] != 0 ? w->join[b.i] : w->norm[b.i];
    to[1] = w->join[b.i] != 0 ? w->join[b.i] : w->update[b.i];
    return;
  }
  for (uint32_t m = w->first[b.i]; m != 0; m = w->next[m]) {
    if (d->kind[m] == NODE_ALL_GATHER || m == w->join[b.i] ||
        d->devs[m] != bucket_group(d, b, at.group))
      continue;
    if (to[0] == 0 || has_edge(v, n, m, TENSOR_BUCKET)) to[0] = m;
    if (has_edge(v, n, m, TENSOR_BUCKET)) return;
  }
}

/* The gradients of node n reach what its bucket needs, and nothing else. */
static PiperStatus check_contributions(const Checker *w, uint32_t n, const UseVec *uses,
                                       const uint32_t *mark) {
  Verifier *v = w->v;
  const Dag *d = v->d;
  uint32_t to[2];
  bool in_group;
  for (uint32_t k = v->adj.out_first[n]; k < v->adj.out_first[n + 1]; k++) {
    const Edge *e = &d->edges.at[v->adj.out_edge[k]];
    if (e->kind != EDGE_DATA || tensor_of(v, e)->kind != TENSOR_BUCKET) continue;
    const uint32_t b = tensor_of(v, e)->bucket.i;
    if (mark[b] == 0 || !uses->at[mark[b] - 1].contributes)
      return BROKEN(v, "%s gives gradients to %s, but its chunk has none for it", node_name(v, n),
                    node_name(v, e->dst));
    find_sinks(w, n, (BucketId){b}, to, &in_group);
    if (e->dst != to[0] && e->dst != to[1])
      return BROKEN(v, "%s gets gradients of %s that are not reduced", node_name(v, e->dst),
                    node_name(v, n));
  }
  for (size_t i = 0; i < uses->n; i++) {
    const uint32_t b = uses->at[i].bucket;
    if (!uses->at[i].contributes) continue;
    find_sinks(w, n, (BucketId){b}, to, &in_group);
    if (in_group && to[0] == 0)
      return BROKEN(v, "nothing reduces the gradients of %s for bucket %u", node_name(v, n), b);
    if (in_group) to[1] = to[0];
    for (int j = 0; j < 2; j++)
      if (!has_edge(v, n, to[j], TENSOR_BUCKET))
        return BROKEN(v, "gradients of %s do not reach %s", node_name(v, n), node_name(v, to[j]));
  }
  return PIPER_OK;
}

/* The devices of node n that use the bucket hold it. */
static bool holds_all(Verifier *v, uint32_t n, uint32_t b) {
  const Dag *d = v->d;
  const uint32_t holders = d->buckets.at[b].holders;
  if (d->parts[n] < 2) return is_subset(v, d->devs[n], holders);
  for (uint32_t j = 0; j < devsets_size(d->devsets, d->devs[n]); j++)
    if (bucket_used_at(d, (BucketId){b}, (NodeId){n}, j) &&
        devsets_position(d->devsets, holders, devsets_ranks(d->devsets, d->devs[n])[j]) < 0)
      return false;
  return true;
}

/* Of experts that are spread: all parameters of the bucket are of one part. */
static bool is_of_one_part(const Verifier *v, uint32_t n, uint32_t b) {
  const Dag *d = v->d;
  const Bucket *bucket = &d->buckets.at[b];
  const ChunkId c = {d->chunk[n]};
  if (d->parts[n] < 2) return true;
  const int64_t each = graph_chunk(v->g, c)->n_experts / d->parts[n];
  int64_t part = -1;
  for (uint32_t i = 0; i < bucket->n_params; i++) {
    const ParamId p = {d->bucket_params.at[bucket->param_first + i]};
    const int32_t expert = graph_param_expert(v->g, c, p);
    if (expert < 0 || (i > 0 && expert / each != part)) return false;
    part = expert / each;
  }
  return true;
}

/* All nodes of a chunk that reads these buckets. */
static PiperStatus check_uses(const Checker *w, const uint32_t *nodes, uint32_t n_nodes,
                              const UseVec *uses, const uint32_t *mark) {
  Verifier *v = w->v;
  const Dag *d = v->d;
  uint32_t last_devs = 0, last_parts = 0;
  for (uint32_t i = 0; i < n_nodes; i++) {
    const uint32_t n = nodes[i];
    const bool placed = devsets_size(d->devsets, d->devs[n]) > 0;
    const bool elsewhere = d->devs[n] != last_devs || d->parts[n] != last_parts;
    for (size_t u = 0; u < uses->n; u++) {
      const uint32_t b = uses->at[u].bucket;
      if (elsewhere && !is_of_one_part(v, n, b))
        return BROKEN(v, "bucket %u is not of one part of the experts of %s", b, node_name(v, n));
      if (!placed || (elsewhere && !holds_all(v, n, b)))
        return BROKEN(v, "%s uses bucket %u on devices that do not hold it", node_name(v, n), b);
      if (is_compute(v, n, F | R) && !uses->at[u].contributes &&
          !has_edge(v, n, w->update[b], TENSOR_NONE))
        return BROKEN(v, "%s reads bucket %u, but does not come before %s", node_name(v, n), b,
                      node_name(v, w->update[b]));
    }
    if (is_compute(v, n, B | BW)) TRY(check_contributions(w, n, uses, mark));
    last_devs = d->devs[n];
    last_parts = d->parts[n];
  }
  return PIPER_OK;
}

/* Every contribution arrives, chunk by chunk. */
static PiperStatus check_all_uses(const Checker *w) {
  Verifier *v = w->v;
  const Dag *d = v->d;
  const size_t n_chunks = v->g->chunks.n, n_buckets = d->buckets.n;
  UseVec uses = {0};
  uint32_t *first = calloc(n_chunks + 1, sizeof *first);
  uint32_t *nodes = malloc(d->n * sizeof *nodes);
  uint32_t *mark = calloc(n_buckets, sizeof *mark);
  PiperStatus st = PIPER_OK;
  if (first == NULL || nodes == NULL || mark == NULL) st = err_nomem(v->err, "dag_verify");
  if (st == PIPER_OK) { /* nodes by chunk: counts become ends, filling makes them starts */
    for (uint32_t n = 1; n < d->n; n++)
      if (d->kind[n] == NODE_COMPUTE) first[d->chunk[n]]++;
    for (size_t c = 1; c <= n_chunks; c++) first[c] += first[c - 1];
    for (uint32_t n = d->n; n-- > 1;)
      if (d->kind[n] == NODE_COMPUTE) nodes[--first[d->chunk[n]]] = n;
  }
  for (uint32_t c = 1; st == PIPER_OK && c < n_chunks; c++) {
    st = list_uses(v, c, &uses, mark);
    if (st == PIPER_OK) st = check_uses(w, nodes + first[c], first[c + 1] - first[c], &uses, mark);
  }
  vec_free(&uses);
  free(first);
  free(nodes);
  free(mark);
  return st;
}

/* ---- gathers --------------------------------------------------------------------------------- */

/* Parameters of bucket b that node n gets, its chunk reading them or not. */
static PiperStatus check_gathered(Verifier *v, uint32_t n, BucketId b, bool reads) {
  const Dag *d = v->d;
  const bool placed = devsets_size(d->devsets, d->devs[n]) > 0;
  const BucketPlace at = placed ? bucket_place(d, b, bucket_first_user(d, b, (NodeId){n}))
                                : (BucketPlace){.group = BUCKET_NOT_HELD};
  uint32_t count = 0;
  for (uint32_t k = v->adj.in_first[n]; k < v->adj.in_first[n + 1]; k++) {
    const Edge *e = &d->edges.at[v->adj.in_edge[k]];
    if (e->kind != EDGE_DATA || tensor_of(v, e)->kind != TENSOR_PARAMS ||
        tensor_of(v, e)->bucket.i != b.i)
      continue;
    if (at.group == BUCKET_NOT_HELD || d->devs[e->src] != bucket_group(d, b, at.group))
      return BROKEN(v, "%s gets parameters from %s, of another group", node_name(v, n),
                    node_name(v, e->src));
    count++;
  }
  const bool divided = reads && d->buckets.at[b.i].zero == ZERO_PARAMS && at.size > 1;
  if (count > divided || (divided && count == 0 && d->pass[n] == PASS_F))
    return BROKEN(v, "%s gets the parameters of bucket %u %u times", node_name(v, n), b.i, count);
  return PIPER_OK;
}

static bool has_source(const Verifier *v, uint32_t n, NodeKind kind) {
  for (uint32_t k = v->adj.in_first[n]; k < v->adj.in_first[n + 1]; k++)
    if (v->d->kind[v->d->edges.at[v->adj.in_edge[k]].src] == kind) return true;
  return false;
}

static PiperStatus check_gathers(Verifier *v) {
  const Dag *d = v->d;
  const Graph *g = v->g;
  for (uint32_t n = 1; n < d->n; n++) {
    const bool idle = v->adj.out_first[n] == v->adj.out_first[n + 1];
    if (idle && d->kind[n] == NODE_ALL_GATHER && !has_source(v, n, NODE_UPDATE))
      return BROKEN(v, "%s serves nobody", node_name(v, n));
    if (d->kind[n] != NODE_COMPUTE) continue;
    const Chunk *chunk = graph_chunk(g, (ChunkId){d->chunk[n]});
    uint32_t edges = 0, found = 0;
    for (uint32_t k = v->adj.in_first[n]; k < v->adj.in_first[n + 1]; k++) {
      const Edge *e = &d->edges.at[v->adj.in_edge[k]];
      edges += e->kind == EDGE_DATA && tensor_of(v, e)->kind == TENSOR_PARAMS;
    }
    for (uint32_t i = 0; i < chunk->n_params; i++) {
      const BucketId b = d->home[g->chunk_params.at[chunk->param_first + i]].bucket;
      if (d->buckets.at[b.i].zero != ZERO_PARAMS) continue;
      bool seen = false; /* parameters of a bucket follow one another, except for tied ones */
      for (uint32_t j = 0; j < i && !seen; j++)
        seen = d->home[g->chunk_params.at[chunk->param_first + j]].bucket.i == b.i;
      if (seen) continue;
      TRY(check_gathered(v, n, b, true));
      for (uint32_t k = v->adj.in_first[n]; k < v->adj.in_first[n + 1]; k++) {
        const Edge *e = &d->edges.at[v->adj.in_edge[k]];
        found += e->kind == EDGE_DATA && tensor_of(v, e)->kind == TENSOR_PARAMS &&
                 tensor_of(v, e)->bucket.i == b.i;
      }
    }
    if (edges != found)
      return BROKEN(v, "%s gets parameters that its chunk does not read", node_name(v, n));
  }
  return PIPER_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

PiperStatus verify_buckets(Verifier *v) {
  const Dag *d = v->d;
  Checker w = {.v = v};
  uint32_t *reader = calloc(v->g->params.n, sizeof *reader);
  uint32_t *block = calloc(4 * d->buckets.n + d->n, sizeof *block);
  PiperStatus st = reader == NULL || block == NULL ? err_nomem(v->err, "dag_verify") : PIPER_OK;
  w.norm = block;
  w.update = block + d->buckets.n;
  w.join = block + 2 * d->buckets.n;
  w.first = block + 3 * d->buckets.n;
  w.next = block + 4 * d->buckets.n;
  if (st == PIPER_OK) list_readers(v, reader);
  if (st == PIPER_OK) st = check_homes(v, reader);
  if (st == PIPER_OK) st = list_bucket_nodes(&w);
  for (uint32_t b = 1; st == PIPER_OK && b < d->buckets.n; b++) st = check_bucket_nodes(&w, b);
  if (st == PIPER_OK) st = check_metrics(&w);
  if (st == PIPER_OK) st = check_all_uses(&w);
  if (st == PIPER_OK && (v->stages & DAG_GATHERED)) st = check_gathers(v);
  free(reader);
  free(block);
  return st;
}
