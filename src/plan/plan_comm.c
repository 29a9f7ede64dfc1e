#include "plan/plan_comm.h"

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

/* Every collective once, from its first member; every transfer from its sender. */
static bool list_calls(const Plan *p, CommRows *out) {
  const DevSets *sets = p->dag->devsets;
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (size_t i = 0; i < p->ranks[r].instrs.n; i++) {
      const Instr *x = &p->ranks[r].instrs.at[i];
      const bool collective = instr_is_collective(x->kind);
      const CommWhat what = what_of(p, x->node);
      if (!collective && x->kind != INSTR_SEND) continue;
      if (collective && devsets_ranks(sets, x->group)[0] != p->ranks[r].rank) continue;
      CommRow row = {.what = (uint8_t)what,
                     .kind = x->kind,
                     .stream = p->ranks[r].streams.at[x->stream].name,
                     .calls = 1,
                     .bytes = x->bytes};
      if (what == COMM_GRADS || what == COMM_PARAMS) row.bucket = p->dag->bucket[x->node];
      if (collective) row.group = x->group, row.from = devsets_ranks(sets, x->group)[0];
      else row.from = p->ranks[r].rank, row.to = x->peer;
      if (!vec_push(out, row)) return false;
    }
  return true;
}

PiperStatus plan_communication(const Plan *plan, CommRows *out, PiperErr *err) {
  out->n = 0;
  if (!list_calls(plan, out)) return err_nomem(err, "communication");
  if (out->n > 1) qsort(out->at, out->n, sizeof *out->at, compare);
  size_t n = 0;
  for (size_t k = 0; k < out->n; k++) {
    if (n == 0 || compare(&out->at[n - 1], &out->at[k]) != 0) {
      out->at[n++] = out->at[k];
      continue;
    }
    out->at[n - 1].calls++;
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
