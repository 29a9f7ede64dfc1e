/* pass_order - group after group: temporal edges between compute nodes of one device set.
 *
 * requires  every node placed
 * ensures   group, member and order_of of each named node; every node of a group before every node
 *           of the next; an R that is not named just before its backward pass, but for what a pass
 *           of the user's has put behind it. Where k sinks of a group meet l sources of the next
 *           there are k * l edges, or k + l through a JOIN where that is fewer. The DAG is acyclic
 * breaks    nothing
 * on error  the DAG may be half rewritten: drop it
 *
 * Only compute nodes are ordered: a transfer or reduction that a group causes may run while the
 * next group computes. Nodes of one group are not ordered among themselves, so only its sources and
 * sinks (nodes without a data edge from, or to, another node of the group, where an edge through
 * transfers and exchanges counts) get edges.
 *
 * A member is convex: no path leaves it and comes back through compute nodes that its order does
 * not name. Most members are one node, and trivially so. For the others the longest-path level
 * decides at once, when every edge that leaves the member leads to a higher level than every edge
 * that enters it comes from: a path only climbs. The orders that this leaves open are walked, one
 * traversal an order: each node gets the highest group that leads to it, and which of its members
 * do. The highest is enough: a path from a later group back into an earlier one is a contradiction,
 * which shows as a cycle anyway. */
#include "ir/dag_verify.h"
#include "ir/topo.h"
#include "passes/dag_edit.h"
#include "passes/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One group: nodes.at[first .. end) of the Orderer, ascending within each member. */
typedef struct Group {
  uint32_t first, end;
} Group;

/* One order directive. */
typedef struct Order {
  uint32_t directive;   /* index into the strategy */
  uint32_t group_first; /* its groups: groups.at[group_first ..], as many as the directive's */
  uint32_t devs;
} Order;

typedef struct Orderer {
  Dag *d;
  const Strategy *s;
  VEC(Order) orders;
  VEC(Group) groups;
  U32Vec nodes;
  bool wide;                    /* some group has several nodes ... */
  bool wide_member;             /* ... and so has some member */
  bool *has_before, *has_after; /* by node: a data edge from, to, its own group */
  uint32_t *again;              /* by backward node: its R, where no order names that; NULL: none */
  bool *leads;                  /* by such an R: a temporal edge leaves it already; NULL: none */
} Orderer;

static const Directive *directive_of(const Orderer *w, const Order *o) {
  return &w->s->at[o->directive];
}

static bool same_group(const Dag *d, uint32_t a, uint32_t b) {
  return d->order_of[a] != 0 && d->order_of[a] == d->order_of[b] && d->group[a] == d->group[b];
}

static bool same_member(const Dag *d, uint32_t a, uint32_t b) {
  return same_group(d, a, b) && d->member[a] == d->member[b];
}

/* ---- which nodes ----------------------------------------------------------------------------- */

/* Node n is named before, and again by member m of group g of directive x, which matches several
 * nodes ('wide') or this one. */
static PiperStatus named_again(const Orderer *w, const Directive *x, uint32_t g, uint32_t m,
                               bool wide, uint32_t n, PiperErr *err) {
  const Dag *d = w->d;
  const Directive *y = directive_of(w, &w->orders.at[d->order_of[n] - 1]);
  const uint32_t h = d->group[n] - 1;
  char where[2 * TEXT], label[TEXT], first[TEXT] = "";
  order_where(x, g, where, TEXT);
  if (wide) { /* what the filter says, since it names more than its writer thought */
    char filter[TEXT];
    filter_text(&x->groups[g].members[m], filter, sizeof filter);
    const size_t at = strlen(where);
    snprintf(where + at, sizeof where - at, "filter %s matches ", filter);
  }
  dag_label(d, (NodeId){n}, label, sizeof label);
  if (x == y && g == h) return directive_fail(err, x, "%s%s twice in one group", where, label);
  if (y->schedule == 0) snprintf(first, sizeof first, "in group %u", h + 1);
  else if (x->schedule == y->schedule && x->rank_in_schedule == y->rank_in_schedule)
    snprintf(first, sizeof first, "in column %u", h + 1);
  else snprintf(first, sizeof first, "on rank %u, in column %u", y->rank_in_schedule, h + 1);
  if (x == y || (x->schedule == y->schedule && x->schedule != 0))
    return directive_fail(err, x, "%s%s again (first %s): an action runs once", where, label,
                          first);
  return directive_fail(err, x, "%s%s again (first %s of the order at %s): an action runs once",
                        where, label, first, y->line);
}

