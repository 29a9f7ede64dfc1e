/* sum.h - sums of all elements of an expression, in f64. No include guard.
 *
 * 16 partial sums: element i goes to number i % 16 in order of i; in the end they are added in
 * pairs. The order follows from the length alone. */
#include "wide.h"

#ifndef PIPER_KERNELS_CPU_SUM
#define PIPER_KERNELS_CPU_SUM
/* The body of a function that returns the sum of 'term' over i < n; 'wide_term' is the same
 * expression for elements i .. i + 3. */
#define SUM(wide_term, term)                                                                       \
  do {                                                                                             \
    FN(Wide) part[4] = {{0}, {0}, {0}, {0}};                                                       \
    int64_t done = 0;                                                                              \
    for (; done + 16 <= n; done += 16) _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++) {       \
        const int64_t i = done + 4 * q;                                                            \
        part[q] += wide_term;                                                                      \
      }                                                                                            \
    for (int64_t i = done; i < n; i++) part[(i - done) / 4][(i - done) % 4] += term;               \
    return SUM_OF_PARTS(part);                                                                     \
  } while (0)

#define SUM_OF_FOUR(v) (((v)[0] + (v)[1]) + ((v)[2] + (v)[3]))
#define SUM_OF_PARTS(part) SUM_OF_FOUR(((part)[0] + (part)[1]) + ((part)[2] + (part)[3]))
#endif
