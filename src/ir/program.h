/* program.h - the kernel calls of one unit of work.
 *
 * A program is built once for each (chunk, pass, number of samples) - the samples of one device's
 * part of a microbatch - and likewise for COUNT, and once for each share of a bucket's NORM and
 * UPDATE; all instructions that do this work on other buffers share it. It names its buffers by bindings: an instruction gives each
 * binding an address. Inside a program, temporaries lie at fixed offsets of one workspace, reused
 * when their last reader has run. */
#ifndef PIPER_IR_PROGRAM_H
#define PIPER_IR_PROGRAM_H

#include "base/kernel.h"
#include "base/share.h"
#include "ir/dag.h"

typedef enum BindKind {
  BIND_WORKSPACE, /* temporaries; dead after the program */
  BIND_SAVED_I,   /* forward values that only the gradients of inputs read: dead after B or BI */
  BIND_SAVED_W,   /* forward values that gradients of weights read (maybe others too): dead after B or BW */
  BIND_KEPT,      /* gradients that BI computes and BW reads */
  BIND_VALUE,     /* value: input of the chunk from another chunk, or output */
  BIND_INPUT,     /* value: a model input's samples */
  BIND_GRAD,      /* (value, chunk): gradient contribution of a consuming chunk */
  BIND_PARAM,     /* bucket: parameters */
  BIND_PGRAD,     /* bucket: gradients */
  BIND_STATE,     /* bucket, slot: optimizer state */
  BIND_METRICS,   /* f64: one sum a loss, then the squared gradient norm */
  BIND_COUNTS,    /* chunk: f64, the counts that its ops divide by (Op.count) */
} BindKind;

enum { BIND_READ = 1, BIND_WRITE = 2 };

typedef struct Binding {
  uint8_t kind;      /* BindKind */
  uint8_t access;    /* BIND_READ | BIND_WRITE */
  uint8_t slot;      /* STATE */
  ValueId value;     /* VALUE, INPUT, GRAD */
  ChunkId chunk;     /* GRAD: the consumer; COUNTS: whose */
  BucketId bucket;   /* PARAM, PGRAD, STATE */
  uint64_t bytes;    /* what the program touches, from its base on */
} Binding;

typedef struct Program {
  KernelCall *calls;
  uint32_t n_calls;  /* 0: nothing to do, the node vanishes in lowering */
  Binding *bindings; /* each (kind, value, chunk, bucket, slot) once; the order is fixed */
  uint32_t n_bindings;
  bool scratch;      /* some call needs working space: OP_SCRATCH_BYTES a thread */
  double flops, bytes;
} Program;

typedef enum OptimizerKind { OPTIMIZER_NONE, OPTIMIZER_SGD, OPTIMIZER_ADAMW } OptimizerKind;

typedef struct OptimizerSpec {
  OptimizerKind kind;
  double lr;            /* used where the run gives none */
  double momentum;      /* SGD; 0: none */
  double beta1, beta2, eps; /* AdamW */
  double weight_decay;  /* spares parameters with fewer than two dimensions */
} OptimizerSpec;

uint32_t optimizer_n_slots(const OptimizerSpec *o); /* state buffers a bucket: SGD 0 or 1, AdamW 2 */

typedef struct ProgramSpec {
  const Dag *dag;       /* buckets and homes are read */
  DType dtype;          /* DT_F32 or DT_F64 */
  OptimizerSpec optimizer;
  double clip_norm;     /* 0: none */
} ProgramSpec;

/* Interned programs. Owner of all of them; pointers stay good until programs_free. */
typedef struct Programs Programs;
PiperStatus programs_new(const ProgramSpec *spec, Programs **out, PiperErr *err);
void programs_free(Programs *p); /* NULL is fine */

/* How a chunk's forward values are kept. */
typedef enum ProgramMode {
  PROGRAM_KEEP,  /* F keeps what the backward passes read */
  PROGRAM_LEAN,  /* F alone: it keeps nothing */
  PROGRAM_AGAIN, /* recomputed: R, from the chunk's inputs, keeps what the backward passes read, the
                    chunk's own outputs among it, and hands nothing to other chunks */
} ProgramMode;

ProgramMode dag_program_mode(const Dag *d, NodeId n); /* of a COMPUTE node */

/* Ids start at 1 and are dense. 'samples' is the size of one device's part. All experts. */
PiperStatus programs_chunk(Programs *p, ChunkId chunk, Pass pass, ProgramMode mode, int64_t samples,
                           uint32_t *id, PiperErr *err);
/* Counts the targets of the chunk's losses. */
PiperStatus programs_targets(Programs *p, ChunkId chunk, int64_t samples, uint32_t *id,
                             PiperErr *err);
/* That of position 'pos' of a COMPUTE node's device set: dag_share says the samples, and of spread
 * experts the part. */
PiperStatus programs_node(Programs *p, NodeId n, uint32_t pos, uint32_t *id, PiperErr *err);
/* Of elements [lo, hi) of the bucket; their bindings begin at element lo. An empty share has nothing
 * to do. */
PiperStatus programs_norm(Programs *p, BucketId bucket, Share share, uint32_t *id, PiperErr *err);
PiperStatus programs_update(Programs *p, BucketId bucket, Share share, uint32_t *id, PiperErr *err);
/* Writes zeros to gradients of the bucket that no instruction of a rank writes: so many elements. */
PiperStatus programs_zero_grad(Programs *p, BucketId bucket, int64_t elements, uint32_t *id,
                               PiperErr *err);
const ProgramSpec *programs_spec(const Programs *p);
const Program *programs_at(const Programs *p, uint32_t id);
uint32_t programs_count(const Programs *p);

/* What one node costs on one of its devices: that of its program, which is built for it. Zeros when
 * that fails; programs_chunk then says why. */
OpCost programs_cost(Programs *p, ChunkId chunk, Pass pass, ProgramMode mode, int64_t samples);

#endif
