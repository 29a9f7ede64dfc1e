/* device.h - what computes for one rank: memory, in-order streams, events between them.
 *
 * Everything is asynchronous, as on a GPU: a step is enqueued once between capture_begin and
 * capture_end, in an order in which every wait comes after its record, and then launched again and
 * again. A device knows nothing of plans and nothing of other ranks; communication enters streams
 * through comm.h.
 *
 * "The host" below is the thread that opened the device. Unless a comment says otherwise a function
 * is called by the host only, outside a launched step. Functions that fail leave the device fit
 * only for halt and close. */
#ifndef PIPER_DEVICE_DEVICE_H
#define PIPER_DEVICE_DEVICE_H

#include "base/err.h"
#include "base/kernel.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct DeviceOps DeviceOps;
typedef struct DeviceHub DeviceHub; /* what the devices of one job in this process share */

/* Backends embed these as their first member. */
typedef struct Device {
  const DeviceOps *ops;
  int32_t rank;
} Device;
typedef struct DeviceStream { Device *device; } DeviceStream;
typedef struct DeviceEvent { Device *device; } DeviceEvent;

typedef enum DeviceStreamKind {
  DEVICE_STREAM_COMPUTE, /* may hold communication as well */
  DEVICE_STREAM_COMM,    /* communication, records and waits only */
} DeviceStreamKind;

#define DEVICE_NO_LABEL UINT32_MAX

typedef struct DeviceConfig {
  int32_t rank;
  uint32_t n_threads; /* that a compute stream computes with, where threads do; 0 counts as 1 */
  DeviceHub *hub;
  /* Set (not 0) when the job fails or is interrupted, by whoever finds out, who then calls 'abort'.
   * Every wait and every instruction looks at it. Outlives the device. */
  const atomic_int *stop;
  /* An instruction failed. Any thread; may not block; sets 'stop'. */
  void (*fail)(void *ctx, int32_t rank, uint32_t label, const PiperErr *err);
  /* NULL, or called right before each instruction, compute or communication, by the thread that
   * begins it: delays and failures on demand. May sleep. An error counts as the instruction's. */
  PiperStatus (*before)(void *ctx, int32_t rank, uint32_t label, PiperErr *err);
  void *ctx; /* of fail and before */
} DeviceConfig;

struct DeviceOps {
  const char *name;

  /* Once a job and process, before its first device is opened; closed after the last. */
  PiperStatus (*hub_open)(DeviceHub **out, PiperErr *err);
  void (*hub_close)(DeviceHub *hub); /* NULL is fine */

  /* One rank's device. Closing needs a halt of every device of the job first: until then others
   * may touch its streams. */
  PiperStatus (*open)(const DeviceConfig *cfg, Device **out, PiperErr *err);
  void (*close)(Device *dev); /* NULL is fine; frees memory, streams and events that are left */

  /* Memory, aligned to 64 bytes, with any content. NULL: does not fit. */
  void *(*alloc)(Device *dev, uint64_t bytes);
  void (*free)(Device *dev, void *p); /* NULL is fine */
  uint64_t (*allocated)(const Device *dev); /* bytes, as asked for by alloc and not freed */

  /* Streams and events live as long as the device. The name is copied. */
  PiperStatus (*stream_new)(Device *dev, const char *name, DeviceStreamKind kind,
                            DeviceStream **out, PiperErr *err);
  PiperStatus (*event_new)(Device *dev, DeviceEvent **out, PiperErr *err);

  /* Blocking copies between host and device memory. */
  PiperStatus (*copy_in)(Device *dev, void *dst, const void *src, uint64_t bytes, PiperErr *err);
  PiperStatus (*copy_out)(Device *dev, void *dst, const void *src, uint64_t bytes, PiperErr *err);
  PiperStatus (*zero)(Device *dev, void *dst, uint64_t bytes, PiperErr *err);

  /* What is enqueued between these two is recorded, once in a device's life. capture_begin comes
   * after all stream_new and event_new; capture_end returns when the record can be launched. */
  PiperStatus (*capture_begin)(Device *dev, PiperErr *err);
  PiperStatus (*capture_end)(Device *dev, PiperErr *err);

  /* Once for each program, before its first 'run': can this device run these calls, and do they stay
   * inside buffers of these sizes? What it needs for them it may build now. */
  PiperStatus (*check)(Device *dev, const KernelCall *calls, uint32_t n_calls,
                       const uint64_t *base_bytes, uint32_t n_bases, PiperErr *err);

  /* Enqueue, while capturing. 'label' names the instruction to 'fail', 'before' and 'position'.
   * What 'run' points to, and all that is reached from there, stays as it is until close. An event
   * is recorded once, before it is waited for; both sides belong to this device. */
  PiperStatus (*run)(DeviceStream *s, const KernelRun *run, uint32_t label, PiperErr *err);
  PiperStatus (*record)(DeviceStream *s, DeviceEvent *e, PiperErr *err);
  PiperStatus (*wait)(DeviceStream *s, DeviceEvent *e, PiperErr *err);

  /* Replay the record once. Returns at once; the step runs beside the host. The step before has
   * been synced. */
  PiperStatus (*launch)(Device *dev, PiperErr *err);
  /* Wait until the launched step is done, the job stops, or the time is over (then *done is false;
   * 0: only look). */
  PiperStatus (*sync)(Device *dev, int timeout_ms, bool *done, PiperErr *err);

  /* A number that grows whenever something of the device's step completes. During a step. */
  uint64_t (*progress)(const Device *dev);
  /* Where a stream is: the label of its first instruction that has not completed in this step
   * (DEVICE_NO_LABEL: none is left) and whether that has begun, all its waits being over. During a
   * step; a snapshot that may be old when it arrives. */
  uint32_t (*position)(const DeviceStream *s, bool *begun);

  /* 'stop' was set: end all waits of this device soon, without touching data. Any thread, any number
   * of times; does not block. */
  void (*abort)(Device *dev);
  /* Returns when nothing of this device runs any more; it cannot be launched again. 'stop' is set,
   * or no step is under way. */
  void (*halt)(Device *dev);
};

extern const DeviceOps DEVICE_CPU;

#endif
