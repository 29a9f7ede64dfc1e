/* plan.h - the plan: what the compiler hands to the runtime, the simulator and the verifier.
 *
 * For each rank a list of instructions in the global order; each belongs to one stream (an in-order
 * queue) of that rank and waits for some earlier instructions of other streams of the same rank.
 * Ranks meet only in communication: the k-th SEND from a to b on a channel is received by the k-th
 * RECV of b from a on the channel of the same name; the members of a collective meet in order on
 * its communicator (stream name, ordered rank list).
 *
 * Every buffer has an offset in its rank's arena; the arena's size is the rank's peak memory. */
#ifndef PIPER_PLAN_PLAN_H
#define PIPER_PLAN_PLAN_H

#include "base/exchange.h"
#include "ir/program.h"

typedef enum InstrKind {
  INSTR_RUN, INSTR_SEND, INSTR_RECV, INSTR_ALL_REDUCE, INSTR_REDUCE_SCATTER, INSTR_ALL_GATHER,
  INSTR_ALL_TO_ALL, INSTR_KIND_COUNT
} InstrKind;
extern const char *const INSTR_NAME[INSTR_KIND_COUNT]; /* "run", "send", ... */
static inline bool instr_is_collective(unsigned kind) { return kind >= INSTR_ALL_REDUCE; }

typedef enum MemCategory {
  MEM_PARAMS, MEM_GRADS, MEM_OPTIMIZER, MEM_ACTIVATIONS, MEM_COMM, MEM_WORKSPACE, MEM_COUNT
} MemCategory;
extern const char *const MEM_NAME[MEM_COUNT]; /* "params", "grads", ... */

typedef struct Instr {
  uint8_t kind;        /* InstrKind */
  uint8_t dtype;       /* collectives */
  bool adds;           /* sums: to what is in 'part' */
  bool signals;        /* some other instruction of the rank waits for this one */
  uint32_t node;       /* the DAG node it comes from: label, tags, script line */
  uint32_t stream;     /* index into RankPlan.streams */
  uint32_t wait_first, n_waits; /* RankPlan.waits: earlier instructions of other streams */
  uint32_t n_added;    /* of these the last ones: only for memory that is used again */
  /* RUN */
  uint32_t program;    /* id in Plan.programs */
  uint32_t bind_first; /* RankPlan.bind_offset, bind_first_write: one entry for each binding of the
                          program; access k of the instruction is that of binding k */
  int64_t sample_lo;
  /* SEND, RECV: arena bytes [offset, offset + bytes); peer rank. Collectives: device set 'group';
     that much on every member, and at 'part' where the sum (ALL_REDUCE, or the rank's share of it)
     goes, or where the rank's share comes from: its place in those bytes, or a second access.
     ALL_TO_ALL: from there, as much to 'part', the second access */
  uint64_t offset, bytes, part; /* the accesses, resolved */
  int32_t peer;
  uint32_t group;
  uint32_t share_first; /* REDUCE_SCATTER, ALL_GATHER: Plan.shares, one for each member of the group:
                           elements, which together are 'bytes'; ALL_TO_ALL: index into
                           Plan.exchanges */
  uint32_t access_first, n_accesses; /* RankPlan.accesses */
} Instr;

/* Which bytes of which buffer an instruction touches (proofs, memory planning, sanitizers). */
typedef struct Access {
  uint32_t buffer;
  bool write;
  uint64_t lo, hi; /* bytes relative to the buffer */
} Access;

typedef enum BufferRole {
  BUFFER_PARAMS, BUFFER_GRADS, BUFFER_STATE, /* what a rank keeps of a bucket (ir/bucket.h) */
  BUFFER_FULL_PARAMS, /* all parameters of a bucket, gathered */
  BUFFER_FULL_GRADS,  /* all gradients of a bucket, to be reduced */
  BUFFER_INPUT, BUFFER_VALUE, BUFFER_GRAD, BUFFER_SAVED_I, BUFFER_SAVED_W, BUFFER_KEPT,
  BUFFER_WORKSPACE, BUFFER_STEP, BUFFER_METRICS, BUFFER_COUNTS, BUFFER_SCRATCH
} BufferRole;
/* Parameters, gradients or state of a bucket. */
static inline bool buffer_is_of_bucket(unsigned role) { return role <= BUFFER_FULL_GRADS; }

typedef struct Buffer {
  uint8_t role;        /* BufferRole */
  uint8_t category;    /* MemCategory */
  bool whole_step;     /* lives across the step: what is kept of buckets, inputs, step, metrics,
                          counts, scratch */
  uint32_t id;         /* of a bucket: BucketId; INPUT: input index; VALUE, GRAD: TensorId;
                          SAVED_*, KEPT: chunk; COUNTS: chunk, f64: the host zeroes them before a
                          step */
  uint32_t slot;       /* STATE; FULL_*: the node that gathers or reduces it */
  int64_t lo, hi;      /* samples it holds: INPUT, VALUE, GRAD, SAVED_*, KEPT; elements: of a bucket */
  uint64_t bytes, offset;
  uint32_t first, last; /* first and last instruction that touches it (index in the rank's list);
                           first > last: none does */
} Buffer;

typedef enum StreamKind { STREAM_COMPUTE, STREAM_COMM } StreamKind;

typedef struct PlanStream {
  const char *name;    /* "default_stream", "dp_stream", "pp_stream/F/0>1", "all" when collapsed */
  StreamKind kind;     /* a COMPUTE stream may also hold communication (when collapsed) */
} PlanStream;

