/* broadcast.h - add, sub, mul, div of arrays of different shape, by NumPy's rule: shapes are aligned
 * at the last axis, and an axis of size 1 or absent is repeated. */
#ifndef PIPER_DEVICE_BROADCAST_H
#define PIPER_DEVICE_BROADCAST_H

#include "base/kernel.h"
#include "kernels/kernels.h"

/* Whether 'a' repeated fits 'out'. */
bool broadcast_fits(const KernelArg *a, const KernelArg *out);

/* y = a op b; 'out' is y's shape and dtype. */
void broadcast_forward(const Kernels *k, OpKind op, const KernelArg *out, const KernelArg *a,
                       const void *a_data, const KernelArg *b, const void *b_data, void *y);

/* One gradient of y = a op b. Operands that it does not read may be NULL. */
typedef struct BroadcastGrad {
  OpKind op;
  int wrt;             /* 0: a, 1: b */
  bool add;            /* add to dx instead of writing it */
  const KernelArg *out; /* shape of y and dy */
  const KernelArg *a, *b;
  const KernelArg *dst; /* shape of dx: that of operand wrt */
  const void *dy, *a_data, *b_data;
  void *dx;
} BroadcastGrad;

/* dx (+)= the terms' sum over the axes along which operand wrt was repeated. */
void broadcast_grad(const Kernels *k, const BroadcastGrad *g);

#endif
