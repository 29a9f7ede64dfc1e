/* directive.h - one directive of a strategy, as the script wrote it. */
#ifndef PIPER_PASSES_DIRECTIVE_H
#define PIPER_PASSES_DIRECTIVE_H

#include "ir/filter.h"

typedef enum DirectiveKind {
  DIRECTIVE_PLACE, DIRECTIVE_REPLICATE, DIRECTIVE_SHARD, DIRECTIVE_SPLIT, DIRECTIVE_ORDER, DIRECTIVE_RECOMPUTE,
  DIRECTIVE_KIND_COUNT
} DirectiveKind;
extern const char *const DIRECTIVE_NAME[DIRECTIVE_KIND_COUNT];

/* Members of a group may overlap with one another; the next group waits for all of them. */
typedef struct OrderGroup {
  const Filter *members;
  uint32_t n_members;
} OrderGroup;

typedef struct Directive {
  DirectiveKind kind;
  const char *line;       /* "train.lua:12" */
  Filter filter;          /* place, replicate, shard, split, recompute */
  const int32_t *devices; /* place, replicate, shard: of all groups, one after the other */
  uint32_t n_devices;
  uint32_t group_size;    /* shard: devices of each group */
  const char *stream;     /* place: of the transfers that leave; NULL: "pp_stream"; shard: of the
                             all_to_alls; NULL: "ep_stream" */
  /* replicate */
  const char *reduce_stream; /* NULL: "dp_stream" */
  const char *gather_stream; /* NULL: "ag_stream" */
  int64_t bucket_bytes;   /* > 0 */
  uint8_t zero;           /* ZERO_*: the highest of shard_optimizer, shard_grads, shard_params */
  bool per_microbatch;    /* reduce = "microbatch" */
  uint32_t prefetch;
  int64_t keep_bytes;
  const char *dim_name;   /* split */
  int64_t num_microbatches;
  const OrderGroup *groups; /* order */
  uint32_t n_groups;
  uint32_t schedule;      /* order, split: the list given to one s:add call (1, 2, ...); 0: alone.
                             A list with a split and orders is a schedule, and has to name every
                             action of the stages it orders exactly once */
  uint32_t rank_in_schedule; /* order: index of its rank in messages ("rank 1, column 5") */
} Directive;

typedef struct Strategy {
  const Directive *at;
  uint32_t n;
} Strategy;

#endif