typedef VEC(Instr) InstrVec;
typedef VEC(Access) AccessVec;
typedef VEC(Buffer) BufferVec;
typedef VEC(PlanStream) PlanStreamVec;

/* The lists of a rank may not have been made (plan_lists): then they are empty. Its figures are there. */
typedef struct RankPlan {
  int32_t rank;
  bool made;
  uint32_t like; /* index of the first rank whose lists are the same but for what they name:
                                ranks, samples, elements, programs of other shares. Its own: none before */
  InstrVec instrs;
  U32Vec waits;
  VEC(uint64_t) bind_offset; /* arena offset of each binding of each RUN */
  VEC(uint8_t) bind_first_write; /* parallel: the step's first contribution to these gradients.
                                    Metrics have no first: the host zeroes them before a step */
  AccessVec accesses;
  BufferVec buffers;
  PlanStreamVec streams;
  uint64_t step_offset, metrics_offset; /* StepBlock; f64[n_losses + 1]: the host writes both
                                           before a step, the block and zeroes */
  uint64_t scratch_offset;   /* KernelRun.scratch of every RUN that needs it */
  uint64_t scratch_bytes;    /* OP_SCRATCH_BYTES for each thread of the rank; 0: no program needs it */
  uint64_t arena_bytes;      /* peak */
  uint64_t shared_bytes;     /* of a plan that uses the parameters of another one: offsets from
                                arena_bytes on, so many, are those of that plan's rank from 0 on */
  uint64_t at_peak[MEM_COUNT]; /* bytes of each category at the instant of the peak; gaps between
                                  buffers count as workspace; they sum to arena_bytes */
  uint64_t kept[MEM_OPTIMIZER + 1]; /* of parameters, gradients and optimizer state, bytes */
  uint64_t kept_bytes; /* what it keeps from step to step lies at the start of its arena: so many */
  uint32_t peak_instr;       /* that instant */
  uint32_t n_waits, waits_added; /* all; by the memory planner, where nothing implied them */
  uint64_t list_bytes;           /* about: memory that its lists take, made or not */
  uint64_t calls[INSTR_KIND_COUNT]; /* instructions of each kind */
  uint64_t moved[INSTR_KIND_COUNT]; /* their bytes; of collectives: of the rank that it is like */
} RankPlan;

typedef struct PlanOptions {
  DType dtype;               /* DT_F32, DT_F64 */
  OptimizerSpec optimizer;
  double clip_norm;          /* 0: none */
  bool single_stream;        /* PIPER_STREAMS=1: all streams of a rank collapse into one queue */
  uint64_t memory_limit;     /* bytes a rank: buffers are packed to fit, even if waits cost time; 0: any */
  uint32_t threads_per_rank; /* a rank computes with; of a finished plan >= 1 */
} PlanOptions;

typedef struct Plan {
  const Graph *graph;        /* not owned; outlives the plan */
  const struct Plan *trains; /* not owned; outlives this plan, which is forward_only and uses the
                                parameters of that one: the same buckets on the same ranks. NULL: its
                                parameters are its own */
  Dag *dag;                  /* owned */
  Programs *programs;        /* owned */
  PlanOptions options;
  uint32_t *order;           /* the global order: NodeIds */
  uint32_t n_order;
  double predicted_seconds;  /* of the order kept, by the cost model */
  double predicted_rule[2];  /* critical_path, downstream */
  double apart_seconds;      /* with the members of overlapped groups one after another; 0: there are none,
                                or they cannot */
  double *node_seconds;      /* by NodeId, by the cost model; malloc'ed, owned; NULL: not known */
  double *node_start;        /* by NodeId: when it starts in the order's virtual time; likewise */
  double waits_seconds;      /* how much longer a step takes for the waits that memory added */
  double *busy_seconds;      /* by index in 'ranks': time that its compute takes in that prediction;
                                malloc'ed, owned; NULL: not known */
  const char *order_rule;    /* the one kept */
  uint32_t world;            /* device set: every rank in use, ascending */
  uint32_t n_ranks;
  RankPlan *ranks;           /* in the order of 'world' */
  struct Lower *lowering;    /* plan_lower.h: for the lists that are not made yet; NULL: none */
  VEC(Share) shares;         /* of collectives: Instr.share_first */
  VEC(Exchange) exchanges;   /* of ALL_TO_ALLs: likewise */
  Arena *arena;              /* names */
  uint64_t digest;
} Plan;

/* Makes the lists of every rank, of one, that are not there yet: a cache of what DAG, order, programs
 * and options say, so the plan stays the same plan. Not thread-safe. */
PiperStatus plan_lists(const Plan *p, PiperErr *err);
PiperStatus plan_lists_of(const Plan *p, uint32_t index, PiperErr *err);
void plan_drop_lists(RankPlan *r); /* empties them */

void plan_free(Plan *p); /* NULL is fine */
const RankPlan *plan_rank(const Plan *p, int32_t rank); /* NULL: not in the plan */

/* "rank 1, 1F3 (train.lua:12)", "rank 0, send to 1 of transfer h 0F3 0>1 (train.lua:12)": for
 * messages, cut off where it does not fit. */
void plan_instr_label(const Plan *p, const RankPlan *r, uint32_t instr, char *buf, size_t n);
/* "value relu.12, samples [0, 4)", "gradients of layers.0.weight..", "workspace": likewise. */
void plan_buffer_label(const Plan *p, const RankPlan *r, uint32_t buffer, char *buf, size_t n);
void plan_seconds_text(double seconds, char *buf, size_t n); /* "1.25 ms" */
const char *plan_kind_name(unsigned kind); /* as INSTR_NAME; both sides of a transfer are "transfer" */

#endif
