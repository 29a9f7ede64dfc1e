/* Each check_* function is one group of invariants, in the order in which later ones rely on earlier
 * ones: once ids are known to be in range, all else may follow them. The rules in words:
 *
 *   always     ids exist; samples lie in the batch; fields fit the kind of node; data edges join
 *              nodes that make and take that tensor, each once; there is no cycle
 *   BUILT      the F nodes of a chunk cover the batch once, so do its B with its BI, and its B with
 *              its BW; each node gets each tensor that its chunk reads, for all of its samples, once
 *   PLACED     every node is on devices over which its samples divide; what crosses ranks crosses in
 *              a TRANSFER that fits both ends, or (between experts that are spread and the rest) in
 *              an ALL_TO_ALL; temporal edges join nodes that share a rank
 *   BUCKETED   dag_verify_buckets.c
 *   COUNTED    where a chunk asks for counts, its COUNT nodes cover the batch once, each on the
 *              devices of an F on the same samples; all reach one reduction, and that every F
 *   GATHERED   dag_verify_buckets.c
 *
 * Time is O((nodes + edges) log): intervals are sorted, everything else is a walk. */
#include "ir/dag_verify_parts.h"

#include "ir/bucket.h"
#include "ir/grad_flow.h"

#include <stdio.h>
#include <stdlib.h>

const char *node_name(Verifier *v, uint32_t n) {
  char label[88], *name = v->names[v->next_name++ % 4];
  dag_label(v->d, (NodeId){n}, label, sizeof label);
  snprintf(name, sizeof v->names[0], "%s (node %u)", label, n);
  return name;
}

static ChunkId producer_of(const Verifier *v, ValueId value) {
  return graph_op(v->g, graph_value(v->g, value)->op)->chunk;
}

/* ---- ids --------------------------------------------------------------------------------------- */

static PiperStatus check_id(Verifier *v, const char *of, uint32_t n, const char *what, uint32_t id,
                            size_t limit) {
  if (id < limit) return PIPER_OK;
  return BROKEN(v, "%s %u names a %s that does not exist: %u", of, n, what, id);
}

static PiperStatus check_tensors(Verifier *v) {
  const Dag *d = v->d;
  for (uint32_t i = 1; i < d->tensors.n; i++) {
    const Tensor *t = &d->tensors.at[i];
    TRY(check_id(v, "tensor", i, "value", t->value.i, v->g->values.n));
    TRY(check_id(v, "tensor", i, "chunk", t->chunk.i, v->g->chunks.n));
    TRY(check_id(v, "tensor", i, "bucket", t->bucket.i, d->buckets.n));
    const bool value = t->kind == TENSOR_VALUE || t->kind == TENSOR_GRAD;
    const bool chunk = t->kind == TENSOR_GRAD || t->kind == TENSOR_SAVED ||
                       t->kind == TENSOR_KEPT || t->kind == TENSOR_COUNTS;
    const bool bucket = t->kind == TENSOR_BUCKET || t->kind == TENSOR_PARAMS;
    if (t->kind == TENSOR_NONE || t->kind > TENSOR_COUNTS || value != (t->value.i != 0) ||
        chunk != (t->chunk.i != 0) || bucket != (t->bucket.i != 0) || (t->spread && !value))
      return BROKEN(v, "the parts of tensor %u do not fit its kind", i);
    if (value && graph_value(v->g, t->value)->kind != VALUE_OP)
      return BROKEN(v, "tensor %u is an input or a parameter of the model: those never flow", i);
  }
  return PIPER_OK;
}

static PiperStatus check_node_ids(Verifier *v, uint32_t n) {
  const Dag *d = v->d;
  const uint32_t names = intern_count(d->names) + 1;
  if (d->kind[n] == NODE_NONE || d->kind[n] >= NODE_KIND_COUNT)
    return BROKEN(v, "node %u has no kind", n);
  TRY(check_id(v, "node", n, "pass", d->pass[n], PASS_COUNT));
  TRY(check_id(v, "node", n, "chunk", d->chunk[n], v->g->chunks.n));
  TRY(check_id(v, "node", n, "bucket", d->bucket[n], d->buckets.n));
  TRY(check_id(v, "node", n, "tensor", d->tensor[n], d->tensors.n));
  TRY(check_id(v, "node", n, "device set", d->devs[n], devsets_count(d->devsets)));
  TRY(check_id(v, "node", n, "device set", d->src_devs[n], devsets_count(d->devsets)));
  TRY(check_id(v, "node", n, "stream", d->stream[n], names));
  TRY(check_id(v, "node", n, "tag set", d->tags[n], d->tags_first.n - 1));
  return check_id(v, "node", n, "script line", d->line[n], names);
}

static PiperStatus check_edge_ids(Verifier *v, uint32_t i) {
  const Dag *d = v->d;
  const Edge *e = &d->edges.at[i];
  if (e->src == 0 && e->dst == 0) return PIPER_OK;
  if (e->src == 0 || e->src >= d->n || e->dst == 0 || e->dst >= d->n)
    return BROKEN(v, "edge %u joins nodes %u and %u, of which one does not exist", i, e->src,
                  e->dst);
  if (e->kind == EDGE_TEMPORAL)
    return check_id(v, "edge", i, "script line", e->line, intern_count(d->names) + 1);
  if (e->kind != EDGE_DATA || e->tensor == 0)
    return BROKEN(v, "edge %u from node %u to node %u carries nothing", i, e->src, e->dst);
  return check_id(v, "edge", i, "tensor", e->tensor, d->tensors.n);
}

