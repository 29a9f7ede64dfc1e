/* A stream is at its first instruction that has not completed. That instruction waits for one of
 * another stream of its rank (plan: waits), or for its peers (the matching instruction of another
 * rank), or it is at work. Whatever it waits for lies on a stream that is at that instruction or
 * before it; so "waits for" leads from stream to stream, each to one other, and following it ends
 * at a stream that is at work, or goes round. */
#include "runtime/watchdog.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum Why {
  WHY_DONE,      /* all its instructions are complete */
  WHY_AT_WORK,
  WHY_WAITS,     /* for 'on' */
  WHY_UNMATCHED, /* no instruction of the peer matches: the plan is wrong */
} Why;

typedef struct Where {
  uint32_t rank;   /* index into plan->ranks */
  uint32_t stream;
  uint32_t instr;  /* what it is at */
  bool begun;
  Why why;
  uint32_t on_rank, on_instr; /* WAITS */
  uint32_t on;     /* WAITS: index of the stream that has to get there */
  uint32_t votes;  /* streams that are held up by this one */
} Where;

typedef struct Look {
  const Plan *plan;
  const RankExec *ranks;
  Where *at;        /* streams, rank by rank */
  uint32_t *first;  /* by rank: index of its first stream */
  uint32_t n;
  char *buf;        /* the report */
  size_t size, used;
} Look;

static void say(Look *l, const char *fmt, ...) PIPER_PRINTF(2, 3);
static void say(Look *l, const char *fmt, ...) {
  va_list args;
  int n;
  if (l->used >= l->size) return;
  va_start(args, fmt);
  n = vsnprintf(l->buf + l->used, l->size - l->used, fmt, args);
  va_end(args);
  if (n > 0) l->used += (size_t)n;
}

static void say_instr(Look *l, uint32_t rank, uint32_t instr) {
  char label[256];
  plan_instr_label(l->plan, l->ranks[rank].rank, instr, label, sizeof label);
  say(l, "%s", label);
}

static const Instr *instr_at(const Look *l, uint32_t rank, uint32_t i) {
  return &l->ranks[rank].rank->instrs.at[i];
}

static const char *stream_name(const Look *l, uint32_t rank, uint32_t i) {
  const RankPlan *r = l->ranks[rank].rank;
  return r->streams.at[r->instrs.at[i].stream].name;
}

static Where *stream_of(const Look *l, uint32_t rank, uint32_t instr) {
  return &l->at[l->first[rank] + instr_at(l, rank, instr)->stream];
}

static bool complete(const Look *l, uint32_t rank, uint32_t instr) {
  return stream_of(l, rank, instr)->instr > instr;
}

/* Do the two meet, if they are the k-th of their kind? */
static bool alike(const Look *l, uint32_t rank, uint32_t i, uint32_t peer, uint32_t j) {
  const Instr *a = instr_at(l, rank, i), *b = instr_at(l, peer, j);
  if (strcmp(stream_name(l, rank, i), stream_name(l, peer, j)) != 0) return false;
  switch ((InstrKind)a->kind) {
  case INSTR_SEND:
  case INSTR_RECV:
    return b->kind == (a->kind == INSTR_SEND ? INSTR_RECV : INSTR_SEND) &&
           a->peer == l->ranks[peer].rank->rank && b->peer == l->ranks[rank].rank->rank;
  case INSTR_ALL_REDUCE:
  case INSTR_REDUCE_SCATTER:
  case INSTR_ALL_GATHER:
  case INSTR_ALL_TO_ALL:
    return b->kind == a->kind && a->group == b->group;
  case INSTR_RUN:
  case INSTR_KIND_COUNT:
    break;
  }
  return false;
}

static bool same_queue(const Look *l, uint32_t rank, uint32_t i, uint32_t j) {
  const Instr *a = instr_at(l, rank, i), *b = instr_at(l, rank, j);
  return a->kind == b->kind && a->stream == b->stream && a->peer == b->peer && a->group == b->group;
}

/* The instruction of 'peer' that instruction i of 'rank' meets; UINT32_MAX: none. */
static uint32_t match(const Look *l, uint32_t rank, uint32_t i, uint32_t peer) {
  const RankPlan *p = l->ranks[peer].rank;
  uint32_t k = 0;
  for (uint32_t j = 0; j < i; j++) k += same_queue(l, rank, i, j);
  for (uint32_t j = 0; j < p->instrs.n; j++) {
    if (alike(l, rank, i, peer, j) && k-- == 0) return j;
  }
  return UINT32_MAX;
}

static void waits(Look *l, Where *w, uint32_t rank, uint32_t instr) {
  w->why = WHY_WAITS;
  w->on_rank = rank;
  w->on_instr = instr;
  w->on = (uint32_t)(stream_of(l, rank, instr) - l->at);
}

