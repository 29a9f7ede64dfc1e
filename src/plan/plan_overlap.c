/* Totals take one pass over each rank's list: the compute that ran until some time is a binary search
 * in the rank's RUNs. Only for the few worst operations the reasons are looked for, with what they
 * wait for read from the waits of the lists, and named by the edges of the DAG. */
#include "plan/plan_overlap.h"

#include "ir/topo.h"
#include "plan/plan_time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define LOOK_AHEAD 256 /* RUNs behind the one that waits: is one of them ready? */

const char *const OVERLAP_CAUSE_NAME[OVERLAP_CAUSE_COUNT] = {"data", "order", "stream", "memory",
                                                             "rank", "list",  "end"};

/* A RUN of the rank at hand. */
typedef struct Busy {
  uint32_t instr;
  double begin, end, before; /* seconds computed before 'begin' */
} Busy;

typedef struct Finder {
  const Plan *plan;
  PlanTimes times;
  double tiny; /* differences of rounding */
  Adjacency edges;
  VEC(Busy) busy;   /* of the rank at hand */
  uint32_t *last;   /* by node: its last instruction on the rank at hand; NONE */
  Overlap *out;
} Finder;

static const Instr *instr_at(const Finder *f, uint32_t rank, uint32_t i) {
  return &f->plan->ranks[rank].instrs.at[i];
}

static double seconds_of(const Finder *f, uint32_t rank, uint32_t i) {
  return f->plan->node_seconds[instr_at(f, rank, i)->node];
}

static double begin_of(const Finder *f, uint32_t rank, uint32_t i) {
  return f->times.end[rank][i] - seconds_of(f, rank, i);
}

/* ---- how much --------------------------------------------------------------------------------- */

static bool list_busy(Finder *f, uint32_t rank) {
  const InstrVec *instrs = &f->plan->ranks[rank].instrs;
  double before = 0;
  f->busy.n = 0;
  for (uint32_t i = 0; i < instrs->n; i++) {
    if (instrs->at[i].kind != INSTR_RUN) continue;
    const Busy b = {i, begin_of(f, rank, i), f->times.end[rank][i], before};
    before += b.end - b.begin;
    if (!vec_push(&f->busy, b)) return false;
  }
  return true;
}

/* Seconds that the rank at hand computes until t. */
static double computed_until(const Finder *f, double t) {
  size_t lo = 0, hi = f->busy.n; /* the first one that begins after t */
  while (lo < hi) {
    const size_t mid = lo + (hi - lo) / 2;
    if (f->busy.at[mid].begin <= t) lo = mid + 1;
    else hi = mid;
  }
  if (lo == 0) return 0;
  const Busy *b = &f->busy.at[lo - 1];
  return b->before + (t < b->end ? t : b->end) - b->begin;
}

static OverlapRow *row_of(Overlap *o, const Instr *x, const PlanStream *s) {
  const uint8_t kind = x->kind == INSTR_RECV ? INSTR_SEND : x->kind;
  const uint32_t n = (uint32_t)strcspn(s->name, "/");
  for (size_t k = 0; k < o->rows.n; k++) {
    OverlapRow *r = &o->rows.at[k];
    if (r->kind == kind && r->stream_n == n && memcmp(r->stream, s->name, n) == 0) return r;
  }
  if (!vec_push(&o->rows, ((OverlapRow){.kind = kind, .stream = s->name, .stream_n = n}))) return NULL;
  return &o->rows.at[o->rows.n - 1];
}

/* Keeps the worst rank of a node, and the worst nodes. */
static void enter_worst(Finder *f, OverlapExposed x) {
  Overlap *o = f->out;
  const uint32_t node = instr_at(f, x.rank, x.instr)->node;
  uint32_t at = o->n_worst;
  for (uint32_t k = 0; k < o->n_worst; k++)
    if (instr_at(f, o->worst[k].rank, o->worst[k].instr)->node == node) at = k;
  if (at < o->n_worst) {
    if (x.exposed <= o->worst[at].exposed + f->tiny) return;
  } else if (at == OVERLAP_WORST) {
    if (x.exposed <= o->worst[--at].exposed + f->tiny) return;
  } else {
    o->n_worst++;
  }
  for (; at > 0 && o->worst[at - 1].exposed + f->tiny < x.exposed; at--) o->worst[at] = o->worst[at - 1];
  o->worst[at] = x;
}