static PiperStatus check_ids(Verifier *v) {
  const Dag *d = v->d;
  TRY(check_tensors(v));
  for (uint32_t n = 1; n < d->n; n++) TRY(check_node_ids(v, n));
  for (uint32_t i = 1; i < d->edges.n; i++) TRY(check_edge_ids(v, i));
  for (uint32_t b = 1; b < d->buckets.n; b++) {
    const Bucket *bucket = &d->buckets.at[b];
    TRY(check_id(v, "bucket", b, "chunk", bucket->chunk.i, v->g->chunks.n));
    TRY(check_id(v, "bucket", b, "device set", bucket->holders, devsets_count(d->devsets)));
    TRY(check_id(v, "bucket", b, "stream", bucket->reduce_stream, intern_count(d->names) + 1));
    TRY(check_id(v, "bucket", b, "stream", bucket->gather_stream, intern_count(d->names) + 1));
    TRY(check_id(v, "bucket", b, "level", bucket->zero, ZERO_PARAMS + 1));
    if (bucket->n_groups > d->bucket_groups.n ||
        bucket->group_first > d->bucket_groups.n - bucket->n_groups)
      return BROKEN(v, "the groups of bucket %u lie outside the list", b);
    for (uint32_t k = 0; k < bucket->n_groups; k++)
      TRY(check_id(v, "bucket", b, "device set", d->bucket_groups.at[bucket->group_first + k],
                   devsets_count(d->devsets)));
    TRY(check_id(v, "bucket", b, "script line", bucket->line, intern_count(d->names) + 1));
    if (bucket->n_params > d->bucket_params.n ||
        bucket->param_first > d->bucket_params.n - bucket->n_params)
      return BROKEN(v, "the parameters of bucket %u lie outside the list", b);
  }
  for (size_t i = 0; i < d->bucket_params.n; i++)
    if (d->bucket_params.at[i] == 0 || d->bucket_params.at[i] >= v->g->params.n)
      return BROKEN(v, "the list of bucket parameters names one that does not exist: %u",
                    d->bucket_params.at[i]);
  for (size_t p = 1; p < v->g->params.n; p++)
    TRY(check_id(v, "the home of parameter", (uint32_t)p, "bucket", d->home[p].bucket.i,
                 d->buckets.n));
  return PIPER_OK;
}

/* ---- nodes and edges by kind ------------------------------------------------------------------- */

static PiperStatus check_samples(Verifier *v, uint32_t n, const char *whose, int64_t lo,
                                 int64_t hi) {
  if (0 <= lo && lo < hi && hi <= v->d->batch) return PIPER_OK;
  return BROKEN(v, "%s%s works on samples %lld to %lld, which are not in the batch of %lld",
                node_name(v, n), whose, (long long)lo, (long long)hi, (long long)v->d->batch);
}

/* Experts that are spread divide into parts. */
static PiperStatus check_parts(Verifier *v, uint32_t n) {
  const int64_t experts = graph_chunk(v->g, (ChunkId){v->d->chunk[n]})->n_experts;
  const uint32_t parts = v->d->parts[n];
  if (parts >= 2 && experts > 0 && experts % parts == 0) return PIPER_OK;
  return BROKEN(v, "%s divides %lld experts into %u parts", node_name(v, n), (long long)experts,
                parts);
}

static PiperStatus check_node(Verifier *v, uint32_t n) {
  const Dag *d = v->d;
  const Tensor *t = &d->tensors.at[d->tensor[n]];
  switch ((NodeKind)d->kind[n]) {
  case NODE_COMPUTE:
    if (d->forward_only && d->pass[n] != PASS_F)
      return BROKEN(v, "%s is in a DAG of forward passes only", node_name(v, n));
    if (d->chunk[n] == 0 || d->pass[n] == PASS_NONE)
      return BROKEN(v, "%s has no %s", node_name(v, n), d->chunk[n] == 0 ? "chunk" : "pass");
    if (d->parts[n] > 1) TRY(check_parts(v, n));
    return check_samples(v, n, "", d->lo[n], d->hi[n]);
  case NODE_ALL_TO_ALL:
    if (t->kind != TENSOR_VALUE && t->kind != TENSOR_GRAD)
      return BROKEN(v, "%s moves what is neither a value nor a gradient of one", node_name(v, n));
    if (d->chunk[n] == 0) return BROKEN(v, "%s has no chunk", node_name(v, n));
    TRY(check_parts(v, n));
    return check_samples(v, n, "", d->lo[n], d->hi[n]);
  case NODE_TRANSFER:
    if ((t->kind != TENSOR_VALUE && t->kind != TENSOR_GRAD) || t->spread)
      return BROKEN(v, "%s moves what is neither a value nor a gradient of one", node_name(v, n));
    TRY(check_samples(v, n, ", receiving,", d->lo[n], d->hi[n]));
    return check_samples(v, n, ", sending,", d->src_lo[n], d->src_hi[n]);
  case NODE_COUNT:
    if (d->chunk[n] == 0 || graph_chunk(v->g, (ChunkId){d->chunk[n]})->n_counts == 0)
      return BROKEN(v, "%s counts for a chunk that asks for no count", node_name(v, n));
    return check_samples(v, n, "", d->lo[n], d->hi[n]);
  case NODE_ALL_REDUCE:
  case NODE_REDUCE_SCATTER:
    if (d->kind[n] == NODE_ALL_REDUCE &&
        (t->kind == TENSOR_METRICS || t->kind == TENSOR_COUNTS))
      return PIPER_OK;
    if (t->kind != TENSOR_BUCKET || t->bucket.i != d->bucket[n])
      return BROKEN(v, "%s reduces neither its bucket, nor the metrics, nor counts",
                    node_name(v, n));
    return PIPER_OK;
  case NODE_ALL_GATHER:
    if ((t->kind != TENSOR_BUCKET && t->kind != TENSOR_PARAMS) || t->bucket.i != d->bucket[n])
      return BROKEN(v, "%s does not gather its bucket", node_name(v, n));
    return PIPER_OK;
  case NODE_NORM:
  case NODE_UPDATE:
    return d->bucket[n] != 0 ? PIPER_OK : BROKEN(v, "%s has no bucket", node_name(v, n));
  case NODE_JOIN:
  case NODE_NONE:
  case NODE_KIND_COUNT:
    break;
  }
  return PIPER_OK;
}

