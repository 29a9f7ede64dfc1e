/* hooks.h - what the environment asks a job to do for the sake of a test; job.h describes it. */
#ifndef PIPER_RUNTIME_HOOKS_H
#define PIPER_RUNTIME_HOOKS_H

#include "plan/plan.h"

#include <stdatomic.h>

typedef struct Hooks {
  double watchdog_seconds; /* 0: off */
  bool poison;
  bool jitter;
  uint64_t jitter_seed;
  uint32_t jitter_max_us;
  bool fault;
  char fault_pass[16];
  int64_t fault_step;
  int32_t fault_rank;
  double fault_sleep_seconds; /* < 0: fail */
} Hooks;

/* PIPER_EUSER: a variable that cannot be read. */
PiperStatus hooks_read(Hooks *h, PiperErr *err);
/* PIPER_EUSER: PIPER_FAULT means a rank or pass that the plan does not have, and could never fire. */
PiperStatus hooks_check_fault(const Hooks *h, const Plan *plan, PiperErr *err);
/* Index of the instruction of 'rank' that PIPER_FAULT means; UINT32_MAX: none here. */
uint32_t hooks_fault_instr(const Hooks *h, const Plan *plan, const RankPlan *rank);
/* Is there anything to do before an instruction? */
static inline bool hooks_active(const Hooks *h) { return h->jitter || h->fault; }

/* Right before instruction 'instr' of a rank in a step; 'fault_instr' as found before. Sleeps, but
 * not beyond a stop. */
PiperStatus hooks_before(const Hooks *h, int32_t rank, uint32_t instr, uint32_t fault_instr,
                         int64_t step, const atomic_int *stop, PiperErr *err);

#endif
