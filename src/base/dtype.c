#include "base/dtype.h"

#include <string.h>

static const struct {
  const char *name;
  size_t bytes;
} TYPES[] = {
    [DT_NONE] = {"none", 0}, [DT_FLOAT] = {"float", 0}, [DT_F32] = {"f32", 4},
    [DT_F64] = {"f64", 8},   [DT_I32] = {"i32", 4},
};

size_t dtype_bytes(DType t) { return TYPES[t].bytes; }
const char *dtype_name(DType t) { return TYPES[t].name; }

DType dtype_parse(const char *s) {
  for (DType t = DT_F32; t <= DT_I32; t++)
    if (strcmp(s, TYPES[t].name) == 0) return t;
  return DT_NONE;
}
