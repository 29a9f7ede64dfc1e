/* table.c - all kernels of one instruction set. */
#include "kernels/cpu/isa.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define TABLE_(isa) kernel_table_##isa
#define TABLE(isa) TABLE_(isa)

const KernelTable TABLE(KERNEL_ISA) = {
    .isa = STRING(KERNEL_ISA),
#define KERNEL(result, name, args) .name = NAME_JOIN(name, f32, KERNEL_ISA),
    .f32 = {KERNEL_LIST(KERNEL)},
#undef KERNEL
#define KERNEL(result, name, args) .name = NAME_JOIN(name, f64, KERNEL_ISA),
    .f64 = {KERNEL_LIST(KERNEL)},
#undef KERNEL
};
