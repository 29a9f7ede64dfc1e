/* bucket.h - who keeps what of a bucket, and what its collectives do: the one place that says so.
 *
 * The rank at position j of the d in its group (dag.h) keeps
 *
 *   parameters        all of them; with ZERO_PARAMS its share, j of d
 *   gradients         all of them; with ZERO_GRADS its share
 *   optimizer state   of what it updates
 *
 * and updates everything, or with ZERO_OPTIMIZER its share. K groups of one size keep each share K
 * times: then they divide the update of it, part k of K for the k-th group. */
#ifndef PIPER_IR_BUCKET_H
#define PIPER_IR_BUCKET_H

#include "base/share.h"
#include "ir/dag.h"

/* 'place' for a rank that does not hold the bucket. */
#define BUCKET_NOT_HELD UINT32_MAX

typedef struct BucketPlace {
  uint32_t group;   /* index; BUCKET_NOT_HELD */
  uint32_t pos, size; /* in the group */
} BucketPlace;

uint32_t bucket_n_groups(const Dag *d, BucketId b);
uint32_t bucket_group(const Dag *d, BucketId b, uint32_t k); /* device set */
bool bucket_groups_even(const Dag *d, BucketId b); /* several, of one size */
BucketPlace bucket_place(const Dag *d, BucketId b, int32_t rank);

/* Of a rank that holds the bucket. */
Share bucket_params_kept(const Dag *d, BucketId b, int32_t rank);
Share bucket_grads_kept(const Dag *d, BucketId b, int32_t rank);
Share bucket_updated(const Dag *d, BucketId b, int32_t rank);

/* The ranks of a COMPUTE node that use a bucket of its chunk: all, or of spread experts those that have
 * its part. A device set; 0: out of memory. */
uint32_t bucket_users(Dag *d, BucketId b, NodeId n);
int32_t bucket_first_user(const Dag *d, BucketId b, NodeId n);
/* The rank at this position of the node's device set is one of them. */
bool bucket_used_at(const Dag *d, BucketId b, NodeId n, uint32_t pos);

/* Backward passes on a group of several devices leave their gradients in a buffer apart from the
 * kept one, until a reduction. Otherwise they are summed where they are kept. */
static inline bool bucket_sums_apart(const Bucket *b) {
  return b->zero >= ZERO_GRADS || b->per_microbatch;
}

/* A collective of a bucket joins groups: what the members of one group have alike is summed over, or
 * gathered from, one member of each. Its node is on all holders. */
bool bucket_node_joins(const Dag *d, NodeId n);

/* One call of a bucket's collective, as a member makes it. */
typedef struct BucketCall {
  uint32_t group;    /* device set: the members */
  Share region;      /* elements of the bucket that it is about */
  bool by_update;    /* a member's share is what it updates; otherwise share j of d of the region */
} BucketCall;
typedef VEC(BucketCall) BucketCallVec;

/* Those that a rank of the node's device set makes for the node, in order; in place of what 'out'
 * holds. One, except where groups of different size are joined: their shares do not coincide, and
 * every interval between two ends of shares is a call; and none where a share is empty. */
PiperStatus bucket_calls(Dag *d, NodeId n, int32_t rank, BucketCallVec *out, PiperErr *err);
/* That of member j, relative to the region. */
Share bucket_call_share(const Dag *d, BucketId b, const BucketCall *c, uint32_t j);

#endif
