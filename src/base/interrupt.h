/* interrupt.h - the request to stop what is running (Ctrl-C).
 *
 * The signal handler of main.c requests; code that waits or runs long looks at interrupt_pending,
 * gives up and returns PIPER_ESTOP. All three may be called from any thread and from a signal
 * handler. Threads that Piper starts should block SIGINT, so that the main thread takes it. */
#ifndef PIPER_BASE_INTERRUPT_H
#define PIPER_BASE_INTERRUPT_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

void interrupt_request(void);
bool interrupt_pending(void); /* true from a request until it is cleared */
void interrupt_clear(void);   /* before the next piece of work starts */

PiperStatus interrupt_check(PiperErr *err); /* PIPER_ESTOP "interrupted", from then on */
/* For the i-th round of a loop: looks now and then. */
static inline PiperStatus interrupt_check_at(uint64_t i, PiperErr *err) {
  return (i & 4095) == 0 ? interrupt_check(err) : PIPER_OK;
}

#endif
