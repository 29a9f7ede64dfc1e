/* Members of overlapped groups: their chunks interleave so that the exchanges of one run while another
 * computes, near the best interleaving that there is, and never worse than one member after another. */
#include <math.h>

#include "lib/pairs.h"
#include "plan/plan_time.h"
#include "random_data.h"

/* ---- chains on one compute stream and one stream of exchanges, against all interleavings ------------- */

enum { MAX_MEMBERS = 3, MAX_LENGTH = 9 };

/* Members: compute, exchange, compute, ... */
typedef struct Chains {
  int n, length[MAX_MEMBERS];
  double seconds[MAX_MEMBERS][MAX_LENGTH];
} Chains;

typedef struct State {
  int at[MAX_MEMBERS];
  double ready[MAX_MEMBERS], free[2]; /* of compute, of exchanges */
} State;

static double best_of(const Chains *c, const State *s) {
  double best = INFINITY, end = 0;
  bool over = true;
  for (int k = 0; k < c->n; k++) {
    end = fmax(end, s->ready[k]);
    if (s->at[k] == c->length[k]) continue;
    over = false;
    State next = *s;
    const int queue = s->at[k] % 2;
    next.ready[k] = next.free[queue] = fmax(s->ready[k], s->free[queue]) + c->seconds[k][s->at[k]];
    next.at[k]++;
    best = fmin(best, best_of(c, &next));
  }
  return over ? end : best;
}

static Dag *dag_of(const Graph *g, const Chains *c, double *seconds) {
  const int32_t ranks[] = {0, 1};
  Dag *d = dag_new(g, 4);
  if (d == NULL) bail("no memory");
  const uint32_t devs = devsets_id(d->devsets, ranks, 2), compute = intern_id(d->names, "default_stream"),
                 stream = intern_id(d->names, "ep_stream");
  for (int k = 0; k < c->n; k++)
    for (int i = 0; i < c->length[k]; i++) {
      const NodeId n = dag_add_node(d, i % 2 == 0 ? NODE_COMPUTE : NODE_ALL_TO_ALL, 0);
      d->pass[n.i] = PASS_F;
      d->devs[n.i] = devs;
      d->stream[n.i] = i % 2 == 0 ? compute : stream;
      if (i % 2 == 0) d->order_of[n.i] = d->group[n.i] = 1, d->member[n.i] = (uint32_t)k;
      seconds[n.i] = c->seconds[k][i];
      if (i > 0) dag_add_edge(d, (NodeId){n.i - 1}, n, (TensorId){0});
    }
  return d;
}

static Chains random_chains(int members) {
  Chains c = {.n = members};
  for (int k = 0; k < members; k++) {
    c.length[k] = members == 2 ? 2 * random_int(1, 4) + 1 : 2 * random_int(0, 2) + 1;
    for (int i = 0; i < c.length[k]; i++) c.seconds[k][i] = random_int(1, 6);
  }
  return c;
}

static void chains(const Graph *g, OrderRule rule) {
  double ratio = 0, worst = 0;
  int slower = 0, apart_wrong = 0, rounds = 0;
  for (int round = 0; round < 200; round++) {
    const Chains c = random_chains(round % 3 == 0 ? 3 : 2);
    double seconds[MAX_MEMBERS * MAX_LENGTH + 1] = {0}, apart = 0;
    PiperErr err = {0};
    GlobalOrder o;
    Dag *d = dag_of(g, &c, seconds);
    if (global_order(d, seconds, rule, &o, &err) != PIPER_OK) bail(err.text);
    for (uint32_t n = 1; n < d->n; n++) apart += seconds[n];
    const double best = best_of(&c, &(State){{0}, {0}, {0}});
    slower += o.seconds[o.rule] > apart;
    apart_wrong += o.apart_seconds != apart;
    ratio += o.seconds[o.rule] / best;
    worst = fmax(worst, o.seconds[o.rule] / best);
    rounds++;
    global_order_free(&o);
    dag_free(d);
  }
  ratio /= rounds;
  is_int(slower, 0, "never slower than one member after another");
  is_int(apart_wrong, 0, "what that takes is known");
  ok(ratio < 1.045 && worst < 1.6, "%.3f times the best interleaving in the mean, %.2f at worst", ratio, worst);
}

/* ---- exchanges first ------------------------------------------------------------------------------------ */

/* Two members that critical paths begin with the long one: nothing is left to hide its exchange. */
static void exchange_first(const Graph *g) {
  const Chains c = {2, {3, 3}, {{6, 1, 1}, {1, 6, 1}}};
  double seconds[7] = {0};
  PiperErr err = {0};
  GlobalOrder o;
  Dag *d = dag_of(g, &c, seconds);
  if (global_order(d, seconds, ORDER_CRITICAL_PATH, &o, &err) != PIPER_OK) bail(err.text);
  is_int((int)o.seconds[o.rule], (int)best_of(&c, &(State){{0}, {0}, {0}}),
         "what releases a long exchange goes first, not what has the longer way");
  is_int(o.start[1], 1, "and when each starts is known");
  global_order_free(&o);
  dag_free(d);
}