/* Node n handles bucket b and is of one of these kinds (bits by NodeKind). */
static bool is_of_bucket(const Verifier *v, uint32_t n, uint32_t b, unsigned kinds) {
  const Dag *d = v->d;
  return (kinds >> d->kind[n] & 1) != 0 && d->bucket[n] == b;
}
enum {
  REDUCE = 1u << NODE_ALL_REDUCE | 1u << NODE_REDUCE_SCATTER,
  GATHER = 1u << NODE_ALL_GATHER,
  NORM = 1u << NODE_NORM,
  UPDATE = 1u << NODE_UPDATE
};

bool has_edge(const Verifier *v, uint32_t a, uint32_t b, TensorKind kind) {
  for (uint32_t k = v->adj.out_first[a]; k < v->adj.out_first[a + 1]; k++) {
    const Edge *e = &v->d->edges.at[v->adj.out_edge[k]];
    if (e->dst == b &&
        (kind == TENSOR_NONE || (e->kind == EDGE_DATA && tensor_of(v, e)->kind == kind)))
      return true;
  }
  return false;
}

bool is_metrics(const Verifier *v, uint32_t n) {
  return v->d->kind[n] == NODE_ALL_REDUCE &&
         v->d->tensors.at[v->d->tensor[n]].kind == TENSOR_METRICS;
}

/* The ALL_REDUCE of this tensor of counts. */
static bool reduces_counts(const Verifier *v, uint32_t n, uint32_t tensor) {
  return v->d->kind[n] == NODE_ALL_REDUCE && v->d->tensor[n] == tensor;
}

/* The same tensor, one of the two divided by experts. */
static bool other_layout(const Tensor *a, const Tensor *b) {
  return a->kind == b->kind && a->value.i == b->value.i && a->chunk.i == b->chunk.i &&
         a->spread != b->spread;
}

/* A node that makes tensor t of the edge. */
static bool makes(const Verifier *v, const Edge *e, const Tensor *t) {
  const Dag *d = v->d;
  const uint32_t n = e->src;
  const bool moves =
      (d->kind[n] == NODE_TRANSFER && d->tensor[n] == e->tensor) ||
      (d->kind[n] == NODE_ALL_TO_ALL && other_layout(&d->tensors.at[d->tensor[n]], t));
  const bool layout = t->spread == (d->parts[n] > 1);
  switch (t->kind) {
  case TENSOR_VALUE:
    return moves || (is_compute(v, n, F) && layout && d->chunk[n] == producer_of(v, t->value).i);
  case TENSOR_GRAD:
    return moves || (is_compute(v, n, B | BI) && layout && d->chunk[n] == t->chunk.i);
  case TENSOR_SAVED:
    return is_compute(v, n, F | R) && d->chunk[n] == t->chunk.i;
  case TENSOR_KEPT:
    return is_compute(v, n, BI) && d->chunk[n] == t->chunk.i;
  case TENSOR_BUCKET:
    return is_compute(v, n, B | BW) ||
           (is_of_bucket(v, n, t->bucket.i, REDUCE | GATHER) && d->tensor[n] == e->tensor);
  case TENSOR_PARAMS:
    return is_of_bucket(v, n, t->bucket.i, UPDATE) ||
           (is_of_bucket(v, n, t->bucket.i, GATHER) && d->tensor[n] == e->tensor);
  case TENSOR_METRICS:
    return is_metrics(v, n) || d->kind[n] == NODE_NORM ||
           (is_compute(v, n, F) && chunk_has_metrics(graph_chunk(v->g, (ChunkId){d->chunk[n]})));
  case TENSOR_COUNTS:
    return (d->kind[n] == NODE_COUNT && d->chunk[n] == t->chunk.i) ||
           reduces_counts(v, n, e->tensor);
  case TENSOR_NONE:
    break;
  }
  return false;
}

/* A node that takes tensor t of the edge. */
static bool takes(const Verifier *v, const Edge *e, const Tensor *t) {
  const Dag *d = v->d;
  const uint32_t n = e->dst;
  const bool moves = (d->kind[n] == NODE_TRANSFER || d->kind[n] == NODE_ALL_TO_ALL) &&
                     d->tensor[n] == e->tensor && d->kind[e->src] != d->kind[n];
  const bool layout = t->spread == (d->parts[n] > 1);
  switch (t->kind) {
  case TENSOR_VALUE:
    return moves || (is_compute(v, n, F) && layout); /* which values: check_arrivals */
  case TENSOR_GRAD:
    return moves || (is_compute(v, n, B | BI) && layout &&
                     d->chunk[n] == producer_of(v, t->value).i);
  case TENSOR_SAVED: /* through R where the chunk is recomputed */
    return is_compute(v, n, d->recompute[e->src] && is_compute(v, e->src, F) ? R : B | BI | BW) &&
           d->chunk[n] == t->chunk.i;
  case TENSOR_KEPT:
    return is_compute(v, n, BW) && d->chunk[n] == t->chunk.i;
  case TENSOR_BUCKET:
    return is_of_bucket(v, n, t->bucket.i, NORM | UPDATE) ||
           (is_of_bucket(v, n, t->bucket.i, REDUCE | GATHER) && d->tensor[n] == e->tensor);
  case TENSOR_PARAMS: /* which compute nodes: dag_verify_buckets.c */
    return d->kind[e->src] == NODE_UPDATE
               ? is_of_bucket(v, n, t->bucket.i, GATHER) && d->tensor[n] == e->tensor
               : d->kind[n] == NODE_COMPUTE;
  case TENSOR_METRICS:
    return is_metrics(v, e->src) ? d->kind[n] == NODE_UPDATE : is_metrics(v, n);
  case TENSOR_COUNTS:
    return d->kind[e->src] == NODE_COUNT ? reduces_counts(v, n, e->tensor)
                                         : is_compute(v, n, F) && d->chunk[n] == t->chunk.i;
  case TENSOR_NONE:
    break;
  }
  return false;
}

