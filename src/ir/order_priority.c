/* Descendants are counted in blocks of 512 marked nodes: one bit a mark, a row of bits for each
 * node, the union over its successors, in reverse topological order. A block costs O(nodes + edges), rows
 * of 64 bytes; marks lie in topological order, so nodes behind a block's last mark have no row. */
#include "ir/order_priority.h"

#include <stdlib.h>
#include <string.h>

enum { ROW_WORDS = 8, ROW_BITS = 64 * ROW_WORDS };

/* Rows that may be worked on in all, over all blocks. */
#define MAX_ROWS 250000

void priority_critical_path(const Successors *g, const double *seconds, double *out) {
  for (uint32_t k = g->n_topo; k-- > 0;) {
    const uint32_t i = g->topo[k];
    double longest = 0;
    for (uint32_t e = g->first[i]; e < g->first[i + 1]; e++)
      if (out[g->succ[e]] > longest) longest = out[g->succ[e]];
    out[i] = seconds[i] + longest;
  }
}

typedef struct Row {
  uint64_t word[ROW_WORDS];
} Row;

static uint32_t bits_of(uint64_t v) {
  v -= v >> 1 & UINT64_C(0x5555555555555555);
  v = (v & UINT64_C(0x3333333333333333)) + (v >> 2 & UINT64_C(0x3333333333333333));
  v = (v + (v >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
  return (uint32_t)(v * UINT64_C(0x0101010101010101) >> 56);
}

/* Marks are the topological positions at 'step', 2 * step, ... behind 'from'; nodes before the last
 * one get their count of marked descendants. rows: by node. */
static void count_block(const Successors *g, uint32_t from, uint32_t step, Row *rows,
                        uint32_t *count) {
  const uint64_t end = from + (uint64_t)step * ROW_BITS;
  const uint32_t last = end < g->n_topo ? (uint32_t)end : g->n_topo;
  for (uint32_t k = g->n_topo; k-- > last;) memset(&rows[g->topo[k]], 0, sizeof *rows);
  for (uint32_t k = last; k-- > 0;) {
    const uint32_t i = g->topo[k];
    Row row = {{0}};
    for (uint32_t e = g->first[i]; e < g->first[i + 1]; e++)
      for (int w = 0; w < ROW_WORDS; w++) row.word[w] |= rows[g->succ[e]].word[w];
    uint32_t n = 0;
    for (int w = 0; w < ROW_WORDS; w++) n += bits_of(row.word[w]);
    count[i] += n;
    if (k >= from && (k - from) % step == 0) {
      const uint32_t bit = (k - from) / step;
      row.word[bit / 64] |= UINT64_C(1) << bit % 64;
    }
    rows[i] = row;
  }
}

PiperStatus priority_downstream(const Successors *g, double *out, PiperErr *err) {
  const uint32_t blocks = g->n > MAX_ROWS / 2 ? 2 : MAX_ROWS / g->n + 1;
  const uint32_t step = g->n / (blocks * ROW_BITS) + 1;
  Row *rows = malloc(g->n * sizeof *rows);
  uint32_t *count = calloc(g->n, sizeof *count);
  if (rows != NULL && count != NULL) {
    for (uint64_t from = 0; from < g->n_topo; from += (uint64_t)step * ROW_BITS)
      count_block(g, (uint32_t)from, step, rows, count);
    for (uint32_t i = 1; i < g->n; i++) out[i] = (double)count[i] * step;
  }
  const PiperStatus st = rows != NULL && count != NULL ? PIPER_OK : err_nomem(err, "global order");
  free(rows);
  free(count);
  return st;
}
