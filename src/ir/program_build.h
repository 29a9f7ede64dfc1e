/* program_build.h - a program under construction: what program*.c share, and nobody else uses.
 *
 * Calls are appended in the order in which they run; bindings appear as calls first name them. A
 * workspace argument carries the number of its temporary until build_finish gives each temporary
 * its offset. Failures (memory, sizes) stick in 'failed'; build_finish reports them. */
#ifndef PIPER_IR_PROGRAM_BUILD_H
#define PIPER_IR_PROGRAM_BUILD_H

#include "ir/program.h"

#define PROGRAM_ALIGN 64 /* of everything in workspace, saved and kept buffers: a cache line */

enum { CLASS_BI = 1, CLASS_BW = 2 }; /* of a gradient call: the half of a split backward it is in */

/* Where an argument lies. */
typedef struct Place {
  uint16_t base;   /* binding; KERNEL_NO_BASE: the argument is absent */
  uint64_t offset; /* bytes; in the workspace: index of the temporary */
} Place;

/* One value as the chunk sees it. RESHAPEs of one value form a group that shares storage and, since
 * nothing but the RESHAPE reads the gradient of its output, one gradient: that of the root. */
typedef struct ChunkValue {
  ValueId value;
  uint32_t root;       /* index of the group's root; a root's own */
  bool computed;       /* by an op of the chunk */
  bool output;         /* other chunks read it */
  /* The rest is of roots only. */
  bool up;             /* its gradient is CLASS_BI; program_chunk.c says which are */
  uint8_t readers;     /* classes of the gradient calls that read the value */
  uint32_t n_reads;    /* times that gradient calls read it */
  bool over; /* the OPF_OVER gradient of an op is among the contributions to its gradient */
  bool wanted;         /* PROGRAM_AGAIN: R has to compute it */
  bool kept;           /* CLASS_BI, and some call of CLASS_BW reads its gradient */
  ValueId owner;       /* the output in whose binding the group lies; 0: none */
  uint32_t first_incoming, last_incoming; /* ChunkLayout.incoming; 0: none */
  uint32_t n_seeds;    /* losses in the group */
  uint32_t n_grads;    /* contributions to the gradient: incoming, seeds, calls */
  uint64_t saved_at, kept_at; /* offsets in SAVED_I or SAVED_W, and in KEPT */
  /* While calls are appended: */
  uint32_t temp, grad_temp; /* 1 + temporary; 0: none yet */
  bool grad_begun, grad_written;
} ChunkValue;

/* Another chunk's contribution to the gradient of an output. */
typedef struct Incoming {
  ValueId value;
  ChunkId consumer;
  uint32_t next;       /* of the same root; 0: none */
} Incoming;

/* A temporary of the workspace and the calls between which it lives. */
typedef struct Temp {
  uint64_t bytes, offset;
  uint32_t first, last;
} Temp;

typedef struct ProgramBuild {
  Programs *p;
  const Graph *graph;
  const Dag *dag;
  DType dtype;
  size_t float_bytes;
  ChunkId chunk;
  ProgramMode mode;
  int64_t samples;
  uint32_t part, parts;       /* of the chunk's experts; parts 0: all of them */
  VEC(ChunkValue) values;     /* element 0 unused */
  VEC(Incoming) incoming;     /* element 0 unused */
  VEC(KernelCall) calls;
  VEC(Binding) bindings;
  VEC(Temp) temps;
  OpCost cost;
  PiperStatus failed;
  const char *why;
} ProgramBuild;

/* ---- program.c ------------------------------------------------------------------------------- */

void build_fail(ProgramBuild *b, PiperStatus code, const char *why); /* the first one stays */
Place build_place(ProgramBuild *b, Binding what, uint64_t offset);   /* adds the binding if it is new */
Place build_temp(ProgramBuild *b, uint32_t *temp, ValueId v);        /* a new one where *temp is 0 */
/* A new call; its arguments are absent until set. Good until the next one. */
KernelCall *build_call(ProgramBuild *b, OpKind op, KernelPart part, uint32_t n_args);
/* Arguments of the newest call. 'access': BIND_READ | BIND_WRITE. */
void build_arg(ProgramBuild *b, uint32_t i, Place at, ValueId v, int access);
void build_arg_flat(ProgramBuild *b, uint32_t i, Place at, DType dtype, int64_t elements, int access);
void build_arg_shape(ProgramBuild *b, uint32_t i, ValueId v); /* absent, but with its shape */
void build_cost(ProgramBuild *b, OpCost c);
uint64_t build_bytes(ProgramBuild *b, ValueId v); /* of one device's part */
Shape build_shape(const ProgramBuild *b, ValueId v); /* with the experts of that part */
/* The chunks to which v's gradient owes a contribution, ascending. */
const uint32_t *build_grad_readers(const ProgramBuild *b, ValueId v, uint32_t *n);
uint32_t build_loss(const ProgramBuild *b, ValueId v); /* index of the loss that v is; 0: none */
uint32_t build_find(const ProgramBuild *b, ValueId v); /* index into values; 0: not there */
bool build_add(ProgramBuild *b, ValueId v, uint32_t root, bool computed); /* root 0: itself */

/* ---- program_chunk.c: where everything lies, the same for every pass of a chunk -------------- */

void build_layout(ProgramBuild *b);
Place build_value(ProgramBuild *b, ValueId v);
OpAttrs build_attrs(const ProgramBuild *b, const Op *op);
/* The parameters of a stack that this part of the experts has. */
typedef struct StackPart {
  const uint32_t *params; /* ParamIds */
  uint32_t n;
} StackPart;
StackPart build_stack(const ProgramBuild *b, ValueId stack);
Place build_count(ProgramBuild *b, const Op *op); /* of an op with Op.count: its count */
static inline bool op_is_view(const Op *op) { return (OP_INFO[op->kind].flags & OPF_VIEW) != 0; }
static inline ChunkValue *build_root(const ProgramBuild *b, ValueId v) {
  return &b->values.at[b->values.at[build_find(b, v)].root];
}
/* The value's gradient is one incoming contribution and nothing else: it is read where it lies. */
static inline bool grad_in_place(const ChunkValue *root) {
  return root->computed && root->n_grads == 1 && root->first_incoming != 0;
}

/* The value's gradient is one call's, which alone reads the value and may write over it. */
static inline bool grad_over_value(const ChunkValue *root) {
  return root->computed && root->owner.i == 0 && root->over && root->n_grads == 1 &&
         root->n_reads == 1;
}

/* ---- the programs ---------------------------------------------------------------------------- */

void build_forward(ProgramBuild *b);
void build_again(ProgramBuild *b);
void build_backward(ProgramBuild *b, int classes);
void build_targets(ProgramBuild *b);
void build_norm(ProgramBuild *b, BucketId bucket, Share share);
void build_update(ProgramBuild *b, BucketId bucket, Share share);
void build_zero_grad(ProgramBuild *b, BucketId bucket, int64_t elements);

#endif
