/* each.h - a loop over the elements of a result that may overwrite an operand. Element i depends on
 * elements i of the operands only; GCC ivdep says so to the compiler, which otherwise falls back to
 * single elements when the pointers are equal. */
#ifndef PIPER_KERNELS_CPU_EACH_H
#define PIPER_KERNELS_CPU_EACH_H

/* y[i] = value or y[i] += value, where 'value' is an expression in i. */
#define EACH(n, y, add, value)                                                                     \
  do {                                                                                             \
    if (add) {                                                                                     \
      _Pragma("GCC ivdep") for (int64_t i = 0; i < (n); i++)(y)[i] += (value);                     \
    } else {                                                                                       \
      _Pragma("GCC ivdep") for (int64_t i = 0; i < (n); i++)(y)[i] = (value);                      \
    }                                                                                              \
  } while (0)

#endif
