/* The proof against a judge that is slow and plain: waits are dropped from random plans, and
 * plan_verify has to say what a look at all pairs of accesses says. */
#include "lib/plans.h"
#include "random_data.h"

enum { PLANS = 60, DROPS = 12, MAX_INSTRS = 2048 };

typedef struct Judge {
  const Plan *p;
  uint32_t n, words;
  uint32_t rank[MAX_INSTRS], index[MAX_INSTRS];
  int64_t
      partner[MAX_INSTRS]; /* of a RECV its SEND; of a member of a collective the number of it */
  uint64_t *starts;        /* row i: what is complete when i starts */
  uint64_t *ends;          /* row i: what is complete when i is */
} Judge;

static const Instr *at(const Judge *j, uint32_t g) {
  return &j->p->ranks[j->rank[g]].instrs.at[j->index[g]];
}

static const char *stream_name(const Judge *j, uint32_t g) {
  return j->p->ranks[j->rank[g]].streams.at[at(j, g)->stream].name;
}

/* The k-th of its kind on its channel or communicator, on its rank. */
static uint32_t turn(const Judge *j, uint32_t g) {
  uint32_t k = 0;
  for (uint32_t h = g; h-- > 0 && j->rank[h] == j->rank[g];)
    k += at(j, h)->kind == at(j, g)->kind && at(j, h)->peer == at(j, g)->peer &&
         at(j, h)->group == at(j, g)->group && at(j, h)->stream == at(j, g)->stream;
  return k;
}

static bool meets(const Judge *j, uint32_t g, uint32_t h) {
  const Instr *x = at(j, g), *y = at(j, h);
  if (strcmp(stream_name(j, g), stream_name(j, h)) != 0 || turn(j, g) != turn(j, h)) return false;
  if (x->kind == INSTR_RECV)
    return y->kind == INSTR_SEND && x->peer == j->p->ranks[j->rank[h]].rank &&
           y->peer == j->p->ranks[j->rank[g]].rank;
  return instr_is_collective(x->kind) && y->kind == x->kind && x->group == y->group;
}

static bool judge_new(Judge *j, const Plan *p) {
  *j = (Judge){.p = p};
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (uint32_t i = 0; i < p->ranks[r].instrs.n; i++) {
      if (j->n == MAX_INSTRS) return false;
      j->rank[j->n] = r;
      j->index[j->n++] = i;
    }
  j->words = j->n / 64 + 1;
  j->starts = calloc((size_t)j->n * j->words, sizeof *j->starts);
  j->ends = calloc((size_t)j->n * j->words, sizeof *j->ends);
  if (j->starts == NULL || j->ends == NULL) bail("no memory");
  for (uint32_t g = 0; g < j->n; g++) {
    j->partner[g] = -1;
    if (at(j, g)->kind != INSTR_RECV && !instr_is_collective(at(j, g)->kind)) continue;
    for (uint32_t h = 0; h < j->n && j->partner[g] < 0; h++)
      if (meets(j, g, h)) j->partner[g] = h;
  }
  return true;
}

static bool join(const Judge *j, uint64_t *to, const uint64_t *from) {
  bool more = false;
  for (uint32_t w = 0; w < j->words; w++) {
    more |= (from[w] & ~to[w]) != 0;
    to[w] |= from[w];
  }
  return more;
}

/* Until nothing changes. */
static void judge_close(Judge *j) {
  memset(j->starts, 0, (size_t)j->n * j->words * sizeof *j->starts);
  memset(j->ends, 0, (size_t)j->n * j->words * sizeof *j->ends);
  for (bool more = true; more;) {
    more = false;
    for (uint32_t g = 0; g < j->n; g++) {
      const RankPlan *r = &j->p->ranks[j->rank[g]];
      const Instr *x = at(j, g);
      uint64_t *start = j->starts + (size_t)g * j->words, *end = j->ends + (size_t)g * j->words;
      for (uint32_t k = 0; k < x->n_waits; k++) {
        const uint32_t h = g - j->index[g] + r->waits.at[x->wait_first + k];
        more |= join(j, start, j->ends + (size_t)h * j->words);
      }
      for (uint32_t h = g; h-- > 0 && j->rank[h] == j->rank[g];)
        if (at(j, h)->stream == x->stream) {
          more |= join(j, start, j->ends + (size_t)h * j->words);
          break;
        }
      more |= join(j, end, start);
      end[g / 64] |= UINT64_C(1) << (g % 64);
      if (j->partner[g] < 0) continue;
      if (x->kind == INSTR_RECV) {
        more |= join(j, end, j->starts + (size_t)j->partner[g] * j->words);
        continue;
      }
      for (uint32_t h = 0; h < j->n; h++) /* a collective: whoever shares the first member */
        if (j->partner[h] == j->partner[g] && instr_is_collective(at(j, h)->kind))
          more |= join(j, end, j->starts + (size_t)h * j->words);
    }
  }
}

static bool after(const Judge *j, uint32_t g, uint32_t h) {
  return j->starts[(size_t)g * j->words + h / 64] >> (h % 64) & 1;
}

static bool conflict(const Judge *j, uint32_t g, uint32_t h) {
  const RankPlan *r = &j->p->ranks[j->rank[g]];
  const Instr *x = at(j, g), *y = at(j, h);
  for (uint32_t a = 0; a < x->n_accesses; a++)
    for (uint32_t b = 0; b < y->n_accesses; b++) {
      const Access *m = &r->accesses.at[x->access_first + a],
                   *n = &r->accesses.at[y->access_first + b];
      const uint64_t mo = r->buffers.at[m->buffer].offset, no = r->buffers.at[n->buffer].offset;
      if ((m->write || n->write) && mo + m->lo < no + n->hi && no + n->lo < mo + m->hi) return true;
    }
  return false;
}

