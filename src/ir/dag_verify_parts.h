/* dag_verify_parts.h - what the files of dag_verify share, and nobody else uses. */
#ifndef PIPER_IR_DAG_VERIFY_PARTS_H
#define PIPER_IR_DAG_VERIFY_PARTS_H

#include "ir/dag_verify.h"
#include "ir/topo.h"

/* A gradient that the backward pass of a chunk receives. */
typedef struct GradIn {
  uint32_t producer; /* the chunk that receives it: it computes the value */
  uint32_t value, consumer;
} GradIn;

/* A part of a tensor that an edge brings. */
typedef struct Arrival {
  uint32_t value, consumer; /* consumer: of a gradient; 0 for a value */
  int64_t lo, hi;
  uint32_t from; /* who computed it */
} Arrival;

typedef struct Verifier {
  const Dag *d;
  const Graph *g;
  unsigned stages;
  PiperErr *err;
  Adjacency adj;
  VEC(GradIn) grads;     /* ascending by (producer, value, consumer) */
  uint32_t *grads_first; /* by chunk */
  VEC(Arrival) arrivals;
  uint32_t *rank_mark, mark, max_rank; /* rank_mark[r] == mark: r is in the set marked last */
  char names[4][112];                  /* of node_name, in turn */
  unsigned next_name;
} Verifier;

#define BROKEN(v, ...) err_set((v)->err, PIPER_EBUG, __VA_ARGS__)

/* "1F0 (node 3)"; good for four calls. */
const char *node_name(Verifier *v, uint32_t n);

static inline const Tensor *tensor_of(const Verifier *v, const Edge *e) {
  return &v->d->tensors.at[e->tensor];
}

static inline bool is_compute(const Verifier *v, uint32_t n, unsigned passes) {
  return v->d->kind[n] == NODE_COMPUTE && (passes >> v->d->pass[n] & 1) != 0;
}
enum {
  F = 1u << PASS_F,
  B = 1u << PASS_B,
  BI = 1u << PASS_BI,
  BW = 1u << PASS_BW,
  R = 1u << PASS_R
};

bool is_metrics(const Verifier *v, uint32_t n);
/* There is an edge with this tensor kind (or, TENSOR_NONE, any edge) from a to b. */
bool has_edge(const Verifier *v, uint32_t a, uint32_t b, TensorKind kind);
/* Every rank of 'part' is in 'whole'. */
bool is_subset(Verifier *v, uint32_t part, uint32_t whole);

/* dag_verify_buckets.c: what holds after replicate (DAG_BUCKETED), and after zero (DAG_GATHERED). */
PiperStatus verify_buckets(Verifier *v);

#endif
