/* The third step of the proof: the memory of each rank.
 *
 * A rank's instructions are taken in an order in which all events can complete. For every byte of
 * the arena it is known who wrote it last and who has read it since; each access has to come after
 * those that it conflicts with, and then takes their place. Since "comes after" is transitive, that
 * covers all pairs. Bytes with one history are one segment; a segment begins at one of the places
 * where some buffer or access begins or ends, and those that begin one now are marked in a bit set.
 *
 * "Comes after" is answered by vector clocks over the streams of the rank. They know nothing of
 * orders that hold only by way of another rank; what they cannot show is looked up in the graph of
 * all instructions. A SEND may complete before its data has arrived: an order that needs it to wait
 * does not count. The plans of plan_lower never need the lookup. */
#include "plan/verify.h"

#include "base/interrupt.h"
#include "plan/clock.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

typedef struct Reader { /* lists share their ends and are never changed */
  uint32_t instr, buffer, next;
} Reader;

typedef struct Segment {
  uint32_t writer, buffer; /* NONE: nobody wrote it in this step */
  uint32_t readers;        /* since then */
} Segment;

typedef struct Race {
  Verifier *v;
  uint32_t index; /* of the rank */
  const RankPlan *rank;
  uint64_t *cut; /* every place where a segment may begin, ascending */
  uint32_t n_cuts;
  uint32_t *buffer_lo, *buffer_hi; /* by buffer: its ends, as indices into 'cut' */
  Segment *segment;                /* by index into 'cut', where the bit is set */
  uint64_t *begins;
  VEC(Reader) readers;
  Clocks clocks;
} Race;

/* ---- places ---------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static uint32_t place_of(const Race *w, uint64_t address) {
  uint32_t lo = 0, hi = w->n_cuts;
  while (lo + 1 < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (w->cut[mid] <= address) lo = mid;
    else hi = mid;
  }
  return lo;
}

static bool whole(const Buffer *b, const Access *a) { return a->lo == 0 && a->hi == b->bytes; }

static bool find_cuts(Race *w) {
  const RankPlan *r = w->rank;
  size_t n = 0, parts = 0;
  for (size_t k = 0; k < r->accesses.n; k++)
    parts += !whole(&r->buffers.at[r->accesses.at[k].buffer], &r->accesses.at[k]);
  const size_t most = 2 * (r->buffers.n + parts) + 1;
  w->cut = malloc(most * sizeof *w->cut);
  w->segment = malloc(most * sizeof *w->segment);
  w->begins = calloc(most / 64 + 1, sizeof *w->begins);
  w->buffer_lo = malloc((r->buffers.n + 1) * sizeof *w->buffer_lo);
  w->buffer_hi = malloc((r->buffers.n + 1) * sizeof *w->buffer_hi);
  if (w->cut == NULL || w->segment == NULL || w->begins == NULL || w->buffer_lo == NULL ||
      w->buffer_hi == NULL)
    return false;
  w->cut[n++] = 0;
  for (size_t k = 0; k < r->buffers.n; k++) {
    w->cut[n++] = r->buffers.at[k].offset;
    w->cut[n++] = r->buffers.at[k].offset + r->buffers.at[k].bytes;
  }
  for (size_t k = 0; parts > 0 && k < r->accesses.n; k++) {
    const Access *a = &r->accesses.at[k];
    const Buffer *b = &r->buffers.at[a->buffer];
    if (whole(b, a)) continue;
    w->cut[n++] = b->offset + a->lo;
    w->cut[n++] = b->offset + a->hi;
  }
  qsort(w->cut, n, sizeof *w->cut, ascending);
  for (size_t k = 0; k < n; k++)
    if (w->n_cuts == 0 || w->cut[w->n_cuts - 1] != w->cut[k]) w->cut[w->n_cuts++] = w->cut[k];
  for (size_t k = 0; k < r->buffers.n; k++) {
    w->buffer_lo[k] = place_of(w, r->buffers.at[k].offset);
    w->buffer_hi[k] = place_of(w, r->buffers.at[k].offset + r->buffers.at[k].bytes);
  }
  w->segment[0] = (Segment){NONE, NONE, NONE};
  w->begins[0] = 1;
  return true;
}

/* The segment that 'place' lies in. */
static uint32_t segment_at(const Race *w, uint32_t place) {
  uint32_t word = place / 64;
  uint64_t bits = w->begins[word] & (~UINT64_C(0) >> (63 - place % 64));
  while (bits == 0) bits = w->begins[--word]; /* place 0 begins one */
  uint32_t top = 0;
  for (uint32_t half = 32; half > 0; half /= 2)
    if (bits >> half != 0) bits >>= half, top += half;
  return word * 64 + top;
}

/* The first segment that begins behind 'place' and before 'end'; 'end' where there is none. */
static uint32_t segment_after(const Race *w, uint32_t place, uint32_t end) {
  for (uint32_t at = place + 1; at < end; at = (at / 64 + 1) * 64) {
    uint64_t bits = w->begins[at / 64] >> (at % 64);
    if (bits == 0) continue;
    while ((bits & 1) == 0) bits >>= 1, at++;
    return at < end ? at : end;
  }
  return end;
}