static bool judge_says(Judge *j) {
  judge_close(j);
  for (uint32_t g = 0; g < j->n; g++)
    for (uint32_t h = 0; h < g; h++)
      if (j->rank[g] == j->rank[h] && conflict(j, g, h) && !after(j, g, h) && !after(j, h, g))
        return false;
  return true;
}

static Plan *random_plan(Graph **g) {
  TestStrategy t = {0};
  PiperErr err = {0};
  static const char *const devices[] = {"0", "1", "0,1", "1,2", "2", "2,0"};
  const uint32_t n = (uint32_t)random_int(2, 4);
  char filter[16];
  const bool experts = random_int(0, 2) == 0;
  *g = model_new();
  ValueId h = model_input(*g, "x");
  for (uint32_t i = 0; i < n; i++) {
    snprintf(filter, sizeof filter, "l%u", i);
    model_enter(*g, "PP");
    h = experts && i == 1 ? model_moe(*g, filter, h, 4) : model_linear(*g, filter, h);
    if (i + 1 == n) model_loss(*g, model_op(*g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(*g, "PP");
  }
  model_cut(*g);
  strategy_split(&t, "", "MB", random_int(1, 4));
  for (uint32_t i = 0; i < n; i++) {
    snprintf(filter, sizeof filter, "PP=%u", i);
    const char *d = devices[random_int(0, 5)];
    strategy_place(&t, filter, d);
    if (strchr(d, ',') == NULL) continue;
    if (experts && i == 1) strategy_shard(&t, "EP=*", d, 2);
    Directive *x = strategy_replicate(&t, filter, d);
    x->zero = (uint8_t)random_int(0, ZERO_PARAMS);
    x->per_microbatch = random_int(0, 1);
  }
  Plan *p = plans_made(
      *g, &t, (PlanSpec){.batch = 24, .order_seed = 1 + (uint64_t)random_int(0, 1 << 20)}, &err);
  if (p == NULL) bail(err.text);
  strategy_clear(&t);
  return p;
}

/* Drops one wait; false: there is none. */
static bool drop_wait(Plan *p) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (size_t i = 0; i < p->ranks[r].instrs.n; i++) n += p->ranks[r].instrs.at[i].n_waits;
  if (n == 0) return false;
  uint32_t k = (uint32_t)random_int(0, (int)n - 1);
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (size_t i = 0; i < p->ranks[r].instrs.n; i++) {
      Instr *x = &p->ranks[r].instrs.at[i];
      if (k >= x->n_waits) {
        k -= x->n_waits;
        continue;
      }
      uint32_t *waits = p->ranks[r].waits.at + x->wait_first;
      waits[k] = waits[--x->n_waits];
      return true;
    }
  return false;
}

/* Each wait of one plan in turn. Some orders hold by way of the other rank as well: what comes back
 * from there comes after what was sent. */
static void each_wait(Judge *j) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  int missed = 0, spared = 0, wrong = 0;
  strategy_split(&t, "", "MB", 6);
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1", "1");
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 24, .order_seed = 7});
  if (!judge_new(j, p)) bail("the plan is too long for the judge");
  for (uint32_t r = 0; r < p->n_ranks; r++)
    for (size_t i = 0; i < p->ranks[r].instrs.n; i++) {
      Instr *x = &p->ranks[r].instrs.at[i];
      for (uint32_t k = 0; k < x->n_waits; k++) {
        uint32_t *waits = p->ranks[r].waits.at + x->wait_first, kept = waits[k];
        waits[k] = waits[--x->n_waits];
        const bool proved = plan_verify(p, NULL, NULL) == PIPER_OK;
        wrong += proved != judge_says(j);
        missed += !proved;
        spared += proved;
        waits[x->n_waits++] = waits[k];
        waits[k] = kept;
      }
    }
  diag("%d waits are needed, %d are not", missed, spared);
  is_int(wrong, 0, "the judge agrees about each wait of a plan");
  ok(missed > 0 && spared > 0, "an order by way of another rank counts");
  free(j->starts);
  free(j->ends);
  plan_free(p);
  strategy_clear(&t);
  graph_free(g);
}

int main(void) {
  static Judge j;
  int agreed = 0, faults = 0, wrong = 0;
  random_start();
  each_wait(&j);
  for (int i = 0; i < PLANS && wrong == 0; i++) {
    Graph *g;
    Plan *p = random_plan(&g);
    if (judge_new(&j, p)) {
      for (int k = 0; k <= DROPS && wrong == 0; k++) {
        PiperErr err = {0};
        const bool proved = plan_verify(p, NULL, &err) == PIPER_OK, right = judge_says(&j);
        if (proved != right) {
          wrong++;
          diag("plan %d, %d waits dropped: the judge says %s, the proof: %s", i, k,
               right ? "right" : "wrong", err.text);
        }
        agreed++;
        faults += !right;
        if (!right || !drop_wait(p)) break;
      }
    }
    free(j.starts);
    free(j.ends);
    plan_free(p);
    graph_free(g);
  }
  diag("%d verdicts, %d of them a race", agreed, faults);
  is_int(wrong, 0, "the proof says what the judge says");
  ok(faults > PLANS / 2, "most dropped waits are missed");
  return done_testing();
}
