/* The second step of the proof: who meets whom, and that they do meet.
 *
 * The k-th SEND of a channel (stream name, from, to) meets its k-th RECV, the k-th collective of a
 * communicator (stream name, ordered ranks) is that of each member. A pair or a collective is one
 * event: no rank gets past it before all have come to it, so nothing here relies on buffering. An
 * event needs, of each of its instructions, the one before it in its stream and those that it waits
 * for. When these needs have no circle, all events can complete, in 'place' order; otherwise a
 * circle is printed, instruction by instruction. */
#include "plan/verify.h"

#include "base/intern.h"
#include "base/interrupt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* A channel or a communicator: what its meetings are counted by. */
typedef struct Line {
  uint32_t name; /* interned stream name */
  uint32_t a, b; /* channel: from, to; communicator: device set, UINT32_MAX */
  uint32_t n[2]; /* channel: SENDs, RECVs; communicator: instructions of the first member */
  uint32_t first_event;
} Line;

typedef struct Meet {
  Verifier *v;
  Intern *names;
  uint32_t *name;         /* by stream, rank after rank */
  uint32_t *stream_first; /* by rank index: into 'name' */
  uint32_t *slots, n_slots;
  VEC(Line) lines;
  uint32_t *line, *turn; /* by instruction; line NONE: a RUN */
} Meet;

static const Instr *instr_at(const Verifier *v, uint32_t g) {
  const uint32_t r = v->rank_of[g];
  return &v->plan->ranks[r].instrs.at[g - v->first[r]];
}

