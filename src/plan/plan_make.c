/* plan_make - the lists of ranks: those that a compilation needs, and the others on demand.
 *
 * Of ranks that are alike (plan_class.c) only the first is lowered and placed; its figures are theirs.
 * The lists stay for whoever asks next, unless there are so many classes that they would take much
 * memory: then only the first ones stay, and the others are made again. */
#include "plan/plan_lower.h"

enum { MAX_LIST_BYTES = 256 << 20 }; /* that a compilation leaves */

static PiperStatus make_lists(Plan *plan, uint32_t index, PiperErr *err) {
  RankPlan *r = &plan->ranks[index];
  if (r->made) return PIPER_OK;
  if (plan->lowering == NULL) TRY(plan_lower_begin(plan, err));
  PiperStatus st = plan_lower_rank(plan, index, err);
  if (st == PIPER_OK) st = plan_place_rank(plan, index, err);
  if (st != PIPER_OK) plan_drop_lists(r); /* half of them */
  return st;
}

PiperStatus plan_make(Plan *plan, PiperErr *err) {
  uint64_t bytes = 0;
  TRY(plan_lower_begin(plan, err));
  TRY(plan_find_classes(plan, err));
  for (uint32_t i = 0; i < plan->n_ranks; i++) {
    RankPlan *r = &plan->ranks[i];
    if (r->like != i) {
      plan_copy_figures(plan, i);
      continue;
    }
    TRY(make_lists(plan, i, err));
    if (bytes + r->list_bytes > MAX_LIST_BYTES) plan_drop_lists(r);
    else bytes += r->list_bytes;
  }
  return PIPER_OK;
}

PiperStatus plan_lists_of(const Plan *p, uint32_t index, PiperErr *err) {
  return make_lists((Plan *)p, index, err);
}

PiperStatus plan_lists(const Plan *p, PiperErr *err) {
  for (uint32_t i = 0; i < p->n_ranks; i++) TRY(make_lists((Plan *)p, i, err));
  return PIPER_OK;
}
