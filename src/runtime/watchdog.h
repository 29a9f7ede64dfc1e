/* watchdog.h - why a step makes no progress. */
#ifndef PIPER_RUNTIME_WATCHDOG_H
#define PIPER_RUNTIME_WATCHDOG_H

#include "runtime/exec.h"

/* A step is under way and nothing in it completes. Says for each rank and stream the instruction it
 * is in and the one it waits for, and first the cause: the instruction that the others wait for, or
 * the circle they wait in. Writes as much as fits. */
void watchdog_report(const Plan *plan, const RankExec *ranks, char *buf, size_t n);

#endif
