/* dag.h - the global training DAG.
 *
 * Structure of arrays with 32-bit indices; index 0 is "none". A node stands for its whole device
 * set: a COMPUTE on n devices is one node of which device j (by position in the set) works on the
 * j-th equal part of the samples [lo, hi); a collective is one node; a TRANSFER is one node with a
 * sending and a receiving side.
 *
 * Passes rewrite it in place. Order of ids is order of creation, and every loop runs in id order,
 * so one script gives one DAG. Owner: the caller of dag_new. Not thread-safe. */
#ifndef PIPER_IR_DAG_H
#define PIPER_IR_DAG_H

#include "base/devset.h"
#include "base/err.h"
#include "base/intern.h"
#include "ir/graph.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct { uint32_t i; } NodeId;
typedef struct { uint32_t i; } EdgeId;
typedef struct { uint32_t i; } TensorId;
typedef struct { uint32_t i; } BucketId;

typedef enum NodeKind {
  NODE_NONE = 0,
#define NODE(NAME, text, comm) NODE_##NAME,
#include "ir/node_kinds.def"
#undef NODE
  NODE_KIND_COUNT
} NodeKind;

typedef enum Pass { PASS_NONE, PASS_F, PASS_B, PASS_BI, PASS_BW, PASS_R, PASS_COUNT } Pass;
extern const char *const PASS_NAME[PASS_COUNT];   /* "F", "B", "BI", "BW", "R" */
extern const char *const NODE_KIND_NAME[NODE_KIND_COUNT];
extern const bool NODE_KIND_COMMUNICATES[NODE_KIND_COUNT];

/* What flows along a data edge. */
typedef enum TensorKind {
  TENSOR_NONE,
  TENSOR_VALUE,   /* a value of the op graph */
  TENSOR_GRAD,    /* the contribution of one consuming chunk to the gradient of a value */
  TENSOR_SAVED,   /* what a chunk's F keeps for its backward (never leaves the rank) */
  TENSOR_KEPT,    /* what a chunk's BI keeps for its BW (never leaves the rank) */
  TENSOR_BUCKET,  /* gradients of a bucket */
  TENSOR_PARAMS,  /* parameters of a bucket: updated shares, or all of them together */
  TENSOR_METRICS, /* f64 vector: one sum a loss term, then the squared gradient norm */
  TENSOR_COUNTS,  /* f64 vector: what ops of a chunk divide by (Op.count) */
} TensorKind;

typedef struct Tensor {
  TensorKind kind;
  ValueId value;    /* VALUE, GRAD */
  ChunkId chunk;    /* GRAD: the consumer; SAVED, KEPT, COUNTS: the chunk */
  BucketId bucket;  /* BUCKET, PARAMS */
  bool spread;      /* VALUE, GRAD of blocks of experts: divided by experts among the devices of a
                       group (see 'parts'), not by samples */
} Tensor;

typedef enum EdgeKind { EDGE_DATA, EDGE_TEMPORAL } EdgeKind;

typedef struct Edge {
  uint32_t src, dst;  /* NodeId; both 0: removed */
  uint32_t tensor;    /* DATA: TensorId */
  uint32_t line;      /* TEMPORAL: the script line that asked for it */
  uint8_t kind;       /* EdgeKind */
} Edge;

/* ZeRO: what is divided among the holders of a bucket. Each level includes those before it. */
enum { ZERO_NONE, ZERO_OPTIMIZER, ZERO_GRADS, ZERO_PARAMS };

/* Parameters stored, reduced and updated together, in one flat buffer without padding. A parameter
 * used by one chunk only is in a bucket of that chunk; one used by several (tied) is a bucket of its
 * own. Parameters that take no gradient are in buckets with 'trained' false (no reduction, no update).
 *
 * Holders form groups. What is divided is divided within each group; groups hold the same. There is
 * one, all holders, unless parameters are divided or gradients are reduced after each backward:
 * those act inside the device set of each use, so each set (or sets, where they overlap) is a group
 * then. bucket.h says who keeps what. */
