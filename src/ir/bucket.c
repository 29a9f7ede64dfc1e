#include "ir/bucket.h"

#include <stdlib.h>

uint32_t bucket_n_groups(const Dag *d, BucketId b) {
  const uint32_t n = d->buckets.at[b.i].n_groups;
  return n > 0 ? n : 1;
}

uint32_t bucket_group(const Dag *d, BucketId b, uint32_t k) {
  const Bucket *x = &d->buckets.at[b.i];
  return x->n_groups > 0 ? d->bucket_groups.at[x->group_first + k] : x->holders;
}

bool bucket_groups_even(const Dag *d, BucketId b) {
  const uint32_t n = bucket_n_groups(d, b);
  const uint32_t size = devsets_size(d->devsets, bucket_group(d, b, 0));
  for (uint32_t k = 1; k < n; k++)
    if (devsets_size(d->devsets, bucket_group(d, b, k)) != size) return false;
  return n > 1;
}

BucketPlace bucket_place(const Dag *d, BucketId b, int32_t rank) {
  const uint32_t n = bucket_n_groups(d, b);
  for (uint32_t k = 0; k < n; k++) {
    const uint32_t devs = bucket_group(d, b, k);
    const int32_t pos = devsets_position(d->devsets, devs, rank);
    if (pos >= 0) return (BucketPlace){k, (uint32_t)pos, devsets_size(d->devsets, devs)};
  }
  return (BucketPlace){.group = BUCKET_NOT_HELD};
}

uint32_t bucket_users(Dag *d, BucketId b, NodeId n) {
  const NodeShare s = dag_bucket_share(d, n, b);
  const uint32_t size = devsets_size(d->devsets, d->devs[n.i]);
  if (s.parts == 0) return d->devs[n.i];
  int32_t *ranks = malloc(size * sizeof *ranks);
  if (ranks == NULL) return 0;
  uint32_t n_ranks = 0;
  for (uint32_t j = s.part; j < size; j += s.parts)
    ranks[n_ranks++] = devsets_ranks(d->devsets, d->devs[n.i])[j];
  const uint32_t id = devsets_id(d->devsets, ranks, n_ranks);
  free(ranks);
  return id;
}

int32_t bucket_first_user(const Dag *d, BucketId b, NodeId n) {
  const NodeShare s = dag_bucket_share(d, n, b);
  return devsets_ranks(d->devsets, d->devs[n.i])[s.parts > 0 ? s.part : 0];
}

bool bucket_used_at(const Dag *d, BucketId b, NodeId n, uint32_t pos) {
  const NodeShare s = dag_bucket_share(d, n, b);
  return s.parts == 0 || pos % s.parts == s.part;
}

static Share kept(const Dag *d, BucketId b, int32_t rank, unsigned level) {
  const Bucket *x = &d->buckets.at[b.i];
  if (x->zero < level) return (Share){0, x->elements};
  const BucketPlace at = bucket_place(d, b, rank);
  if (at.group == BUCKET_NOT_HELD) return (Share){0, 0};
  return share_of(x->elements, at.pos, at.size);
}

Share bucket_params_kept(const Dag *d, BucketId b, int32_t rank) {
  return kept(d, b, rank, ZERO_PARAMS);
}

Share bucket_grads_kept(const Dag *d, BucketId b, int32_t rank) {
  return kept(d, b, rank, ZERO_GRADS);
}

Share bucket_updated(const Dag *d, BucketId b, int32_t rank) {
  const Share s = kept(d, b, rank, ZERO_OPTIMIZER);
  if (d->buckets.at[b.i].zero < ZERO_OPTIMIZER || !bucket_groups_even(d, b)) return s;
  const Share part = share_of(share_size(s), bucket_place(d, b, rank).group, bucket_n_groups(d, b));
  return (Share){s.lo + part.lo, s.lo + part.hi};
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool gathers_params(const Dag *d, NodeId n) {
  return d->kind[n.i] == NODE_ALL_GATHER && d->tensors.at[d->tensor[n.i]].kind == TENSOR_PARAMS;
}

bool bucket_node_joins(const Dag *d, NodeId n) {
  const BucketId b = {d->bucket[n.i]};
  const Bucket *x = &d->buckets.at[b.i];
  if (b.i == 0 || !NODE_KIND_COMMUNICATES[d->kind[n.i]] || bucket_n_groups(d, b) == 1 ||
      d->devs[n.i] != x->holders)
    return false;
  return !gathers_params(d, n) || x->zero == ZERO_PARAMS;
}

/* The member of group k whose share has element e, and where that share ends. */
static int32_t holder_of(const Dag *d, BucketId b, uint32_t k, int64_t e, int64_t *end) {
  const uint32_t devs = bucket_group(d, b, k), size = devsets_size(d->devsets, devs);
  uint32_t lo = 0, hi = size; /* the first share that ends behind e */
  while (lo + 1 < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (share_of(d->buckets.at[b.i].elements, mid, size).lo <= e) lo = mid;
    else hi = mid;
  }
  *end = share_of(d->buckets.at[b.i].elements, lo, size).hi;
  return devsets_ranks(d->devsets, devs)[lo];
}

PiperStatus bucket_calls(Dag *d, NodeId n, int32_t rank, BucketCallVec *out, PiperErr *err) {
  const BucketId b = {d->bucket[n.i]};
  const Bucket *x = &d->buckets.at[b.i];
  out->n = 0;
  if (!bucket_node_joins(d, n)) {
    const bool by_update =
        gathers_params(d, n) && bucket_groups_even(d, b) && d->devs[n.i] == x->holders;
    const BucketCall c = {d->devs[n.i], {0, x->elements}, by_update};
    return vec_push(out, c) ? PIPER_OK : err_nomem(err, "collectives");
  }
  const uint32_t n_groups = bucket_n_groups(d, b);
  const BucketPlace at = bucket_place(d, b, rank);
  const Share mine = share_of(x->elements, at.pos, at.size);
  int32_t *members = malloc(n_groups * sizeof *members);
  PiperStatus st = members == NULL ? err_nomem(err, "collectives") : PIPER_OK;
  for (int64_t lo = mine.lo, hi; st == PIPER_OK && lo < mine.hi; lo = hi) {
    hi = mine.hi;
    for (uint32_t k = 0; k < n_groups; k++) {
      int64_t end;
      members[k] = holder_of(d, b, k, lo, &end);
      if (end < hi) hi = end;
    }
    const BucketCall c = {devsets_id(d->devsets, members, n_groups), {lo, hi}, false};
    if (c.group == 0 || !vec_push(out, c)) st = err_nomem(err, "collectives");
  }
  free(members);
  return st;
}

Share bucket_call_share(const Dag *d, BucketId b, const BucketCall *c, uint32_t j) {
  if (c->by_update) return bucket_updated(d, b, devsets_ranks(d->devsets, c->group)[j]);
  return share_of(share_size(c->region), j, devsets_size(d->devsets, c->group));
}
