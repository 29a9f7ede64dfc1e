/* What of the communication hides behind compute, and what is said about the rest. */
#include "plan/plan_overlap.h"

#include <math.h>

#include "lib/pairs.h"
#include "plan/plan_text.h"
#include "plan/plan_time.h"
#include "random_data.h"

/* ---- against sums over intervals ---------------------------------------------------------------- */

static double common(double a, double b, double c, double d) {
  const double lo = fmax(a, c), hi = fmin(b, d);
  return hi > lo ? hi - lo : 0;
}

/* Seconds of all communication of a kind on streams that begin with 'stream', and what of them is beside
 * a RUN of the same rank; groups of several members only: those of nodes that serve one. */
static void sums(const Plan *p, const PlanTimes *t, unsigned kind, const char *stream, const uint8_t *only,
                 double *seconds, double *hidden) {
  *seconds = *hidden = 0;
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (size_t i = 0; i < p->ranks[r].instrs.n; i++) {
      const Instr *x = &p->ranks[r].instrs.at[i];
      const unsigned k = x->kind == INSTR_RECV ? INSTR_SEND : x->kind;
      const char *name = p->ranks[r].streams.at[x->stream].name;
      if (k != kind || strncmp(name, stream, strlen(stream)) != 0) continue;
      if (only != NULL && !only[x->node]) continue;
      const double end = t->end[r][i], begin = end - p->node_seconds[x->node];
      *seconds += end - begin;
      for (size_t j = 0; j < p->ranks[r].instrs.n; j++) {
        const Instr *y = &p->ranks[r].instrs.at[j];
        if (y->kind != INSTR_RUN) continue;
        *hidden += common(begin, end, t->end[r][j] - p->node_seconds[y->node], t->end[r][j]);
      }
    }
}

static double any_seconds(const Dag *d, uint32_t n) {
  (void)d, (void)n;
  return random_int(0, 9);
}

static void random_plans(const Graph *g) {
  int wrong = 0, rows = 0, exposed = 0, causes[OVERLAP_CAUSE_COUNT] = {0};
  for (int round = 0; round < 40; round++) {
    PiperErr err = {0};
    Overlap o = {0};
    PlanTimes times;
    TestStrategy t = {0};
    const bool wide = random_int(0, 1);
    pairs_strategy(&t, wide ? "0,1,2,3" : "0,1", 2, random_int(2, 4), random_int(0, 3) > 0);
    if (random_int(0, 2) == 0) t.at.at[3].stream = "dp_stream";
    PlanSpec x = {.batch = 48, .scheduled = true, .seconds = any_seconds};
    x.options.single_stream = random_int(0, 5) == 0;
    Plan *p = plans_must(g, &t, x);
    if (plan_overlap(p, &o, &err) != PIPER_OK || plan_times_new(p, &times, &err) != PIPER_OK) bail(err.text);
    for (size_t k = 0; k < o.rows.n; k++) {
      const OverlapRow *r = &o.rows.at[k];
      char stream[64];
      double seconds, hidden;
      snprintf(stream, sizeof stream, "%.*s", (int)r->stream_n, r->stream);
      sums(p, &times, r->kind, stream, NULL, &seconds, &hidden);
      if (fabs(seconds - r->seconds) > 1e-6 || fabs(hidden - r->hidden) > 1e-6) {
        if (wrong++ == 0)
          diag("round %d: %s on %s: %g of %g hidden, not %g of %g", round, INSTR_NAME[r->kind], stream, hidden,
               seconds, r->hidden, r->seconds);
      }
      rows++;
    }
    for (uint32_t k = 0; k < o.n_worst; k++) {
      const OverlapExposed *w = &o.worst[k];
      char why[512];
      plan_overlap_why(p, w, why, sizeof why);
      wrong += w->exposed <= 0 || w->exposed > w->seconds || why[0] == '\0';
      wrong += k > 0 && w->exposed > o.worst[k - 1].exposed + 1e-6;
      causes[w->cause]++;
      exposed++;
    }
    plan_times_free(&times);
    plan_overlap_free(&o);
    plan_free(p);
    strategy_clear(&t);
  }
  is_int(wrong, 0, "hidden is what runs beside compute of the same rank (%d rows, %d exposed)", rows, exposed);
  for (int c = 0; c < OVERLAP_CAUSE_COUNT; c++) diag("%s: %d", OVERLAP_CAUSE_NAME[c], causes[c]);
}

