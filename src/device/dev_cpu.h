/* dev_cpu.h - how communication enters the streams of CPU devices: what comm_local is made of.
 *
 * A communication queue has no thread. Whoever changes what a queue may wait for moves it on, until
 * it is blocked again or at its end. What a thread still has to move on is kept in its CpuDrain, so
 * that a completion that unblocks a queue that completes something else is a loop, not a recursion,
 * and so that quick matters go before long copies. */
#ifndef PIPER_DEVICE_DEV_CPU_H
#define PIPER_DEVICE_DEV_CPU_H

#include "device/device.h"

typedef struct CpuDrain CpuDrain;

/* One communication command of a stream, reached once a step. */
typedef struct CpuOp {
  /* The stream has reached it. Called once a step, by the thread that moves the stream on; must not
   * block. The stream goes on after cpu_op_done, which may come from here. */
  void (*arrive)(struct CpuOp *op, CpuDrain *d);
  DeviceStream *stream; /* set by cpu_op_enqueue */
  atomic_ullong done;   /* steps in which it was completed */
} CpuOp;

/* While capturing. The op stays until the device is closed; the caller has set 'arrive'. */
PiperStatus cpu_op_enqueue(DeviceStream *s, CpuOp *op, uint32_t label, PiperErr *err);
/* The op is complete in this step. Any thread that holds a drain. */
void cpu_op_done(CpuOp *op, CpuDrain *d);

/* Work in pieces, which any thread of the job that has nothing else to do may take. */
typedef struct CpuWork {
  void (*piece)(struct CpuWork *w, uint32_t i);   /* any thread; each i in 0 .. n_pieces - 1 once */
  void (*finish)(struct CpuWork *w, CpuDrain *d); /* after the last piece, by who did it */
  uint32_t n_pieces;                              /* at least 1 */
  /* dev_cpu.c's own */
  atomic_uint next, done;
  int slot;
} CpuWork;

void cpu_work_init(CpuWork *w, void (*piece)(CpuWork *, uint32_t),
                   void (*finish)(CpuWork *, CpuDrain *), uint32_t n_pieces);
/* Start it, in a step, while no piece of it is under way. It may be started again after 'finish', and
 * stays until all devices of the job are halted. */
void cpu_work_start(CpuWork *w, CpuDrain *d);

#endif