/* Communication that has begun waits for the first peer that has not. */
static void look_at_peers(Look *l, Where *w) {
  const Instr *i = instr_at(l, w->rank, w->instr);
  for (uint32_t peer = 0; peer < l->plan->n_ranks; peer++) {
    const int32_t number = l->ranks[peer].rank->rank;
    const bool member = instr_is_collective(i->kind)
                            ? devsets_position(l->plan->dag->devsets, i->group, number) >= 0
                            : i->peer == number;
    uint32_t other;
    if (peer == w->rank || !member) continue;
    other = match(l, w->rank, w->instr, peer);
    if (other == UINT32_MAX) {
      w->why = WHY_UNMATCHED;
      w->on_rank = peer;
      return;
    }
    if (!complete(l, peer, other) &&
        !(stream_of(l, peer, other)->instr == other && stream_of(l, peer, other)->begun)) {
      waits(l, w, peer, other);
      return;
    }
  }
}

static void look(Look *l, Where *w) {
  const RankPlan *r = l->ranks[w->rank].rank;
  const Instr *i;
  if (w->instr == DEVICE_NO_LABEL) {
    w->why = WHY_DONE;
    return;
  }
  i = instr_at(l, w->rank, w->instr);
  w->why = WHY_AT_WORK;
  for (uint32_t k = 0; !w->begun && k < i->n_waits; k++) {
    const uint32_t before = r->waits.at[i->wait_first + k];
    if (complete(l, w->rank, before)) continue;
    waits(l, w, w->rank, before);
    return;
  }
  if (w->begun && i->kind != INSTR_RUN) look_at_peers(l, w);
}

/* Where following 'waits' from stream i ends: a stream that waits for no other; in a circle, that
 * member of it with the smallest index. */
static uint32_t follow(const Look *l, uint32_t i) {
  uint32_t lowest;
  for (uint32_t steps = 0; steps < l->n && l->at[i].why == WHY_WAITS; steps++) i = l->at[i].on;
  lowest = i;
  if (l->at[i].why != WHY_WAITS) return i;
  for (uint32_t j = l->at[i].on; j != i; j = l->at[j].on) {
    if (j < lowest) lowest = j;
  }
  return lowest;
}

static void say_cause(Look *l, uint32_t cause) {
  const Where *w = &l->at[cause];
  switch (w->why) {
  case WHY_DONE:
    say(l, "every instruction is complete");
    return;
  case WHY_AT_WORK:
    say(l, "the cause is ");
    say_instr(l, w->rank, w->instr);
    say(l, w->begun ? ", which is at work" : ", which could begin and does not");
    return;
  case WHY_UNMATCHED:
    say(l, "the cause is ");
    say_instr(l, w->rank, w->instr);
    say(l, ", for which rank %d has no counterpart", (int)l->ranks[w->on_rank].rank->rank);
    return;
  case WHY_WAITS:
    say(l, "the cause is a circle: ");
    say_instr(l, w->rank, w->instr);
    for (uint32_t i = w->on;; i = l->at[i].on) {
      say(l, " waits for ");
      say_instr(l, l->at[i].rank, l->at[i].instr);
      if (i == cause) return;
    }
  }
}

static void say_stream(Look *l, const Where *w) {
  const RankPlan *r = l->ranks[w->rank].rank;
  if (w->why == WHY_DONE) return;
  say(l, "\n  %s: ", r->streams.at[w->stream].name);
  say_instr(l, w->rank, w->instr);
  if (w->why == WHY_AT_WORK) say(l, w->begun ? " is at work" : " could begin");
  if (w->why == WHY_UNMATCHED) {
    say(l, " has no counterpart on rank %d", (int)l->ranks[w->on_rank].rank->rank);
  }
  if (w->why == WHY_WAITS) {
    say(l, " waits for ");
    say_instr(l, w->on_rank, w->on_instr);
  }
}

void watchdog_report(const Plan *plan, const RankExec *ranks, char *buf, size_t n) {
  Look l = {.plan = plan, .ranks = ranks, .buf = buf, .size = n};
  uint32_t cause = 0;
  buf[0] = '\0';
  for (uint32_t r = 0; r < plan->n_ranks; r++) l.n += (uint32_t)ranks[r].rank->streams.n;
  l.at = calloc((size_t)l.n + 1, sizeof *l.at);
  l.first = calloc((size_t)plan->n_ranks + 1, sizeof *l.first);
  if (l.at == NULL || l.first == NULL || l.n == 0) goto out;
  for (uint32_t r = 0, i = 0; r < plan->n_ranks; r++) {
    l.first[r] = i;
    for (uint32_t s = 0; s < ranks[r].rank->streams.n; s++, i++) {
      l.at[i].rank = r;
      l.at[i].stream = s;
      l.at[i].instr = ranks[r].device->ops->position(ranks[r].streams[s], &l.at[i].begun);
    }
  }
  for (uint32_t i = 0; i < l.n; i++) look(&l, &l.at[i]);
  for (uint32_t i = 0; i < l.n; i++) {
    if (l.at[i].why != WHY_DONE) l.at[follow(&l, i)].votes++;
  }
  for (uint32_t i = 1; i < l.n; i++) {
    if (l.at[i].votes > l.at[cause].votes) cause = i;
  }
  say_cause(&l, cause);
  for (uint32_t i = 0; i < l.n; i++) say_stream(&l, &l.at[i]);
out:
  free(l.at);
  free(l.first);
}