/* What F saves and BI keeps stays where it is. */
static PiperStatus check_kept(Verifier *v, const Edge *e) {
  const Dag *d = v->d;
  const uint32_t a = e->src, b = e->dst;
  if (d->recompute[a] != d->recompute[b])
    return BROKEN(v, "only one of %s and %s is of a chunk that is recomputed", node_name(v, a),
                  node_name(v, b));
  if (d->lo[a] == d->lo[b] && d->hi[a] == d->hi[b] && d->devs[a] == d->devs[b] &&
      d->mb[a] == d->mb[b])
    return PIPER_OK;
  return BROKEN(v,
                "what %s keeps for %s is of other samples, of another microbatch or on other "
                "devices",
                node_name(v, a), node_name(v, b));
}

static PiperStatus check_edge(Verifier *v, const Edge *e) {
  static const char *const NAMES[] = {"nothing",
                                      "a value",
                                      "the gradient of a value",
                                      "what a forward pass saves",
                                      "what a backward pass keeps",
                                      "gradients of a bucket",
                                      "parameters of a bucket",
                                      "metrics",
                                      "counts of targets"};
  const Tensor *t = tensor_of(v, e);
  if (e->kind == EDGE_TEMPORAL) return PIPER_OK;
  if (!makes(v, e, t))
    return BROKEN(v, "%s does not make what it gives to %s: %s", node_name(v, e->src),
                  node_name(v, e->dst), NAMES[t->kind]);
  if (!takes(v, e, t))
    return BROKEN(v, "%s does not take what it gets from %s: %s", node_name(v, e->dst),
                  node_name(v, e->src), NAMES[t->kind]);
  return t->kind == TENSOR_SAVED || t->kind == TENSOR_KEPT ? check_kept(v, e) : PIPER_OK;
}

/* One tensor goes from one node to another once. */
static PiperStatus check_doubles(Verifier *v) {
  const Dag *d = v->d;
  const Adjacency *a = &v->adj;
  uint32_t *last_src = calloc(d->n, sizeof *last_src); /* by node: who reached it last */
  PiperStatus st = last_src == NULL ? err_nomem(v->err, "dag_verify") : PIPER_OK;
  for (uint32_t n = 1; st == PIPER_OK && n < d->n; n++)
    for (uint32_t k = a->out_first[n]; st == PIPER_OK && k < a->out_first[n + 1]; k++) {
      const Edge *e = &d->edges.at[a->out_edge[k]];
      if (e->kind != EDGE_DATA) continue;
      for (uint32_t j = a->out_first[n]; last_src[e->dst] == n && j < k; j++) {
        const Edge *f = &d->edges.at[a->out_edge[j]];
        if (f->kind != EDGE_DATA || f->dst != e->dst || f->tensor != e->tensor) continue;
        st = BROKEN(v, "%s gives the same to %s twice", node_name(v, n), node_name(v, e->dst));
        break;
      }
      last_src[e->dst] = n;
    }
  free(last_src);
  return st;
}

static PiperStatus check_acyclic(Verifier *v) {
  PiperErr cycle = {0};
  uint32_t n, *order = malloc(v->d->n * sizeof *order);
  if (order == NULL) return err_nomem(v->err, "dag_verify");
  const PiperStatus st = topo_order(v->d, &v->adj, order, &n, &cycle);
  free(order);
  if (st == PIPER_OK || st == PIPER_ENOMEM)
    return st == PIPER_OK ? st : err_nomem(v->err, "dag_verify");
  return BROKEN(v, "there is a cycle: %s", cycle.text);
}

/* ---- built ------------------------------------------------------------------------------------- */

typedef struct Interval {
  uint32_t chunk, node;
  int64_t lo, hi;
} Interval;

static int by_samples(const void *a, const void *b) {
  const Interval *x = a, *y = b;
  if (x->chunk != y->chunk) return x->chunk < y->chunk ? -1 : 1;
  if (x->lo != y->lo) return x->lo < y->lo ? -1 : 1;
  return (x->node > y->node) - (x->node < y->node);
}

/* The nodes of these passes cover the batch of each chunk, without a gap and without overlap. */
static PiperStatus check_cover(Verifier *v, unsigned passes, const char *what, Interval *at) {
  const Dag *d = v->d;
  size_t n = 0;
  for (uint32_t i = 1; i < d->n; i++)
    if (is_compute(v, i, passes)) at[n++] = (Interval){d->chunk[i], i, d->lo[i], d->hi[i]};
  qsort(at, n, sizeof *at, by_samples);
  size_t k = 0;
  for (uint32_t c = 1; c < v->g->chunks.n; c++) {
    int64_t end = 0;
    for (; k < n && at[k].chunk == c; end = at[k++].hi) {
      if (at[k].lo < end)
        return BROKEN(v, "%s and %s both work on sample %lld", node_name(v, at[k - 1].node),
                      node_name(v, at[k].node), (long long)at[k].lo);
      if (at[k].lo > end) break;
    }
    if (end != d->batch)
      return BROKEN(v, "no %s of chunk %u works on sample %lld", what, c, (long long)end);
  }
  return PIPER_OK;
}

static int by_producer(const void *a, const void *b) {
  const GradIn *x = a, *y = b;
  if (x->producer != y->producer) return x->producer < y->producer ? -1 : 1;
  if (x->value != y->value) return x->value < y->value ? -1 : 1;
  return (x->consumer > y->consumer) - (x->consumer < y->consumer);
}

