/* plan_time - a step in virtual time; and how much longer it takes for the waits that reused memory has
 * added.
 *
 * An instruction begins when the one before it in its stream and those that it waits for have ended;
 * a pair or a collective begins when all its members can. Nodes are taken in the global order, and
 * the pieces of a TRANSFER in their one order (pieces.h): then all that an instruction comes after
 * was taken before it.
 *
 * Ranks that do the same at the same times are taken once. Such ranks have one colour: at first those
 * that are alike (plan_class.c); then colours are split until all ranks of one have, in every transfer,
 * peers of equal colours, whose pieces they are at the same place of. */
#include "plan/plan_time.h"

#include "base/hash.h"
#include "plan/pieces.h"
#include "plan/plan_lower.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

enum { MAX_TIMED = 1 << 19 }; /* instructions of all colours; of more it is no quick question */

typedef struct ColourTime {
  const RankPlan *rank; /* has the lists */
  uint32_t member;      /* index of a rank of this colour */
  double *end;          /* by instruction */
  double *stream;       /* by stream: when its last instruction ended */
  uint32_t first, next; /* instructions of the node at hand: [first, next) */
} ColourTime;

typedef struct Timing {
  const Plan *plan;
  uint32_t *colour, n_colours; /* by rank index */
  ColourTime *at;              /* by colour */
  uint32_t *set_first,
      *set_n; /* by device set: its colours, in 'of_sets'; NONE: not looked up yet */
  U32Vec of_sets;
  PieceVec sent, received;
  bool added;  /* the waits of the memory planner count */
  double last; /* end of the step */
  double *node_start, *node_end; /* by node, both or none: of its instructions on all ranks */
} Timing;

static uint32_t index_of(const Timing *t, int32_t rank) {
  return (uint32_t)devsets_position(t->plan->dag->devsets, t->plan->world, rank);
}

/* ---- colours --------------------------------------------------------------------------------- */

/* Numbers the different ones of 'hashes' in order of first use. */
static bool number(Timing *t, const uint64_t *hashes) {
  const uint32_t n = t->plan->n_ranks;
  uint32_t n_slots = 64;
  while (n_slots < 2 * n) n_slots *= 2;
  uint32_t *slots = calloc(n_slots, sizeof *slots); /* 1 + the first rank that has it */
  if (slots == NULL) return false;
  t->n_colours = 0;
  for (uint32_t r = 0; r < n; r++) {
    uint32_t i = (uint32_t)hashes[r] & (n_slots - 1);
    while (slots[i] != 0 && hashes[slots[i] - 1] != hashes[r]) i = (i + 1) & (n_slots - 1);
    if (slots[i] == 0) t->colour[r] = t->n_colours++, slots[i] = r + 1;
    else t->colour[r] = t->colour[slots[i] - 1];
  }
  free(slots);
  return true;
}

static void add(uint64_t *hash, uint32_t kind, bool sends, uint32_t peer, uint32_t place) {
  Hash h = HASH_START;
  hash_u64(&h, *hash);
  hash_u32(&h, kind << 1 | sends);
  hash_u32(&h, peer);
  hash_u32(&h, place);
  *hash = hash_end(&h);
}

/* Both sides of each piece learn the other's colour and its place there. 'n_received' by position. */
static bool look_at_transfer(Timing *t, uint32_t kind, uint32_t n, uint64_t *hashes,
                             uint32_t *n_received) {
  const Dag *d = t->plan->dag;
  memset(n_received, 0, devsets_size(d->devsets, d->devs[n]) * sizeof *n_received);
  for (uint32_t j = 0; j < devsets_size(d->devsets, d->src_devs[n]); j++) {
    if (!transfer_sends(d, (NodeId){n}, j, &t->sent)) return false;
    for (uint32_t k = 0; k < t->sent.n; k++) {
      const Piece *p = &t->sent.at[k];
      const uint32_t from = index_of(t, p->from), to = index_of(t, p->to);
      add(&hashes[from], kind, true, t->colour[to], n_received[p->pos]);
      add(&hashes[to], kind, false, t->colour[from], k);
      n_received[p->pos]++;
    }
  }
  return true;
}

