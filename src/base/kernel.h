/* kernel.h - one op on concrete buffers: what the compiler hands to a device.
 *
 * A program is a list of calls. It is built once for each (chunk, pass, number of samples) and run
 * by many instructions; an argument therefore is (index into the instruction's table of bases,
 * byte offset), and only the table differs between instructions. */
#ifndef PIPER_BASE_KERNEL_H
#define PIPER_BASE_KERNEL_H

#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define SHAPE_MAX_RANK 6
#define KERNEL_MAX_ARGS 10
#define KERNEL_NO_BASE UINT16_MAX /* the argument is absent */

enum { OPF_MODEL = 1, OPF_VIEW = 2, OPF_AUX = 4, OPF_JOINT = 8, OPF_OVER = 16, OPF_SCRATCH = 32 };

/* Working space that each thread of a rank needs for the calls of OPF_SCRATCH ops. */
#define OP_SCRATCH_BYTES ((uint64_t)2432 * 1024)

typedef enum OpKind {
  OP_NONE = 0,
#define OP(NAME, text, n, s0, s1, s2, flags) OP_##NAME,
#include "base/ops.def"
#undef OP
  OP_KIND_COUNT
} OpKind;

typedef struct OpInfo {
  const char *name;
  int n_operands;
  const char *saves[3];
  int flags;
} OpInfo;

extern const OpInfo OP_INFO[OP_KIND_COUNT];

/* Numbers of an op that are not shapes; ops.def says which op uses which. */
typedef struct OpAttrs {
  double d[5];
} OpAttrs;

typedef enum KernelPart {
  KERNEL_F, /* forward */
  KERNEL_B, /* gradient with respect to operand 'wrt' */
} KernelPart;

#define KERNEL_WRT_ALL UINT8_MAX /* 'wrt' of an OPF_JOINT op: of every operand that takes one */

typedef struct KernelArg {
  uint64_t offset;  /* bytes from the base */
  uint16_t base;    /* index into the instruction's bases; KERNEL_NO_BASE: absent */
  uint8_t dtype;    /* DType, concrete */
  uint8_t rank;     /* 0: a scalar (one element) */
  int64_t dim[SHAPE_MAX_RANK]; /* row-major, contiguous */
} KernelArg;

/* Argument positions of a model op with n operands (op_info.n_operands):
 *   F: operands 0 .. n-1, output at n, of an OPF_AUX op its auxiliary output at n+1
 *   B: operands 0 .. n-1 and output n (absent where ops.def says that this gradient does not read
 *      them), gradient of the output at n+1, gradient of operand 'wrt' at n+2 (written or added to),
 *      auxiliary output at n+3 (absent likewise)
 *   B of an OPF_JOINT op: n+2 is absent; gradient of operand i at n+4+i, absent where none flows
 * Compiler ops: as listed in ops.def. */
typedef struct KernelCall {
  uint8_t op;       /* OpKind */
  uint8_t part;     /* KernelPart */
  uint8_t wrt;      /* B: which operand, or KERNEL_WRT_ALL */
  uint8_t accumulate; /* 1: add to the destination instead of writing it (B, ACCUMULATE, LOSS,
                         COUNT, NORM);
                         KERNEL_WRT_ALL: bit i says so for the gradient of operand i */
  uint16_t first_base; /* not KERNEL_NO_BASE: 'accumulate' is instead taken from the instruction,
                          false where KernelRun.first[first_base] is set */
  uint16_t n_args;
  OpAttrs attrs;
  KernelArg args[KERNEL_MAX_ARGS];
} KernelCall;

/* What changes from step to step. Lives in each rank's arena, written by the host before a step;
 * never an argument of an instruction, so that a step can be captured once and replayed. */
typedef struct StepBlock {
  int64_t step;      /* from 1 */
  double lr;
  uint64_t seed;
  double bias_correction[2]; /* AdamW: 1 - beta^step */
} StepBlock;

/* One instruction's view of a program. */
typedef struct KernelRun {
  const KernelCall *calls;
  uint32_t n_calls;
  unsigned char *const *bases; /* one pointer a binding of the program */
  const uint8_t *first;        /* parallel to bases: this is the step's first write to that buffer */
  int64_t sample_lo;           /* first sample of the batch that the instruction works on */
  const StepBlock *step;
  unsigned char *scratch;      /* OP_SCRATCH_BYTES for each thread that computes, aligned to 64; nobody
                                  else uses it meanwhile. NULL: no call is of an OPF_SCRATCH op */
} KernelRun;

#endif