/* The place directive that matches node n: "PP = 3" is on its devices since that one says so. */
static PiperStatus place_line(const Orderer *w, const FilterIndex *index, uint32_t n, char *buf,
                              size_t size, PiperErr *err) {
  U32Vec nodes = {0};
  PiperStatus st = PIPER_OK;
  buf[0] = '\0';
  for (uint32_t i = 0; st == PIPER_OK && buf[0] == '\0' && i < w->s->n; i++) {
    if (w->s->at[i].kind != DIRECTIVE_PLACE) continue;
    st = directive_nodes(index, &w->s->at[i], &nodes, err);
    for (size_t k = 0; k < nodes.n; k++)
      if (nodes.at[k] == n) snprintf(buf, size, " (%s)", w->s->at[i].line);
  }
  vec_free(&nodes);
  return st;
}

/* Some other order names the chunk of node n too: its microbatches belong to several ranks. What is
 * wrong with those orders is not told here. */
static bool in_another_order(const Orderer *w, const FilterIndex *index, const Directive *x,
                             uint32_t n) {
  U32Vec nodes = {0};
  bool found = false;
  for (uint32_t i = 0; i < w->s->n; i++) {
    const Directive *y = &w->s->at[i];
    if (y == x || y->kind != DIRECTIVE_ORDER) continue;
    for (uint32_t g = 0; g < y->n_groups && !found; g++)
      for (uint32_t m = 0; m < y->groups[g].n_members && !found; m++) {
        PiperErr ignored;
        ignored.code = PIPER_OK;
        if (member_nodes(index, y, g, m, &nodes, &ignored) != PIPER_OK) continue;
        for (size_t k = 0; k < nodes.n; k++) found = found || w->d->chunk[nodes.at[k]] == w->d->chunk[n];
      }
  }
  vec_free(&nodes);
  return found;
}

/* What a place directive has to match so that node n goes along: "PP = 3", or, where 'alone',
 * "PP = 3, MB = 2". */
static void place_filter(const Dag *d, uint32_t n, bool alone, char *buf, size_t size) {
  const uint32_t first = d->tags_first.at[d->tags[n]], end = d->tags_first.at[d->tags[n] + 1];
  const Chunk *chunk = graph_chunk(d->graph, (ChunkId){d->chunk[n]});
  const Graph *g = d->graph;
  size_t at = 0;
  buf[0] = '\0';
  for (uint32_t i = first; i < end; i++) {
    const char *tag = intern_text(d->names, d->tags_at.at[i].tag);
    bool scope = false;
    for (uint32_t k = g->scope_first.at[chunk->scope]; k < g->scope_first.at[chunk->scope + 1]; k++)
      scope = scope || strcmp(graph_name(g, g->scope_tags.at[k].tag), tag) == 0;
    if (!scope && !alone) continue;
    const int wrote = snprintf(buf + at, size - at, "%s%s = %d", at > 0 ? ", " : "", tag,
                               d->tags_at.at[i].index);
    if (wrote > 0) at += (size_t)wrote < size - at ? (size_t)wrote : size - at - 1;
  }
}

/* Node n is elsewhere than the first node of its order: says which has to sit where. */
static PiperStatus other_devices(const Orderer *w, const FilterIndex *index, const Order *o,
                                 uint32_t g, uint32_t n, PiperErr *err) {
  const Dag *d = w->d;
  const Directive *x = directive_of(w, o);
  const uint32_t first = w->nodes.at[w->groups.at[o->group_first].first];
  char a[TEXT], b[TEXT], here[TEXT], there[TEXT], where[TEXT], filter[TEXT], by[TEXT], first_by[TEXT];
  TRY(place_line(w, index, n, by, sizeof by, err));
  TRY(place_line(w, index, first, first_by, sizeof first_by, err));
  dag_label(d, (NodeId){first}, a, sizeof a);
  dag_label(d, (NodeId){n}, b, sizeof b);
  devices_text(d, d->devs[first], here, sizeof here);
  devices_text(d, d->devs[n], there, sizeof there);
  order_where(x, g, where, sizeof where);
  place_filter(d, n, in_another_order(w, index, x, n), filter, sizeof filter);
  return directive_fail(err, x,
                        "%s%s is on %s%s, %s on %s%s: one order is for one device set, so place "
                        "%s on %s too",
                        where, b, there, by, a, here, first_by,
                        filter[0] != '\0' ? filter : "what is outside every scope", here);
}