static bool find_colours(Timing *t) {
  const Plan *p = t->plan;
  U32Vec kinds = {0};
  uint64_t *hashes = malloc(p->n_ranks * sizeof *hashes);
  uint32_t *n_received = malloc((p->n_ranks + 1) * sizeof *n_received);
  bool held = hashes != NULL && n_received != NULL && transfer_kinds(p->dag, &kinds);
  for (uint32_t r = 0; held && r < p->n_ranks; r++) hashes[r] = p->ranks[r].like;
  held = held && number(t, hashes);
  for (uint32_t before = 0; held && before < t->n_colours;) {
    before = t->n_colours;
    for (uint32_t r = 0; r < p->n_ranks; r++) hashes[r] = t->colour[r];
    for (uint32_t k = 0; held && k < kinds.n; k++)
      held = look_at_transfer(t, k, kinds.at[k], hashes, n_received);
    held = held && number(t, hashes);
  }
  free(hashes), free(n_received);
  vec_free(&kinds);
  return held;
}

/* The colours of a device set, each once: *n of them; NULL: out of memory. */
static const uint32_t *colours_of(Timing *t, uint32_t set, uint32_t *n) {
  const DevSets *sets = t->plan->dag->devsets;
  if (t->set_first[set] == NONE) {
    const uint32_t first = (uint32_t)t->of_sets.n;
    for (uint32_t j = 0; j < devsets_size(sets, set); j++) {
      const uint32_t c = t->colour[index_of(t, devsets_ranks(sets, set)[j])];
      uint32_t k = first;
      while (k < t->of_sets.n && t->of_sets.at[k] != c) k++;
      if (k == t->of_sets.n && !vec_push(&t->of_sets, c)) return NULL;
    }
    t->set_first[set] = first;
    t->set_n[set] = (uint32_t)t->of_sets.n - first;
  }
  *n = t->set_n[set];
  return t->of_sets.at + t->set_first[set];
}

/* ---- the clock ------------------------------------------------------------------------------- */

static double ready(const Timing *t, const ColourTime *r, uint32_t i) {
  const Instr *x = &r->rank->instrs.at[i];
  const uint32_t n = t->added ? x->n_waits : x->n_waits - x->n_added;
  double at = r->stream[x->stream];
  for (uint32_t k = 0; k < n; k++) {
    const double end = r->end[r->rank->waits.at[x->wait_first + k]];
    if (end > at) at = end;
  }
  return at;
}

static void finish(Timing *t, ColourTime *r, uint32_t i, double end) {
  const uint32_t n = r->rank->instrs.at[i].node;
  r->end[i] = r->stream[r->rank->instrs.at[i].stream] = end;
  if (end > t->last) t->last = end;
  if (t->node_end == NULL) return;
  const double start = end - t->plan->node_seconds[n];
  if (t->node_end[n] == 0 || start < t->node_start[n]) t->node_start[n] = start > 0 ? start : 0;
  if (end > t->node_end[n]) t->node_end[n] = end;
}

/* The node's instructions of each colour of the set, those that have no peer taken at once. */
static bool take_node(Timing *t, uint32_t node, uint32_t devs, double seconds) {
  uint32_t n = 0;
  const uint32_t *colours = colours_of(t, devs, &n);
  for (uint32_t c = 0; c < n; c++) {
    ColourTime *r = &t->at[colours[c]];
    const InstrVec *instrs = &r->rank->instrs;
    if (r->next < instrs->n && instrs->at[r->next].node == node) r->first = r->next;
    for (; r->next < instrs->n && instrs->at[r->next].node == node; r->next++)
      if (instrs->at[r->next].kind == INSTR_RUN)
        finish(t, r, r->next, ready(t, r, r->next) + seconds);
  }
  return colours != NULL || n == 0;
}

/* The k-th instruction of the node that is of this kind; NONE: there is none. */
static uint32_t find_instr(const ColourTime *r, uint32_t node, InstrKind kind, uint32_t k) {
  for (uint32_t i = r->first; i < r->next; i++) {
    const Instr *x = &r->rank->instrs.at[i];
    if (x->node == node && x->kind == kind && k-- == 0) return i;
  }
  return NONE;
}