/* Which gradients each chunk receives. */
static PiperStatus list_grads(Verifier *v) {
  const Graph *g = v->g;
  v->grads_first = calloc(g->chunks.n + 1, sizeof *v->grads_first);
  if (v->grads_first == NULL) return err_nomem(v->err, "dag_verify");
  for (uint32_t c = 1; c < g->chunks.n; c++) {
    const Chunk *chunk = graph_chunk(g, (ChunkId){c});
    for (uint32_t o = chunk->first_op; o < chunk->end_op; o++) {
      const Op *op = graph_op(g, (OpId){o});
      for (int wrt = 0; wrt < 3; wrt++) {
        const Value *in = graph_value(g, op->in[wrt]);
        if (op->in[wrt].i == 0 || in->kind != VALUE_OP || !op_grad_flows(g, op, wrt)) continue;
        const uint32_t producer = graph_op(g, in->op)->chunk.i;
        if (producer == c) continue;
        if (!vec_push(&v->grads, ((GradIn){producer, op->in[wrt].i, c})))
          return err_nomem(v->err, "dag_verify");
      }
    }
  }
  if (v->grads.n > 0) qsort(v->grads.at, v->grads.n, sizeof *v->grads.at, by_producer);
  size_t n = 0;
  for (size_t i = 0; i < v->grads.n; i++)
    if (n == 0 || by_producer(&v->grads.at[n - 1], &v->grads.at[i]) != 0)
      v->grads.at[n++] = v->grads.at[i];
  v->grads.n = n;
  for (size_t i = 0; i < n; i++) v->grads_first[v->grads.at[i].producer + 1]++;
  for (size_t c = 1; c <= g->chunks.n; c++) v->grads_first[c] += v->grads_first[c - 1];
  return PIPER_OK;
}

static int by_tensor(const void *a, const void *b) {
  const Arrival *x = a, *y = b;
  if (x->value != y->value) return x->value < y->value ? -1 : 1;
  if (x->consumer != y->consumer) return x->consumer < y->consumer ? -1 : 1;
  if (x->lo != y->lo) return x->lo < y->lo ? -1 : 1;
  return (x->from > y->from) - (x->from < y->from);
}

/* The node behind a transfer; 0: none. */
static uint32_t sender_of(const Verifier *v, uint32_t n) {
  if (v->d->kind[n] != NODE_TRANSFER) return n;
  for (uint32_t k = v->adj.in_first[n]; k < v->adj.in_first[n + 1]; k++) {
    const Edge *e = &v->d->edges.at[v->adj.in_edge[k]];
    if (e->kind == EDGE_DATA) return e->src;
  }
  return 0;
}

/* Node n gets tensor t from 'from'; of a value without a batch axis all parts are the whole. */
static PiperStatus arrive(Verifier *v, uint32_t n, const Tensor *t, uint32_t from) {
  const Dag *d = v->d;
  if (d->kind[from] != NODE_COMPUTE)
    return BROKEN(v, "%s gets something that nobody computes, from %s", node_name(v, n),
                  node_name(v, from));
  Arrival a = {t->value.i, t->chunk.i, d->lo[from], d->hi[from], from};
  if (graph_value(v->g, t->value)->batch != BATCH_SPLIT && (a.lo != d->lo[n] || a.hi != d->hi[n]))
    return BROKEN(v, "%s gets a tensor without a batch axis from %s, which works on other samples",
                  node_name(v, n), node_name(v, from));
  if (a.lo < d->lo[n]) a.lo = d->lo[n];
  if (a.hi > d->hi[n]) a.hi = d->hi[n];
  if (a.lo >= a.hi)
    return BROKEN(v, "%s gets from %s nothing of its own samples", node_name(v, n),
                  node_name(v, from));
  return vec_push(&v->arrivals, a) ? PIPER_OK : err_nomem(v->err, "dag_verify");
}

/* What the edges bring to node n: behind transfers, and behind one exchange. */
static PiperStatus list_arrivals(Verifier *v, uint32_t n) {
  const Dag *d = v->d;
  v->arrivals.n = 0;
  for (uint32_t k = v->adj.in_first[n]; k < v->adj.in_first[n + 1]; k++) {
    const Edge *e = &d->edges.at[v->adj.in_edge[k]];
    const Tensor *t = tensor_of(v, e);
    if (e->kind != EDGE_DATA || (t->kind != TENSOR_VALUE && t->kind != TENSOR_GRAD)) continue;
    const uint32_t from = sender_of(v, e->src);
    if (from == 0) return BROKEN(v, "nothing enters %s", node_name(v, e->src));
    if (d->kind[from] != NODE_ALL_TO_ALL) {
      TRY(arrive(v, n, t, from));
      continue;
    }
    for (uint32_t i = v->adj.in_first[from]; i < v->adj.in_first[from + 1]; i++) {
      const Edge *f = &d->edges.at[v->adj.in_edge[i]];
      if (f->kind != EDGE_DATA) continue;
      const uint32_t source = sender_of(v, f->src);
      if (source == 0) return BROKEN(v, "nothing enters %s", node_name(v, f->src));
      TRY(arrive(v, n, t, source));
    }
  }
  if (v->arrivals.n > 1) qsort(v->arrivals.at, v->arrivals.n, sizeof *v->arrivals.at, by_tensor);
  return PIPER_OK;
}

static PiperStatus unread(Verifier *v, uint32_t n, const Arrival *a) {
  return BROKEN(v, "%s gets from %s what its chunk does not read", node_name(v, n),
                node_name(v, a->from));
}

/* From arrival *k on this tensor comes, for all samples of node n, each once. */
static PiperStatus check_arrival(Verifier *v, uint32_t n, uint32_t value, uint32_t consumer,
                                 size_t *k) {
  const char *what = consumer != 0 ? "the gradient of value" : "value";
  int64_t end = v->d->lo[n];
  for (; *k < v->arrivals.n; ++*k) {
    const Arrival *a = &v->arrivals.at[*k];
    if (a->value < value || (a->value == value && a->consumer < consumer)) return unread(v, n, a);
    if (a->value != value || a->consumer != consumer) break;
    if (a->lo < end)
      return BROKEN(v, "%s gets %s %u of sample %lld twice", node_name(v, n), what, value,
                    (long long)a->lo);
    if (a->lo > end) break;
    end = a->hi;
  }
  if (end != v->d->hi[n])
    return BROKEN(v, "%s does not get %s %u of sample %lld", node_name(v, n), what, value,
                  (long long)end);
  return PIPER_OK;
}

