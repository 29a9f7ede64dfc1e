#include "ir/order_members.h"

#include <stdlib.h>
#include <string.h>

/* A node of a group. */
typedef struct Named {
  uint32_t order_of, group, member, node;
} Named;

static int by_member(const void *a, const void *b) {
  const Named *x = a, *y = b;
  if (x->order_of != y->order_of) return x->order_of < y->order_of ? -1 : 1;
  if (x->group != y->group) return x->group < y->group ? -1 : 1;
  if (x->member != y->member) return x->member < y->member ? -1 : 1;
  return (x->node > y->node) - (x->node < y->node);
}

static bool same_group(const Named *x, const Named *y) {
  return x->order_of == y->order_of && x->group == y->group;
}

/* The nodes of groups with several members, by member; NULL: out of memory. */
static Named *list_named(const Dag *d, uint32_t *n) {
  Named *all = malloc(d->n * sizeof *all);
  uint32_t n_all = 0;
  *n = 0;
  if (all == NULL) return NULL;
  for (uint32_t i = 1; i < d->n; i++)
    if (d->order_of[i] != 0) all[n_all++] = (Named){d->order_of[i], d->group[i], d->member[i], i};
  qsort(all, n_all, sizeof *all, by_member);
  for (uint32_t k = 0, end; k < n_all; k = end) {
    for (end = k + 1; end < n_all && same_group(&all[end], &all[k]);) end++;
    if (all[k].member == all[end - 1].member) continue;
    memmove(all + *n, all + k, (end - k) * sizeof *all);
    *n += end - k;
  }
  return all;
}

/* Communication that leads on to a member's compute is an exchange of it. */
static void find_exchanges(const Dag *d, const Successors *g, const double *seconds, const uint32_t *of,
                           uint32_t *through, OrderMembers *m) {
  for (uint32_t k = g->n_topo; k-- > 0;) {
    const uint32_t i = g->topo[k];
    const bool communicates = NODE_KIND_COMMUNICATES[d->kind[i]];
    through[i] = of[i];
    for (uint32_t e = g->first[i]; e < g->first[i + 1]; e++) {
      const uint32_t next = g->succ[e];
      if (communicates) {
        if (through[i] == 0) through[i] = through[next];
      } else if (of[i] != 0 && through[next] == of[i]) {
        const bool direct = NODE_KIND_COMMUNICATES[d->kind[next]];
        const double exchange = direct ? seconds[next] : m->exchange[next];
        const double lead = direct ? 0 : m->lead[next];
        if (exchange < m->exchange[i] || (exchange == m->exchange[i] && lead <= m->lead[i])) continue;
        m->exchange[i] = exchange;
        m->lead[i] = lead;
      }
    }
    if (of[i] != 0) m->lead[i] += seconds[i];
  }
}

PiperStatus order_members_new(const Dag *d, const Successors *g, const double *seconds,
                              OrderMembers *out, PiperErr *err) {
  bool any = false;
  *out = (OrderMembers){0};
  for (uint32_t i = 1; i < d->n; i++) any = any || d->member[i] > 0;
  if (!any) return PIPER_OK;
  uint32_t n = 0;
  Named *named = list_named(d, &n);
  uint32_t *through = calloc(d->n, sizeof *through);
  out->of = calloc(d->n, sizeof *out->of);
  out->first = malloc(((size_t)n + 2) * sizeof *out->first);
  out->nodes = malloc(((size_t)n + 1) * sizeof *out->nodes);
  out->follows = calloc((size_t)n + 2, sizeof *out->follows);
  out->lead = calloc(d->n, sizeof *out->lead);
  out->exchange = calloc(d->n, sizeof *out->exchange);
  const bool held = named != NULL && through != NULL && out->of != NULL && out->first != NULL &&
                    out->nodes != NULL && out->follows != NULL && out->lead != NULL &&
                    out->exchange != NULL;
  if (held) {
    out->n = 1;
    for (uint32_t k = 0; k < n; k++) {
      const bool same = k > 0 && same_group(&named[k - 1], &named[k]);
      if (!same || named[k - 1].member != named[k].member) {
        out->follows[out->n] = same;
        out->first[out->n++] = k;
      }
      out->nodes[k] = named[k].node;
      out->of[named[k].node] = out->n - 1;
    }
    out->first[out->n] = n;
    find_exchanges(d, g, seconds, out->of, through, out);
  }
  free(named);
  free(through);
  if (held) return PIPER_OK;
  order_members_free(out);
  return err_nomem(err, "global order");
}

void order_members_free(OrderMembers *m) {
  free(m->of);
  free(m->first);
  free(m->nodes);
  free(m->follows);
  free(m->lead);
  free(m->exchange);
  *m = (OrderMembers){0};
}

/* ---- exchanges first -------------------------------------------------------------------------- */

typedef struct Place {
  double lead, exchange;
  uint32_t rank, node;
} Place;

static int by_rank(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static int by_exchange(const void *a, const void *b) {
  const Place *x = a, *y = b;
  const bool x_first = x->lead < x->exchange, y_first = y->lead < y->exchange;
  if (x_first != y_first) return x_first ? -1 : 1;
  if (x_first && x->lead != y->lead) return x->lead < y->lead ? -1 : 1;
  if (!x_first && x->exchange != y->exchange) return x->exchange > y->exchange ? -1 : 1;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

bool order_members_by_exchange(const OrderMembers *m, uint32_t *at, uint32_t *rank) {
  const uint32_t n_nodes = m->first[m->n];
  Place *places = malloc(((size_t)n_nodes + 1) * sizeof *places);
  uint32_t *ranks = malloc(((size_t)n_nodes + 1) * sizeof *ranks);
  const bool held = places != NULL && ranks != NULL;
  for (uint32_t a = 1, b; held && a < m->n; a = b) {
    for (b = a + 1; b < m->n && m->follows[b];) b++;
    uint32_t n = 0;
    for (uint32_t k = m->first[a]; k < m->first[b]; k++, n++) {
      const uint32_t node = m->nodes[k];
      places[n] = (Place){m->lead[node], m->exchange[node], rank[node], node};
      ranks[n] = rank[node];
    }
    qsort(places, n, sizeof *places, by_exchange);
    qsort(ranks, n, sizeof *ranks, by_rank);
    for (uint32_t k = 0; k < n; k++) {
      rank[places[k].node] = ranks[k];
      at[ranks[k]] = places[k].node;
    }
  }
  free(places);
  free(ranks);
  return held;
}