static bool take_pieces(Timing *t, uint32_t node, double seconds) {
  const Dag *d = t->plan->dag;
  uint32_t n = 0;
  const uint32_t *colours = colours_of(t, d->src_devs[node], &n);
  if (colours == NULL) return n == 0;
  for (uint32_t c = 0; c < n; c++) {
    ColourTime *from = &t->at[colours[c]];
    const int32_t me = t->plan->ranks[from->member].rank;
    const int32_t pos = devsets_position(d->devsets, d->src_devs[node], me);
    if (!transfer_sends(d, (NodeId){node}, (uint32_t)pos, &t->sent)) return false;
    for (uint32_t k = 0; k < t->sent.n; k++) {
      const Piece *p = &t->sent.at[k];
      ColourTime *to = &t->at[t->colour[index_of(t, p->to)]];
      if (!transfer_pieces(d, (NodeId){node}, NONE, p->pos, &t->received)) return false;
      uint32_t place = 0; /* of the piece, among those that come there */
      while (place < t->received.n && t->received.at[place].from != me) place++;
      const uint32_t send = find_instr(from, node, INSTR_SEND, k),
                     recv = find_instr(to, node, INSTR_RECV, place);
      if (send == NONE) continue;
      double at = ready(t, from, send);
      if (recv != NONE && ready(t, to, recv) > at) at = ready(t, to, recv);
      finish(t, from, send, at + seconds);
      if (recv != NONE) finish(t, to, recv, at + seconds);
    }
  }
  return true;
}

static bool take_collective(Timing *t, uint32_t node, double seconds) {
  uint32_t n = 0;
  const uint32_t *colours = colours_of(t, t->plan->dag->devs[node], &n);
  double at = 0;
  for (int taking = 0; taking < 2; taking++)
    for (uint32_t c = 0; c < n; c++) {
      ColourTime *r = &t->at[colours[c]];
      for (uint32_t i = r->first; i < r->next; i++) {
        const Instr *x = &r->rank->instrs.at[i];
        if (x->node != node || !instr_is_collective(x->kind)) continue;
        if (taking) finish(t, r, i, at + seconds);
        else if (ready(t, r, i) > at) at = ready(t, r, i);
      }
    }
  return colours != NULL || n == 0;
}

static bool run_clock(Timing *t, double *end) {
  const Plan *plan = t->plan;
  const Dag *d = plan->dag;
  bool held = true;
  t->last = 0;
  for (uint32_t c = 0; c < t->n_colours; c++) {
    ColourTime *x = &t->at[c];
    memset(x->stream, 0, x->rank->streams.n * sizeof *x->stream);
    x->first = x->next = 0;
  }
  for (uint32_t k = 0; held && k < plan->n_order; k++) {
    const uint32_t n = plan->order[k];
    const double seconds = plan->node_seconds[n];
    if (d->kind[n] == NODE_TRANSFER) held = take_node(t, n, d->src_devs[n], seconds);
    held = held && take_node(t, n, d->devs[n], seconds);
    if (d->kind[n] == NODE_TRANSFER) held = held && take_pieces(t, n, seconds);
    else if (NODE_KIND_COMMUNICATES[d->kind[n]]) held = held && take_collective(t, n, seconds);
  }
  *end = t->last;
  return held;
}