static PiperStatus add_member(Orderer *w, const FilterIndex *index, uint32_t order, uint32_t g, uint32_t m,
                              const U32Vec *matched, PiperErr *err) {
  Dag *d = w->d;
  Order *o = &w->orders.at[order];
  const Directive *x = directive_of(w, o);
  if (!vec_reserve(&w->nodes, matched->n)) return err_nomem(err, "order");
  for (size_t k = 0; k < matched->n; k++) {
    const uint32_t n = matched->at[k];
    if (d->order_of[n] != 0) return named_again(w, x, g, m, matched->n > 1, n, err);
    if (o->devs == 0) o->devs = d->devs[n];
    if (o->devs != d->devs[n]) return other_devices(w, index, o, g, n, err);
    d->order_of[n] = order + 1;
    d->group[n] = g + 1;
    d->member[n] = m;
    w->nodes.at[w->nodes.n++] = n;
  }
  return PIPER_OK;
}

static PiperStatus resolve(Orderer *w, PiperErr *err) {
  FilterIndex *index;
  U32Vec matched = {0};
  PiperStatus st = PIPER_OK;
  TRY(filter_index_new(w->d, &index, err));
  for (uint32_t i = 0; i < w->s->n; i++) {
    const Directive *x = &w->s->at[i];
    if (x->kind != DIRECTIVE_ORDER) continue;
    const uint32_t order = (uint32_t)w->orders.n;
    if (!vec_push(&w->orders, ((Order){i, (uint32_t)w->groups.n, 0}))) goto nomem;
    for (uint32_t g = 0; g < x->n_groups; g++) {
      const uint32_t first = (uint32_t)w->nodes.n;
      if (!vec_push(&w->groups, ((Group){first, first}))) goto nomem;
      for (uint32_t m = 0; m < x->groups[g].n_members; m++) {
        st = member_nodes(index, x, g, m, &matched, err);
        if (st == PIPER_OK) st = add_member(w, index, order, g, m, &matched, err);
        if (st != PIPER_OK) goto done;
        if (matched.n > 1) w->wide_member = true;
      }
      w->groups.at[w->groups.n - 1].end = (uint32_t)w->nodes.n;
      if (w->nodes.n > first + 1) w->wide = true;
    }
  }
  goto done;
nomem:
  st = err_nomem(err, "order");
done:
  filter_index_free(index);
  vec_free(&matched);
  return st;
}

/* ---- schedules name every action ------------------------------------------------------------- */

/* The order of a schedule that should have named node n: the one for its devices, or the first one
 * that names its chunk. */
static const Order *order_missing(const Orderer *w, uint32_t schedule, uint32_t n,
                                  uint32_t first_order) {
  for (size_t i = 0; i < w->orders.n; i++)
    if (directive_of(w, &w->orders.at[i])->schedule == schedule &&
        w->orders.at[i].devs == w->d->devs[n])
      return &w->orders.at[i];
  return &w->orders.at[first_order];
}

/* A schedule, a split and orders that were given together, names every node of every chunk of which
 * it names any. (Exactly once: the second time is an error already.) */
