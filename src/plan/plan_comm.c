/* Nodes that are alike are counted before they are spread over their ranks, so it takes no rank's
 * lists, and O(nodes) plus the pairs of ranks that send to each other and the groups that meet. */
#include "plan/plan_comm.h"

#include "base/hash.h"
#include "ir/bucket.h"
#include "plan/pieces.h"
#include "plan/plan_lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const COMM_WHAT_NAME[COMM_WHAT_COUNT] = {"gradients", "parameters", "metrics",
                                                     "counts",    "values",     "gradients"};

static CommWhat what_of(const Plan *p, uint32_t node) {
  switch (p->dag->tensors.at[p->dag->tensor[node]].kind) {
  case TENSOR_BUCKET:
    return COMM_GRADS;
  case TENSOR_PARAMS:
    return COMM_PARAMS;
  case TENSOR_METRICS:
    return COMM_METRICS;
  case TENSOR_COUNTS:
    return COMM_COUNTS;
  case TENSOR_GRAD:
    return COMM_VALUE_GRADS;
  default:
    return COMM_VALUES;
  }
}

static int order(int64_t a, int64_t b) { return (a > b) - (a < b); }

/* 'from' of a collective is its first rank; device sets are numbered alike in every process. */
static int compare(const void *a, const void *b) {
  const CommRow *x = a, *y = b;
  const bool x_bucket = x->bucket != 0, y_bucket = y->bucket != 0;
  int c = order(y_bucket, x_bucket);
  if (c == 0) c = order(x->bucket, y->bucket);
  if (c == 0) c = order(x->what, y->what);
  if (c == 0) c = order(x->kind, y->kind);
  if (c == 0) c = strcmp(x->stream, y->stream);
  if (c == 0) c = order(x->from, y->from);
  if (c == 0) c = order(x->to, y->to);
  return c != 0 ? c : order(x->group, y->group);
}

/* Nodes that communicate the same on the same ranks; without padding. */
typedef struct Alike {
  uint32_t kind, tensor, bucket, stream, devs, src_devs;
  int64_t lo, hi,
      src_hi; /* of the samples of a TRANSFER: received [lo, hi) of sent [0, src_hi); of an
                             ALL_TO_ALL [0, hi) */
} Alike;

typedef struct Kind {
  Alike alike;
  uint32_t node; /* the first one */
  uint64_t n;    /* of them */
} Kind;

typedef struct Counting {
  Plan *plan;
  Dag *d;
  VEC(Kind) kinds;
  uint32_t *slots, n_slots; /* hash table: 1 + index */
  PieceVec pieces;
  BucketCallVec calls;
  CommRows *rows;
  PiperErr *err;
} Counting;

static PiperStatus nomem(const Counting *c) { return err_nomem(c->err, "communication"); }

static Alike alike_of(const Dag *d, uint32_t n) {
  Alike a = {.kind = d->kind[n],
             .tensor = d->tensor[n],
             .bucket = d->bucket[n],
             .stream = d->stream[n],
             .devs = d->devs[n]};
  if (d->kind[n] == NODE_ALL_TO_ALL) a.hi = d->hi[n] - d->lo[n];
  if (d->kind[n] != NODE_TRANSFER) return a;
  a.src_devs = d->src_devs[n];
  a.lo = d->lo[n] - d->src_lo[n];
  a.hi = d->hi[n] - d->src_lo[n];
  a.src_hi = d->src_hi[n] - d->src_lo[n];
  return a;
}

static uint32_t *kind_slot(const Counting *c, const Alike *a) {
  uint32_t i = (uint32_t)hash_of(a, sizeof *a) & (c->n_slots - 1);
  while (c->slots[i] != 0 && memcmp(&c->kinds.at[c->slots[i] - 1].alike, a, sizeof *a) != 0)
    i = (i + 1) & (c->n_slots - 1);
  return &c->slots[i];
}

static bool grow(Counting *c) {
  if (2 * (c->kinds.n + 1) <= c->n_slots) return true;
  const uint32_t n = c->n_slots == 0 ? 256 : 2 * c->n_slots;
  uint32_t *slots = calloc(n, sizeof *slots);
  if (slots == NULL) return false;
  free(c->slots);
  c->slots = slots;
  c->n_slots = n;
  for (uint32_t i = 0; i < c->kinds.n; i++) *kind_slot(c, &c->kinds.at[i].alike) = i + 1;
  return true;
}

static PiperStatus count_nodes(Counting *c) {
  const Dag *d = c->d;
  for (uint32_t n = 1; n < d->n; n++) {
    if (!NODE_KIND_COMMUNICATES[d->kind[n]]) continue;
    if (d->kind[n] != NODE_TRANSFER && devsets_size(d->devsets, d->devs[n]) < 2) continue;
    const Alike a = alike_of(d, n);
    if (!grow(c)) return nomem(c);
    uint32_t *slot = kind_slot(c, &a);
    if (*slot == 0) {
      *slot = (uint32_t)c->kinds.n + 1;
      if (!vec_push(&c->kinds, ((Kind){a, n, 0}))) return nomem(c);
    }
    c->kinds.at[*slot - 1].n++;
  }
  return PIPER_OK;
}

static PiperStatus add_row(Counting *c, const Kind *k, CommRow row, char direction) {
  const CommWhat what = what_of(c->plan, k->node);
  const uint32_t stream = plan_stream(c->plan, k->alike.stream, direction, row.from, row.to);
  row.what = (uint8_t)what;
  if (what == COMM_GRADS || what == COMM_PARAMS) row.bucket = k->alike.bucket;
  row.calls = k->n;
  row.bytes *= k->n;
  if (row.group != 0) row.from = devsets_ranks(c->d->devsets, row.group)[0], row.to = 0;
  row.stream = intern_text(c->d->names, stream);
  return stream != 0 && vec_push(c->rows, row) ? PIPER_OK : nomem(c);
}

