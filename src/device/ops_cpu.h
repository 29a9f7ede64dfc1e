/* ops_cpu.h - runs programs of kernel calls on the CPU, in the calling thread and those of its team.
 * Results have the same bits whatever the number of threads. */
#ifndef PIPER_DEVICE_OPS_CPU_H
#define PIPER_DEVICE_OPS_CPU_H

#include "base/kernel.h"
#include "device/team.h"
#include "kernels/kernels.h"

/* What it takes to compute: the kernels chosen, the team, and working space for each of its threads.
 * One for each thread that runs programs, made once; running allocates nothing. */
typedef struct OpsCpuScratch OpsCpuScratch;

/* All that ops_cpu_scratch_new takes from the system. */
#define OPS_CPU_SCRATCH_BYTES(n_threads) ((n_threads) * KERNEL_SCRATCH_BYTES + 64)

/* 'table' NULL: cpu_isa_select chooses. 'team' NULL: the calling thread alone; otherwise the caller's,
 * and outlives the scratch. */
PiperStatus ops_cpu_scratch_new(const KernelTable *table, Team *team, OpsCpuScratch **out,
                                PiperErr *err);
void ops_cpu_scratch_free(OpsCpuScratch *s); /* NULL is fine */

/* At load, once for each program: every call has the arguments, types and shapes that its op asks
 * for, and stays inside its buffers: base_bytes[i] is the size of what base i points to. PIPER_EBUG
 * otherwise. ops_cpu_run relies on it. */
PiperStatus ops_cpu_check(const KernelCall *calls, uint32_t n_calls, const uint64_t *base_bytes,
                          uint32_t n_bases, PiperErr *err);

/* Runs the calls in order. PIPER_EUSER: an id or a target is out of range, or a loss is not finite;
 * the message says which, not where ("loss is nan"). Outputs of the calls so far are written. */
PiperStatus ops_cpu_run(const KernelRun *run, OpsCpuScratch *scratch, PiperErr *err);

#endif