static PiperStatus check_complete(Orderer *w, PiperErr *err) {
  const Dag *d = w->d;
  uint32_t n_schedules = 1;
  for (uint32_t i = 0; i < w->s->n; i++)
    if (w->s->at[i].schedule >= n_schedules) n_schedules = w->s->at[i].schedule + 1;
  bool *is_schedule = calloc(n_schedules, sizeof *is_schedule);
  /* By chunk: 1 + index of the first order of a schedule that names it. */
  uint32_t *named = calloc((size_t)graph_n_chunks(d->graph) + 1, sizeof *named);
  PiperStatus st = is_schedule == NULL || named == NULL ? err_nomem(err, "order") : PIPER_OK;
  for (uint32_t i = 0; st == PIPER_OK && i < w->s->n; i++)
    if (w->s->at[i].kind == DIRECTIVE_SPLIT && w->s->at[i].schedule != 0)
      is_schedule[w->s->at[i].schedule] = true;
  for (size_t i = 0; st == PIPER_OK && i < w->nodes.n; i++) {
    const uint32_t n = w->nodes.at[i], order = d->order_of[n] - 1;
    if (named[d->chunk[n]] == 0 && is_schedule[directive_of(w, &w->orders.at[order])->schedule])
      named[d->chunk[n]] = order + 1;
  }
  for (uint32_t n = 1; st == PIPER_OK && n < d->n; n++) {
    if (d->kind[n] != NODE_COMPUTE || named[d->chunk[n]] == 0 || d->pass[n] == PASS_R) continue;
    const uint32_t first = named[d->chunk[n]] - 1;
    const uint32_t schedule = directive_of(w, &w->orders.at[first])->schedule;
    if (d->order_of[n] != 0 &&
        directive_of(w, &w->orders.at[d->order_of[n] - 1])->schedule == schedule)
      continue;
    const Directive *x = directive_of(w, order_missing(w, schedule, n, first));
    char label[TEXT];
    dag_label(d, (NodeId){n}, label, sizeof label);
    st = directive_fail(err, x,
                        "rank %u: %s is missing: a schedule names each action of its stages once",
                        x->rank_in_schedule, label);
  }
  free(is_schedule);
  free(named);
  return st;
}

/* ---- convex members -------------------------------------------------------------------------- */

/* Longest path to each node, along a topological order. */
static void find_levels(const Dag *d, const Adjacency *a, const uint32_t *topo, uint32_t n,
                        uint32_t *level) {
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t v = topo[i];
    level[v] = 0;
    for (uint32_t k = a->in_first[v]; k < a->in_first[v + 1]; k++) {
      const uint32_t u = d->edges.at[a->in_edge[k]].src;
      if (level[u] >= level[v]) level[v] = level[u] + 1;
    }
  }
}

/* Reductions, norms and updates never lead to compute nodes. */
static bool leads_on(const Dag *d, uint32_t n) {
  return d->kind[n] == NODE_COMPUTE || d->kind[n] == NODE_TRANSFER || d->kind[n] == NODE_ALL_TO_ALL;
}

/* Levels prove every member of the group convex. */
static bool convex_by_level(const Orderer *w, const Adjacency *a, const uint32_t *level,
                            const Group *group) {
  const Dag *d = w->d;
  for (uint32_t i = group->first, end; i < group->end; i = end) {
    int64_t lowest_exit = INT64_MAX, highest_entry = -1;
    const uint32_t first = w->nodes.at[i];
    for (end = i; end < group->end && same_member(d, w->nodes.at[end], first); end++) {
      const uint32_t v = w->nodes.at[end];
      for (uint32_t k = a->in_first[v]; k < a->in_first[v + 1]; k++) {
        const uint32_t y = d->edges.at[a->in_edge[k]].src;
        if (!same_member(d, y, first) && level[y] > highest_entry) highest_entry = level[y];
      }
      for (uint32_t k = a->out_first[v]; k < a->out_first[v + 1]; k++) {
        const uint32_t x = d->edges.at[a->out_edge[k]].dst;
        if (leads_on(d, x) && !same_member(d, x, first) && level[x] < lowest_exit)
          lowest_exit = level[x];
      }
    }
    if (end - i > 1 && lowest_exit <= highest_entry) return false;
  }
  return true;
}

/* Members of one group, the highest that leads to a node. A bit a member: where a group has more
 * than 64, its order is walked for 64 at a time. */
typedef struct Left {
  uint32_t group;
  uint64_t members;
} Left;

static void left_add(Left *to, Left more) {
  if (more.members == 0 || more.group < to->group) return;
  if (more.group > to->group) *to = (Left){more.group, 0};
  to->members |= more.members;
}

/* On a path of an order, a compute node that it does not name. */
static bool is_outside(const Dag *d, uint32_t n, uint32_t order) {
  return d->kind[n] == NODE_COMPUTE && d->pass[n] != PASS_R && d->order_of[n] != order + 1;
}

