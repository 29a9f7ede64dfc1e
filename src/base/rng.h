/* rng.h - random numbers without a state: number 'index' of the stream (seed, key) is a function of
 * these three alone, so any part of a stream can be made anywhere, in any order, by any number of
 * ranks. Same bits on every machine. All functions are pure and thread-safe. */
#ifndef PIPER_BASE_RNG_H
#define PIPER_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* Philox-4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011. */
void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

uint64_t rng_key(const char *name); /* the stream of a parameter, an input, a dropout, ... */

double rng_uniform(uint64_t seed, uint64_t key, uint64_t index); /* in [0, 1), 53 bits */
double rng_normal(uint64_t seed, uint64_t key, uint64_t index);  /* mean 0, deviation 1 */

/* out[i] = number first + i of the stream. */
void rng_fill_uniform(uint64_t seed, uint64_t key, uint64_t first, size_t n, double *out);
void rng_fill_normal(uint64_t seed, uint64_t key, uint64_t first, size_t n, double *out);

#endif
