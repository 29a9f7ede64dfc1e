/* pipeline.h - the passes in the order of design section 2, each with a table row. */
#ifndef PIPER_PASSES_PIPELINE_H
#define PIPER_PASSES_PIPELINE_H

#include "ir/cost.h"
#include "ir/global_order.h"
#include "passes/dag_edit.h"

/* A pass of the user's. */
typedef struct UserPass {
  const char *name;
  const char *line;  /* where it was registered: "train.lua:12" */
  const char *after; /* the built-in pass that it follows */
} UserPass;

/* They run in this order, each behind the pass that it names, and dag_verify after each. 'run'
 * gets the index; what it reports goes to the user as it is. */
typedef struct UserPasses {
  const UserPass *at;
  uint32_t n;
  PiperStatus (*run)(void *context, uint32_t i, DagEdit *edit, PiperErr *err);
  void *context;
} UserPasses;

/* The text form (dag_text.h), the list of nodes in words, or the picture (dag_draw.h). */
typedef enum DumpForm { DUMP_TEXT, DUMP_LIST, DUMP_DOT } DumpForm;

typedef struct PassOptions {
  size_t float_bytes;     /* 4 or 8: bucket_bytes count these */
  bool clip;              /* each UPDATE waits for the metrics: it scales by the global norm */
  OrderRule order_rule;   /* of the order that zero takes where directives leave one open ... */
  const CostTable *cost;  /* ... and what nodes cost in it; NULL: COST_CPU */
  bool forward_only;      /* for evaluation (Dag.forward_only): of the directives what is about F */
  bool verify;            /* dag_verify after each pass */
  UserPasses user;        /* {0}: none */
  const char *dump_after; /* name of a pass, built-in or the user's, after which the DAG goes to
                             *dump; NULL: none */
  DumpForm dump_form;     /* in this form */
  const Filter *dump_filter; /* DUMP_DOT: what to draw of it; NULL: everything */
  char **dump;            /* malloc'ed, the caller's */
} PassOptions;

/* build: one F and one B for each chunk, its buckets, a NORM and an UPDATE for each trained bucket,
 * the ALL_REDUCE of the metrics. Then split, split_backward, recompute, place (+ transfers), shard
 * (+ exchanges), replicate (+ reductions), count (of targets), order, zero (+ gathers). Messages
 * start with the directive's "file:line: directive: ". */
PiperStatus passes_run(const Graph *g, int64_t batch, const Strategy *s, const PassOptions *opt,
                       Dag **out, PiperErr *err);

/* The name of the i-th built-in pass, from 0; NULL: there are no more. */
const char *passes_name(uint32_t i);

#endif
