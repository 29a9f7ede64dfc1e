/* Adjacency by counting sort; Kahn's algorithm with a bit set as the queue of ready nodes, so that
 * the whole is O(nodes + edges) with a factor of at most six for the levels of the set.
 *
 * When nodes are left over there is a cycle among them, and the message shows a short one: nodes
 * from which none can be reached are cut off as well, then a breadth-first search from the end of
 * each temporal edge back to its start finds the shortest cycle through it. The shortest of all is
 * shown, within a bound on the work. */
#include "ir/topo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

PiperStatus adjacency_new(const Dag *d, Adjacency *out, PiperErr *err) {
  const size_t n = d->n, n_edges = d->edges.n;
  uint32_t *block = calloc(2 * (n + 1) + 2 * n_edges, sizeof *block);
  if (block == NULL) return err_nomem(err, "adjacency");
  Adjacency a = {.out_first = block,
                 .in_first = block + n + 1,
                 .out_edge = block + 2 * (n + 1),
                 .in_edge = block + 2 * (n + 1) + n_edges};
  const Edge *edges = d->edges.at;
  for (size_t e = 1; e < n_edges; e++) {
    if (edges[e].src == 0) continue;
    a.out_first[edges[e].src]++;
    a.in_first[edges[e].dst]++;
  }
  /* Counts become ends; filling from the last edge down turns ends into starts. */
  uint32_t out_end = 0, in_end = 0;
  for (size_t i = 0; i <= n; i++) {
    a.out_first[i] = out_end += a.out_first[i];
    a.in_first[i] = in_end += a.in_first[i];
  }
  for (size_t e = n_edges; e-- > 1;) {
    if (edges[e].src == 0) continue;
    a.out_edge[--a.out_first[edges[e].src]] = (uint32_t)e;
    a.in_edge[--a.in_first[edges[e].dst]] = (uint32_t)e;
  }
  *out = a;
  return PIPER_OK;
}

void adjacency_free(Adjacency *a) {
  free(a->out_first); /* the start of the one block */
  *a = (Adjacency){0};
}

/* ---- a set of ids that gives its smallest ------------------------------------------------------ */

/* One bit an id, and above each level one bit for each word that is not empty. */
#define SET_LEVELS 6
typedef struct IdSet {
  uint64_t *level[SET_LEVELS];
  int n_levels;
} IdSet;

static bool set_new(IdSet *s, uint32_t n) {
  size_t words[SET_LEVELS], total = 0;
  s->n_levels = 0;
  for (size_t bits = n; s->n_levels == 0 || bits > 1; s->n_levels++) {
    bits = bits / 64 + 1;
    total += words[s->n_levels] = bits;
  }
  uint64_t *block = calloc(total, sizeof *block);
  if (block == NULL) return false;
  for (int i = 0; i < s->n_levels; block += words[i++]) s->level[i] = block;
  return true;
}

static void set_free(IdSet *s) { free(s->level[0]); }

static void set_add(IdSet *s, uint32_t id) {
  for (int i = 0; i < s->n_levels; i++, id >>= 6) s->level[i][id >> 6] |= UINT64_C(1) << (id & 63);
}

static bool set_empty(const IdSet *s) { return s->level[s->n_levels - 1][0] == 0; }

static uint32_t lowest_bit(uint64_t v) {
#if defined(__GNUC__)
  return (uint32_t)__builtin_ctzll(v);
#else
  uint32_t i = 0;
  for (; (v & 1) == 0; v >>= 1) i++;
  return i;
#endif
}

static uint32_t set_take_smallest(IdSet *s) {
  uint32_t id = 0;
  for (int i = s->n_levels - 1; i >= 0; i--) id = id << 6 | lowest_bit(s->level[i][id]);
  for (uint32_t i = 0, at = id; i < (uint32_t)s->n_levels; i++, at >>= 6) {
    s->level[i][at >> 6] &= ~(UINT64_C(1) << (at & 63));
    if (s->level[i][at >> 6] != 0) break;
  }
  return id;
}

/* ---- cycles ------------------------------------------------------------------------------------ */

#define SEARCH_BUDGET 4000000 /* edges looked at before the best cycle so far is good enough */
#define SHOWN_NODES 12        /* of a longer cycle the middle is left out */