static PiperStatus spread_transfer(Counting *c, const Kind *k) {
  const Dag *d = c->d;
  const Tensor t = d->tensors.at[k->alike.tensor];
  const uint64_t sample = value_sample_bytes(d->graph, t.value, c->plan->options.dtype);
  const uint64_t whole = value_whole_bytes(d->graph, t.value, c->plan->options.dtype);
  for (uint32_t j = 0; j < devsets_size(d->devsets, k->alike.src_devs); j++) {
    if (!transfer_sends(d, (NodeId){k->node}, j, &c->pieces)) return nomem(c);
    for (size_t i = 0; i < c->pieces.n; i++) {
      const Piece *p = &c->pieces.at[i];
      const CommRow row = {.kind = INSTR_SEND,
                           .from = p->from,
                           .to = p->to,
                           .bytes = sample > 0 ? sample * (uint64_t)(p->hi - p->lo) : whole};
      TRY(add_row(c, k, row, t.kind == TENSOR_GRAD ? 'B' : 'F'));
    }
  }
  return PIPER_OK;
}

static PiperStatus spread_exchange(Counting *c, const Kind *k) {
  const uint32_t parts = c->d->parts[k->node];
  Exchange x;
  if (!node_exchange(c->d, (NodeId){k->node}, c->plan->options.dtype, &x)) return PIPER_OK;
  for (uint32_t g = 0; g < devsets_size(c->d->devsets, k->alike.devs) / parts; g++) {
    const CommRow row = {.kind = INSTR_ALL_TO_ALL,
                         .group = node_exchange_group(c->d, (NodeId){k->node}, g),
                         .bytes = exchange_bytes(&x, parts)};
    if (row.group == 0) return nomem(c);
    TRY(add_row(c, k, row, 0));
  }
  return PIPER_OK;
}

static uint8_t collective_kind(uint32_t kind) {
  return kind == NODE_ALL_GATHER       ? INSTR_ALL_GATHER
         : kind == NODE_REDUCE_SCATTER ? INSTR_REDUCE_SCATTER
                                       : INSTR_ALL_REDUCE;
}

/* Every call once, from its first member. Where groups are not joined all ranks make the same one. */
static PiperStatus spread_collective(Counting *c, const Kind *k) {
  Dag *d = c->d;
  const NodeId n = {k->node};
  const Tensor *t = &d->tensors.at[k->alike.tensor];
  CommRow row = {.kind = collective_kind(k->alike.kind), .group = k->alike.devs};
  if (t->kind == TENSOR_METRICS || t->kind == TENSOR_COUNTS) {
    const size_t n_sums = t->kind == TENSOR_METRICS ? graph_n_metrics(d->graph)
                                                    : graph_chunk(d->graph, t->chunk)->n_counts;
    row.bytes = n_sums * sizeof(double);
    return add_row(c, k, row, 0);
  }
  const uint32_t n_ranks = bucket_node_joins(d, n) ? devsets_size(d->devsets, k->alike.devs) : 1;
  for (uint32_t j = 0; j < n_ranks; j++) {
    const int32_t rank = devsets_ranks(d->devsets, k->alike.devs)[j];
    TRY(bucket_calls(d, n, rank, &c->calls, c->err));
    for (size_t i = 0; i < c->calls.n; i++) {
      const BucketCall *call = &c->calls.at[i];
      if (devsets_ranks(d->devsets, call->group)[0] != rank) continue;
      row.group = call->group;
      row.bytes = (uint64_t)share_size(call->region) * dtype_bytes(c->plan->options.dtype);
      TRY(add_row(c, k, row, 0));
    }
  }
  return PIPER_OK;
}

static PiperStatus list_calls(Counting *c) {
  if (c->plan->lowering == NULL) TRY(plan_lower_begin(c->plan, c->err));
  TRY(count_nodes(c));
  for (size_t i = 0; i < c->kinds.n; i++) {
    const Kind *k = &c->kinds.at[i];
    TRY(k->alike.kind == NODE_TRANSFER     ? spread_transfer(c, k)
        : k->alike.kind == NODE_ALL_TO_ALL ? spread_exchange(c, k)
                                           : spread_collective(c, k));
  }
  return PIPER_OK;
}

PiperStatus plan_communication(const Plan *plan, CommRows *out, PiperErr *err) {
  /* Names and device sets are added to the plan's tables, nothing else. */
  Counting c = {.plan = (Plan *)plan, .d = plan->dag, .rows = out, .err = err};
  out->n = 0;
  const PiperStatus st = list_calls(&c);
  free(c.slots);
  vec_free(&c.kinds), vec_free(&c.pieces), vec_free(&c.calls);
  TRY(st);
  if (out->n > 1) qsort(out->at, out->n, sizeof *out->at, compare);
  size_t n = 0;
  for (size_t k = 0; k < out->n; k++) {
    if (n == 0 || compare(&out->at[n - 1], &out->at[k]) != 0) {
      out->at[n++] = out->at[k];
      continue;
    }
    out->at[n - 1].calls += out->at[k].calls;
    out->at[n - 1].bytes += out->at[k].bytes;
  }
  out->n = n;
  return PIPER_OK;
}

void plan_bucket_name(const Plan *plan, uint32_t bucket, char *buf, size_t n) {
  const Bucket *b = &plan->dag->buckets.at[bucket];
  const ParamId first = {plan->dag->bucket_params.at[b->param_first]};
  snprintf(buf, n, "%s%s", graph_name(plan->graph, graph_param(plan->graph, first)->name),
           b->n_params > 1 ? ".." : "");
}