/* Node v is reached from its own member through compute nodes outside the order: names such a path,
 * the shortest (breadth first, backward, over pairs of a node and whether one outside was met). */
static PiperStatus not_convex(const Orderer *w, const Adjacency *a, uint32_t order, uint32_t v,
                              PiperErr *err) {
  const Dag *d = w->d;
  uint32_t *came = calloc((size_t)d->n * 2, sizeof *came);
  U32Vec queue = {0};
  uint32_t start = 0, through = 0;
  PiperStatus st = came == NULL || !vec_push(&queue, v * 2) ? err_nomem(err, "order") : PIPER_OK;
  for (size_t head = 0; st == PIPER_OK && start == 0 && head < queue.n; head++) {
    const uint32_t at = queue.at[head];
    for (uint32_t k = a->in_first[at / 2]; k < a->in_first[at / 2 + 1] && start == 0; k++) {
      const uint32_t u = d->edges.at[a->in_edge[k]].src;
      const uint32_t next = u * 2 + ((at & 1) != 0 || is_outside(d, u, order));
      if ((next & 1) != 0 && same_member(d, u, v)) {
        start = u;
        for (uint32_t b = at; b != v * 2; b = came[b])
          if (is_outside(d, b / 2, order)) through = b / 2;
      } else if (came[next] == 0) {
        came[next] = at;
        if (!vec_push(&queue, next)) st = err_nomem(err, "order");
      }
    }
  }
  free(came);
  vec_free(&queue);
  TRY(st);
  const Directive *x = directive_of(w, &w->orders.at[order]);
  char where[TEXT], filter[TEXT], from[TEXT], by[TEXT], to[TEXT];
  order_where(x, d->group[v] - 1, where, sizeof where);
  filter_text(&x->groups[d->group[v] - 1].members[d->member[v]], filter, sizeof filter);
  dag_label(d, (NodeId){start}, from, sizeof from);
  dag_label(d, (NodeId){through}, by, sizeof by);
  dag_label(d, (NodeId){v}, to, sizeof to);
  return directive_fail(err, x,
                        "%sfilter %s matches %s (%s) and %s (%s), but not %s (%s), which is on "
                        "the way from one to the other: put them into different groups",
                        where, filter, from, dag_line(d, d->line[start]), to,
                        dag_line(d, d->line[v]), by, dag_line(d, d->line[through]));
}

/* any[v]: members that lead to v; computed[v]: those that do through a compute node outside. */
static PiperStatus walk_order(const Orderer *w, const Adjacency *a, const uint32_t *topo,
                              uint32_t n, uint32_t order, uint32_t first_member, Left *any,
                              Left *computed, PiperErr *err) {
  const Dag *d = w->d;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t v = topo[i];
    any[v] = computed[v] = (Left){0};
    for (uint32_t k = a->in_first[v]; k < a->in_first[v + 1]; k++) {
      const uint32_t u = d->edges.at[a->in_edge[k]].src;
      left_add(&any[v], any[u]);
      left_add(&computed[v], is_outside(d, u, order) ? any[u] : computed[u]);
    }
    if (d->order_of[v] != order + 1) continue;
    const uint32_t m = d->member[v] - first_member; /* wraps for those before */
    const Left own = {d->group[v], m < 64 ? UINT64_C(1) << m : 0};
    if (computed[v].group == own.group && (computed[v].members & own.members) != 0)
      return not_convex(w, a, order, v, err);
    left_add(&any[v], own);
  }
  return PIPER_OK;
}

