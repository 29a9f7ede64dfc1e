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

#include "base/exchange.h"
#include "base/share.h"
#include "device/device.h"

typedef struct CommOps CommOps;
typedef struct CommHub CommHub; /* what the communicators of one job in this process share */

/* Backends embed these as their first member. */
typedef struct Comm {
  const CommOps *ops;
  int32_t rank;
} Comm;
typedef struct CommGroup { Comm *comm; } CommGroup; /* one member's handle */

typedef struct CommSum {
  void *buf;      /* count elements */
  void *into;
  bool add;
  uint64_t count;
  DType dtype;
} CommSum;

typedef struct CommGather {
  const void *from;
  void *buf;      /* count elements */
  uint64_t count;
  DType dtype;
} CommGather;

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
  /* Collectives. Every member makes the same calls in the same order, with its own buffers. 'dtype'
   * is DT_F32 or DT_F64. Sums are taken in the order of the group's list on CPUs, elementwise: so all
   * members get the same bits, in every run, and the same from all of these.
   *
   * 'into' is where a sum goes: it is written there or, with 'add', added to what is there (on all
   * members alike). It may be the place in 'buf' that the sum is of; otherwise it does not overlap
   * 'buf', whose content is undefined afterwards.
   *
   * 'shares' has one interval of elements a member; they cover 'buf' once, in any order, and may be
   * empty. It is the same on all members and stays until close. */
  PiperStatus (*all_reduce)(CommGroup *g, DeviceStream *s, const CommSum *x, uint32_t label,
                            PiperErr *err);
  /* 'into' gets the sum of this member's share. */
  PiperStatus (*reduce_scatter)(CommGroup *g, DeviceStream *s, const CommSum *x,
                                const Share *shares, uint32_t label, PiperErr *err);
  /* 'buf' gets every member's share, this member's from 'from': its place in 'buf', or elsewhere. */
  PiperStatus (*all_gather)(CommGroup *g, DeviceStream *s, const CommGather *x,
                            const Share *shares, uint32_t label, PiperErr *err);
  /* 'from' has this member's blocks as one side of the exchange, 'to' gets them as the other; they do
   * not overlap. 'x' is the same on all members and stays until close. */
  PiperStatus (*all_to_all)(CommGroup *g, DeviceStream *s, const void *from, void *to,
                            const Exchange *x, uint32_t label, PiperErr *err);

  /* The device's stop flag was set: let go of whatever waits for other ranks. Any thread, any number
   * of times; does not block. */
  void (*abort)(Comm *c);
};

extern const CommOps COMM_LOCAL; /* ranks as threads of one process, on CPU devices */

#endif
