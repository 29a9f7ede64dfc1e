#include "base/interrupt.h"

#include <stdatomic.h>

#if ATOMIC_INT_LOCK_FREE != 2
#error "a signal handler needs lock-free atomics"
#endif

static atomic_int requested;

void interrupt_request(void) { atomic_store(&requested, 1); }

bool interrupt_pending(void) { return atomic_load_explicit(&requested, memory_order_relaxed) != 0; }

void interrupt_clear(void) { atomic_store(&requested, 0); }

PiperStatus interrupt_check(PiperErr *err) {
  return interrupt_pending() ? err_set(err, PIPER_ESTOP, "interrupted") : PIPER_OK;
}
