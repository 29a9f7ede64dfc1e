#include "plan/plan_held.h"

#include <stdlib.h>

/* Instruction 'instr', of a pass of the pair, touches the buffer. */
typedef struct Touch {
  int32_t stage;
  uint32_t mb, buffer, instr;
  uint8_t pass;
} Touch;
typedef VEC(Touch) TouchVec;

static int by_buffer(const void *a, const void *b) {
  const Touch *x = a, *y = b;
  if (x->stage != y->stage) return x->stage < y->stage ? -1 : 1;
  if (x->mb != y->mb) return x->mb < y->mb ? -1 : 1;
  if (x->buffer != y->buffer) return x->buffer < y->buffer ? -1 : 1;
  return (x->instr > y->instr) - (x->instr < y->instr);
}

static bool same_pair(const Touch *x, const Touch *y) {
  return x->stage == y->stage && x->mb == y->mb;
}

static bool list_touches(const Plan *p, const RankPlan *r, TouchVec *out) {
  const Dag *d = p->dag;
  const Graph *g = p->graph;
  const uint32_t pp = intern_find(g->names, "PP");
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    if (x->kind != INSTR_RUN || d->kind[x->node] != NODE_COMPUTE) continue;
    const uint32_t scope = graph_chunk(g, (ChunkId){d->chunk[x->node]})->scope;
    Touch t = {.stage = pp != 0 ? graph_scope_index(g, scope, pp) : 0,
               .mb = d->mb[x->node],
               .instr = i,
               .pass = d->pass[x->node]};
    for (uint32_t k = 0; k < x->n_accesses; k++) {
      t.buffer = r->accesses.at[x->access_first + k].buffer;
      const Buffer *b = &r->buffers.at[t.buffer];
      if (b->whole_step || buffer_is_of_bucket(b->role)) continue;
      if (!vec_push(out, t)) return false;
    }
  }
  return true;
}

PiperStatus plan_held(const Plan *plan, uint32_t index, uint32_t *most, PiperErr *err) {
  *most = 0;
  TRY(plan_lists_of(plan, index, err));
  const RankPlan *r = &plan->ranks[index];
  TouchVec all = {0};
  int32_t *change = calloc(r->instrs.n + 1, sizeof *change), now = 0;
  if (change == NULL || !list_touches(plan, r, &all)) {
    free(change);
    vec_free(&all);
    return err_nomem(err, "what a rank holds");
  }
  if (all.n > 0) qsort(all.at, all.n, sizeof *all.at, by_buffer);
  for (size_t k = 0, end; k < all.n; k = end) { /* a pair */
    uint32_t first = UINT32_MAX, last = 0;
    size_t of_buffer;
    for (end = k; end < all.n && same_pair(&all.at[end], &all.at[k]); end = of_buffer) {
      bool passes_differ = false;
      const Touch *t = &all.at[end];
      for (of_buffer = end; of_buffer < all.n && same_pair(&all.at[of_buffer], t) &&
                            all.at[of_buffer].buffer == t->buffer;
           of_buffer++)
        passes_differ = passes_differ || all.at[of_buffer].pass != t->pass;
      if (!passes_differ) continue;
      if (t->instr < first) first = t->instr;
      if (all.at[of_buffer - 1].instr > last) last = all.at[of_buffer - 1].instr;
    }
    if (first > last) continue;
    change[first]++;
    change[last + 1]--;
  }
  for (size_t i = 0; i < r->instrs.n; i++) {
    now += change[i];
    if (now > (int32_t)*most) *most = (uint32_t)now;
  }
  free(change);
  vec_free(&all);
  return PIPER_OK;
}