static void begin_segment(Race *w, uint32_t place) {
  if (place >= w->n_cuts) return;
  const uint32_t s = segment_at(w, place);
  if (s == place) return;
  w->segment[place] = w->segment[s];
  w->begins[place / 64] |= UINT64_C(1) << (place % 64);
}

/* ---- who comes after whom -------------------------------------------------------------------- */

/* Instruction 'then' of the rank can only start when 'now' is complete: over all ranks. */
static PiperStatus search(Verifier *v, uint32_t now, uint32_t then, bool *found) {
  const uint32_t n = v->first[v->plan->n_ranks];
  bool *seen = calloc(n + 1, sizeof *seen); /* it has started only after 'now' */
  uint32_t *todo = malloc((n + 1) * sizeof *todo), n_todo = 0;
  *found = false;
  if (seen == NULL || todo == NULL) {
    free(seen), free(todo);
    return verify_nomem(v);
  }
  /* Takes completed instructions from 'todo', and adds those that this lets start. What starts
   * completes itself, a SEND its RECV, and a collective itself on every member. */
  uint32_t g = now;
  for (bool first = true; first || n_todo > 0; first = false) {
    if (!first) g = todo[--n_todo];
    for (uint32_t k = v->waiter_first[g]; k <= v->waiter_first[g + 1]; k++) {
      const uint32_t s = k < v->waiter_first[g + 1] ? v->waiters[k] : v->next[g];
      if (s == NONE || v->place[v->event[s]] > v->place[v->event[then]]) continue;
      if (s == then) *found = true;
      const uint32_t r = v->rank_of[s];
      const uint8_t kind = v->plan->ranks[r].instrs.at[s - v->first[r]].kind;
      const bool all = kind == INSTR_SEND || instr_is_collective(kind);
      const uint32_t e = v->event[s];
      for (uint32_t m = v->member_first[e]; m < v->member_first[e + 1]; m++) {
        const uint32_t x = v->members[m];
        if (seen[x] || (x != s && !all)) continue;
        seen[x] = true;
        todo[n_todo++] = x;
      }
    }
  }
  free(seen), free(todo);
  return PIPER_OK;
}

static PiperStatus check_order(Race *w, uint32_t now, uint32_t now_buffer, uint32_t then,
                               const Access *a, bool wrote) {
  Verifier *v = w->v;
  bool ordered = clock_knows(&w->clocks, now);
  v->proof.conflicts++;
  if (!ordered) TRY(search(v, v->first[w->index] + now, v->first[w->index] + then, &ordered));
  if (ordered) return PIPER_OK;
  if (now_buffer == a->buffer)
    return verify_fault(v, "race: %s may %s %s while %s %s it",
                        verify_label(v, w->index, then).text, a->write ? "write" : "read",
                        verify_buffer(v, w->index, a->buffer).text,
                        verify_label(v, w->index, now).text, wrote ? "writes" : "reads");
  return verify_fault(v, "reused too early: %s may %s %s while %s %s %s on the same bytes",
                      verify_label(v, w->index, then).text, a->write ? "write" : "read",
                      verify_buffer(v, w->index, a->buffer).text,
                      verify_label(v, w->index, now).text, wrote ? "writes" : "reads",
                      verify_buffer(v, w->index, now_buffer).text);
}

/* ---- accesses -------------------------------------------------------------------------------- */

/* The list with 'x' and without earlier reads by the same stream: they are before x. */
static bool add_reader(Race *w, uint32_t *list, Reader x) {
  const Instr *instrs = w->rank->instrs.at;
  const uint32_t stream = instrs[x.instr].stream;
  uint32_t rest = *list, kept[32], n = 0;
  for (uint32_t k = *list; k != NONE && n < 32; k = w->readers.at[k].next) {
    const Reader *r = &w->readers.at[k];
    if (instrs[r->instr].stream != stream) {
      kept[n++] = k;
      continue;
    }
    rest = r->next; /* copy those in front of it, share those behind it */
    while (n > 0) {
      Reader copy = w->readers.at[kept[--n]];
      copy.next = rest;
      if (!vec_push(&w->readers, copy)) return false;
      rest = (uint32_t)w->readers.n - 1;
    }
    break;
  }
  x.next = rest;
  if (!vec_push(&w->readers, x)) return false;
  *list = (uint32_t)w->readers.n - 1;
  return true;
}

/* Who writes bytes of the buffer that instruction i reads; NONE: nobody. */
static uint32_t find_writer(const Race *w, uint32_t i, const Access *read) {
  const RankPlan *r = w->rank;
  for (uint32_t j = 0; j < r->instrs.n; j++) {
    const Instr *x = &r->instrs.at[j];
    for (uint32_t k = 0; j != i && k < x->n_accesses; k++) {
      const Access *a = &r->accesses.at[x->access_first + k];
      if (a->write && a->buffer == read->buffer && a->lo < read->hi && read->lo < a->hi) return j;
    }
  }
  return NONE;
}