static PiperStatus check_convex(const Orderer *w, PiperErr *err) {
  const Dag *d = w->d;
  Adjacency a;
  uint32_t n = 0;
  TRY(adjacency_new(d, &a, err));
  uint32_t *topo = malloc(d->n * sizeof *topo), *level = malloc(d->n * sizeof *level);
  Left *left = NULL;
  PiperStatus st = topo == NULL || level == NULL ? err_nomem(err, "order") : PIPER_OK;
  if (st == PIPER_OK) st = topo_order(d, &a, topo, &n, err);
  if (st == PIPER_OK) find_levels(d, &a, topo, n, level);
  for (uint32_t o = 0; st == PIPER_OK && o < w->orders.n; o++) {
    const Order *order = &w->orders.at[o];
    const Directive *x = directive_of(w, order);
    uint32_t n_members = 0; /* 0: all are convex */
    for (uint32_t g = 0; g < x->n_groups; g++)
      if (x->groups[g].n_members > n_members &&
          !convex_by_level(w, &a, level, &w->groups.at[order->group_first + g]))
        n_members = x->groups[g].n_members;
    if (n_members > 0 && left == NULL) left = malloc((size_t)d->n * 2 * sizeof *left);
    if (n_members > 0 && left == NULL) st = err_nomem(err, "order");
    for (uint32_t m = 0; st == PIPER_OK && m < n_members; m += 64)
      st = walk_order(w, &a, topo, n, o, m, left, left + d->n, err);
  }
  free(topo);
  free(level);
  free(left);
  adjacency_free(&a);
  return st;
}

/* ---- edges ----------------------------------------------------------------------------------- */

/* Node v gets something from u, or from what is behind the transfers and exchanges from there on. */
static void mark_behind(Orderer *w, const Adjacency *a, uint32_t u, uint32_t v) {
  const Dag *d = w->d;
  if (d->kind[u] == NODE_TRANSFER || d->kind[u] == NODE_ALL_TO_ALL) {
    for (uint32_t k = a->in_first[u]; k < a->in_first[u + 1]; k++)
      if (d->edges.at[a->in_edge[k]].kind == EDGE_DATA)
        mark_behind(w, a, d->edges.at[a->in_edge[k]].src, v);
  } else if (same_group(d, u, v)) {
    w->has_before[v] = true;
    w->has_after[u] = true;
  }
}

/* Marks the nodes that have a data edge from, and to, another node of their group: directly, or
 * through transfers and exchanges (of which each follows at most two others). */
static PiperStatus mark_inner_edges(Orderer *w, PiperErr *err) {
  const Dag *d = w->d;
  Adjacency a;
  w->has_before = calloc(d->n, sizeof *w->has_before);
  w->has_after = calloc(d->n, sizeof *w->has_after);
  if (w->has_before == NULL || w->has_after == NULL) return err_nomem(err, "order");
  TRY(adjacency_new(d, &a, err));
  for (size_t i = 1; i < d->edges.n; i++)
    if (d->edges.at[i].kind == EDGE_DATA && d->order_of[d->edges.at[i].dst] != 0)
      mark_behind(w, &a, d->edges.at[i].src, d->edges.at[i].dst);
  adjacency_free(&a);
  return PIPER_OK;
}

/* The nodes of a group that are not marked, into 'out'. */
static bool ends_of(const Orderer *w, const Group *group, const bool *marked, U32Vec *out) {
  out->n = 0;
  for (uint32_t i = group->first; i < group->end; i++)
    if ((marked == NULL || !marked[w->nodes.at[i]]) && !vec_push(out, w->nodes.at[i])) return false;
  return true;
}

static bool join_groups(Orderer *w, const Order *o, const U32Vec *sinks, const U32Vec *sources) {
  Dag *d = w->d;
  const uint32_t line = directive_line(d, directive_of(w, o));
  const size_t k = sinks->n, l = sources->n;
  NodeId join = {0};
  if (line == 0) return false;
  if (k > 1 && l > 1 && k * l > k + l) {
    join = dag_add_node(d, NODE_JOIN, line);
    if (join.i == 0) return false;
    d->devs[join.i] = o->devs;
    d->stream[join.i] = d->stream[sinks->at[0]];
  }
  for (size_t i = 0; i < k; i++) {
    const NodeId u = {sinks->at[i]};
    if (join.i != 0) {
      if (dag_add_temporal(d, u, join, line).i == 0) return false;
      continue;
    }
    for (size_t j = 0; j < l; j++)
      if (dag_add_temporal(d, u, (NodeId){sources->at[j]}, line).i == 0) return false;
  }
  for (size_t j = 0; join.i != 0 && j < l; j++)
    if (dag_add_temporal(d, join, (NodeId){sources->at[j]}, line).i == 0) return false;
  return true;
}

static bool leads(const Orderer *w, uint32_t r) { return w->leads != NULL && w->leads[r]; }