/* ---- what blocks ------------------------------------------------------------------------------------ */

/* Chunks and exchanges take a second, all else next to nothing. */
static double equal_seconds(const Dag *d, uint32_t n) {
  return d->kind[n] == NODE_COMPUTE || d->kind[n] == NODE_ALL_TO_ALL ? 1 : 1e-3;
}

static double slow_reductions(const Dag *d, uint32_t n) {
  return d->kind[n] == NODE_ALL_REDUCE || d->kind[n] == NODE_REDUCE_SCATTER ? 5 : equal_seconds(d, n);
}

static double long_backward(const Dag *d, uint32_t n) {
  return d->kind[n] == NODE_COMPUTE && d->pass[n] == PASS_B ? 10 : 1;
}

/* The sentence about the first exposed operation of the kind that has this cause, at this line (NULL: any);
 * "" where there is none. */
static const char *why(const Plan *p, InstrKind kind, OverlapCause cause, const char *line) {
  static char text[1024];
  char op[256], reason[700];
  PiperErr err = {0};
  Overlap o = {0};
  if (plan_overlap(p, &o, &err) != PIPER_OK) bail(err.text);
  text[0] = '\0';
  for (uint32_t k = 0; k < o.n_worst && text[0] == '\0'; k++) {
    const OverlapExposed *w = &o.worst[k];
    if (p->ranks[w->rank].instrs.at[w->instr].kind != kind || w->cause != cause) continue;
    if (line != NULL && strcmp(line, dag_line(p->dag, w->line)) != 0) continue;
    plan_overlap_label(p, w->rank, w->instr, op, sizeof op);
    plan_overlap_why(p, w, reason, sizeof reason);
    snprintf(text, sizeof text, "rank %d, %s: %s", p->ranks[w->rank].rank, op, reason);
  }
  plan_overlap_free(&o);
  return text;
}

/* Share of the exchanges that is hidden. */
static double exchanged(const Plan *p) {
  PiperErr err = {0};
  Overlap o = {0};
  double share = -1;
  if (plan_overlap(p, &o, &err) != PIPER_OK) bail(err.text);
  for (size_t k = 0; k < o.rows.n; k++)
    if (o.rows.at[k].kind == INSTR_ALL_TO_ALL) share = o.rows.at[k].hidden / o.rows.at[k].seconds;
  plan_overlap_free(&o);
  return share;
}

static Plan *pairs(const Graph *g, bool overlapped, PlanSpec x, const char *ep_stream) {
  TestStrategy t = {0};
  pairs_strategy(&t, "0,1", 2, 4, overlapped);
  t.at.at[3].stream = ep_stream;
  t.at.at[2].per_microbatch = ep_stream != NULL;
  x.batch = 16;
  x.scheduled = true;
  if (x.seconds == NULL) x.seconds = equal_seconds;
  Plan *p = plans_must(g, &t, x);
  strategy_clear(&t);
  return p;
}

