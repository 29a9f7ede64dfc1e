/* schedule_stages - a schedule is for as many stages as the model has.
 *
 * A schedule is what was given to one s:add as a list with a split and orders. Without this a
 * schedule for more ranks than there are stages fails at some filter, and one for fewer at a node
 * that nothing places. Only whole mismatches are told here: a single slip in a filter has a better
 * message of its own. Stages that a schedule leaves out are free, as long as others place them. */
#include "passes/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 65536 }; /* stages; a filter with a larger index matches nothing, and says so */

typedef struct Stages {
  bool *in_model, *in_orders; /* by PP index; of all orders, alone or in a list */
  uint32_t n_model;           /* 1 + highest index */
} Stages;

static void read_model(const Graph *g, Stages *w) {
  for (uint32_t c = 1; c <= graph_n_chunks(g); c++) {
    const uint32_t scope = graph_chunk(g, (ChunkId){c})->scope;
    for (uint32_t i = g->scope_first.at[scope]; i < g->scope_first.at[scope + 1]; i++) {
      const int64_t index = g->scope_tags.at[i].index;
      if (strcmp(graph_name(g, g->scope_tags.at[i].tag), "PP") != 0 || index >= MOST) continue;
      w->in_model[index] = true;
      if (index >= w->n_model) w->n_model = (uint32_t)index + 1;
    }
  }
}

/* The stages that a filter names, into 'named'; returns whether it names them by their indices, and
 * not all at once. */
static bool read_filter(const Filter *f, bool *named) {
  const FilterTerm *pp = NULL;
  for (uint32_t t = 0; t < f->n_terms; t++)
    if (strcmp(f->terms[t].tag, "PP") == 0) pp = &f->terms[t];
  if (pp == NULL || pp->kind == TERM_ANY) return false;
  for (uint32_t k = 0; pp->kind == TERM_INDEX && k < pp->n_indices; k++)
    if (pp->indices[k] >= 0 && pp->indices[k] < MOST) named[pp->indices[k]] = true;
  return true;
}

static void name_all(bool *named) { memset(named, true, MOST * sizeof *named); }

static bool read_order(const Directive *x, bool *named) {
  bool each = true;
  for (uint32_t g = 0; g < x->n_groups; g++)
    for (uint32_t m = 0; m < x->groups[g].n_members; m++)
      each = read_filter(&x->groups[g].members[m], named) && each;
  if (!each) name_all(named);
  return each;
}

/* 'named' are the stages 0 to n - 1: n; 0: there are gaps, or none. */
static uint32_t contiguous(const bool *named) {
  uint32_t n = 0, last = 0;
  while (n < MOST && named[n]) n++;
  for (uint32_t i = 0; i < MOST; i++)
    if (named[i]) last = i + 1;
  return n == last ? n : 0;
}

static void range_text(uint32_t n, char *buf, size_t size) {
  if (n == 1) snprintf(buf, size, "1 stage (PP = 0)");
  else snprintf(buf, size, "%u stages (PP = 0 to %u)", n, n - 1);
}

typedef struct Schedule {
  const Directive *split;
  bool *named;  /* by PP index: in its orders */
  bool *placed; /* by its own place directives, one by one */
} Schedule;

/* 'placed': stages that some place directive matches; NULL: there is none, all are on device 0. */
static PiperStatus check_schedule(const Stages *w, const Schedule *x, const bool *placed,
                                  PiperErr *err) {
  const uint32_t n = contiguous(x->named);
  const char *line = x->split->line;
  char has[64], model[64];
  range_text(n, has, sizeof has);
  range_text(w->n_model, model, sizeof model);
  if (n > 0 && w->n_model == 0)
    return err_set(err, PIPER_EUSER,
                   "%s: schedule: it is for %s, but the model has none: make each stage with "
                   "piper.annotate(\"PP\", ...)",
                   line, has);
  if (n > w->n_model)
    return err_set(err, PIPER_EUSER,
                   "%s: schedule: it is for %s, but the model has %s: make it for %u (ranks times "
                   "stages per rank), or annotate %u stages",
                   line, has, model, w->n_model, n);
  for (uint32_t i = 0; i < w->n_model; i++) {
    if (!w->in_model[i] || w->in_orders[i]) continue;
    if (x->placed[i])
      return err_set(err, PIPER_EUSER,
                     "%s: schedule: it places stage %u, but has no order that names it: each stage "
                     "is in the order of its rank",
                     line, i);
    if (n > 0 && placed != NULL && !placed[i])
      return err_set(err, PIPER_EUSER,
                     "%s: schedule: it is for %s, but the model has %s: make it for %u (ranks times "
                     "stages per rank)",
                     line, has, model, w->n_model);
  }
  return PIPER_OK;
}

PiperStatus schedule_stages(const Graph *g, const Strategy *s, PiperErr *err) {
  bool any_schedule = false, any_place = false;
  for (uint32_t i = 0; i < s->n; i++)
    any_schedule = any_schedule || (s->at[i].kind == DIRECTIVE_SPLIT && s->at[i].schedule != 0);
  if (!any_schedule) return PIPER_OK;
  bool *block = calloc((size_t)MOST * 5, sizeof *block);
  if (block == NULL) return err_nomem(err, "the stages of a schedule");
  Stages w = {.in_model = block, .in_orders = block + MOST};
  Schedule x = {.named = block + 2 * (size_t)MOST, .placed = block + 3 * (size_t)MOST};
  bool *placed = block + 4 * (size_t)MOST;
  read_model(g, &w);
  for (uint32_t i = 0; i < s->n; i++) {
    if (s->at[i].kind == DIRECTIVE_ORDER) read_order(&s->at[i], w.in_orders);
    if (s->at[i].kind != DIRECTIVE_PLACE) continue;
    if (!read_filter(&s->at[i].filter, placed)) name_all(placed);
    any_place = true;
  }
  PiperStatus st = PIPER_OK;
  for (uint32_t i = 0; st == PIPER_OK && i < s->n; i++) {
    if (s->at[i].kind != DIRECTIVE_SPLIT || s->at[i].schedule == 0) continue;
    bool each = true, orders = false;
    x.split = &s->at[i];
    memset(x.named, 0, 2 * MOST * sizeof *x.named); /* and placed */
    for (uint32_t k = 0; k < s->n; k++) {
      const Directive *y = &s->at[k];
      if (y->schedule != x.split->schedule) continue;
      if (y->kind == DIRECTIVE_PLACE) read_filter(&y->filter, x.placed);
      if (y->kind != DIRECTIVE_ORDER) continue;
      each = read_order(y, x.named) && each;
      orders = true;
    }
    if (each && orders) st = check_schedule(&w, &x, any_place ? placed : NULL, err);
  }
  free(block);
  return st;
}
