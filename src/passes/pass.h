/* pass.h - what the passes share: how one is called, and the words of their messages.
 *
 * A pass reads its arguments and nothing else. On an error the DAG may be half rewritten: drop
 * it. */
#ifndef PIPER_PASSES_PASS_H
#define PIPER_PASSES_PASS_H

#include "passes/pipeline.h"

typedef PiperStatus PassRun(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err);

PassRun pass_build, pass_split, pass_split_backward, pass_recompute, pass_place, pass_shard,
    pass_replicate, pass_count, pass_order, pass_zero;

/* Buckets and homes, from what the replicate directives say about each chunk (pass_bucket.c).
 * bucket_bytes[c]: the largest bucket of chunk c; 0: no limit; negative: of untrained parameters as
 * well. parts[c]: that its experts are spread over. Fills param_first, n_params, chunk, trained and
 * elements of the buckets. */
PiperStatus bucket_params(Dag *d, const int64_t *bucket_bytes, const uint32_t *parts,
                          size_t float_bytes, PiperErr *err);
bool param_is_trained(const Param *p);

/* Chunk 'chunk' reads parameters of bucket 'bucket'. */
typedef struct BucketUse {
  uint32_t bucket, chunk;
  bool contributes; /* to its gradients */
} BucketUse;

typedef struct BucketUses {
  VEC(BucketUse) at;     /* by bucket, then chunk */
  uint32_t *nodes_first; /* by chunk: its nodes, chunk_nodes[nodes_first[c] .. nodes_first[c+1]) */
  uint32_t *chunk_nodes;
  uint32_t all_devs; /* sorted union of all device sets */
} BucketUses;

/* What is left of the directives where there are only forward passes: filters of other passes are gone,
 * as are orders of nothing else. Shares what it can with 's'. Out of memory only. */
PiperStatus strategy_forward(const Strategy *s, Arena *arena, Strategy *out, PiperErr *err);

/* Each schedule (a list with a split and orders) is for as many stages as the model has
 * (schedule_stages.c). */
PiperStatus schedule_stages(const Graph *g, const Strategy *s, PiperErr *err);

/* The nodes that keep buckets the same on their holders (pass_reduce.c). False: out of memory. */
bool add_bucket_nodes(Dag *d, const BucketUses *uses, bool clip);

/* "train.lua:12: place: ..."; returns PIPER_EUSER. */
PiperStatus directive_fail(PiperErr *err, const Directive *x, const char *fmt, ...)
    PIPER_PRINTF(3, 4);
/* The directive's script line, interned; 0: out of memory. */
uint32_t directive_line(Dag *d, const Directive *x);
/* What the directive's filter selects, or, in an order, that of member m of group g; in place of
 * what 'out' holds. */
PiperStatus directive_nodes(const FilterIndex *index, const Directive *x, U32Vec *out,
                            PiperErr *err);
PiperStatus member_nodes(const FilterIndex *index, const Directive *x, uint32_t g, uint32_t m,
                         U32Vec *out, PiperErr *err);
/* Its device list, checked: not empty, every rank once and not negative. */
PiperStatus directive_devices(Dag *d, const Directive *x, uint32_t *id, PiperErr *err);

/* For messages. */
enum { TEXT = 192 };
void chunk_text(const Dag *d, ChunkId c, char *buf, size_t n); /* chunk { PP = 1 } (model.lua:9) */
void value_text(const Dag *d, ValueId v, char *buf, size_t n); /* "head" (linear, model.lua:9) */
void devices_text(const Dag *d, uint32_t devs, char *buf, size_t n); /* device 1, devices 0-3 */
/* Where group g of an order stands: "rank 1, column 5: " in a schedule (columns are positions in
 * its Lua list), "group 5: " elsewhere. */
void order_where(const Directive *order, uint32_t g, char *buf, size_t n);

#endif