typedef struct Search {
  const Dag *dag;
  const Adjacency *adj;
  bool *alive;                             /* may lie on a cycle */
  uint32_t *queue, *came_by, *seen, round; /* breadth-first search; seen[i] == round: visited */
  uint32_t *best, n_best;                  /* edges of the cycle, the closing one last */
  long budget;
} Search;

/* The shortest cycle through edge 'closing', kept when it is shorter than the best so far. */
static bool search_through(Search *s, uint32_t closing) {
  const Edge *edges = s->dag->edges.at;
  const uint32_t from = edges[closing].dst, to = edges[closing].src;
  uint32_t head = 0, tail = 0;
  s->round++;
  s->queue[tail++] = from;
  s->seen[from] = s->round;
  while (head < tail && s->seen[to] != s->round) {
    const uint32_t i = s->queue[head++];
    for (uint32_t k = s->adj->out_first[i]; k < s->adj->out_first[i + 1]; k++, s->budget--) {
      const uint32_t next = edges[s->adj->out_edge[k]].dst;
      if (!s->alive[next] || s->seen[next] == s->round) continue;
      s->seen[next] = s->round;
      s->came_by[next] = s->adj->out_edge[k];
      s->queue[tail++] = next;
    }
  }
  if (s->seen[to] != s->round) return false;
  uint32_t length = 1;
  for (uint32_t i = to; i != from; i = edges[s->came_by[i]].src) length++;
  if (s->n_best != 0 && length >= s->n_best) return true;
  s->n_best = length;
  s->best[--length] = closing;
  for (uint32_t i = to; i != from; i = edges[s->came_by[i]].src) s->best[--length] = s->came_by[i];
  return true;
}

/* Every live node has live successors, so a walk comes back to a node it has been to; the edge that
 * leads there is on a cycle. */
static uint32_t walk_to_cycle(Search *s, uint32_t start) {
  s->round++;
  for (uint32_t i = start;;) {
    s->seen[i] = s->round;
    for (uint32_t k = s->adj->out_first[i];; k++) {
      const uint32_t e = s->adj->out_edge[k], next = s->dag->edges.at[e].dst;
      if (!s->alive[next]) continue;
      if (s->seen[next] == s->round) return e;
      i = next;
      break;
    }
  }
}

static void append(char *buf, size_t size, size_t *at, const char *a, const char *b) {
  const int n = snprintf(buf + *at, size - *at, "%s%s", a, b);
  if (n > 0) *at += (size_t)n < size - *at ? (size_t)n : size - *at - 1;
}

/* A JOIN stands for the edges of an order, and is not shown: what follows it hangs on the temporal
 * edge that leads into it. */
static PiperStatus report_cycle(const Search *s, PiperErr *err) {
  const Dag *d = s->dag;
  const Edge *edges = d->edges.at;
  uint32_t *cycle = s->queue, n = 0; /* cycle[i]: the edge by which the i-th node is left */
  for (uint32_t i = 0; i < s->n_best; i++)
    if (d->kind[edges[s->best[i]].src] != NODE_JOIN) cycle[n++] = s->best[i];
  if (n == 0) /* nothing but joins */
    for (; n < s->n_best; n++) cycle[n] = s->best[n];

  char text[PIPER_ERR_TEXT], label[96], arrow[160];
  size_t at = 0;
  const Edge *last = &edges[cycle[n - 1]]; /* temporal, if any edge is */
  char from[96], to[96];
  dag_label(d, (NodeId){last->src}, from, sizeof from);
  dag_label(d, (NodeId){edges[cycle[0]].src}, to, sizeof to);
  append(text, sizeof text, &at, to, "");
  for (uint32_t i = 1; i <= n; i++) {
    if (n > SHOWN_NODES && i == SHOWN_NODES / 2) {
      snprintf(arrow, sizeof arrow, " -> ... %u more ...", n - SHOWN_NODES);
      append(text, sizeof text, &at, arrow, "");
      i = n - SHOWN_NODES / 2;
    }
    const Edge *e = &edges[cycle[i - 1]];
    if (e->kind == EDGE_TEMPORAL)
      snprintf(arrow, sizeof arrow, " -> (order, %.120s) ", dag_line(d, e->line));
    else snprintf(arrow, sizeof arrow, " -> ");
    dag_label(d, (NodeId){edges[cycle[i % n]].src}, label, sizeof label);
    append(text, sizeof text, &at, arrow, label);
  }
  if (last->kind != EDGE_TEMPORAL)
    return err_set(err, PIPER_EBUG, "the data flow goes round in a circle: %s", text);
  if (n == 1)
    return err_set(err, PIPER_EUSER, "%s: order: %s is ordered before itself",
                   dag_line(d, last->line), from);
  return err_set(err, PIPER_EUSER, "%s: order: %s is ordered before %s, but has to wait for it: %s",
                 dag_line(d, last->line), from, to, text);
}

