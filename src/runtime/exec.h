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

/* Opens device and communicator, allocates the arena, asks for the groups. Then, for all ranks:
 * connect the communicators; then capture. On failure exec_close cleans up. */
PiperStatus exec_open(RankExec *x, const Plan *plan, const RankPlan *rank, const DeviceOps *device,
                      const DeviceConfig *cfg, CommHub *comm_hub, const CommOps *comm,
                      PiperErr *err);
PiperStatus exec_capture(RankExec *x, PiperErr *err);
/* All devices of the job are halted. Zeros are fine. */
void exec_close(RankExec *x);

#endif
