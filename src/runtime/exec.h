/* exec.h - one rank of a plan on a device and a communicator: its instructions, enqueued once. */
#ifndef PIPER_RUNTIME_EXEC_H
#define PIPER_RUNTIME_EXEC_H

#include "comm/comm.h"
#include "device/device.h"
#include "plan/plan.h"

typedef struct RankExec {
  const Plan *plan;
  const RankPlan *rank;
  Device *device;        /* owned */
  Comm *comm;            /* owned */
  unsigned char *arena;  /* of the device: rank->arena_bytes */
  unsigned char *shared; /* of another rank's device: rank->shared_bytes; NULL: none */
  DeviceStream **streams; /* by index into rank->streams; the device's */
  DeviceEvent **events;   /* by instruction; NULL: it signals nothing */
  KernelRun *runs;        /* by instruction */
  unsigned char **bases;  /* by index into rank->bind_offset */
  const Buffer **params, **grads; /* by bucket: what the rank keeps of it; NULL: nothing */
  struct ExecGroup *groups;
  uint32_t n_groups;
  uint32_t n_programs;
  bool *checked;          /* programs, by id */
  /* The job's own: */
  struct Job *job;
  uint32_t fault_instr;
} RankExec;

/* The memory at an offset of the rank's plan. */
static inline unsigned char *exec_at(const RankExec *x, uint64_t offset) {
  const uint64_t own = x->rank->arena_bytes;
  return offset < own || x->shared == NULL ? x->arena + offset : x->shared + (offset - own);
}

/* Opens device and communicator, allocates the arena, asks for the groups. Then, for all ranks:
 * connect the communicators; then capture. On failure exec_close cleans up.
 * beside: NULL, or the same rank of plan->trains, which is not in a step while this one is and outlives
 * it: its parameters are used, and the memory that it needs only in a step, as far as that does. */
PiperStatus exec_open(RankExec *x, const Plan *plan, const RankPlan *rank, const DeviceOps *device,
                      const DeviceConfig *cfg, CommHub *comm_hub, const CommOps *comm,
                      const RankExec *beside, PiperErr *err);
PiperStatus exec_capture(RankExec *x, PiperErr *err);
/* All devices of the job are halted. Zeros are fine. */
void exec_close(RankExec *x);

#endif
