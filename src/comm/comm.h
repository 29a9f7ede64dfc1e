/* comm.h - what carries data between the devices of ranks: send, recv, collectives on streams.
 *
 * All calls enqueue: the data moves when the step runs, and the stream goes on when this rank's part
 * is over. Ranks meet in groups: ordered lists of ranks under a name. Communication in different
 * groups never waits for each other; in one group it happens in the order enqueued, which is the
 * same on all members. Each rank has one Comm. Functions are called by the thread that opens the
 * job; for a process with several ranks that means one rank after the other, so none may block
 * until another rank of the same process calls. */
#ifndef PIPER_COMM_COMM_H
#define PIPER_COMM_COMM_H

#include "device/device.h"

typedef struct CommOps CommOps;
typedef struct CommHub CommHub; /* what the communicators of one job in this process share */

/* Backends embed these as their first member. */
typedef struct Comm {
  const CommOps *ops;
  int32_t rank;
} Comm;
typedef struct CommGroup { Comm *comm; } CommGroup; /* one member's handle */

struct CommOps {
  const char *name;

  /* Once a job and process; closed after its last Comm. */
  PiperStatus (*hub_open)(CommHub **out, PiperErr *err);
  void (*hub_close)(CommHub *hub); /* NULL is fine */

  PiperStatus (*open)(CommHub *hub, Device *device, Comm **out, PiperErr *err);
  void (*close)(Comm *c); /* all devices of the job are halted; NULL is fine; frees its groups */

  /* This rank becomes a member of the group of that name and ordered list of distinct ranks. Every
   * member asks once; all ranks ask for the groups that they share in the same order. For point to
   * point the list is { source, destination }. */
  PiperStatus (*group)(Comm *c, const char *name, const int32_t *ranks, uint32_t n, CommGroup **out,
                       PiperErr *err);
  /* After a rank's last 'group', before anything is enqueued. May wait for ranks of other processes.
   * For the last rank of the job: an error if a group lacks a member. */
  PiperStatus (*connect)(Comm *c, PiperErr *err);

  /* While the device captures; 's' is one of its streams. The k-th send of a group meets the k-th
   * recv; in steps they may be begun in any order, and both complete when the bytes are there. Sizes
   * that differ are an error here or when they meet, never an overrun. */
  PiperStatus (*send)(CommGroup *g, DeviceStream *s, const void *buf, uint64_t bytes,
                      uint32_t label, PiperErr *err);
  PiperStatus (*recv)(CommGroup *g, DeviceStream *s, void *buf, uint64_t bytes, uint32_t label,
                      PiperErr *err);
  /* In place, DT_F32 or DT_F64. Every member gets the same bits; on CPUs the sum is taken in the
   * order of the group's list, so they are the same in every run. */
  PiperStatus (*all_reduce)(CommGroup *g, DeviceStream *s, void *buf, uint64_t count, DType dtype,
                            uint32_t label, PiperErr *err);

  /* The device's stop flag was set: let go of whatever waits for other ranks. Any thread, any number
   * of times; does not block. */
  void (*abort)(Comm *c);
};

extern const CommOps COMM_LOCAL; /* ranks as threads of one process, on CPU devices */

#endif
