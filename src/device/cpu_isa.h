/* cpu_isa.h - which of the built kernel tables this processor runs. */
#ifndef PIPER_DEVICE_CPU_ISA_H
#define PIPER_DEVICE_CPU_ISA_H

#include "base/err.h"
#include "kernels/kernels.h"

/* The best table, or the one that PIPER_ISA in the environment names; a name that does not exist or
 * that the processor cannot run is an error. The table is static. */
PiperStatus cpu_isa_select(const KernelTable **out, PiperErr *err);

/* Table i, best first; NULL: no more. 'runs' (may be NULL): whether this processor can. */
const KernelTable *cpu_isa_at(int i, int *runs);

#endif
