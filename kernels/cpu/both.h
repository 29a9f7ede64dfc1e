/* both.h - the file named by SELF, once for float and once for double. No include guard. */
#include "kernels/cpu/isa.h"

#define REAL float
#define BITS uint32_t
#define SUFFIX f32
#include SELF
#undef REAL
#undef BITS
#undef SUFFIX

#define REAL double
#define BITS uint64_t
#define SUFFIX f64
#define REAL_IS_DOUBLE 1
#include SELF
#undef REAL_IS_DOUBLE
#undef REAL
#undef BITS
#undef SUFFIX