/* An R that no order names belongs to the group of its backward pass. */
static bool add_again(const Orderer *w, const Group *group, U32Vec *sources) {
  for (uint32_t i = group->first; w->again != NULL && i < group->end; i++) {
    const uint32_t r = w->again[w->nodes.at[i]];
    if (r != 0 && !leads(w, r) && !vec_push(sources, r)) return false;
  }
  return true;
}

/* An R whose backward pass is not ordered either runs when that pass has its gradients: any earlier,
 * and it would keep what it is there not to keep. */
static bool wait_for_gradients(const Orderer *w) {
  Dag *d = w->d;
  for (size_t i = 1, n = d->edges.n; i < n; i++) {
    const Edge e = d->edges.at[i];
    if (e.kind != EDGE_DATA || d->tensors.at[e.tensor].kind != TENSOR_GRAD) continue;
    const uint32_t r = w->again[e.dst];
    if (r != 0 && !leads(w, r) && d->order_of[e.dst] == 0 &&
        dag_add_temporal(d, (NodeId){e.src}, (NodeId){r}, d->line[r]).i == 0)
      return false;
  }
  return true;
}

/* Node r waits for 'before', unless that waits for r: then what the user's pass says holds. */
static PiperStatus wait_if_free(DagEdit *x, uint32_t before, uint32_t r, uint32_t line,
                                PiperErr *err) {
  PiperErr found;
  found.code = PIPER_OK;
  const PiperStatus st = dag_edit_before(x, (NodeId){before}, (NodeId){r}, line, &found);
  return st == PIPER_OK || st == PIPER_EUSER ? PIPER_OK : err_set(err, st, "%s", found.text);
}

/* The same two rules for the R that a user's pass has put before something: what it said is not
 * contradicted, whether directly or by several of these edges together. Other edges are all there. */
static PiperStatus order_leading(Orderer *w, PiperErr *err) {
  Dag *d = w->d;
  U32Vec sinks = {0};
  DagEdit *x;
  TRY(dag_edit_new(d, w->s, DAG_PLACED, &x, err));
  PiperStatus st = PIPER_OK;
  for (size_t i = 1, n = d->edges.n; st == PIPER_OK && i < n; i++) {
    const Edge e = d->edges.at[i];
    if (e.kind != EDGE_DATA || d->tensors.at[e.tensor].kind != TENSOR_GRAD) continue;
    const uint32_t r = w->again[e.dst];
    if (r != 0 && leads(w, r) && d->order_of[e.dst] == 0)
      st = wait_if_free(x, e.src, r, d->line[r], err);
  }
  for (size_t i = 0; st == PIPER_OK && i < w->nodes.n; i++) {
    const uint32_t b = w->nodes.at[i], r = w->again[b], g = d->group[b] - 1;
    if (r == 0 || !leads(w, r) || g == 0) continue;
    const Order *o = &w->orders.at[d->order_of[b] - 1];
    const uint32_t line = directive_line(d, directive_of(w, o));
    if (line == 0 || !ends_of(w, &w->groups.at[o->group_first + g - 1], w->has_after, &sinks))
      st = err_nomem(err, "order");
    for (size_t k = 0; st == PIPER_OK && k < sinks.n; k++)
      st = wait_if_free(x, sinks.at[k], r, line, err);
  }
  vec_free(&sinks);
  dag_edit_free(x);
  return st;
}

static PiperStatus find_again(Orderer *w, PiperErr *err) {
  const Dag *d = w->d;
  for (size_t i = 1; i < d->edges.n; i++) {
    const Edge *e = &d->edges.at[i];
    if (e->kind != EDGE_DATA || d->pass[e->src] != PASS_R || d->order_of[e->src] != 0 ||
        d->pass[e->dst] == PASS_BW)
      continue;
    if (w->again == NULL && (w->again = calloc(d->n, sizeof *w->again)) == NULL)
      return err_nomem(err, "order");
    w->again[e->dst] = e->src;
  }
  for (size_t i = 1; w->again != NULL && i < d->edges.n; i++) {
    const Edge *e = &d->edges.at[i];
    if (e->kind != EDGE_TEMPORAL || d->pass[e->src] != PASS_R || d->order_of[e->src] != 0) continue;
    if (w->leads == NULL && (w->leads = calloc(d->n, sizeof *w->leads)) == NULL)
      return err_nomem(err, "order");
    w->leads[e->src] = true;
  }
  return PIPER_OK;
}

