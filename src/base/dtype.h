/* dtype.h - element types. */
#ifndef PIPER_BASE_DTYPE_H
#define PIPER_BASE_DTYPE_H

#include <stddef.h>

typedef enum DType {
  DT_NONE = 0,
  DT_FLOAT, /* in a model: the plan's own float type, f32 or f64, chosen at compile time */
  DT_F32,
  DT_F64,
  DT_I32,
} DType;

size_t dtype_bytes(DType t);      /* DT_FLOAT and DT_NONE: 0 */
const char *dtype_name(DType t);  /* "float", "f32", ... */
DType dtype_parse(const char *s); /* DT_NONE: no such type; "f32" and "f64" as written */

/* DT_FLOAT becomes 'plan'; other types stay. */
static inline DType dtype_concrete(DType t, DType plan) { return t == DT_FLOAT ? plan : t; }

#endif