static PiperStatus add_rank(Finder *f, uint32_t rank, PiperErr *err) {
  const RankPlan *r = &f->plan->ranks[rank];
  if (!list_busy(f, rank)) return err_nomem(err, "overlap");
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    if (x->kind == INSTR_RUN) continue;
    OverlapRow *row = row_of(f->out, x, &r->streams.at[x->stream]);
    if (row == NULL) return err_nomem(err, "overlap");
    const double seconds = seconds_of(f, rank, i);
    double hidden = computed_until(f, f->times.end[rank][i]) - computed_until(f, begin_of(f, rank, i));
    if (hidden < f->tiny) hidden = 0;
    if (hidden > seconds - f->tiny) hidden = seconds;
    row->calls++;
    row->seconds += seconds;
    row->hidden += hidden;
    if (hidden < seconds)
      enter_worst(f, (OverlapExposed){.rank = rank,
                                      .instr = i,
                                      .seconds = seconds,
                                      .exposed = seconds - hidden,
                                      .waiting = NONE,
                                      .blocker = NONE});
  }
  return PIPER_OK;
}

/* ---- why -------------------------------------------------------------------------------------- */

/* The last thing that an instruction waited for. */
typedef struct Hold {
  double end;
  uint32_t instr; /* of the same rank; NONE: nothing */
  uint8_t cause;  /* DATA, ORDER, STREAM, MEMORY */
  uint32_t line;  /* ORDER */
} Hold;

/* What makes node n come after node m: is there an edge? */
static bool edge_between(const Finder *f, uint32_t m, uint32_t n, EdgeKind kind, uint32_t *line) {
  const Dag *d = f->plan->dag;
  for (uint32_t k = f->edges.in_first[n]; k < f->edges.in_first[n + 1]; k++) {
    const Edge *e = &d->edges.at[f->edges.in_edge[k]];
    *line = e->line;
    if (e->src == m && e->kind == kind) return true;
  }
  return false;
}

static void hold_by(const Finder *f, uint32_t rank, uint32_t i, uint32_t j, OverlapCause other,
                    Hold *h) {
  const uint32_t n = instr_at(f, rank, i)->node, m = instr_at(f, rank, j)->node;
  Hold by = {f->times.end[rank][j], j, (uint8_t)other, 0};
  if (edge_between(f, m, n, EDGE_DATA, &by.line)) by.cause = OVERLAP_DATA;
  else if (edge_between(f, m, n, EDGE_TEMPORAL, &by.line)) by.cause = OVERLAP_ORDER;
  const bool later = h->instr == NONE || by.end > h->end + f->tiny;
  if (later || (by.end > h->end - f->tiny && by.cause < h->cause)) *h = by;
}

static Hold hold_of(const Finder *f, uint32_t rank, uint32_t i) {
  const RankPlan *r = &f->plan->ranks[rank];
  const Instr *x = &r->instrs.at[i];
  Hold h = {.instr = NONE};
  for (uint32_t k = 0; k < x->n_waits; k++)
    hold_by(f, rank, i, r->waits.at[x->wait_first + k], OVERLAP_MEMORY, &h);
  for (uint32_t j = i; j-- > 0;)
    if (r->instrs.at[j].stream == x->stream) {
      hold_by(f, rank, i, j, OVERLAP_STREAM, &h);
      break;
    }
  return h;
}

static void find_last(Finder *f, uint32_t rank) {
  const InstrVec *instrs = &f->plan->ranks[rank].instrs;
  memset(f->last, 0xff, f->plan->dag->n * sizeof *f->last);
  for (uint32_t i = 0; i < instrs->n; i++) f->last[instrs->at[i].node] = i;
}

