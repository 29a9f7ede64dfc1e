/* clock.h - which instructions of a rank have certainly completed when another one starts: vector
 * clocks over the rank's streams.
 *
 * Instructions are entered one after the other, each after the earlier ones of its stream and those
 * that it waits for:
 *
 *   clock_begin(&c, i, stream);       knows what its predecessor in the stream knew, and that one
 *   clock_wait(&c, j);                i waits for j: knows j and what j knew
 *   if (!clock_knows(&c, j)) ...      j is not yet certain to have completed when i starts
 *   clock_end(&c);                    from now on others may wait for i
 */
#ifndef PIPER_PLAN_CLOCK_H
#define PIPER_PLAN_CLOCK_H

#include "ir/graph.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct Clocks {
  uint32_t n_streams;
  uint32_t *at;     /* row i, after clock_end: of each stream, how many have completed with i */
  uint32_t *stream; /* by instruction */
  uint32_t *place;  /* by instruction: its place in its stream, from 1 */
  uint32_t *last;   /* by stream: 1 + its last instruction so far; 0: none */
  uint32_t *now;    /* row of the instruction that was begun */
  uint32_t current;
} Clocks;

/* Room for n_instrs; false: out of memory, nothing to free. */
static inline bool clocks_new(Clocks *c, uint32_t n_streams, uint32_t n_instrs) {
  const size_t row = n_streams > 0 ? n_streams : 1, n = n_instrs > 0 ? n_instrs : 1;
  *c = (Clocks){.n_streams = n_streams};
  c->at = malloc(n * row * sizeof *c->at);
  c->stream = malloc(n * sizeof *c->stream);
  c->place = malloc(n * sizeof *c->place);
  c->last = calloc(row, sizeof *c->last);
  if (c->at != NULL && c->stream != NULL && c->place != NULL && c->last != NULL) return true;
  free(c->at), free(c->stream), free(c->place), free(c->last);
  *c = (Clocks){0};
  return false;
}

static inline void clocks_free(Clocks *c) {
  free(c->at), free(c->stream), free(c->place), free(c->last);
  *c = (Clocks){0};
}

static inline void clock_begin(Clocks *c, uint32_t i, uint32_t stream) {
  c->now = c->at + (size_t)i * c->n_streams;
  c->current = i;
  c->stream[i] = stream;
  const uint32_t last = c->last[stream];
  if (last == 0) memset(c->now, 0, c->n_streams * sizeof *c->now);
  else memcpy(c->now, c->at + (size_t)(last - 1) * c->n_streams, c->n_streams * sizeof *c->now);
  c->place[i] = last == 0 ? 1 : c->place[last - 1] + 1;
}

static inline bool clock_knows(const Clocks *c, uint32_t j) {
  return c->now[c->stream[j]] >= c->place[j];
}

static inline void clock_wait(Clocks *c, uint32_t j) {
  const uint32_t *row = c->at + (size_t)j * c->n_streams;
  for (uint32_t s = 0; s < c->n_streams; s++)
    if (c->now[s] < row[s]) c->now[s] = row[s];
}

static inline void clock_end(Clocks *c) {
  c->now[c->stream[c->current]] = c->place[c->current];
  c->last[c->stream[c->current]] = c->current + 1;
}

/* What one instruction has to come after: of each stream only the last one counts. */
typedef struct Deps {
  uint32_t *latest;  /* by stream: 1 + instruction; 0: none */
  uint32_t *streams; /* those with one */
  uint32_t n;
} Deps;

static inline bool deps_new(Deps *d, uint32_t n_streams) {
  const size_t n = n_streams > 0 ? n_streams : 1;
  *d = (Deps){.latest = calloc(n, sizeof *d->latest), .streams = malloc(n * sizeof *d->streams)};
  if (d->latest != NULL && d->streams != NULL) return true;
  free(d->latest), free(d->streams);
  *d = (Deps){0};
  return false;
}

static inline void deps_free(Deps *d) {
  free(d->latest), free(d->streams);
  *d = (Deps){0};
}

static inline void deps_add(Deps *d, uint32_t stream, uint32_t instr) {
  if (d->latest[stream] == 0) d->streams[d->n++] = stream;
  if (d->latest[stream] < instr + 1) d->latest[stream] = instr + 1;
}

/* Makes the instruction that was begun wait for them, leaving out those that it knows already, and
 * empties 'd'. Later instructions first: they may know the earlier ones, never the other way round.
 * What is left is therefore needed. Appends to 'waits'; false: out of memory. */
static inline bool deps_wait(Deps *d, Clocks *c, U32Vec *waits) {
  for (; d->n > 0; d->n--) {
    uint32_t k = 0; /* a handful of streams: a linear search is the fast one */
    for (uint32_t i = 1; i < d->n; i++)
      if (d->latest[d->streams[i]] > d->latest[d->streams[k]]) k = i;
    const uint32_t stream = d->streams[k], j = d->latest[stream] - 1;
    d->streams[k] = d->streams[d->n - 1];
    d->latest[stream] = 0;
    if (clock_knows(c, j)) continue;
    if (!vec_push(waits, j)) return false;
    clock_wait(c, j);
  }
  return true;
}

#endif
