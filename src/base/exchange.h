/* exchange.h - what an all_to_all among n ranks moves: blocks of experts (base/ops.def). On one side
 * each rank has its own samples with all experts, on the other all samples with its own experts:
 *
 *   samples side   [samples][n * blocks] blocks
 *   experts side   [n * samples][blocks] blocks
 *
 * ranks in the order of the group's list on both. A block is a row that begins with an i32 count, and
 * so many rows behind it; no more of it is moved than that. */
#ifndef PIPER_BASE_EXCHANGE_H
#define PIPER_BASE_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Exchange {
  int64_t samples;      /* of each rank */
  int64_t blocks;       /* of a sample, for the experts of one rank */
  uint64_t block_bytes; /* a multiple of row_bytes */
  uint64_t row_bytes;   /* at least 4 */
  bool to_experts;      /* from the samples side to the experts side, or back */
} Exchange;

/* Bytes of either side on one of n ranks. */
static inline uint64_t exchange_bytes(const Exchange *x, uint32_t n) {
  return (uint64_t)x->samples * (uint64_t)x->blocks * n * x->block_bytes;
}

#endif