typedef struct Bucket {
  uint32_t param_first, n_params; /* dag->bucket_params: ParamIds in order */
  ChunkId chunk;       /* the only chunk that uses it; 0: several do */
  bool trained;
  int64_t elements;
  uint32_t holders;    /* device set, after pass_place: union of the sets that use it */
  bool replicated;     /* a replicate directive matched every chunk that uses it */
  uint8_t zero;        /* ZERO_*; with one holder NONE */
  bool per_microbatch; /* gradients are reduced after each backward (or several: a pass of the user's
                          may say so), not once a step */
  uint32_t group_first, n_groups; /* dag->bucket_groups: device sets without a rank in common */
  uint32_t reduce_stream, gather_stream; /* interned; of that directive */
  uint32_t prefetch;   /* PARAMS: gathered at most so many uses ahead */
  int64_t keep_bytes;  /* PARAMS: so much more memory at the peak may be spent to gather less often */
  uint32_t line;       /* of that directive, or of the parameter */
} Bucket;

/* Where a parameter lives. */
typedef struct ParamHome {
  BucketId bucket;
  int64_t offset;      /* elements from the bucket's start */
} ParamHome;

typedef struct Dag {
  const Graph *graph;  /* not owned, cut, outlives the DAG */
  Arena *arena;
  Intern *names;       /* streams, split dimensions, script lines of directives */
  DevSets *devsets;
  int64_t batch;       /* samples a step */
  bool forward_only;   /* evaluation: F nodes, transfers, gathers, counts and the metrics, nothing
                          else; nothing is kept for a backward pass, and nothing is dropped out */

  /* Nodes. n counts them, plus one for the unused element 0. */
  uint32_t n, cap;
  uint8_t *kind, *pass;
  uint32_t *chunk;     /* COMPUTE, COUNT: ChunkId */
  uint32_t *bucket;    /* NORM, UPDATE, collectives of a bucket: BucketId */
  uint32_t *tensor;    /* TRANSFER, collectives: TensorId that is moved */
  uint32_t *devs;      /* device set; TRANSFER: the receiving one; 0: not placed yet */
  uint32_t *src_devs;  /* TRANSFER: the sending device set */
  int64_t *lo, *hi;    /* COMPUTE, COUNT: samples; TRANSFER: those of the receiving node */
  int64_t *src_lo, *src_hi; /* TRANSFER: samples of the sending node. What moves is, for each pair
                               of devices, the intersection of their parts */
  uint32_t *stream;    /* interned name; COMPUTE: "default_stream" */
  uint32_t *tags;      /* tag set (dag_tags_*): scopes of the chunk and indices of the splits */
  uint32_t *mb;        /* COMPUTE, COUNT, TRANSFER: microbatch counted through all nested splits. A
                          collective that serves one COMPUTE has chunk, pass and mb of that */
  uint32_t *line;      /* interned "file:line" that it comes from */
  uint32_t *group;     /* order: 1 + index of its group within its order directive; 0: none */
  uint32_t *member;    /* order: index within that group */
  uint32_t *order_of;  /* order: 1 + index of the order directive; 0: none */
  uint32_t *parts;     /* COMPUTE of experts that a shard directive spreads, and the ALL_TO_ALLs beside
                          it: devices of a group; 0: none does. Groups are so many neighbours of the
                          device set each: see dag_share. 1: each device has all experts */
  uint32_t *recompute; /* COMPUTE: 1 where the chunk's F keeps nothing for this microbatch, and R
                          computes it again; the same for its F, R and backward passes */

  VEC(Edge) edges;     /* element 0 unused */
  VEC(Tensor) tensors; /* element 0 unused; interned by dag_tensor */
  VEC(Bucket) buckets; /* element 0 unused */
  U32Vec bucket_params;
  U32Vec bucket_groups; /* device sets */
  ParamHome *home;     /* by ParamId; bucket 0: unused parameter */
  uint32_t n_dims;     /* splits so far */

  /* Tag sets, interned. Set ids below are not the graph's scope ids. */
  VEC(uint32_t) tags_first;
  VEC(Tag) tags_at;    /* Tag.tag interned in dag->names; sorted by tag */

  struct DagIndex *index; /* lookup tables of dag_tensor and dag_tags */
} Dag;