/* 'waiting': for each node how many predecessors were never put in order. */
static PiperStatus find_cycle(const Dag *d, const Adjacency *a, uint32_t *waiting, PiperErr *err) {
  Search s = {.dag = d, .adj = a, .budget = SEARCH_BUDGET};
  PiperStatus st;
  s.alive = calloc(d->n, sizeof *s.alive);
  uint32_t *block = calloc((size_t)d->n * 4 + 1, sizeof *block);
  if (s.alive == NULL || block == NULL) {
    st = err_nomem(err, "search for a cycle");
    goto done;
  }
  s.queue = block;
  s.came_by = block + d->n;
  s.seen = block + 2 * (size_t)d->n;
  s.best = block + 3 * (size_t)d->n;

  /* Cut off what no cycle can leave: 'waiting' counts live successors now. */
  const Edge *edges = d->edges.at;
  for (uint32_t i = 1; i < d->n; i++) s.alive[i] = waiting[i] > 0;
  uint32_t n_dead = 0;
  for (uint32_t i = 1; i < d->n; i++) {
    if (!s.alive[i]) continue;
    waiting[i] = 0;
    for (uint32_t k = a->out_first[i]; k < a->out_first[i + 1]; k++)
      waiting[i] += s.alive[edges[a->out_edge[k]].dst];
    if (waiting[i] == 0) s.queue[n_dead++] = i;
  }
  for (uint32_t j = 0; j < n_dead; j++) {
    const uint32_t i = s.queue[j];
    s.alive[i] = false;
    for (uint32_t k = a->in_first[i]; k < a->in_first[i + 1]; k++) {
      const uint32_t before = edges[a->in_edge[k]].src;
      if (s.alive[before] && --waiting[before] == 0) s.queue[n_dead++] = before;
    }
  }

  for (uint32_t e = 1; e < d->edges.n && s.budget > 0; e++)
    if (edges[e].kind == EDGE_TEMPORAL && edges[e].src != 0 && s.alive[edges[e].src] &&
        s.alive[edges[e].dst])
      search_through(&s, e);
  if (s.n_best == 0) {
    uint32_t start = 1;
    while (!s.alive[start]) start++;
    search_through(&s, walk_to_cycle(&s, start));
  }
  st = report_cycle(&s, err);
done:
  free(s.alive);
  free(block);
  return st;
}

PiperStatus topo_order(const Dag *d, const Adjacency *a, uint32_t *order, uint32_t *n,
                       PiperErr *err) {
  IdSet ready;
  uint32_t *waiting = malloc(d->n * sizeof *waiting);
  if (waiting == NULL || !set_new(&ready, d->n)) {
    free(waiting);
    return err_nomem(err, "topological order");
  }
  for (uint32_t i = 1; i < d->n; i++) {
    waiting[i] = a->in_first[i + 1] - a->in_first[i];
    if (waiting[i] == 0) set_add(&ready, i);
  }
  uint32_t done = 0;
  while (!set_empty(&ready)) {
    const uint32_t i = set_take_smallest(&ready);
    order[done++] = i;
    for (uint32_t k = a->out_first[i]; k < a->out_first[i + 1]; k++) {
      const uint32_t next = d->edges.at[a->out_edge[k]].dst;
      if (--waiting[next] == 0) set_add(&ready, next);
    }
  }
  *n = done;
  const PiperStatus st = done == d->n - 1 ? PIPER_OK : find_cycle(d, a, waiting, err);
  set_free(&ready);
  free(waiting);
  return st;
}
