/* List scheduling by events.
 *
 * Virtual time runs from completion to completion. At each instant, of the nodes whose predecessors
 * have all ended and whose queues are all free, the most urgent starts; this repeats until none is
 * left that can start. A node then occupies its queues for its seconds. Urgency is: counts of
 * targets, and a backward pass where no order directive says more, before everything else; the
 * rule's priority; backward before the rest; the smaller id.
 *
 * The order is that of the starts, so it is by start time. It is topological also where nodes take
 * no time: a node starts only after each predecessor has ended, hence after it started, at the same
 * instant or not, and so stands behind it. All nodes start, since a node that is ready waits for
 * queues only, and whoever holds them ends.
 *
 * Ready nodes wait in one heap for each set of queues (order_sets.h). A set is looked at only when
 * one of its queues comes free or a node of it becomes ready: its first node then goes into the heap
 * of candidates. So a node costs O(log n) and the sets that share an atom with its own.
 *
 * Where groups have members that may overlap, the same is done twice more, with other ranks of urgency
 * within such groups and with members kept apart (order_members.h); the fastest order stays.
 *
 * Last, transfers are moved back to where they are needed: behind the start of the compute node
 * that runs just before the first consumer (one use ahead), when they stand before it. Data that is
 * fetched long before its use only takes memory. What moves goes right behind a compute node that
 * stands before all of its successors, and compute nodes stay: still topological. */
#include "ir/global_order.h"

#include "base/interrupt.h"
#include "ir/order_members.h"
#include "ir/order_priority.h"
#include "ir/order_sets.h"
#include "ir/topo.h"

#include <stdlib.h>
#include <string.h>

/* ---- edges ----------------------------------------------------------------------------------- */

static void successors_free(Successors *g) {
  free(g->first);
  free(g->succ);
  free(g->n_preds);
  free(g->topo);
  *g = (Successors){0};
}

static void fill_successors(const Dag *d, Successors *g) {
  for (size_t e = 1; e < d->edges.n; e++) {
    if (d->edges.at[e].src == 0) continue;
    g->first[d->edges.at[e].src]++;
    g->n_preds[d->edges.at[e].dst]++;
  }
  uint32_t end = 0; /* counts become ends; filling turns ends into starts */
  for (uint32_t i = 0; i <= d->n; i++) g->first[i] = end += g->first[i];
  for (size_t e = d->edges.n; e-- > 1;)
    if (d->edges.at[e].src != 0) g->succ[--g->first[d->edges.at[e].src]] = d->edges.at[e].dst;
}

/* Kahn's algorithm; the order is its own queue. 'left' is scratch. */
static void find_topo(Successors *g, uint32_t *left) {
  memcpy(left, g->n_preds, g->n * sizeof *left);
  for (uint32_t i = 1; i < g->n; i++)
    if (left[i] == 0) g->topo[g->n_topo++] = i;
  for (uint32_t k = 0; k < g->n_topo; k++)
    for (uint32_t e = g->first[g->topo[k]]; e < g->first[g->topo[k] + 1]; e++)
      if (--left[g->succ[e]] == 0) g->topo[g->n_topo++] = g->succ[e];
}

static PiperStatus successors_new(const Dag *d, Successors *g, PiperErr *err) {
  uint32_t *left = malloc(d->n * sizeof *left);
  *g = (Successors){.n = d->n,
                    .first = calloc((size_t)d->n + 1, sizeof *g->first),
                    .succ = malloc(d->edges.n * sizeof *g->succ),
                    .n_preds = calloc(d->n, sizeof *g->n_preds),
                    .topo = malloc(d->n * sizeof *g->topo)};
  const bool ok =
      left != NULL && g->first != NULL && g->succ != NULL && g->n_preds != NULL && g->topo != NULL;
  if (ok) {
    fill_successors(d, g);
    find_topo(g, left);
  }
  free(left);
  if (ok) return PIPER_OK;
  successors_free(g);
  return err_nomem(err, "global order");
}

/* ---- urgency --------------------------------------------------------------------------------- */