static Label label_at(const Verifier *v, uint32_t g) {
  return verify_label(v, v->rank_of[g], g - v->first[v->rank_of[g]]);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static PiperStatus name_streams(Meet *m) {
  const Plan *p = m->v->plan;
  uint32_t n = 0;
  m->names = intern_new();
  m->stream_first = malloc((p->n_ranks + 1) * sizeof *m->stream_first);
  if (m->names == NULL || m->stream_first == NULL) return verify_nomem(m->v);
  for (uint32_t r = 0; r < p->n_ranks; r++) {
    m->stream_first[r] = n;
    n += (uint32_t)p->ranks[r].streams.n;
  }
  m->stream_first[p->n_ranks] = n;
  m->name = malloc((n + 1) * sizeof *m->name);
  if (m->name == NULL) return verify_nomem(m->v);
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (uint32_t s = 0; s < p->ranks[r].streams.n; s++) {
      const char *name = p->ranks[r].streams.at[s].name;
      const uint32_t id = intern_id(m->names, name);
      if (id == 0) return verify_nomem(m->v);
      m->name[m->stream_first[r] + s] = id;
      for (uint32_t t = m->stream_first[r]; t < m->stream_first[r] + s; t++)
        if (m->name[t] == id)
          return verify_fault(m->v, "rank %d has two streams \"%s\"", p->ranks[r].rank, name);
    }
  return PIPER_OK;
}

static uint32_t line_hash(uint32_t name, uint32_t a, uint32_t b) {
  uint64_t h = ((uint64_t)name << 32 | a) * UINT64_C(0x9e3779b97f4a7c15);
  h = (h ^ h >> 32 ^ b) * UINT64_C(0xff51afd7ed558ccd);
  return (uint32_t)(h >> 32);
}

static bool grow_slots(Meet *m) {
  const uint32_t n = m->n_slots == 0 ? 256 : 2 * m->n_slots;
  uint32_t *slots = calloc(n, sizeof *slots);
  if (slots == NULL) return false;
  free(m->slots);
  m->slots = slots;
  m->n_slots = n;
  for (uint32_t k = 0; k < m->lines.n; k++) {
    const Line *l = &m->lines.at[k];
    uint32_t i = line_hash(l->name, l->a, l->b) & (n - 1);
    while (slots[i] != 0) i = (i + 1) & (n - 1);
    slots[i] = k + 1;
  }
  return true;
}

static uint32_t line_of(Meet *m, uint32_t name, uint32_t a, uint32_t b) {
  if (2 * (m->lines.n + 1) > m->n_slots && !grow_slots(m)) return NONE;
  uint32_t i = line_hash(name, a, b) & (m->n_slots - 1);
  for (; m->slots[i] != 0; i = (i + 1) & (m->n_slots - 1)) {
    const Line *l = &m->lines.at[m->slots[i] - 1];
    if (l->name == name && l->a == a && l->b == b) return m->slots[i] - 1;
  }
  if (!vec_push(&m->lines, ((Line){.name = name, .a = a, .b = b}))) return NONE;
  m->slots[i] = (uint32_t)m->lines.n;
  return m->slots[i] - 1;
}

/* Puts every meeting on its line and counts its turn there. The members of a communicator are
 * counted one after the other, as their ranks come; a line's 'n' is that of its first member, and
 * each other member has to come to the same. */
static PiperStatus count_turns(Meet *m) {
  Verifier *v = m->v;
  const Plan *p = v->plan;
  U32Vec turns = {0}, first_rank = {0}; /* by line, of the rank at hand; communicators */
  PiperStatus st = PIPER_OK;
  for (uint32_t r = 0; st == PIPER_OK && r < p->n_ranks; r++) {
    for (size_t k = 0; k < turns.n; k++) turns.at[k] = 0;
    for (uint32_t g = v->first[r]; g < v->first[r + 1]; g++) {
      const Instr *x = &p->ranks[r].instrs.at[g - v->first[r]];
      const uint32_t name = m->name[m->stream_first[r] + x->stream];
      const uint32_t me = (uint32_t)p->ranks[r].rank, peer = (uint32_t)x->peer;
      m->line[g] = NONE;
      if (x->kind == INSTR_RUN) continue;
      const uint32_t l = x->kind == INSTR_SEND   ? line_of(m, name, me, peer)
                         : x->kind == INSTR_RECV ? line_of(m, name, peer, me)
                                                 : line_of(m, name, x->group, NONE);
      if (l == NONE) goto nomem;
      while (turns.n <= l)
        if (!vec_push(&turns, 0) || !vec_push(&first_rank, NONE)) goto nomem;
      m->line[g] = l;
      if (!instr_is_collective(x->kind)) {
        m->turn[g] = m->lines.at[l].n[x->kind == INSTR_RECV]++;
      } else {
        m->turn[g] = turns.at[l]++;
        if (first_rank.at[l] == NONE) first_rank.at[l] = r;
        if (first_rank.at[l] == r) m->lines.at[l].n[0]++;
      }
    }
    for (uint32_t l = 0; st == PIPER_OK && l < turns.n; l++) {
      const Line *line = &m->lines.at[l];
      if (line->b != NONE || devsets_position(p->dag->devsets, line->a, p->ranks[r].rank) < 0 ||
          (first_rank.at[l] == r || turns.at[l] == line->n[0]))
        continue;
      st = verify_fault(v, "collectives do not match on \"%s\": rank %d joins %u, rank %d joins %u",
                        intern_text(m->names, line->name), p->ranks[first_rank.at[l]].rank,
                        line->n[0], p->ranks[r].rank, turns.at[l]);
    }
  }
  /* A communicator that only later ranks know is one that earlier members never join. */
  for (uint32_t l = 0; st == PIPER_OK && l < m->lines.n; l++) {
    const Line *line = &m->lines.at[l];
    if (line->b != NONE) continue;
    for (uint32_t j = 0; st == PIPER_OK && j < devsets_size(p->dag->devsets, line->a); j++) {
      const int32_t rank = devsets_ranks(p->dag->devsets, line->a)[j];
      const int32_t known = p->ranks[first_rank.at[l]].rank;
      if (rank < known || plan_rank(p, rank) == NULL)
        st =
            verify_fault(v, "collectives do not match on \"%s\": rank %d joins %u, rank %d joins 0",
                         intern_text(m->names, line->name), known, line->n[0], rank);
    }
  }
  goto out;
nomem:
  st = verify_nomem(v);
out:
  vec_free(&turns);
  vec_free(&first_rank);
  return st;
}

/* ---- events ---------------------------------------------------------------------------------- */

static PiperStatus make_events(Meet *m) {
  Verifier *v = m->v;
  const uint32_t n = v->first[v->plan->n_ranks];
  for (uint32_t l = 0; l < m->lines.n; l++) {
    Line *line = &m->lines.at[l];
    line->first_event = v->n_events;
    v->n_events += line->b != NONE && line->n[1] > line->n[0] ? line->n[1] : line->n[0];
    if (line->b == NONE) v->proof.collectives += line->n[0];
    else v->proof.pairs += line->n[0];
  }
  for (uint32_t g = 0; g < n; g++)
    v->event[g] =
        m->line[g] == NONE ? v->n_events++ : m->lines.at[m->line[g]].first_event + m->turn[g];
  v->member_first = calloc(v->n_events + 2, sizeof *v->member_first);
  v->members = malloc((n + 1) * sizeof *v->members);
  if (v->member_first == NULL || v->members == NULL) return verify_nomem(v);
  for (uint32_t g = 0; g < n; g++) v->member_first[v->event[g] + 2]++;
  for (uint32_t e = 0; e < v->n_events; e++) v->member_first[e + 2] += v->member_first[e + 1];
  for (uint32_t g = 0; g < n; g++) v->members[v->member_first[v->event[g] + 1]++] = g;
  return PIPER_OK;
}

typedef struct Cargo { /* what a meeting is about */
  const Buffer *buffer;
  uint64_t lo, hi; /* bytes of the buffer */
  uint32_t buffer_index, rank_index;
} Cargo;

static Cargo cargo_of(const Verifier *v, uint32_t g) {
  const uint32_t r = v->rank_of[g];
  const Access *a = &v->plan->ranks[r].accesses.at[instr_at(v, g)->access_first];
  return (Cargo){&v->plan->ranks[r].buffers.at[a->buffer], a->lo, a->hi, a->buffer, r};
}

static bool same_cargo(const Verifier *v, const Cargo *a, const Cargo *b) {
  if (a->buffer->role != b->buffer->role || a->buffer->id != b->buffer->id) return false;
  if (buffer_is_of_bucket(a->buffer->role)) {
    const int64_t element = (int64_t)dtype_bytes(v->plan->options.dtype);
    return a->buffer->slot == b->buffer->slot &&
           a->buffer->lo + (int64_t)a->lo / element == b->buffer->lo + (int64_t)b->lo / element;
  }
  if (a->buffer->role != BUFFER_VALUE && a->buffer->role != BUFFER_GRAD) return true;
  const Tensor *t = &v->plan->dag->tensors.at[a->buffer->id];
  if (!graph_value(v->plan->graph, t->value)->shape.batched) return true; /* device to device */
  const Buffer *x = a->buffer, *y = b->buffer;
  const uint64_t per_sample = x->bytes / (uint64_t)(x->hi > x->lo ? x->hi - x->lo : 1);
  return x->lo * (int64_t)per_sample + (int64_t)a->lo ==
         y->lo * (int64_t)per_sample + (int64_t)b->lo;
}

static PiperStatus check_pair(Verifier *v, uint32_t g, uint32_t h) {
  const Instr *x = instr_at(v, g), *y = instr_at(v, h);
  if (x->kind == INSTR_ALL_TO_ALL || y->kind == INSTR_ALL_TO_ALL) {
    /* Each fits its node: the members of a group all have to be of one. */
    if (x->kind == y->kind && x->node == y->node && x->share_first == y->share_first)
      return PIPER_OK;
    return verify_fault(v, "%s and %s, which meet, do different things", label_at(v, g).text,
                        label_at(v, h).text);
  }
  const Cargo a = cargo_of(v, g), b = cargo_of(v, h);
  if (!same_cargo(v, &a, &b))
    return verify_fault(v, "%s meets %s, and these are not the same data: %s and %s",
                        label_at(v, g).text, label_at(v, h).text,
                        verify_buffer(v, a.rank_index, a.buffer_index).text,
                        verify_buffer(v, b.rank_index, b.buffer_index).text);
  if (instr_is_collective(x->kind) &&
      (x->kind != y->kind || x->adds != y->adds || x->n_accesses != y->n_accesses))
    return verify_fault(v, "%s and %s, which meet, do different things", label_at(v, g).text,
                        label_at(v, h).text);
  if (x->bytes != y->bytes || x->dtype != y->dtype)
    return verify_fault(v, "%s has %llu bytes and meets %s, which has %llu", label_at(v, g).text,
                        (unsigned long long)x->bytes, label_at(v, h).text,
                        (unsigned long long)y->bytes);
  return PIPER_OK;
}

static int by_lo(const void *a, const void *b) {
  const Share *x = a, *y = b;
  if (x->lo != y->lo) return x->lo < y->lo ? -1 : 1;
  return (x->hi > y->hi) - (x->hi < y->hi);
}

/* All members divide alike, and the shares cover the elements once. */
static PiperStatus check_shares(Verifier *v, const uint32_t *members, uint32_t n) {
  const Instr *x = instr_at(v, members[0]);
  const Share *shares = v->plan->shares.at + x->share_first;
  if (x->kind == INSTR_ALL_REDUCE || x->kind == INSTR_ALL_TO_ALL) return PIPER_OK;
  for (uint32_t k = 1; k < n; k++) {
    const Instr *y = instr_at(v, members[k]);
    if (y->share_first != x->share_first &&
        memcmp(shares, v->plan->shares.at + y->share_first, n * sizeof *shares) != 0)
      return verify_fault(v, "%s and %s, which meet, divide differently",
                          label_at(v, members[0]).text, label_at(v, members[k]).text);
  }
  Share *sorted = malloc(n * sizeof *sorted);
  if (sorted == NULL) return verify_nomem(v);
  memcpy(sorted, shares, n * sizeof *sorted);
  qsort(sorted, n, sizeof *sorted, by_lo);
  int64_t end = 0;
  bool cover = true;
  for (uint32_t k = 0; k < n; k++) {
    cover = cover && sorted[k].lo == end;
    end = sorted[k].hi;
  }
  free(sorted);
  if (cover && (uint64_t)end * dtype_bytes(x->dtype) == x->bytes) return PIPER_OK;
  return verify_fault(v, "the shares of %s do not cover it once", label_at(v, members[0]).text);
}

static PiperStatus check_events(Meet *m) {
  Verifier *v = m->v;
  for (uint32_t e = 0; e < v->n_events; e++) {
    const uint32_t first = v->member_first[e], end = v->member_first[e + 1];
    const uint32_t g = v->members[first], l = m->line[g];
    if (l == NONE) continue;
    const Line *line = &m->lines.at[l];
    if (line->b != NONE && end - first != 2)
      return verify_fault(
          v, "%s has no %s: %u sends and %u recvs on \"%s\" from rank %u to rank %u",
          label_at(v, g).text, instr_at(v, g)->kind == INSTR_SEND ? "recv" : "send", line->n[0],
          line->n[1], intern_text(m->names, line->name), line->a, line->b);
    for (uint32_t k = first + 1; k < end; k++) TRY(check_pair(v, g, v->members[k]));
    if (line->b == NONE) TRY(check_shares(v, v->members + first, end - first));
  }
  return PIPER_OK;
}

/* ---- who comes after whom -------------------------------------------------------------------- */

static PiperStatus make_successors(Verifier *v) {
  const Plan *p = v->plan;
  const uint32_t n = v->first[p->n_ranks];
  uint64_t n_waits = 0;
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (uint32_t i = 0; i < p->ranks[r].instrs.n; i++) n_waits += p->ranks[r].instrs.at[i].n_waits;
  v->next = malloc((n + 1) * sizeof *v->next);
  v->waiter_first = calloc(n + 2, sizeof *v->waiter_first);
  v->waiters = n_waits < NONE ? malloc((n_waits + 1) * sizeof *v->waiters) : NULL;
  U32Vec last = {0}; /* by stream */
  PiperStatus st = PIPER_OK;
  if (v->next == NULL || v->waiter_first == NULL || v->waiters == NULL) return verify_nomem(v);
  for (int fill = 0; fill < 2; fill++) {
    for (uint32_t r = 0; r < p->n_ranks; r++)
      for (uint32_t i = 0; i < p->ranks[r].instrs.n; i++) {
        const Instr *x = &p->ranks[r].instrs.at[i];
        for (uint32_t k = x->wait_first; k < x->wait_first + x->n_waits; k++) {
          const uint32_t g = v->first[r] + p->ranks[r].waits.at[k];
          if (fill == 0) v->waiter_first[g + 2]++;
          else v->waiters[v->waiter_first[g + 1]++] = v->first[r] + i;
        }
      }
    for (uint32_t g = 0; fill == 0 && g < n; g++) v->waiter_first[g + 2] += v->waiter_first[g + 1];
  }
  for (uint32_t r = 0; st == PIPER_OK && r < p->n_ranks; r++) {
    last.n = 0;
    for (size_t s = 0; st == PIPER_OK && s < p->ranks[r].streams.n; s++)
      if (!vec_push(&last, NONE)) st = verify_nomem(v);
    for (uint32_t g = v->first[r]; st == PIPER_OK && g < v->first[r + 1]; g++) {
      uint32_t *before = &last.at[instr_at(v, g)->stream];
      if (*before != NONE) v->next[*before] = g;
      *before = g;
      v->next[g] = NONE;
    }
  }
  vec_free(&last);
  return st;
}

/* What keeps an event from completing: an instruction of it and one that has to come before. */
static bool blocker(const Verifier *v, uint32_t event, const bool *done, uint32_t *of,
                    uint32_t *by) {
  for (uint32_t k = v->member_first[event]; k < v->member_first[event + 1]; k++) {
    const uint32_t g = v->members[k], r = v->rank_of[g];
    const RankPlan *rank = &v->plan->ranks[r];
    const Instr *x = instr_at(v, g);
    *of = g;
    for (uint32_t w = x->wait_first; w < x->wait_first + x->n_waits; w++)
      if (!done[v->event[ *by = v->first[r] + rank->waits.at[w]]]) return true;
    for (uint32_t b = g; b-- > v->first[r];)
      if (rank->instrs.at[b - v->first[r]].stream == x->stream) {
        if (!done[v->event[ *by = b]]) return true;
        break;
      }
  }
  return false;
}

/* Follow what blocks what until an event comes back. */
static PiperStatus report_circle(Verifier *v, const bool *done) {
  enum { SHOWN = 8 };
  char text[PIPER_ERR_TEXT - 128];
  size_t at = 0;
  uint32_t e = 0, of, by, shown = 0;
  bool *seen = calloc(v->n_events, sizeof *seen);
  if (seen == NULL) return verify_nomem(v);
  while (done[e]) e++;
  for (; !seen[e] && blocker(v, e, done, &of, &by); e = v->event[by]) seen[e] = true;
  const uint32_t start = e;
  text[0] = '\0';
  do {
    if (!blocker(v, e, done, &of, &by)) break;
    if (shown++ < SHOWN && at < sizeof text) {
      const bool queue = instr_at(v, of)->stream == instr_at(v, by)->stream;
      at += (size_t)snprintf(
          text + at, sizeof text - at, "%s%s %s %s", shown > 1 ? "; " : "", label_at(v, of).text,
          queue ? "comes in its stream after" : "waits for", label_at(v, by).text);
    }
    e = v->event[by];
  } while (e != start);
  free(seen);
  if (shown > SHOWN) return verify_fault(v, "deadlock: %s; and %u more", text, shown - SHOWN);
  return verify_fault(v, "deadlock: %s", text);
}

static PiperStatus order_events(Verifier *v) {
  const uint32_t n_ranks = v->plan->n_ranks, n = v->first[n_ranks];
  PiperStatus st = PIPER_OK;
  uint32_t *needs = calloc(v->n_events + 1, sizeof *needs);
  uint32_t *queue = malloc((v->n_events + 1) * sizeof *queue), head = 0, tail = 0;
  bool *done = calloc(v->n_events + 1, sizeof *done);
  uint32_t *fill = malloc((n_ranks + 1) * sizeof *fill);
  v->place = malloc((v->n_events + 1) * sizeof *v->place);
  v->sorted = malloc((n + 1) * sizeof *v->sorted);
  if (needs == NULL || queue == NULL || done == NULL || fill == NULL || v->place == NULL ||
      v->sorted == NULL) {
    st = verify_nomem(v);
    goto out;
  }
  memcpy(fill, v->first, n_ranks * sizeof *fill);
  for (uint32_t g = 0; g < n; g++) {
    if (v->next[g] != NONE) needs[v->event[v->next[g]]]++;
    for (uint32_t k = v->waiter_first[g]; k < v->waiter_first[g + 1]; k++)
      needs[v->event[v->waiters[k]]]++;
  }
  for (uint32_t e = 0; e < v->n_events; e++)
    if (needs[e] == 0) queue[tail++] = e;
  while (head < tail) {
    const uint32_t e = queue[head];
    if ((st = interrupt_check_at(head, v->err)) != PIPER_OK) goto out;
    v->place[e] = head++;
    done[e] = true;
    for (uint32_t m = v->member_first[e]; m < v->member_first[e + 1]; m++) {
      const uint32_t g = v->members[m], r = v->rank_of[g];
      v->sorted[fill[r]++] = g - v->first[r];
      if (v->next[g] != NONE && --needs[v->event[v->next[g]]] == 0)
        queue[tail++] = v->event[v->next[g]];
      for (uint32_t k = v->waiter_first[g]; k < v->waiter_first[g + 1]; k++)
        if (--needs[v->event[v->waiters[k]]] == 0) queue[tail++] = v->event[v->waiters[k]];
    }
  }
  if (tail < v->n_events) st = report_circle(v, done);
out:
  free(needs), free(queue), free(done), free(fill);
  return st;
}

PiperStatus verify_meetings(Verifier *v) {
  Meet m = {.v = v};
  const uint32_t n = v->first[v->plan->n_ranks];
  PiperStatus st = PIPER_OK;
  m.line = malloc((n + 1) * sizeof *m.line);
  m.turn = malloc((n + 1) * sizeof *m.turn);
  v->event = malloc((n + 1) * sizeof *v->event);
  if (m.line == NULL || m.turn == NULL || v->event == NULL) st = verify_nomem(v);
  if (st == PIPER_OK) st = name_streams(&m);
  if (st == PIPER_OK) st = count_turns(&m);
  if (st == PIPER_OK) st = make_events(&m);
  if (st == PIPER_OK) st = check_events(&m);
  if (st == PIPER_OK) st = make_successors(v);
  if (st == PIPER_OK) st = order_events(v);
  intern_free(m.names);
  free(m.name), free(m.stream_first), free(m.slots), free(m.line), free(m.turn);
  vec_free(&m.lines);
  return st;
}