static void blocked(const Graph *g) {
  char *table;
  PiperErr err = {0};
  Plan *p = pairs(g, true, (PlanSpec){0}, NULL), *apart = pairs(g, false, (PlanSpec){0}, NULL);
  ok(exchanged(p) > 0.7 && exchanged(apart) < 0.1, "overlapped members hide exchanges (%.0f%%), the same in sequence do not (%.0f%%)",
     100 * exchanged(p), 100 * exchanged(apart));
  if (plan_table(p, &table, &err) != PIPER_OK) bail(err.text);
  ok(strstr(table, "\noverlap       ") != NULL && strstr(table, "all_to_all on ep_stream ") != NULL, "print(plan) tells");
  free(table);
  is_str(why(apart, INSTR_ALL_TO_ALL, OVERLAP_ORDER, "t.lua:5"),
         "rank 0, all_to_all blocks to experts 0F0/2 (t.lua:4): 0F0/2 (m.lua:7) waits for "
         "it; 0F1/1 (m.lua:1) is ready, but later, as t.lua:5 asks",
         "an order that keeps compute from the gap is named");
  plan_free(p);
  plan_free(apart);

  p = pairs(g, true, (PlanSpec){.seconds = slow_reductions}, "dp_stream");
  is_str(why(p, INSTR_REDUCE_SCATTER, OVERLAP_STREAM, "t.lua:4"),
         "rank 0, reduce_scatter l0.weight.. 0B2/1 (t.lua:3): 1B3/5 (m.lua:20) waits for "
         "all_to_all grad made to experts 1B3/5 (t.lua:4), which is behind it on stream "
         "dp_stream", "a queue that is shared is named");
  plan_free(p);

  p = pairs(g, true, (PlanSpec){.options = {.single_stream = true}}, NULL);
  is_int((int)(100 * exchanged(p)), 0, "in one stream nothing is hidden");
  plan_free(p);

  p = pairs(g, true, (PlanSpec){.options = {.memory_limit = 1}}, NULL);
  is_str(why(p, INSTR_ALL_TO_ALL, OVERLAP_MEMORY, NULL),
         "rank 0, all_to_all blocks to experts 0F1/2 (t.lua:4): 1B0/5 (m.lua:20) waits "
         "until all_to_all blocks to experts 0F1/2 (t.lua:4) needs its memory no longer",
         "memory that is in use is named");
  plan_free(p);
}

/* A temporal edge that nobody needs. */
static void false_dependency(const Graph *g) {
  TestStrategy t = {0};
  char label[160];
  PiperErr err = {0};
  pairs_strategy(&t, "0,1", 2, 4, true);
  Plan *p = plans_prepared(g, &t, (PlanSpec){.batch = 16, .scheduled = true, .seconds = equal_seconds}, &err);
  uint32_t from = 0, to = 0;
  for (uint32_t n = 1; n < p->dag->n; n++) {
    dag_label(p->dag, (NodeId){n}, label, sizeof label);
    if (strcmp(label, "1B1") == 0) from = n; /* its last chunk */
    if (strcmp(label, "all_to_all blocks to experts 0F2 0-1") == 0) to = n;
  }
  if (dag_add_temporal(p->dag, (NodeId){from}, (NodeId){to}, intern_id(p->dag->names, "x.lua:9")).i == 0)
    bail("no memory");
  free(p->order), free(p->node_seconds), free(p->node_start);
  plans_schedule(p, equal_seconds);
  if (plan_find_world(p, &err) != PIPER_OK || plan_lower(p, &err) != PIPER_OK || plan_place_memory(p, &err) != PIPER_OK)
    bail(err.text);
  is_str(why(p, INSTR_ALL_TO_ALL, OVERLAP_ORDER, "x.lua:9"),
         "rank 0, all_to_all blocks to experts 0F2/2 (t.lua:4): it began 3 s after its "
         "data was there, after 1B1/4 (m.lua:14), as x.lua:9 asks", "a false dependency is named");
  plan_free(p);
  strategy_clear(&t);
}

static void pipeline(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  plans_1f1b(&t, 2, 2, false);
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 4, .scheduled = true, .seconds = long_backward});
  is_str(why(p, INSTR_ALL_REDUCE, OVERLAP_RANK, NULL),
         "rank 1, all_reduce metrics (m.lua:4): it began 11 s after its data was there, "
         "when rank 0 was there, after norm l0.weight (m.lua:1)", "a rank that comes later is named");
  is_str(why(p, INSTR_RECV, OVERLAP_DATA, NULL),
         "rank 0, transfer grad l0 1B0 (m.lua:1): 0B0 (m.lua:1) waits for it, and nothing "
         "else is ready", "a receiver with nothing else to do");
  plan_free(p);
  strategy_clear(&t);
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1")->zero = ZERO_OPTIMIZER;
  p = plans_must(g, &t, (PlanSpec){.batch = 4, .scheduled = true, .seconds = long_backward});
  is_str(why(p, INSTR_ALL_GATHER, OVERLAP_END, NULL),
         "rank 0, all_gather l1.weight (t.lua:2): no compute follows on the rank", "nothing is left to compute");
  plan_free(p);
  strategy_clear(&t);
  graph_free(g);
}

int main(void) {
  random_start();
  Graph *g = pairs_model();
  random_plans(g);
  blocked(g);
  false_dependency(g);
  graph_free(g);
  pipeline();
  return done_testing();
}