Dag *dag_new(const Graph *g, int64_t batch); /* NULL: out of memory. Empty. */
void dag_free(Dag *d);                       /* NULL is fine */

/* A new node, all fields 0; NodeId 0: out of memory. */
NodeId dag_add_node(Dag *d, NodeKind kind, uint32_t line);
/* EdgeId 0: out of memory. */
EdgeId dag_add_edge(Dag *d, NodeId src, NodeId dst, TensorId tensor);
EdgeId dag_add_temporal(Dag *d, NodeId src, NodeId dst, uint32_t line);
void dag_remove_edge(Dag *d, EdgeId e);
TensorId dag_tensor(Dag *d, Tensor t);       /* interned; 0: out of memory */

/* Tag sets. */
uint32_t dag_tags(Dag *d, const Tag *tags, uint32_t n);          /* sorted by tag; UINT32_MAX: out of memory */
/* The set and one more; an entry of the same tag is replaced. */
uint32_t dag_tags_with(Dag *d, uint32_t set, Tag extra);
int32_t dag_tags_index(const Dag *d, uint32_t set, uint32_t tag); /* -1: not in it */

/* The part [lo, hi) of [lo, hi) that position j of n takes: equal parts; the caller has checked
 * that they divide evenly. */
static inline int64_t part_lo(int64_t lo, int64_t hi, uint32_t j, uint32_t n) {
  return lo + (hi - lo) / n * j;
}

/* What position j of a COMPUTE's device set works on. Of spread experts the devices of one group all
 * take the samples of the group, each for its own part of the experts. */
typedef struct NodeShare {
  int64_t lo, hi;       /* samples */
  uint32_t part, parts; /* of the experts; parts 0: all of them */
} NodeShare;
NodeShare dag_share(const Dag *d, NodeId n, uint32_t pos);
/* The part of the experts that a bucket is of, whose chunk node n is of; parts 0: of none. All its
 * parameters are of one. */
NodeShare dag_bucket_share(const Dag *d, NodeId n, BucketId b);

/* For messages, one line, cut off where it does not fit:
 *   "2F3"   COMPUTE: stage, pass (F B I W), microbatch, as in plan:actions(). The stage is the PP
 *           index; "-" outside every stage, and 0 in a model without PP
 *   "transfer relu.12 1F3 0>1", "transfer grad head 2B3 0-1>2"   value, producing node, devices
 *   "all_to_all moe to experts 0F1 0-3", "all_to_all grad moe from experts 0B1 0-3"   value, node
 *                                                                   of experts that it serves
 *   "all_reduce layers.0.weight.. 0-1", "norm ..", "update ..", "all_reduce metrics 0-3", "join 0"
 *   "count 2F3", "all_reduce counts 2F 0-1"   for the losses of that action, of all of its stage
 *   "all_gather layers.0.weight.. 2F3 0-1"   of one COMPUTE: for it, or right after it
 * A value is called by the name of its op, otherwise by the op's kind and the value's number; a
 * bucket by its first parameter, ".." standing for the others. */
void dag_label(const Dag *d, NodeId n, char *buf, size_t size);
/* Likewise without devices, and with the chunk where a stage has several: "2F3/7". For lists and pictures,
 * which show the devices beside it. */
void dag_name(const Dag *d, NodeId n, char *buf, size_t size);
/* The PP index of a chunk, -1 outside every stage, 0 in a model that has no stages. */
int32_t dag_stage(const Dag *d, ChunkId c);
const char *dag_line(const Dag *d, uint32_t line); /* "train.lua:12", "" for 0 */

#endif
