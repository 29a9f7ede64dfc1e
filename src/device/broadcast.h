/* broadcast.h - add, sub, mul, div of arrays of different shape, by NumPy's rule: shapes are aligned
 * at the last axis, and an axis of size 1 or absent is repeated. */
#ifndef PIPER_DEVICE_BROADCAST_H
#define PIPER_DEVICE_BROADCAST_H

#include "base/kernel.h"
#include "kernels/kernels.h"

/* Whether 'a' repeated fits 'out'. */
bool broadcast_fits(const KernelArg *a, const KernelArg *out);

/* y = a op b. */
typedef struct Broadcast {
  OpKind op;
  const KernelArg *out; /* y's shape and dtype */
  const KernelArg *a, *b;
  const void *a_data, *b_data;
  void *y;
} Broadcast;

/* The work falls into so many items, which may be done in any order and on different threads. */
int64_t broadcast_items(const Broadcast *y);
void broadcast_forward(const Kernels *k, const Broadcast *y, int64_t lo, int64_t hi);

/* One gradient of y = a op b: dx (+)= the terms' sum over the axes along which operand wrt was
 * repeated. Operands that it does not read may be NULL. */
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

int64_t broadcast_grad_items(const BroadcastGrad *g);
void broadcast_grad(const Kernels *k, const BroadcastGrad *g, int64_t lo, int64_t hi);

#endif
