/* op_rules.h - what each op of a model demands and does: one table row an op, and the two things
 * read from it: the result of an op on given operands, and what it costs. */
#ifndef PIPER_IR_OP_RULES_H
#define PIPER_IR_OP_RULES_H

#include "ir/graph.h"

/* Axes of one operand or of the output, as written in a row (op_rules.c). */
typedef struct AxesTerm {
  char lead; /* '*' any number of axes, '~' likewise and broadcast, '?' all or none; 0: none */
  int n;     /* letters */
  char letter[4];
  bool mixing[4];
} AxesTerm;

typedef struct AxesPattern {
  AxesTerm in[3], out, aux;
} AxesPattern;

/* What an op does along an axis of an operand: positions of an independent axis never meet, those
 * of a contracted one are summed over (so each share of it gives a partial sum), a mixing one is
 * needed whole. */
typedef enum AxisRole { ROLE_INDEPENDENT, ROLE_CONTRACTED, ROLE_MIXING } AxisRole;

AxesPattern op_axes(OpKind kind);
AxisRole op_axis_role(const AxesPattern *p, int operand, int rank, int axis);

bool op_may_lack(OpKind kind, int operand); /* it may be absent */

typedef struct OpResult {
  Shape shape, aux; /* aux: of an OPF_AUX op */
  BatchKind batch;
  DType dtype;
  unsigned once; /* bit i: operand i has to go through ONCE first */
  bool per_element_mean;
  double divisor_per_sample;
} OpResult;

#define OP_MOST_POSITIONS 1000000 /* of a rotary embedding: what its kernel is accurate for */

/* 'in' are the operands, which the spec names; NULL: absent. PIPER_EUSER with a message that begins
 * with the op's name. */
PiperStatus op_infer(const OpSpec *spec, const Value *const in[3], OpResult *out, PiperErr *err);

/* The elements that an op's flops are counted over. */
typedef enum FlopSpace {
  SPACE_OUT,        /* elements of the output */
  SPACE_IN,         /* elements of operand 0 */
  SPACE_OUT_BY_LAST, /* output elements x last axis of operand 0: multiply-adds of a product */
  SPACE_OUT_BY_KEYS  /* output elements x keys that their query sees: of attention's products */
} FlopSpace;

typedef struct OpFlops {
  FlopSpace space;
  float f, b[3]; /* flops an element: F, and the gradient of each operand */
} OpFlops;

OpFlops op_flops(OpKind kind);

#endif
