/* Planned overlap is achieved: a plan of overlapped pairs whose chunks and exchanges take a known time each
 * takes hardly longer than the chunks alone. And timing never decides the order of collectives. */
#include "lib/pairs.h"
#include "lib/slow_ranks.h"

enum { MICROBATCHES = 4 };

static double chunk_seconds(const Dag *d, uint32_t n) {
  return d->kind[n] == NODE_COMPUTE || d->kind[n] == NODE_ALL_TO_ALL ? 1 : 0;
}

static Plan *pairs(const Graph *g, bool overlapped, int n_mb) {
  TestStrategy t = {0};
  pairs_strategy(&t, "0,1", 2, n_mb, overlapped);
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 4 * n_mb, .scheduled = true, .seconds = chunk_seconds});
  strategy_clear(&t);
  return p;
}

/* Steps of both, in turn, until what was planned is reached: a machine with other work to do wakes sleepers
 * late, so a single step says little. */
static void achieved(const Graph *g) {
  static const char *const NAME[] = {"in sequence", "overlapped"};
  enum { TRIES = 12 };
  double step[2] = {INFINITY, INFINITY}, off[2] = {1, 1}, plan[2];
  Plan *p[2];
  SlowRanks s[2];
  for (int k = 0; k < 2; k++) {
    p[k] = pairs(g, k == 1, MICROBATCHES);
    plan[k] = slow_planned(p[k]);
    slow_open(&s[k], p[k]);
    s[k].unit = 4e-3;
  }
  for (int try = 0; try < TRIES && (off[0] > 0.1 || off[1] > 0.1 || step[1] > 0.8 * step[0]); try++)
    for (int k = 0; k < 2; k++) {
      double seconds, hidden;
      step[k] = fmin(step[k], slow_step(&s[k]));
      slow_overlap(&s[k], INSTR_ALL_TO_ALL, &seconds, &hidden);
      off[k] = fmin(off[k], fabs(hidden / seconds - plan[k]));
    }
  for (int k = 0; k < 2; k++) {
    diag("%s: step %.1f ms, predicted %.1f", NAME[k], step[k] * 1e3, p[k]->predicted_seconds * s[k].unit * 1e3);
    ok(off[k] <= 0.1, "%s: %.0f%% of the exchanges planned to be hidden, %.0f%% off", NAME[k], 100 * plan[k], 100 * off[k]);
    slow_close(&s[k]);
    plan_free(p[k]);
  }
  ok(step[1] <= 0.8 * step[0], "overlapped members take %.2f times as long as in sequence", step[1] / step[0]);
}

static bool same_communicator(const Plan *p, uint32_t a, const Instr *x, uint32_t b, const Instr *y) {
  return instr_is_collective(y->kind) && x->group == y->group &&
         strcmp(p->ranks[a].streams.at[x->stream].name, p->ranks[b].streams.at[y->stream].name) == 0;
}

/* Do all ranks begin the collectives of each communicator in one order? */
static bool one_order(const SlowRanks *s) {
  const Plan *p = s->plan;
  for (uint32_t a = 0; a < p->n_ranks; a++)
    for (uint32_t b = 0; b < a; b++) {
      const SlowRank *x = &s->rank[a], *y = &s->rank[b];
      for (uint32_t i = 0; i < x->n_began; i++) {
        const Instr *u = &p->ranks[a].instrs.at[x->began[i]], *v = NULL;
        uint32_t k = 0;
        if (!instr_is_collective(u->kind) || devsets_position(p->dag->devsets, u->group, p->ranks[b].rank) < 0)
          continue;
        for (uint32_t j = 0; j <= i; j++)
          k += same_communicator(p, a, u, a, &p->ranks[a].instrs.at[x->began[j]]);
        for (uint32_t j = 0; j < y->n_began && k > 0; j++) {
          v = &p->ranks[b].instrs.at[y->began[j]];
          k -= same_communicator(p, a, u, b, v);
        }
        if (k > 0 || v->node != u->node) return false;
      }
    }
  return true;
}

/* Random sleeps before half of the instructions of each rank, others for each seed. */
static void jitter(Plan *p, int n_seeds, const char *name) {
  int differ = 0;
  SlowRanks s;
  slow_open(&s, p);
  s.longest = 5e-5;
  for (int seed = 1; seed <= n_seeds; seed++) {
    s.seed = (uint64_t)seed << 20;
    slow_step(&s);
    differ += !one_order(&s);
  }
  is_int(differ, 0, "%s, %d steps: each communicator's order is the same on all ranks", name, n_seeds);
  slow_close(&s);
  plan_free(p);
}

/* Pipeline, replicas, experts, overlapped pairs. */
static Plan *pipeline(const Graph *g) {
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 4);
  strategy_place(&t, "PP=0", "0,1");
  strategy_place(&t, "PP=1", "2,3");
  for (int stage = 0; stage < 2; stage++) {
    strategy_replicate(&t, stage == 0 ? "PP=0" : "PP=1", stage == 0 ? "0,1" : "2,3")->zero = ZERO_GRADS;
    strategy_shard(&t, stage == 0 ? "PP=0 EP=*" : "PP=1 EP=*", stage == 0 ? "0,1" : "2,3", 2);
  }
  strategy_order(&t, "PP=0 MB=0 PASS=F;PP=0 MB=1 PASS=F;PP=0 MB=2 PASS=F|PP=0 MB=0 PASS=B;"
                     "PP=0 MB=3 PASS=F|PP=0 MB=1 PASS=B;PP=0 MB=2 PASS=B;PP=0 MB=3 PASS=B");
  strategy_order(&t, "PP=1 MB=0 PASS=F;PP=1 MB=1 PASS=F|PP=1 MB=0 PASS=B;PP=1 MB=2 PASS=F|PP=1 MB=1 PASS=B;"
                     "PP=1 MB=3 PASS=F|PP=1 MB=2 PASS=B;PP=1 MB=3 PASS=B");
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 16, .scheduled = true, .seconds = chunk_seconds});
  strategy_clear(&t);
  return p;
}

/* [STEPS]: of the second plan under random sleeps. */
int main(int argc, char **argv) {
  const int n_steps = argc > 1 ? atoi(argv[1]) : 150;
  Graph *g = pairs_model();
  achieved(g);
  jitter(pairs(g, true, 2), 200, "two members' exchanges on one communicator");
  jitter(pipeline(g), n_steps, "pipeline, replicas and experts with overlap");
  graph_free(g);
  return done_testing();
}