static bool is_backward(const Dag *d, uint32_t n) {
  return d->kind[n] == NODE_COMPUTE && d->pass[n] != PASS_F && d->pass[n] != PASS_NONE;
}

/* Stable sort of 'ids' by keys[id], 11 bits at a time; digits that are all the same are skipped. */
static void radix_sort(uint32_t *ids, uint32_t *other, uint32_t n, const uint64_t *keys) {
  uint32_t *from = ids, *to = other;
  for (int shift = 0; shift < 64; shift += 11) {
    uint32_t start[2049] = {0};
    for (uint32_t i = 0; i < n; i++) start[(keys[from[i]] >> shift & 2047) + 1]++;
    if (n > 0 && start[(keys[from[0]] >> shift & 2047) + 1] == n) continue;
    for (int b = 0; b < 2047; b++) start[b + 1] += start[b];
    for (uint32_t i = 0; i < n; i++) to[start[keys[from[i]] >> shift & 2047]++] = from[i];
    uint32_t *swap = from;
    from = to;
    to = swap;
  }
  if (from != ids) memcpy(ids, from, n * sizeof *ids);
}

typedef struct Urgency {
  uint32_t *at;   /* nodes, most urgent first */
  uint32_t *rank; /* by node: its index in 'at' */
} Urgency;

/* priority[i] >= 0. 'keys' (by node) and 'other' are scratch. */
static void rank_nodes(const Dag *d, const bool *backward_first, const uint32_t *set,
                       const double *priority, uint64_t *keys, uint32_t *other, Urgency *u) {
  uint32_t n = 0;
  for (uint32_t i = 1; i < d->n; i++) {
    uint64_t
        bits; /* of a double that is not negative: in the order of the numbers, sign bit free */
    memcpy(&bits, &priority[i], sizeof bits);
    const bool first = d->kind[i] == NODE_COUNT || (is_backward(d, i) && backward_first[set[i]]);
    keys[i] = ~bits & UINT64_MAX >> 1;
    if (!first) keys[i] |= UINT64_C(1) << 63;
  }
  for (int backward = 1; backward >= 0; backward--)
    for (uint32_t i = 1; i < d->n; i++)
      if (is_backward(d, i) == (backward != 0)) u->at[n++] = i;
  radix_sort(u->at, other, n, keys);
  for (uint32_t r = 0; r < n; r++) u->rank[u->at[r]] = r;
}

/* ---- heaps ----------------------------------------------------------------------------------- */