/* Lists, and room for the times; *few: they are at most so many instructions. */
static PiperStatus prepare(Timing *t, uint64_t most, bool *few, PiperErr *err) {
  const Plan *p = t->plan;
  const uint32_t n_sets = devsets_count(p->dag->devsets);
  uint64_t n = 0;
  t->colour = malloc(p->n_ranks * sizeof *t->colour);
  t->set_first = malloc(n_sets * sizeof *t->set_first);
  t->set_n = malloc(n_sets * sizeof *t->set_n);
  if (t->colour == NULL || t->set_first == NULL || t->set_n == NULL || !find_colours(t) ||
      (t->at = calloc(t->n_colours, sizeof *t->at)) == NULL)
    return err_nomem(err, "compile");
  memset(t->set_first, 0xff, n_sets * sizeof *t->set_first);
  for (uint32_t r = p->n_ranks; r-- > 0;) t->at[t->colour[r]].member = r;
  for (uint32_t c = 0; c < t->n_colours; c++)
    for (int k = 0; k < INSTR_KIND_COUNT; k++) n += p->ranks[t->at[c].member].calls[k];
  *few = n <= most;
  for (uint32_t c = 0; *few && c < t->n_colours; c++) {
    ColourTime *x = &t->at[c];
    x->rank = &p->ranks[p->ranks[x->member].like];
    TRY(plan_lists_of(p, p->ranks[x->member].like, err));
    x->end = calloc(x->rank->instrs.n + 1, sizeof *x->end);
    x->stream = malloc((x->rank->streams.n + 1) * sizeof *x->stream);
    if (x->end == NULL || x->stream == NULL) return err_nomem(err, "compile");
  }
  return PIPER_OK;
}

static void timing_free(Timing *t) {
  for (uint32_t c = 0; t->at != NULL && c < t->n_colours; c++)
    free(t->at[c].end), free(t->at[c].stream);
  free(t->at), free(t->colour), free(t->set_first), free(t->set_n);
  vec_free(&t->of_sets), vec_free(&t->sent), vec_free(&t->received);
}

PiperStatus plan_find_wait_cost(Plan *plan, bool *known, PiperErr *err) {
  Timing t = {.plan = plan};
  uint64_t added = 0;
  double without = 0, with = 0;
  *known = false;
  plan->waits_seconds = 0;
  for (uint32_t r = 0; r < plan->n_ranks; r++) added += plan->ranks[r].waits_added;
  if (added == 0 || plan->node_seconds == NULL) return PIPER_OK;
  PiperStatus st = prepare(&t, MAX_TIMED, known, err);
  if (st == PIPER_OK && *known) {
    bool held = run_clock(&t, &without);
    t.added = true;
    held = held && run_clock(&t, &with);
    plan->waits_seconds = with - without;
    if (!held) st = err_nomem(err, "compile");
  }
  timing_free(&t);
  return st;
}

PiperStatus plan_node_times(const Plan *plan, double *start, double *end, PiperErr *err) {
  Timing t = {.plan = plan, .added = true, .node_start = start, .node_end = end};
  double last;
  bool few;
  memset(start, 0, plan->dag->n * sizeof *start);
  memset(end, 0, plan->dag->n * sizeof *end);
  if (plan->node_seconds == NULL) return PIPER_OK;
  PiperStatus st = prepare(&t, UINT64_MAX, &few, err);
  if (st == PIPER_OK && !run_clock(&t, &last)) st = err_nomem(err, "the times of a plan");
  timing_free(&t);
  return st;
}

PiperStatus plan_times_new(const Plan *plan, PlanTimes *out, PiperErr *err) {
  Timing t = {.plan = plan, .added = true};
  bool few;
  *out = (PlanTimes){.n_ranks = plan->n_ranks};
  PiperStatus st = prepare(&t, UINT64_MAX, &few, err);
  if (st == PIPER_OK) {
    out->end = calloc(plan->n_ranks, sizeof *out->end);
    if (out->end == NULL || !run_clock(&t, &out->seconds)) st = err_nomem(err, "the times of a plan");
  }
  for (uint32_t r = plan->n_ranks; st == PIPER_OK && r-- > 0;) { /* handed over, to the first at last */
    out->end[r] = t.at[t.colour[r]].end;
    if (t.at[t.colour[r]].member == r) t.at[t.colour[r]].end = NULL;
  }
  if (st == PIPER_OK) out->colour = t.colour, t.colour = NULL;
  if (st != PIPER_OK) plan_times_free(out);
  timing_free(&t);
  return st;
}

/* Ranks of one colour share their times. */
void plan_times_free(PlanTimes *t) {
  uint32_t n = 0; /* colours are numbered in order of first use */
  for (uint32_t r = 0; t->colour != NULL && r < t->n_ranks; r++)
    if (t->colour[r] == n) free(t->end[r]), n++;
  free(t->end), free(t->colour);
  *t = (PlanTimes){0};
}
