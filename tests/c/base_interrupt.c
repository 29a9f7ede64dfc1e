#include "base/interrupt.h"

#include <signal.h>

#include "tap.h"

static void on_signal(int sig) {
  (void)sig;
  interrupt_request();
}

int main(void) {
  ok(!interrupt_pending(), "nothing is pending at the start");
  interrupt_request();
  interrupt_request();
  ok(interrupt_pending(), "a request is pending");
  interrupt_clear();
  ok(!interrupt_pending(), "one clear is enough for two requests");
  signal(SIGINT, on_signal);
  raise(SIGINT);
  ok(interrupt_pending(), "a signal handler may request");
  return done_testing();
}