static PiperStatus unwritten(Race *w, uint32_t i, const Access *a, const Segment *s) {
  Verifier *v = w->v;
  const Label reader = verify_label(v, w->index, i), buffer = verify_buffer(v, w->index, a->buffer);
  if (s->writer != NONE)
    return verify_fault(v, "%s reads %s, whose bytes %s has overwritten with %s", reader.text,
                        buffer.text, verify_label(v, w->index, s->writer).text,
                        verify_buffer(v, w->index, s->buffer).text);
  const uint32_t writer = find_writer(w, i, a);
  if (writer == NONE)
    return verify_fault(v, "%s reads %s, which nothing writes", reader.text, buffer.text);
  return verify_fault(v, "race: %s may read %s before %s writes it", reader.text, buffer.text,
                      verify_label(v, w->index, writer).text);
}

static PiperStatus read_segment(Race *w, uint32_t i, const Access *a, Segment *s) {
  if (!w->rank->buffers.at[a->buffer].whole_step && s->buffer != a->buffer)
    return unwritten(w, i, a, s);
  if (s->writer != NONE && s->writer != i) TRY(check_order(w, s->writer, s->buffer, i, a, true));
  return add_reader(w, &s->readers, (Reader){i, a->buffer, NONE}) ? PIPER_OK : verify_nomem(w->v);
}

static PiperStatus write_segment(Race *w, uint32_t i, const Access *a, const Segment *s) {
  if (s->writer == i && s->buffer != a->buffer)
    return verify_fault(w->v, "%s writes %s and %s on the same bytes",
                        verify_label(w->v, w->index, i).text,
                        verify_buffer(w->v, w->index, s->buffer).text,
                        verify_buffer(w->v, w->index, a->buffer).text);
  if (s->writer != NONE && s->writer != i) TRY(check_order(w, s->writer, s->buffer, i, a, true));
  for (uint32_t k = s->readers; k != NONE; k = w->readers.at[k].next) {
    const Reader *r = &w->readers.at[k];
    if (r->instr != i) {
      TRY(check_order(w, r->instr, r->buffer, i, a, false));
    } else if (r->buffer != a->buffer) {
      return verify_fault(w->v, "%s reads %s and writes %s on the same bytes",
                          verify_label(w->v, w->index, i).text,
                          verify_buffer(w->v, w->index, r->buffer).text,
                          verify_buffer(w->v, w->index, a->buffer).text);
    }
  }
  return PIPER_OK;
}

static PiperStatus check_access(Race *w, uint32_t i, const Access *a) {
  const Buffer *b = &w->rank->buffers.at[a->buffer];
  if (a->lo == a->hi) return PIPER_OK;
  const bool all = whole(b, a);
  const uint32_t lo = all ? w->buffer_lo[a->buffer] : place_of(w, b->offset + a->lo);
  const uint32_t hi = all ? w->buffer_hi[a->buffer] : place_of(w, b->offset + a->hi);
  begin_segment(w, lo);
  begin_segment(w, hi);
  for (uint32_t s = lo; s < hi; s = segment_after(w, s, hi)) {
    TRY(a->write ? write_segment(w, i, a, &w->segment[s]) : read_segment(w, i, a, &w->segment[s]));
    if (a->write && s != lo) w->begins[s / 64] &= ~(UINT64_C(1) << (s % 64));
  }
  if (a->write) w->segment[lo] = (Segment){i, a->buffer, NONE};
  return PIPER_OK;
}

static PiperStatus check_rank(Race *w) {
  const RankPlan *r = w->rank;
  if (!find_cuts(w) || !clocks_new(&w->clocks, (uint32_t)r->streams.n, (uint32_t)r->instrs.n))
    return verify_nomem(w->v);
  for (uint32_t k = 0; k < r->instrs.n; k++) {
    const uint32_t i = w->v->sorted[w->v->first[w->index] + k];
    const Instr *x = &r->instrs.at[i];
    clock_begin(&w->clocks, i, x->stream);
    for (uint32_t j = 0; j < x->n_waits; j++)
      clock_wait(&w->clocks, r->waits.at[x->wait_first + j]);
    for (uint32_t j = 0; j < x->n_accesses; j++)
      TRY(check_access(w, i, &r->accesses.at[x->access_first + j]));
    clock_end(&w->clocks);
  }
  return PIPER_OK;
}

PiperStatus verify_races(Verifier *v) {
  PiperStatus st = PIPER_OK;
  for (uint32_t r = 0; st == PIPER_OK && r < v->plan->n_ranks; r++) {
    if ((st = interrupt_check(v->err)) != PIPER_OK) break;
    Race w = {.v = v, .index = r, .rank = &v->plan->ranks[r]};
    st = check_rank(&w);
    free(w.cut), free(w.segment), free(w.begins), free(w.buffer_lo), free(w.buffer_hi);
    vec_free(&w.readers);
    clocks_free(&w.clocks);
  }
  return st;
}