static PiperStatus add_edges(Orderer *w, PiperErr *err) {
  U32Vec sinks = {0}, sources = {0};
  if (w->wide) TRY(mark_inner_edges(w, err));
  bool ok = true;
  for (size_t i = 0; ok && i < w->orders.n; i++) {
    const Order *o = &w->orders.at[i];
    const Group *groups = w->groups.at + o->group_first;
    for (uint32_t g = 1; ok && g < directive_of(w, o)->n_groups; g++)
      ok = ends_of(w, &groups[g - 1], w->has_after, &sinks) &&
           ends_of(w, &groups[g], w->has_before, &sources) && add_again(w, &groups[g], &sources) &&
           join_groups(w, o, &sinks, &sources);
  }
  vec_free(&sinks);
  vec_free(&sources);
  return ok ? PIPER_OK : err_nomem(err, "order");
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* An action that its own order puts before what it needs, at its place; of several the first one.
 * Cycles through several orders are left to check_acyclic. */
static uint32_t first_too_early(const Orderer *w, uint32_t *needs) {
  const Dag *d = w->d;
  uint32_t found = 0;
  for (size_t i = 1; i < d->edges.n; i++) {
    const Edge *e = &d->edges.at[i];
    const uint32_t u = e->src, v = e->dst;
    if (e->kind != EDGE_DATA || d->order_of[v] == 0 || d->order_of[u] != d->order_of[v] ||
        d->group[u] <= d->group[v])
      continue;
    if (found != 0 && (d->order_of[found] < d->order_of[v] ||
                       (d->order_of[found] == d->order_of[v] && d->group[found] <= d->group[v])))
      continue;
    found = v;
    *needs = u;
  }
  return found;
}

/* What contradicts the data flow prints the cycle; where one order does so by itself, its rank and
 * column, or group, go before. */
static PiperStatus check_acyclic(const Orderer *w, PiperErr *err) {
  const Dag *d = w->d;
  Adjacency a;
  uint32_t n, needs = 0;
  PiperErr found;
  found.code = PIPER_OK;
  TRY(adjacency_new(d, &a, err));
  uint32_t *topo = malloc(d->n * sizeof *topo);
  const PiperStatus st = topo == NULL ? err_nomem(err, "order") : topo_order(d, &a, topo, &n, &found);
  free(topo);
  adjacency_free(&a);
  if (st == PIPER_OK || topo == NULL) return st;
  const uint32_t early = st == PIPER_EUSER ? first_too_early(w, &needs) : 0;
  if (early == 0) return err_set(err, st, "%s", found.text);
  const Directive *x = directive_of(w, &w->orders.at[d->order_of[early] - 1]);
  char where[TEXT], label[TEXT], need[TEXT];
  order_where(x, d->group[early] - 1, where, sizeof where);
  dag_label(d, (NodeId){early}, label, sizeof label);
  dag_label(d, (NodeId){needs}, need, sizeof need);
  return directive_fail(err, x,
                        "%s%s is ordered before %s (%s %u), but has to wait for it: %s -> %s -> "
                        "(order, %s) %s",
                        where, label, need, x->schedule != 0 ? "column" : "group", d->group[needs],
                        need, label, x->line, need);
}

PiperStatus pass_order(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  (void)opt;
  Orderer w = {.d = d, .s = s};
  PiperStatus st = resolve(&w, err);
  if (st == PIPER_OK) st = check_complete(&w, err);
  if (st == PIPER_OK && w.wide_member) st = check_convex(&w, err);
  if (st == PIPER_OK) st = find_again(&w, err);
  if (st == PIPER_OK) st = add_edges(&w, err);
  if (st == PIPER_OK && w.again != NULL && !wait_for_gradients(&w)) st = err_nomem(err, "order");
  if (st == PIPER_OK && w.orders.n > 0) st = check_acyclic(&w, err);
  if (st == PIPER_OK && w.leads != NULL) st = order_leading(&w, err);
  vec_free(&w.orders);
  vec_free(&w.groups);
  vec_free(&w.nodes);
  free(w.has_before);
  free(w.has_after);
  free(w.again);
  free(w.leads);
  return st;
}