/* When all that node n reads is there, on the rank of f->last. */
static double data_ready(const Finder *f, uint32_t rank, uint32_t n) {
  const Dag *d = f->plan->dag;
  double at = 0;
  for (uint32_t k = f->edges.in_first[n]; k < f->edges.in_first[n + 1]; k++) {
    const Edge *e = &d->edges.at[f->edges.in_edge[k]];
    if (e->kind != EDGE_DATA || f->last[e->src] == NONE) continue;
    if (f->times.end[rank][f->last[e->src]] > at) at = f->times.end[rank][f->last[e->src]];
  }
  return at;
}

/* The instruction of 'rank' that x, of rank 'from', meets; NONE: none. */
static uint32_t meeting(const Finder *f, const Instr *x, uint32_t from, uint32_t rank) {
  const InstrVec *instrs = &f->plan->ranks[rank].instrs;
  const bool collective = instr_is_collective(x->kind);
  const uint8_t kind = collective ? x->kind : x->kind == INSTR_SEND ? INSTR_RECV : INSTR_SEND;
  for (uint32_t i = 0; i < instrs->n; i++) {
    const Instr *y = &instrs->at[i];
    if (y->node != x->node || y->kind != kind) continue;
    if (collective ? y->group == x->group : y->peer == f->plan->ranks[from].rank) return i;
  }
  return NONE;
}

/* Of all that take part, the last one to be ready, and what it waited for. */
static Hold last_to_come(const Finder *f, uint32_t rank, uint32_t i, uint32_t *by) {
  const DevSets *sets = f->plan->dag->devsets;
  const Instr *x = instr_at(f, rank, i);
  const bool collective = instr_is_collective(x->kind);
  const int32_t *ranks = collective ? devsets_ranks(sets, x->group) : &x->peer;
  const uint32_t n = collective ? devsets_size(sets, x->group) : 1;
  Hold h = hold_of(f, rank, i);
  *by = rank;
  for (uint32_t j = 0; j < n; j++) {
    const uint32_t other = (uint32_t)devsets_position(sets, f->plan->world, ranks[j]);
    const uint32_t k = other != rank ? meeting(f, x, rank, other) : NONE;
    if (k == NONE) continue;
    const Hold o = hold_of(f, other, k);
    if (o.instr == NONE || (h.instr != NONE && o.end <= h.end + f->tiny)) continue;
    h = o;
    *by = other;
  }
  return h;
}

/* Did it begin late, and why? */
static bool began_late(Finder *f, OverlapExposed *o) {
  const Instr *x = instr_at(f, o->rank, o->instr);
  uint32_t source = o->rank, by; /* where its data comes from */
  if (x->kind == INSTR_RECV)
    source = (uint32_t)devsets_position(f->plan->dag->devsets, f->plan->world, x->peer);
  if (source != o->rank) find_last(f, source);
  o->late = begin_of(f, o->rank, o->instr) - data_ready(f, source, x->node);
  if (source != o->rank) find_last(f, o->rank);
  if (o->late < f->tiny) o->late = 0;
  if (o->late == 0 || o->late < o->exposed / 2) return false;
  const Hold h = last_to_come(f, o->rank, o->instr, &by);
  if (h.instr == NONE) return false;
  o->cause = h.cause == OVERLAP_DATA ? OVERLAP_RANK : h.cause;
  o->blocks_start = true;
  o->blocker_rank = by;
  o->blocker = h.instr;
  o->line = h.line;
  if (h.cause == OVERLAP_STREAM) o->line = f->plan->dag->line[instr_at(f, by, h.instr)->node];
  return true;
}

/* The longest time within the operation's in which the rank computes nothing; index in 'busy' of what
 * comes after it. */