static PiperStatus check_arrivals(Verifier *v, uint32_t n) {
  const Graph *g = v->g;
  const uint32_t c = v->d->chunk[n];
  const Chunk *chunk = graph_chunk(g, (ChunkId){c});
  size_t k = 0;
  TRY(list_arrivals(v, n));
  for (uint32_t i = 0; is_compute(v, n, F) && i < chunk->n_in; i++) {
    const uint32_t value = g->chunk_values.at[chunk->in_first + i];
    if (graph_value(g, (ValueId){value})->kind == VALUE_OP) TRY(check_arrival(v, n, value, 0, &k));
  }
  for (uint32_t i = v->grads_first[c]; is_compute(v, n, B | BI) && i < v->grads_first[c + 1]; i++)
    TRY(check_arrival(v, n, v->grads.at[i].value, v->grads.at[i].consumer, &k));
  return k == v->arrivals.n ? PIPER_OK : unread(v, n, &v->arrivals.at[k]);
}

/* A backward pass gets what its forward pass saved, and a BW what its BI kept. */
static PiperStatus check_saved(Verifier *v, uint32_t n) {
  const Dag *d = v->d;
  unsigned saved = 0, kept = 0;
  for (uint32_t k = v->adj.in_first[n]; k < v->adj.in_first[n + 1]; k++) {
    const Edge *e = &d->edges.at[v->adj.in_edge[k]];
    if (e->kind != EDGE_DATA) continue;
    saved += tensor_of(v, e)->kind == TENSOR_SAVED;
    kept += tensor_of(v, e)->kind == TENSOR_KEPT;
  }
  if (saved != 1)
    return BROKEN(v, "%s gets what its forward pass saved %u times", node_name(v, n), saved);
  if (d->pass[n] == PASS_BW && kept != 1)
    return BROKEN(v, "%s gets what its BI kept %u times", node_name(v, n), kept);
  return PIPER_OK;
}

static PiperStatus check_built(Verifier *v) {
  const Dag *d = v->d;
  Interval *room = malloc(d->n * sizeof *room);
  PiperStatus st = room == NULL ? err_nomem(v->err, "dag_verify") : PIPER_OK;
  if (st == PIPER_OK) st = check_cover(v, F, "F", room);
  if (st == PIPER_OK && !d->forward_only) st = check_cover(v, B | BI, "B or BI", room);
  if (st == PIPER_OK && !d->forward_only) st = check_cover(v, B | BW, "B or BW", room);
  free(room);
  TRY(st);
  TRY(list_grads(v));
  for (uint32_t n = 1; n < d->n; n++) {
    if (d->kind[n] != NODE_COMPUTE) continue;
    TRY(check_arrivals(v, n));
    if (d->pass[n] != PASS_F) TRY(check_saved(v, n));
  }
  return PIPER_OK;
}

/* ---- placed ------------------------------------------------------------------------------------ */

static void mark_ranks(Verifier *v, uint32_t devs) {
  const int32_t *ranks = devsets_ranks(v->d->devsets, devs);
  v->mark++;
  for (uint32_t i = 0; i < devsets_size(v->d->devsets, devs); i++) v->rank_mark[ranks[i]] = v->mark;
}

/* How many of the set's ranks are in the one marked last. */
static uint32_t count_marked(const Verifier *v, uint32_t devs) {
  const int32_t *ranks = devsets_ranks(v->d->devsets, devs);
  uint32_t n = 0;
  for (uint32_t i = 0; i < devsets_size(v->d->devsets, devs); i++)
    n += v->rank_mark[ranks[i]] == v->mark;
  return n;
}

static bool share_rank(Verifier *v, uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return false;
  if (a == b) return true;
  mark_ranks(v, a);
  return count_marked(v, b) > 0;
}

/* On some rank both nodes have something to do: a TRANSFER on those of both of its sides. */
static bool nodes_meet(Verifier *v, uint32_t a, uint32_t b) {
  const uint32_t *devs = v->d->devs, *src = v->d->src_devs;
  return share_rank(v, devs[a], devs[b]) || share_rank(v, src[a], devs[b]) ||
         share_rank(v, devs[a], src[b]) || share_rank(v, src[a], src[b]);
}

bool is_subset(Verifier *v, uint32_t part, uint32_t whole) {
  if (part == whole) return true;
  mark_ranks(v, whole);
  return count_marked(v, part) == devsets_size(v->d->devsets, part);
}

static PiperStatus prepare_ranks(Verifier *v) {
  const DevSets *t = v->d->devsets;
  for (uint32_t s = 1; s < devsets_count(t); s++)
    for (uint32_t i = 0; i < devsets_size(t, s); i++) {
      const int32_t rank = devsets_ranks(t, s)[i];
      if (rank < 0) return BROKEN(v, "device set %u has a negative rank", s);
      if ((uint32_t)rank > v->max_rank) v->max_rank = (uint32_t)rank;
    }
  v->rank_mark = calloc((size_t)v->max_rank + 1, sizeof *v->rank_mark);
  return v->rank_mark != NULL ? PIPER_OK : err_nomem(v->err, "dag_verify");
}

static PiperStatus check_divides(Verifier *v, uint32_t n, const char *whose, int64_t samples,
                                 uint32_t devs) {
  const uint32_t size = devsets_size(v->d->devsets, devs);
  if (size == 0) return BROKEN(v, "%s%s is on no device", node_name(v, n), whose);
  if (samples % size == 0) return PIPER_OK;
  return BROKEN(v, "%lld samples of %s%s do not divide over %u devices", (long long)samples,
                node_name(v, n), whose, size);
}

/* Some samples of 'from' that 'to' needs are on another rank there. Both lists of parts ascend, so
 * one walk along them meets every intersection. */
