/* The directives of a strategy as they apply to a DAG of forward passes. The orders that remain agree
 * with the data: they are parts of ones that did. */
#include "passes/pass.h"

#include <string.h>

enum { F = 1u << PASS_F };

/* False: it is about other passes only. */
static bool forward_filter(const Filter *f, Filter *out) {
  *out = *f;
  if (f->passes == 0) return true;
  out->passes &= F;
  return out->passes != 0;
}

static PiperStatus forward_groups(Directive *x, Arena *arena, PiperErr *err) {
  OrderGroup *groups = arena_alloc(arena, x->n_groups, sizeof *groups);
  uint32_t n = 0;
  if (groups == NULL) return err_nomem(err, "order");
  for (uint32_t g = 0; g < x->n_groups; g++) {
    const OrderGroup *from = &x->groups[g];
    Filter *members = arena_alloc(arena, from->n_members, sizeof *members);
    uint32_t n_members = 0;
    if (members == NULL) return err_nomem(err, "order");
    for (uint32_t m = 0; m < from->n_members; m++)
      n_members += forward_filter(&from->members[m], &members[n_members]);
    if (n_members > 0) groups[n++] = (OrderGroup){members, n_members};
  }
  x->groups = groups;
  x->n_groups = n;
  return PIPER_OK;
}

PiperStatus strategy_forward(const Strategy *s, Arena *arena, Strategy *out, PiperErr *err) {
  Directive *at = arena_alloc(arena, s->n + 1, sizeof *at);
  uint32_t n = 0;
  if (at == NULL) return err_nomem(err, "strategy");
  for (uint32_t i = 0; i < s->n; i++) {
    Directive *x = &at[n];
    *x = s->at[i];
    if (x->kind == DIRECTIVE_RECOMPUTE) continue;
    if (x->kind == DIRECTIVE_ORDER) {
      TRY(forward_groups(x, arena, err));
      n += x->n_groups > 0;
    } else {
      n += forward_filter(&s->at[i].filter, &x->filter);
    }
  }
  *out = (Strategy){at, n};
  return PIPER_OK;
}