/* ---- pairs around experts ------------------------------------------------------------------------------- */

static int ratio; /* seconds of an exchange, to 4 of a chunk */

static double chunk_seconds(const Dag *d, uint32_t n) {
  if (d->kind[n] == NODE_ALL_TO_ALL) return ratio;
  return d->kind[n] == NODE_COMPUTE ? 4 : 1e-3;
}

static double any_seconds(const Dag *d, uint32_t n) {
  if (d->kind[n] == NODE_COMPUTE) return random_int(1, 6) + (d->pass[n] == PASS_B ? random_int(0, 3) : 0);
  return NODE_KIND_COMMUNICATES[d->kind[n]] ? random_int(0, 6) : 0.01;
}

typedef struct Steady {
  double exchange, hidden, compute, span; /* of the groups of two members, on rank 0 */
} Steady;

static double common(double a, double b, double c, double d) {
  const double lo = fmax(a, c), hi = fmin(b, d);
  return hi > lo ? hi - lo : 0;
}

/* The groups that hold both a forward and a backward pass, but for the first and the last of them. */
static Steady steady_of(const Plan *p, int n_mb) {
  const Dag *d = p->dag;
  const RankPlan *r = &p->ranks[0];
  Steady s = {0};
  PlanTimes t;
  double first = INFINITY, last = 0;
  if (plan_times_new(p, &t, NULL) != PIPER_OK) bail("no memory");
  for (size_t i = 0; i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    const double end = t.end[0][i], begin = end - p->node_seconds[x->node];
    const bool forward = d->pass[x->node] == PASS_F;
    const uint32_t mb = d->mb[x->node];
    const bool chunk = d->kind[x->node] == NODE_COMPUTE || x->kind == INSTR_ALL_TO_ALL;
    if (!chunk || mb < (forward ? 2 : 1) || mb > (uint32_t)(forward ? n_mb - 2 : n_mb - 3)) continue;
    first = fmin(first, begin), last = fmax(last, end);
    if (x->kind == INSTR_RUN) {
      s.compute += end - begin;
      continue;
    }
    s.exchange += end - begin;
    for (size_t j = 0; j < r->instrs.n; j++)
      if (r->instrs.at[j].kind == INSTR_RUN)
        s.hidden += common(begin, end, t.end[0][j] - p->node_seconds[r->instrs.at[j].node], t.end[0][j]);
  }
  s.span = last - first;
  plan_times_free(&t);
  return s;
}

static void steady(const Graph *g) {
  for (int devices = 2; devices <= 4; devices += 2)
    for (ratio = 2; ratio <= 8; ratio += ratio == 2 ? 2 : 4) {
      TestStrategy t = {0};
      enum { MB = 8 };
      pairs_strategy(&t, devices == 2 ? "0,1" : "0,1,2,3", (uint32_t)devices, MB, true);
      Plan *p = plans_must(g, &t, (PlanSpec){.batch = 4 * MB, .scheduled = true, .seconds = chunk_seconds});
      const Steady s = steady_of(p, MB);
      const double most = fmax(s.compute, s.exchange), hideable = fmin(1, s.compute / s.exchange);
      /* Beside the first and the last chunk of a pair no exchange can run. */
      ok(s.hidden >= (ratio <= 4 ? 0.8 : 0.55) * hideable * s.exchange && s.span <= (ratio <= 4 ? 1.1 : 1.35) * most,
         "%d devices, exchanges of %d to chunks of 4: %.0f%% hidden, %.2f times the longer of both", devices, ratio,
         100 * s.hidden / s.exchange, s.span / most);
      plan_free(p);
      strategy_clear(&t);
    }
}

static void random_pairs(const Graph *g) {
  int slower = 0, rounds = 0;
  double gain = 0;
  for (int round = 0; round < 60; round++) {
    const int n_mb = random_int(2, 5);
    TestStrategy t = {0};
    pairs_strategy(&t, "0,1", 2, n_mb, true);
    Plan *p = plans_must(g, &t, (PlanSpec){.batch = 4 * n_mb, .scheduled = true, .seconds = any_seconds});
    slower += p->predicted_seconds > p->apart_seconds;
    gain += p->apart_seconds / p->predicted_seconds;
    rounds++;
    plan_free(p);
    strategy_clear(&t);
  }
  is_int(slower, 0, "random seconds: never slower than apart (which takes %.2f times as long)", gain / rounds);
}

int main(void) {
  random_start();
  Graph *g = pairs_model();
  chains(g, ORDER_CRITICAL_PATH);
  chains(g, ORDER_DOWNSTREAM);
  chains(g, ORDER_BEST);
  exchange_first(g);
  steady(g);
  random_pairs(g);
  graph_free(g);
  return done_testing();
}