static bool samples_move(const Verifier *v, uint32_t from, uint32_t to) {
  const Dag *d = v->d;
  const uint32_t na = devsets_size(d->devsets, d->devs[from]);
  const uint32_t nb = devsets_size(d->devsets, d->devs[to]);
  const int32_t *a = devsets_ranks(d->devsets, d->devs[from]);
  const int32_t *b = devsets_ranks(d->devsets, d->devs[to]);
  for (uint32_t i = 0, j = 0; i < na && j < nb;) {
    const int64_t a_lo = part_lo(d->lo[from], d->hi[from], i, na);
    const int64_t a_hi = part_lo(d->lo[from], d->hi[from], i + 1, na);
    const int64_t b_lo = part_lo(d->lo[to], d->hi[to], j, nb);
    const int64_t b_hi = part_lo(d->lo[to], d->hi[to], j + 1, nb);
    if (a_lo < b_hi && b_lo < a_hi && a[i] != b[j]) return true;
    if (a_hi <= b_hi) i++;
    else j++;
  }
  return false;
}

/* An edge between compute nodes stays on its ranks. */
static PiperStatus check_local(Verifier *v, const Edge *e) {
  const Dag *d = v->d;
  const Tensor *t = tensor_of(v, e);
  if (t->kind != TENSOR_VALUE && t->kind != TENSOR_GRAD) return PIPER_OK;
  const bool split = graph_value(v->g, t->value)->batch == BATCH_SPLIT;
  if (split ? !samples_move(v, e->src, e->dst) : d->devs[e->src] == d->devs[e->dst])
    return PIPER_OK;
  return BROKEN(v, "%s gets from %s, without a transfer, what is on other ranks",
                node_name(v, e->dst), node_name(v, e->src));
}

static PiperStatus check_transfer(Verifier *v, uint32_t n) {
  const Dag *d = v->d;
  const Adjacency *a = &v->adj;
  const Tensor *t = &d->tensors.at[d->tensor[n]];
  uint32_t n_in = 0, n_out = 0;
  TRY(check_divides(v, n, ", sending,", d->src_hi[n] - d->src_lo[n], d->src_devs[n]));
  for (uint32_t k = a->in_first[n]; k < a->in_first[n + 1]; k++) {
    const Edge *e = &d->edges.at[a->in_edge[k]];
    if (e->kind != EDGE_DATA) continue;
    n_in++;
    if (d->devs[e->src] != d->src_devs[n] || d->lo[e->src] != d->src_lo[n] ||
        d->hi[e->src] != d->src_hi[n])
      return BROKEN(v, "the sending side of %s is not that of %s", node_name(v, n),
                    node_name(v, e->src));
  }
  for (uint32_t k = a->out_first[n]; k < a->out_first[n + 1]; k++) {
    const Edge *e = &d->edges.at[a->out_edge[k]];
    if (e->kind != EDGE_DATA) continue;
    n_out++;
    if (d->devs[e->dst] != d->devs[n] || d->lo[e->dst] != d->lo[n] || d->hi[e->dst] != d->hi[n])
      return BROKEN(v, "the receiving side of %s is not that of %s", node_name(v, n),
                    node_name(v, e->dst));
  }
  if (n_in != 1) return BROKEN(v, "%s moves what %u nodes make", node_name(v, n), n_in);
  if (n_out == 0) return BROKEN(v, "%s moves what nobody takes", node_name(v, n));
  if (graph_value(v->g, t->value)->batch != BATCH_SPLIT &&
      devsets_size(d->devsets, d->devs[n]) != devsets_size(d->devsets, d->src_devs[n]))
    return BROKEN(v, "%s moves a tensor without a batch axis between unequal numbers of devices",
                  node_name(v, n));
  return PIPER_OK;
}

/* The edge has an ALL_TO_ALL at one end: experts beside it are where it is, the others have its
 * samples on the ranks where it has them. */
static PiperStatus check_exchange_edge(Verifier *v, const Edge *e) {
  const Dag *d = v->d;
  const uint32_t a = e->src, b = e->dst;
  if (tensor_of(v, e)->spread) {
    const uint32_t x = d->kind[a] == NODE_ALL_TO_ALL ? a : b, n = x == a ? b : a;
    if (d->devs[a] == d->devs[b] && d->lo[a] == d->lo[b] && d->hi[a] == d->hi[b] &&
        d->parts[a] == d->parts[b] && d->chunk[a] == d->chunk[b])
      return PIPER_OK;
    return BROKEN(v, "%s exchanges for other experts than those of %s", node_name(v, x),
                  node_name(v, n));
  }
  return d->kind[a] == NODE_TRANSFER || d->kind[b] == NODE_TRANSFER ? PIPER_OK : check_local(v, e);
}

static PiperStatus check_exchange(Verifier *v, uint32_t n) {
  const Dag *d = v->d;
  const Adjacency *a = &v->adj;
  uint32_t n_in = 0, n_out = 0;
  for (uint32_t k = a->in_first[n]; k < a->in_first[n + 1]; k++)
    n_in += d->edges.at[a->in_edge[k]].kind == EDGE_DATA;
  for (uint32_t k = a->out_first[n]; k < a->out_first[n + 1]; k++)
    n_out += d->edges.at[a->out_edge[k]].kind == EDGE_DATA;
  if (n_in == 0) return BROKEN(v, "nothing enters %s", node_name(v, n));
  if (n_out == 0) return BROKEN(v, "%s moves what nobody takes", node_name(v, n));
  return PIPER_OK;
}