static size_t longest_gap(const Finder *f, double begin, double end, double *gap) {
  double from = 0, longest = -1;
  size_t after = f->busy.n;
  for (size_t k = 0; k <= f->busy.n; k++) {
    const double to = k < f->busy.n ? f->busy.at[k].begin : end;
    const double lo = from > begin ? from : begin, hi = to < end ? to : end;
    if (hi - lo > longest) longest = hi - lo, after = k, *gap = lo;
    if (k < f->busy.n) from = f->busy.at[k].end;
  }
  return after;
}

/* A temporal edge into n, from something that has not ended by then; through JOINs. */
static bool held_by_order(const Finder *f, uint32_t rank, uint32_t n, double then, uint32_t *line) {
  const Dag *d = f->plan->dag;
  for (uint32_t k = f->edges.in_first[n]; k < f->edges.in_first[n + 1]; k++) {
    const Edge *e = &d->edges.at[f->edges.in_edge[k]];
    if (e->kind != EDGE_TEMPORAL) continue;
    *line = e->line;
    const uint32_t i = f->last[e->src];
    if (d->kind[e->src] == NODE_JOIN ? held_by_order(f, rank, e->src, then, line)
                                     : i != NONE && f->times.end[rank][i] > then + f->tiny)
      return true;
  }
  return false;
}

/* Is there compute in the list, behind the one that waits, that was ready when the gap began? */
static void find_ready(const Finder *f, OverlapExposed *o, size_t after, double gap) {
  for (size_t k = after + 1; k < f->busy.n && k <= after + LOOK_AHEAD; k++) {
    const uint32_t i = f->busy.at[k].instr, n = instr_at(f, o->rank, i)->node;
    if (f->busy.at[k].end - f->busy.at[k].begin < f->tiny) continue;
    if (data_ready(f, o->rank, n) > gap + f->tiny) continue;
    o->blocker_rank = o->rank;
    o->blocker = i;
    o->cause = held_by_order(f, o->rank, n, gap, &o->line) ? OVERLAP_ORDER : OVERLAP_LIST;
    if (o->cause == OVERLAP_LIST) o->line = 0;
    return;
  }
}

static PiperStatus explain(Finder *f, OverlapExposed *o, PiperErr *err) {
  if (!list_busy(f, o->rank)) return err_nomem(err, "overlap");
  find_last(f, o->rank);
  if (began_late(f, o)) return PIPER_OK;
  double gap = 0;
  const size_t after = longest_gap(f, begin_of(f, o->rank, o->instr), f->times.end[o->rank][o->instr], &gap);
  o->cause = OVERLAP_END;
  if (after == f->busy.n) return PIPER_OK;
  o->waiting = f->busy.at[after].instr;
  const Hold h = hold_of(f, o->rank, o->waiting);
  o->cause = h.cause == OVERLAP_STREAM ? OVERLAP_DATA : h.cause;
  o->line = h.cause == OVERLAP_ORDER ? h.line : 0;
  if (h.instr != o->instr || h.cause != OVERLAP_DATA) {
    o->blocker_rank = o->rank;
    o->blocker = h.instr;
    const Hold behind = h.instr != NONE ? hold_of(f, o->rank, h.instr) : h;
    if (h.cause == OVERLAP_DATA && behind.instr == o->instr && behind.cause == OVERLAP_STREAM) {
      o->cause = OVERLAP_STREAM;
      o->line = f->plan->dag->line[instr_at(f, o->rank, h.instr)->node];
    }
    return PIPER_OK;
  }
  find_ready(f, o, after, gap);
  return PIPER_OK;
}

PiperStatus plan_overlap(const Plan *plan, Overlap *out, PiperErr *err) {
  Finder f = {.plan = plan, .out = out};
  PiperStatus st;
  out->rows.n = 0;
  out->n_worst = 0;
  if (plan->node_seconds == NULL) return PIPER_OK;
  TRY(plan_lists(plan, err));
  TRY(plan_times_new(plan, &f.times, err));
  f.tiny = f.times.seconds * 1e-9;
  f.last = malloc(plan->dag->n * sizeof *f.last);
  st = f.last != NULL ? adjacency_new(plan->dag, &f.edges, err) : err_nomem(err, "overlap");
  const bool found_edges = st == PIPER_OK;
  for (uint32_t r = 0; st == PIPER_OK && r < plan->n_ranks; r++) st = add_rank(&f, r, err);
  for (uint32_t k = 0; st == PIPER_OK && k < out->n_worst; k++) st = explain(&f, &out->worst[k], err);
  if (found_edges) adjacency_free(&f.edges);
  plan_times_free(&f.times);
  vec_free(&f.busy);
  free(f.last);
  return st;
}

