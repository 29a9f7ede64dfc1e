/* shape.h - logical shapes, symbolic in the batch size, and how a value relates to the batch. */
#ifndef PIPER_IR_SHAPE_H
#define PIPER_IR_SHAPE_H

#include "base/err.h"
#include "base/kernel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an axis means. A name never decides whether an op is allowed. EXPERT and PACKED (rows of
 * experts, one behind the other) are the axes that a shard directive divides. */
typedef enum AxisName {
  AXIS_ANON, AXIS_BATCH, AXIS_SEQUENCE, AXIS_FEATURE, AXIS_CLASS, AXIS_EXPERT, AXIS_PACKED, AXIS_HEAD
} AxisName;

/* Row-major. When 'batched', axis 0 is batch * dim[0]; every other dim is a plain number. */
typedef struct Shape {
  uint8_t rank;                 /* 0: a scalar */
  bool batched;
  uint8_t axis[SHAPE_MAX_RANK]; /* AxisName */
  int64_t dim[SHAPE_MAX_RANK];  /* >= 1 */
} Shape;

/* How a value relates to the batch; also its layout over the devices of a node (design 4.1):
 * split(batch), replicate, partial(sum). */
typedef enum BatchKind {
  BATCH_SPLIT,       /* axis 0 is the batch */
  BATCH_INDEPENDENT, /* the same for all samples: computed from parameters and constants only */
  BATCH_PARTIAL,     /* a sum over samples; only linear ops may follow on the way to the loss */
} BatchKind;

/* Elements of one sample, or of a value without a batch, are at most this many: sizes in bytes then
 * never overflow, and are exact as doubles. */
#define SHAPE_MAX_ELEMENTS ((int64_t)1 << 48)

/* PIPER_EUSER: a dim below 1, too many axes (rank is then as asked for), or too many elements.
 * 'what' begins the message. */
PiperStatus shape_check(const Shape *s, const char *what, PiperErr *err);
bool shape_equal(const Shape *a, const Shape *b);     /* whatever the axes are called */
void shape_text(const Shape *s, char *buf, size_t n); /* "[batch*2, 128, 96]", "scalar" */
int64_t shape_elements(const Shape *s, int64_t samples); /* < 0: overflows */
/* Elements for each sample (batched) or in all (not batched). */
int64_t shape_elements_per_sample(const Shape *s);

/* One axis as messages show it: "128", "batch", "batch*2". */
void shape_dim_text(const Shape *s, int axis, char *buf, size_t n);

#endif