/* Smallest number first. */
static void heap_push(uint32_t *heap, uint32_t *n, uint32_t x) {
  uint32_t i = (*n)++;
  for (; i > 0 && heap[(i - 1) / 2] > x; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
  heap[i] = x;
}

static uint32_t heap_pop(uint32_t *heap, uint32_t *n) {
  const uint32_t top = heap[0], x = heap[--*n];
  uint32_t i = 0;
  for (;;) {
    uint32_t c = 2 * i + 1;
    if (c >= *n) break;
    if (c + 1 < *n && heap[c + 1] < heap[c]) c++;
    if (heap[c] >= x) break;
    heap[i] = heap[c];
    i = c;
  }
  heap[i] = x;
  return top;
}

/* A node that is running. */
typedef struct Ending {
  double at;
  uint32_t node;
} Ending;

static bool ends_before(Ending a, Ending b) {
  return a.at < b.at || (a.at == b.at && a.node < b.node);
}

static void endings_push(Ending *heap, uint32_t *n, Ending x) {
  uint32_t i = (*n)++;
  for (; i > 0 && ends_before(x, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
  heap[i] = x;
}

static Ending endings_pop(Ending *heap, uint32_t *n) {
  const Ending top = heap[0], x = heap[--*n];
  uint32_t i = 0;
  for (;;) {
    uint32_t c = 2 * i + 1;
    if (c >= *n) break;
    if (c + 1 < *n && ends_before(heap[c + 1], heap[c])) c++;
    if (!ends_before(heap[c], x)) break;
    heap[i] = heap[c];
    i = c;
  }
  heap[i] = x;
  return top;
}

/* ---- virtual time ---------------------------------------------------------------------------- */

typedef VEC(uint32_t) Candidates;

typedef struct Clock {
  const Successors *g;
  const OrderSets *sets;
  const Urgency *urgency;
  const double *seconds;
  const OrderMembers *apart;               /* run one after another; NULL: they may overlap */
  uint32_t *member_left;                   /* by member of these: nodes that have not ended */
  uint32_t *left;                          /* by node: predecessors that have not ended */
  uint32_t *ready, *ready_first, *n_ready; /* heaps of ranks, one a set: ready + ready_first[set] */
  Candidates candidates; /* a heap of ranks; may hold nodes that have started since */
  Ending *endings;
  uint32_t n_endings;
  bool *busy; /* by atom */
  uint32_t *order, n;
  double *start; /* by node */
  double now;
  PiperErr *err;
  PiperStatus failed;
} Clock;

static void look_at(Clock *c, uint32_t set) {
  if (c->n_ready[set] == 0) return;
  if (!vec_reserve(&c->candidates, 1)) {
    c->failed = err_nomem(c->err, "global order");
    return;
  }
  uint32_t n = (uint32_t)c->candidates.n;
  heap_push(c->candidates.at, &n, c->ready[c->ready_first[set]]);
  c->candidates.n = n;
}

static void make_ready(Clock *c, uint32_t node) {
  const uint32_t set = c->sets->set[node], rank = c->urgency->rank[node];
  uint32_t *heap = c->ready + c->ready_first[set];
  heap_push(heap, &c->n_ready[set], rank);
  if (heap[0] == rank) look_at(c, set);
}

/* After a member's last node the next one may begin. */
static void end_of_member(Clock *c, uint32_t node) {
  const OrderMembers *m = c->apart;
  const uint32_t next = m->of[node] + 1;
  if (m->of[node] == 0 || --c->member_left[next - 1] > 0 || next == m->n || !m->follows[next]) return;
  for (uint32_t k = m->first[next]; k < m->first[next + 1]; k++)
    if (--c->left[m->nodes[k]] == 0) make_ready(c, m->nodes[k]);
}

static void end_node(Clock *c, uint32_t node) {
  const OrderSets *s = c->sets;
  const uint32_t set = s->set[node];
  for (uint32_t i = s->atom_first[set]; i < s->atom_first[set + 1]; i++)
    c->busy[s->atoms[i]] = false;
  for (uint32_t i = s->atom_first[set]; i < s->atom_first[set + 1]; i++)
    for (uint32_t k = s->set_first[s->atoms[i]]; k < s->set_first[s->atoms[i] + 1]; k++)
      look_at(c, s->sets[k]);
  for (uint32_t e = c->g->first[node]; e < c->g->first[node + 1]; e++)
    if (--c->left[c->g->succ[e]] == 0) make_ready(c, c->g->succ[e]);
  if (c->apart != NULL) end_of_member(c, node);
}

static void start_node(Clock *c, uint32_t node) {
  const OrderSets *s = c->sets;
  const uint32_t set = s->set[node];
  c->order[c->n++] = node;
  c->start[node] = c->now;
  for (uint32_t i = s->atom_first[set]; i < s->atom_first[set + 1]; i++)
    c->busy[s->atoms[i]] = true;
  endings_push(c->endings, &c->n_endings, (Ending){c->now + c->seconds[node], node});
}

static bool is_free(const Clock *c, uint32_t set) {
  for (uint32_t i = c->sets->atom_first[set]; i < c->sets->atom_first[set + 1]; i++)
    if (c->busy[c->sets->atoms[i]]) return false;
  return true;
}

static void start_candidates(Clock *c) {
  while (c->candidates.n > 0) {
    uint32_t n = (uint32_t)c->candidates.n;
    const uint32_t rank = heap_pop(c->candidates.at, &n), node = c->urgency->at[rank];
    c->candidates.n = n;
    const uint32_t set = c->sets->set[node];
    uint32_t *heap = c->ready + c->ready_first[set];
    if (c->n_ready[set] == 0 || heap[0] != rank || !is_free(c, set)) continue;
    heap_pop(heap, &c->n_ready[set]);
    start_node(c, node);
    if (c->sets->atom_first[set] == c->sets->atom_first[set + 1])
      look_at(c, set); /* free as ever */
  }
}

static void run_clock(Clock *c) {
  for (uint32_t i = 1; i < c->g->n; i++)
    if (c->left[i] == 0) make_ready(c, i);
  for (uint64_t i = 0;; i++) {
    start_candidates(c);
    if (c->failed == PIPER_OK) c->failed = interrupt_check_at(i, c->err);
    if (c->n_endings == 0 || c->failed != PIPER_OK) return;
    c->now = c->endings[0].at;
    while (c->n_endings > 0 && c->endings[0].at == c->now)
      end_node(c, endings_pop(c->endings, &c->n_endings).node);
  }
}

static void clock_free(Clock *c) {
  free(c->left);
  free(c->ready);
  free(c->ready_first);
  free(c->n_ready);
  free(c->endings);
  free(c->busy);
  free(c->member_left);
  vec_free(&c->candidates);
}

/* The first node of a member waits for the one before, too. */
static void hold_members(Clock *c) {
  const OrderMembers *m = c->apart;
  for (uint32_t i = 1; i < m->n; i++) {
    c->member_left[i] = m->first[i + 1] - m->first[i];
    for (uint32_t k = m->first[i]; m->follows[i] && k < m->first[i + 1]; k++) c->left[m->nodes[k]]++;
  }
}

/* Fills 'order' and 'start'; *end is the time at the end, < 0 where members cannot run one after another,
 * since one waits for a later one. */
static PiperStatus schedule(const Successors *g, const OrderSets *sets, const Urgency *u,
                            const OrderMembers *apart, const double *seconds, uint32_t *order,
                            double *start, double *end, PiperErr *err) {
  Clock c = {.g = g,
             .sets = sets,
             .urgency = u,
             .apart = apart,
             .seconds = seconds,
             .order = order,
             .start = start,
             .err = err};
  c.left = malloc(g->n * sizeof *c.left);
  c.ready = malloc(g->n * sizeof *c.ready);
  c.ready_first = calloc((size_t)sets->n_sets + 1, sizeof *c.ready_first);
  c.n_ready = calloc(sets->n_sets, sizeof *c.n_ready);
  c.endings = malloc(g->n * sizeof *c.endings);
  c.busy = calloc((size_t)sets->n_atoms + 1, sizeof *c.busy);
  c.member_left = malloc(((apart != NULL ? apart->n : 0) + 1) * sizeof *c.member_left);
  if (c.member_left == NULL || c.left == NULL || c.ready == NULL || c.ready_first == NULL ||
      c.n_ready == NULL || c.endings == NULL || c.busy == NULL) {
    c.failed = err_nomem(err, "global order");
  } else {
    memcpy(c.left, g->n_preds, g->n * sizeof *c.left);
    for (uint32_t i = 1; i < g->n; i++) c.ready_first[sets->set[i] + 1]++;
    for (uint32_t s = 0; s < sets->n_sets; s++) c.ready_first[s + 1] += c.ready_first[s];
    if (apart != NULL) hold_members(&c);
    run_clock(&c);
  }
  *end = c.n + 1 == g->n ? c.now : -1;
  clock_free(&c);
  return c.failed;
}

/* ---- transfers just in time ------------------------------------------------------------------ */

/* By node: the order's index of the compute node that the same ranks run before it (with several
 * ranks, the earliest); UINT32_MAX: none. Nodes that take no time are no use to wait for. */
static void find_previous(const Dag *d, const OrderSets *s, const double *seconds,
                          const uint32_t *order, uint32_t n, uint32_t *last, uint32_t *previous) {
  for (uint32_t a = 0; a < s->n_atoms; a++) last[a] = UINT32_MAX;
  for (uint32_t k = 0; k < n; k++) {
    const uint32_t node = order[k], set = s->set[node];
    uint32_t earliest = UINT32_MAX;
    bool none = d->kind[node] != NODE_COMPUTE;
    for (uint32_t i = s->atom_first[set]; i < s->atom_first[set + 1]; i++) {
      const uint32_t at = last[s->atoms[i]];
      if (at == UINT32_MAX) none = true;
      else if (at < earliest || earliest == UINT32_MAX) earliest = at;
      if (d->kind[node] == NODE_COMPUTE && seconds[node] > 0) last[s->atoms[i]] = k;
    }
    previous[node] = none ? UINT32_MAX : earliest;
  }
}

/* The place behind which a transfer is wanted; 'at' (by node) are places in the order. */
static uint32_t wanted_behind(const Successors *g, const uint32_t *at, const uint32_t *previous,
                              uint32_t node) {
  uint32_t first = 0; /* its first successor */
  for (uint32_t e = g->first[node]; e < g->first[node + 1]; e++)
    if (first == 0 || at[g->succ[e]] < at[first]) first = g->succ[e];
  return first == 0 ? UINT32_MAX : previous[first];
}

/* Rewrites o->order, and o->start of what moves. */
static PiperStatus delay_transfers(const Dag *d, const Successors *g, const OrderSets *s,
                                   const double *seconds, GlobalOrder *o, PiperErr *err) {
  uint32_t *const order = o->order;
  const uint32_t n = o->n;
  uint32_t *block = malloc(((size_t)d->n * 4 + n + s->n_atoms + 1) * sizeof *block);
  if (block == NULL) return err_nomem(err, "global order");
  uint32_t *at = block, *previous = at + d->n, *next = previous + d->n, *end = next + d->n;
  uint32_t *old = end + d->n, *last = old + n;
  find_previous(d, s, seconds, order, n, last, previous);
  memcpy(old, order, n * sizeof *old);
  memset(next, 0,
         2 * (size_t)d->n * sizeof *next); /* next and end: a list behind each node, 0 ends it */
  for (uint32_t k = 0; k < n; k++) at[order[k]] = k;
  uint32_t n_out = 0;
  for (uint32_t k = 0; k < n; k++) {
    const uint32_t node = old[k];
    const uint32_t behind =
        d->kind[node] == NODE_TRANSFER ? wanted_behind(g, at, previous, node) : UINT32_MAX;
    if (behind != UINT32_MAX && behind > k) {
      const uint32_t p = old[behind], tail = end[p] != 0 ? end[p] : p;
      next[tail] = node;
      end[p] = node;
      o->start[node] = o->start[p];
      continue;
    }
    order[n_out++] = node;
    for (uint32_t t = end[node] != 0 ? next[node] : 0; t != 0; t = next[t]) order[n_out++] = t;
  }
  free(block);
  return PIPER_OK;
}

/* ---- the choice ------------------------------------------------------------------------------ */

typedef struct Scheduling {
  const Dag *d;
  const double *seconds;
  Successors g;
  OrderSets sets;
  OrderMembers members;
  bool *backward_first; /* by set: no order directive names a node of it */
  double *priority;     /* scratch of try_rule, by node */
  uint64_t *keys;
  uint32_t *other;
  Urgency urgency;
} Scheduling;

/* One order by the urgency at hand; becomes the result where it is faster. *seconds is what it takes. */
static PiperStatus try_order(Scheduling *w, OrderRule rule, const OrderMembers *apart, double *seconds,
                             GlobalOrder *out, PiperErr *err) {
  uint32_t *order = malloc(w->d->n * sizeof *order);
  double *start = malloc(w->d->n * sizeof *start);
  PiperStatus st = order != NULL && start != NULL ? PIPER_OK : err_nomem(err, "global order");
  if (st == PIPER_OK)
    st = schedule(&w->g, &w->sets, &w->urgency, apart, w->seconds, order, start, seconds, err);
  const bool better = out->order == NULL || *seconds < out->seconds[out->rule];
  if (st != PIPER_OK || *seconds < 0 || !better) {
    free(order), free(start);
    return st;
  }
  free(out->order), free(out->start);
  out->order = order;
  out->start = start;
  out->rule = rule;
  out->seconds[rule] = *seconds;
  return PIPER_OK;
}

static PiperStatus try_rule(Scheduling *w, OrderRule rule, GlobalOrder *out, PiperErr *err) {
  double plain, apart = -1, exchange;
  if (rule == ORDER_CRITICAL_PATH) priority_critical_path(&w->g, w->seconds, w->priority);
  else TRY(priority_downstream(&w->g, w->priority, err));
  rank_nodes(w->d, w->backward_first, w->sets.set, w->priority, w->keys, w->other, &w->urgency);
  TRY(try_order(w, rule, NULL, &plain, out, err));
  if (out->seconds[rule] == 0) out->seconds[rule] = plain;
  if (w->members.n == 0) return PIPER_OK;
  TRY(try_order(w, rule, &w->members, &apart, out, err));
  if (apart >= 0 && (out->apart_seconds == 0 || apart < out->apart_seconds)) out->apart_seconds = apart;
  if (!order_members_by_exchange(&w->members, w->urgency.at, w->urgency.rank))
    return err_nomem(err, "global order");
  TRY(try_order(w, rule, NULL, &exchange, out, err));
  if (apart >= 0 && apart < plain) plain = apart;
  out->seconds[rule] = exchange < plain ? exchange : plain;
  return PIPER_OK;
}

static PiperStatus prepare(Scheduling *w, PiperErr *err) {
  const uint32_t n = w->d->n;
  TRY(successors_new(w->d, &w->g, err));
  if (w->g.n_topo != n - 1) { /* topo_order finds the words for the cycle */
    Adjacency a;
    uint32_t *order = malloc(n * sizeof *order), count;
    PiperStatus st = order != NULL ? adjacency_new(w->d, &a, err) : err_nomem(err, "global order");
    if (st == PIPER_OK) {
      st = topo_order(w->d, &a, order, &count, err);
      adjacency_free(&a);
    }
    free(order);
    return st;
  }
  TRY(order_sets_new(w->d, &w->sets, err));
  TRY(order_members_new(w->d, &w->g, w->seconds, &w->members, err));
  w->backward_first = malloc(w->sets.n_sets * sizeof *w->backward_first);
  w->priority = calloc(n, sizeof *w->priority);
  w->keys = malloc(n * sizeof *w->keys);
  w->other = malloc(n * sizeof *w->other);
  w->urgency.at = malloc(n * sizeof *w->urgency.at);
  w->urgency.rank = malloc(n * sizeof *w->urgency.rank);
  if (w->backward_first == NULL || w->priority == NULL || w->keys == NULL || w->other == NULL ||
      w->urgency.at == NULL || w->urgency.rank == NULL)
    return err_nomem(err, "global order");
  memset(w->backward_first, true, w->sets.n_sets * sizeof *w->backward_first);
  for (uint32_t i = 1; i < n; i++)
    if (w->d->order_of[i] != 0) w->backward_first[w->sets.set[i]] = false;
  return PIPER_OK;
}

PiperStatus global_order(const Dag *d, const double *seconds, OrderRule rule, GlobalOrder *out,
                         PiperErr *err) {
  *out = (GlobalOrder){.n = d->n - 1};
  Scheduling w = {.d = d, .seconds = seconds};
  PiperStatus st = prepare(&w, err);
  if (st == PIPER_OK && rule != ORDER_DOWNSTREAM) st = try_rule(&w, ORDER_CRITICAL_PATH, out, err);
  if (st == PIPER_OK && rule != ORDER_CRITICAL_PATH) st = try_rule(&w, ORDER_DOWNSTREAM, out, err);
  if (st == PIPER_OK) st = delay_transfers(d, &w.g, &w.sets, seconds, out, err);
  successors_free(&w.g);
  order_sets_free(&w.sets);
  order_members_free(&w.members);
  free(w.backward_first);
  free(w.priority);
  free(w.keys);
  free(w.other);
  free(w.urgency.at);
  free(w.urgency.rank);
  if (st != PIPER_OK) global_order_free(out);
  return st;
}

void global_order_free(GlobalOrder *o) {
  free(o->order);
  free(o->start);
  *o = (GlobalOrder){0};
}