void plan_overlap_free(Overlap *o) {
  vec_free(&o->rows);
  *o = (Overlap){0};
}

/* ---- in words --------------------------------------------------------------------------------- */

void plan_overlap_label(const Plan *p, uint32_t rank, uint32_t instr, char *buf, size_t n) {
  const uint32_t node = p->ranks[rank].instrs.at[instr].node;
  const char *line = dag_line(p->dag, p->dag->line[node]);
  char name[160];
  dag_name(p->dag, (NodeId){node}, name, sizeof name);
  if (line[0] != '\0') snprintf(buf, n, "%s (%s)", name, line);
  else snprintf(buf, n, "%s", name);
}

static void why_late(const Plan *p, const OverlapExposed *o, const char *blocker, char *buf, size_t n) {
  const RankPlan *r = &p->ranks[o->blocker_rank];
  char since[32];
  plan_seconds_text(o->late, since, sizeof since);
  const int at = snprintf(buf, n, "it began %s after its data was there, ", since);
  if (at < 0 || (size_t)at >= n) return;
  buf += at, n -= (size_t)at;
  switch ((OverlapCause)o->cause) {
  case OVERLAP_STREAM:
    snprintf(buf, n, "behind %s on stream %s", blocker, r->streams.at[r->instrs.at[o->blocker].stream].name);
    return;
  case OVERLAP_ORDER:
    snprintf(buf, n, "after %s, as %s asks", blocker, dag_line(p->dag, o->line));
    return;
  case OVERLAP_MEMORY:
    snprintf(buf, n, "when %s needed its memory no longer", blocker);
    return;
  default:
    snprintf(buf, n, "when rank %d was there, after %s", r->rank, blocker);
  }
}

void plan_overlap_why(const Plan *p, const OverlapExposed *o, char *buf, size_t n) {
  char blocker[256] = "", waiting[256] = "";
  if (o->blocker != NONE) plan_overlap_label(p, o->blocker_rank, o->blocker, blocker, sizeof blocker);
  if (o->waiting != NONE) plan_overlap_label(p, o->rank, o->waiting, waiting, sizeof waiting);
  if (o->blocks_start) {
    why_late(p, o, blocker, buf, n);
    return;
  }
  const RankPlan *r = &p->ranks[o->rank];
  switch ((OverlapCause)o->cause) {
  case OVERLAP_STREAM:
    snprintf(buf, n, "%s waits for %s, which is behind it on stream %s", waiting, blocker,
             r->streams.at[r->instrs.at[o->blocker].stream].name);
    return;
  case OVERLAP_END:
    snprintf(buf, n, "no compute follows on the rank");
    return;
  case OVERLAP_MEMORY:
    snprintf(buf, n, "%s waits until %s needs its memory no longer", waiting, blocker);
    return;
  case OVERLAP_LIST:
    snprintf(buf, n, "%s waits for it; %s is ready, but later in the list", waiting, blocker);
    return;
  case OVERLAP_ORDER:
    if (r->instrs.at[o->blocker].kind != INSTR_RUN)
      snprintf(buf, n, "%s comes after %s, as %s asks", waiting, blocker, dag_line(p->dag, o->line));
    else
      snprintf(buf, n, "%s waits for it; %s is ready, but later, as %s asks", waiting, blocker,
               dag_line(p->dag, o->line));
    return;
  default:
    if (o->blocker == NONE) snprintf(buf, n, "%s waits for it, and nothing else is ready", waiting);
    else snprintf(buf, n, "%s waits for %s", waiting, blocker);
  }
}