static PiperStatus check_placed(Verifier *v) {
  const Dag *d = v->d;
  for (uint32_t n = 1; n < d->n; n++) {
    TRY(check_divides(v, n, d->kind[n] == NODE_TRANSFER ? ", receiving," : "", d->hi[n] - d->lo[n],
                      d->devs[n]));
    if (d->kind[n] == NODE_TRANSFER) TRY(check_transfer(v, n));
    if (d->kind[n] == NODE_ALL_TO_ALL) TRY(check_exchange(v, n));
    if (d->parts[n] != 0 && devsets_size(d->devsets, d->devs[n]) % d->parts[n] != 0)
      return BROKEN(v, "the devices of %s are not groups of %u", node_name(v, n), d->parts[n]);
  }
  for (uint32_t i = 1; i < d->edges.n; i++) {
    const Edge *e = &d->edges.at[i];
    if (e->src == 0) continue;
    if (e->kind == EDGE_TEMPORAL) {
      if (!nodes_meet(v, e->src, e->dst))
        return BROKEN(v, "%s is ordered before %s, but they share no rank", node_name(v, e->src),
                      node_name(v, e->dst));
    } else if (d->kind[e->src] == NODE_COMPUTE && d->kind[e->dst] == NODE_COMPUTE) {
      TRY(check_local(v, e));
    } else if (d->kind[e->src] == NODE_ALL_TO_ALL || d->kind[e->dst] == NODE_ALL_TO_ALL) {
      TRY(check_exchange_edge(v, e));
    }
  }
  return PIPER_OK;
}

/* ---- counted ----------------------------------------------------------------------------------- */

/* The COUNT, or the F, nodes of chunks with counts, by chunk and samples. */
static size_t list_counted(Verifier *v, bool counts, Interval *at) {
  const Dag *d = v->d;
  size_t n = 0;
  for (uint32_t i = 1; i < d->n; i++) {
    if (counts ? d->kind[i] != NODE_COUNT : !is_compute(v, i, F)) continue;
    if (graph_chunk(v->g, (ChunkId){d->chunk[i]})->n_counts == 0) continue;
    at[n++] = (Interval){d->chunk[i], i, d->lo[i], d->hi[i]};
  }
  if (n > 0) qsort(at, n, sizeof *at, by_samples);
  return n;
}

/* An F and the COUNT for it; reduce: the chunk's reduction of counts. */
static PiperStatus check_count(Verifier *v, uint32_t f, uint32_t count, uint32_t reduce) {
  const Dag *d = v->d;
  if (d->lo[f] != d->lo[count] || d->hi[f] != d->hi[count] || d->devs[f] != d->devs[count])
    return BROKEN(v, "%s is not of the samples and devices of %s", node_name(v, count),
                  node_name(v, f));
  if (reduce == 0) return BROKEN(v, "nothing adds up what %s counts", node_name(v, count));
  if (!has_edge(v, count, reduce, TENSOR_COUNTS))
    return BROKEN(v, "%s does not reach %s", node_name(v, count), node_name(v, reduce));
  if (!has_edge(v, reduce, f, TENSOR_COUNTS))
    return BROKEN(v, "%s does not get the counts of its chunk", node_name(v, f));
  if (!is_subset(v, d->devs[f], d->devs[reduce]))
    return BROKEN(v, "%s is on devices that do not add up its counts", node_name(v, f));
  return PIPER_OK;
}

static PiperStatus check_counted(Verifier *v) {
  const Dag *d = v->d;
  Interval *at = malloc(2 * d->n * sizeof *at);
  uint32_t *reduce = calloc(v->g->chunks.n, sizeof *reduce);
  PiperStatus st = at == NULL || reduce == NULL ? err_nomem(v->err, "dag_verify") : PIPER_OK;
  for (uint32_t n = 1; st == PIPER_OK && n < d->n; n++) {
    const Tensor *t = &d->tensors.at[d->tensor[n]];
    if (d->kind[n] != NODE_ALL_REDUCE || t->kind != TENSOR_COUNTS) continue;
    if (reduce[t->chunk.i] != 0)
      st = BROKEN(v, "%s does what %s does already", node_name(v, n),
                  node_name(v, reduce[t->chunk.i]));
    reduce[t->chunk.i] = n;
  }
  if (st == PIPER_OK) {
    Interval *counts = at + d->n;
    const size_t n = list_counted(v, false, at), n_counts = list_counted(v, true, counts);
    for (size_t k = 0; st == PIPER_OK && k < n; k++) {
      if (k >= n_counts) st = BROKEN(v, "nothing counts the targets of %s", node_name(v, at[k].node));
      else st = check_count(v, at[k].node, counts[k].node, reduce[at[k].chunk]);
    }
    if (st == PIPER_OK && n_counts > n)
      st = BROKEN(v, "%s counts for no F", node_name(v, counts[n].node));
  }
  free(at);
  free(reduce);
  return st;
}

/* ---- all of it --------------------------------------------------------------------------------- */

static PiperStatus verify(Verifier *v) {
  const Dag *d = v->d;
  TRY(check_ids(v));
  for (uint32_t n = 1; n < d->n; n++) TRY(check_node(v, n));
  for (uint32_t i = 1; i < d->edges.n; i++)
    if (d->edges.at[i].src != 0) TRY(check_edge(v, &d->edges.at[i]));
  TRY(adjacency_new(d, &v->adj, v->err));
  TRY(check_doubles(v));
  TRY(check_acyclic(v));
  if (v->stages & DAG_BUILT) TRY(check_built(v));
  if (v->stages & (DAG_PLACED | DAG_BUCKETED | DAG_COUNTED)) TRY(prepare_ranks(v));
  if (v->stages & DAG_PLACED) TRY(check_placed(v));
  if (v->stages & DAG_BUCKETED) TRY(verify_buckets(v));
  if (v->stages & DAG_COUNTED) TRY(check_counted(v));
  return PIPER_OK;
}

PiperStatus dag_verify(const Dag *d, unsigned stages, PiperErr *err) {
  Verifier v = {.d = d, .g = d->graph, .stages = stages, .err = err};
  const PiperStatus st = verify(&v);
  if (v.adj.out_first != NULL) adjacency_free(&v.adj);
  vec_free(&v.grads);
  vec_free(&v.arrivals);
  free(v.grads_first);
  free(v.rank_mark);
  return st;
}
