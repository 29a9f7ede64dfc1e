/* isa.h - names and vector widths of one compilation of the kernels.
 *
 * Each file of this folder is compiled once for every instruction set, with KERNEL_ISA naming it,
 * and reads itself twice, for float and for double:
 *
 *   #ifndef REAL
 *   #define SELF "relu.c"
 *   #include "both.h"
 *   #else
 *   void FN(relu)(...) { const REAL *x = ...; }    // relu_f32_v3, relu_f64_v3, relu_f32_v4, ...
 *   #endif
 *
 * Loops are plain C that the compiler vectorises. Where the order of a sum matters, or the product
 * wants its registers, vectors are written out in GCC's vector extension; their number of lanes in a
 * sum is the same for every instruction set, and so are therefore the results. */
#ifndef PIPER_KERNELS_CPU_ISA_H
#define PIPER_KERNELS_CPU_ISA_H

#include "kernels/kernels.h"

#ifndef KERNEL_ISA
#error "KERNEL_ISA is to be v3, v4 or generic"
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#define NAME_JOIN_(name, suffix, isa) name##_##suffix##_##isa
#define NAME_JOIN(name, suffix, isa) NAME_JOIN_(name, suffix, isa)
#define FN(name) NAME_JOIN(name, SUFFIX, KERNEL_ISA)

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Tiles of products: MR * NV sums, NV vectors of B and one of A fit the registers, 32 of AVX-512, 16
 * before it. */
#if defined(__AVX512F__)
#define MR 8
#define NV 3
#else
#define MR 4
#define NV 3
#endif

/* Part i of 'total' cut into 'parts' nearly equal ones starts here. */
static inline int64_t part_start(int64_t total, int64_t parts, int64_t i) { return total * i / parts; }
static inline int64_t parts_of(int64_t total, int64_t most) { return (total + most - 1) / most; }

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* Every kernel of this instruction set: gemm_f32_v3, ... */
#define KERNEL_DECLARE(result, name, suffix, args) result NAME_JOIN(name, suffix, KERNEL_ISA) args;
#define KERNEL(result, name, args)                                                                 \
  KERNEL_DECLARE(result, name, f32, args) KERNEL_DECLARE(result, name, f64, args)
KERNEL_LIST(KERNEL)
#undef KERNEL

#endif
