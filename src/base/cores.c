#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cores.h"

#include <sched.h>

int cores_available(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
