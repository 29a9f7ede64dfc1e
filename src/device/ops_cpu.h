/* ops_cpu.h - runs programs of kernel calls on the CPU, in the calling thread and those of its team.
 * Results have the same bits whatever the number of threads. */
#ifndef PIPER_DEVICE_OPS_CPU_H
#define PIPER_DEVICE_OPS_CPU_H

#include "base/kernel.h"
#include "device/team.h"
#include "kernels/kernels.h"

/* What computes: the kernels chosen, and the team that helps the calling thread (NULL: none does; the
 * caller's). */
typedef struct OpsCpu {
  const KernelTable *table;
  Team *team;
} OpsCpu;

/* 'table' NULL: cpu_isa_select chooses. */
PiperStatus ops_cpu_init(OpsCpu *cpu, const KernelTable *table, Team *team, PiperErr *err);

/* At load, once for each program: every call has the arguments, types and shapes that its op asks
 * for, and stays inside its buffers: base_bytes[i] is the size of what base i points to. PIPER_EBUG
 * otherwise. ops_cpu_run relies on it. */
PiperStatus ops_cpu_check(const KernelCall *calls, uint32_t n_calls, const uint64_t *base_bytes,
                          uint32_t n_bases, PiperErr *err);

/* Runs the calls in order; allocates nothing. PIPER_EUSER: an id or a target is out of range, or a loss is not finite;
 * the message says which, not where ("loss is nan"). Outputs of the calls so far are written. */
PiperStatus ops_cpu_run(const KernelRun *run, const OpsCpu *cpu, PiperErr *err);

#endif
