/* random_data.h - random numbers of a test that prints its seed; PIPER_TEST_SEED repeats a run. */
#ifndef PIPER_TESTS_RANDOM_DATA_H
#define PIPER_TESTS_RANDOM_DATA_H

#include "base/rng.h"

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "tap.h"

static uint64_t random_seed_, random_index_;

static inline void random_start(void) {
  const char *given = getenv("PIPER_TEST_SEED");
  random_seed_ = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
  diag("PIPER_TEST_SEED=%llu", (unsigned long long)random_seed_);
}

static inline double random_uniform(void) {
  return rng_uniform(random_seed_, 0, random_index_++);
}

/* lo .. hi */
static inline int random_int(int lo, int hi) {
  return lo + (int)(random_uniform() * (hi - lo + 1));
}

#endif
