#include "plan/plan_text.h"

#include "base/bytes.h"
#include "plan/plan_comm.h"
#include "plan/plan_lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define WIDTH 100

typedef VEC(char) Text;

static bool put(Text *t, const char *fmt, ...) PIPER_PRINTF(2, 3);
static bool put(Text *t, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  const int n = vsnprintf(NULL, 0, fmt, again);
  va_end(again);
  const bool held = n >= 0 && vec_reserve(t, n + 1);
  if (held) vsnprintf(t->at + t->n, (size_t)n + 1, fmt, args), t->n += (size_t)n;
  va_end(args);
  return held;
}

/* Hands the text over, without its last newline. */
static PiperStatus finish(Text *t, bool held, char **out, PiperErr *err) {
  if (!held || !vec_reserve(t, 1)) {
    vec_free(t);
    return err_nomem(err, "the text of a plan");
  }
  if (t->n > 0 && t->at[t->n - 1] == '\n') t->n--;
  t->at[t->n] = '\0';
  *out = t->at;
  return PIPER_OK;
}

/* ---- actions --------------------------------------------------------------------------------- */

/* A node of one rank: an action stands for all nodes with its stage, pass and microbatch. */
typedef struct Act {
  uint64_t key; /* stage + 1, pass, microbatch */
  uint32_t order_of, group, member;
  uint32_t place; /* in the rank's order */
} Act;

typedef VEC(Act) ActVec;

typedef struct Actions {
  const Plan *plan;
  int32_t *stage;        /* by chunk; -1: outside every stage */
  uint32_t *rank_index;  /* by rank */
  ActVec *acts;          /* by rank index */
  ActVec sorted;         /* of one rank, those of orders: by order, group, member, place */
  U32Vec group;          /* of one rank, by place: where its group begins in 'sorted'; NONE */
  VEC(uint64_t) printed; /* hash set: 1 + key */
  size_t n_printed;
} Actions;

static bool list_acts(Actions *w) {
  const Plan *p = w->plan;
  const Dag *d = p->dag;
  const Graph *g = p->graph;
  const uint32_t pp = intern_find(g->names, "PP");
  const bool stages = pp != 0 && pp < g->tag_entries.n && g->tag_entries.at[pp] != 0;
  const int32_t *world = devsets_ranks(d->devsets, p->world);
  w->stage = malloc((g->chunks.n + 1) * sizeof *w->stage);
  w->rank_index = calloc((size_t)world[p->n_ranks - 1] + 1, sizeof *w->rank_index);
  w->acts = calloc(p->n_ranks, sizeof *w->acts);
  if (w->stage == NULL || w->rank_index == NULL || w->acts == NULL) return false;
  for (uint32_t i = 0; i < p->n_ranks; i++) w->rank_index[world[i]] = i;
  for (uint32_t c = 1; c <= graph_n_chunks(g); c++)
    w->stage[c] = stages ? graph_scope_index(g, graph_chunk(g, (ChunkId){c})->scope, pp) : 0;
  for (uint32_t k = 0; k < p->n_order; k++) {
    const uint32_t n = p->order[k];
    if (d->kind[n] != NODE_COMPUTE) continue;
    for (uint32_t j = 0; j < devsets_size(d->devsets, d->devs[n]); j++) {
      ActVec *acts = &w->acts[w->rank_index[devsets_ranks(d->devsets, d->devs[n])[j]]];
      const Act act = {.key = (uint64_t)(w->stage[d->chunk[n]] + 1) << 40 |
                              (uint64_t)d->pass[n] << 32 | d->mb[n],
                       .order_of = d->order_of[n],
                       .group = d->group[n],
                       .member = d->member[n],
                       .place = (uint32_t)acts->n};
      if (!vec_push(acts, act)) return false;
    }
  }
  return true;
}

static int by_group(const void *a, const void *b) {
  const Act *x = a, *y = b;
  if (x->order_of != y->order_of) return x->order_of < y->order_of ? -1 : 1;
  if (x->group != y->group) return x->group < y->group ? -1 : 1;
  if (x->member != y->member) return x->member < y->member ? -1 : 1;
  return (x->place > y->place) - (x->place < y->place);
}

static bool same_group(const Act *x, const Act *y) {
  return x->order_of == y->order_of && x->group == y->group;
}

/* The groups of the rank that have several members on it. */
static bool find_groups(Actions *w, const ActVec *acts) {
  w->sorted.n = w->group.n = 0;
  for (size_t k = 0; k < acts->n; k++) {
    if (!vec_push(&w->group, NONE)) return false;
    if (acts->at[k].order_of != 0 && !vec_push(&w->sorted, acts->at[k])) return false;
  }
  Act *at = w->sorted.at;
  if (w->sorted.n > 0) qsort(at, w->sorted.n, sizeof *at, by_group);
  for (size_t k = 0, end; k < w->sorted.n; k = end) {
    for (end = k + 1; end < w->sorted.n && same_group(&at[end], &at[k]);) end++;
    if (at[k].member == at[end - 1].member) continue;
    for (size_t i = k; i < end; i++) w->group.at[at[i].place] = (uint32_t)k;
  }
  return true;
}

/* Adds the key; *is_new: it was not there. */
static bool print_once(Actions *w, uint64_t key, bool *is_new) {
  if (2 * (w->n_printed + 1) > w->printed.cap) {
    VEC(uint64_t) bigger = {0};
    if (!vec_reserve(&bigger, 4 * (w->n_printed + 16))) return false;
    memset(bigger.at, 0, bigger.cap * sizeof *bigger.at);
    for (size_t k = 0; k < w->printed.cap; k++) {
      if (w->printed.at[k] == 0) continue;
      size_t i = w->printed.at[k] * UINT64_C(0x9e3779b97f4a7c15) % bigger.cap;
      while (bigger.at[i] != 0) i = (i + 1) % bigger.cap;
      bigger.at[i] = w->printed.at[k];
    }
    free(w->printed.at);
    w->printed.at = bigger.at;
    w->printed.cap = bigger.cap;
  }
  size_t i = (key + 1) * UINT64_C(0x9e3779b97f4a7c15) % w->printed.cap;
  while (w->printed.at[i] != 0 && w->printed.at[i] != key + 1) i = (i + 1) % w->printed.cap;
  *is_new = w->printed.at[i] == 0;
  if (!*is_new) return true;
  w->printed.at[i] = key + 1;
  w->n_printed++;
  return true;
}

static bool put_act(Text *t, uint64_t key) {
  static const char letters[PASS_COUNT] = {'?', 'F', 'B', 'I', 'W', 'R'};
  const uint32_t stage = (uint32_t)(key >> 40), mb = (uint32_t)key;
  if (stage == 0) return put(t, "-%c%u", letters[key >> 32 & 0xff], mb);
  return put(t, "%u%c%u", stage - 1, letters[key >> 32 & 0xff], mb);
}

static bool put_group(Actions *w, Text *t, uint32_t first) {
  const Act *at = w->sorted.at;
  const size_t start = t->n;
  uint32_t n = 0;
  for (size_t k = first; k < w->sorted.n && same_group(&at[k], &at[first]); k++) {
    bool is_new;
    if (!print_once(w, at[k].key, &is_new)) return false;
    if (!is_new) continue;
    if (!put(t, "%s", n++ == 0 ? "(" : "+") || !put_act(t, at[k].key)) return false;
  }
  if (n == 1) { /* only one of them is left */
    memmove(t->at + start, t->at + start + 1, t->n - start - 1);
    t->n--;
  }
  return n < 2 || put(t, ")");
}

static bool put_rank(Actions *w, Text *t, const ActVec *acts) {
  const size_t line = t->n;
  if (!find_groups(w, acts)) return false;
  if (w->printed.cap > 0) memset(w->printed.at, 0, w->printed.cap * sizeof *w->printed.at);
  w->n_printed = 0;
  for (size_t k = 0; k < acts->n; k++) {
    const size_t before = t->n;
    bool is_new = true;
    if (before > line && !put(t, " ")) return false;
    const size_t begin = t->n;
    if (w->group.at[k] != NONE) {
      if (!put_group(w, t, w->group.at[k])) return false;
    } else if (!print_once(w, acts->at[k].key, &is_new) ||
               (is_new && !put_act(t, acts->at[k].key))) {
      return false;
    }
    if (t->n == begin) t->n = before;
  }
  return put(t, "\n");
}

PiperStatus plan_actions(const Plan *plan, char **out, PiperErr *err) {
  Actions w = {.plan = plan};
  Text t = {0};
  bool held = list_acts(&w);
  for (uint32_t r = 0; held && r < plan->n_ranks; r++) held = put_rank(&w, &t, &w.acts[r]);
  if (w.acts != NULL)
    for (uint32_t r = 0; r < plan->n_ranks; r++) vec_free(&w.acts[r]);
  free(w.stage), free(w.rank_index), free(w.acts), free(w.printed.at);
  vec_free(&w.sorted), vec_free(&w.group);
  return finish(&t, held, out, err);
}

/* ---- table ----------------------------------------------------------------------------------- */

/* A line "name   item, item, item", broken where it would get too wide. */
typedef struct List {
  Text *text;
  size_t line; /* where the line at hand begins */
  uint32_t indent, n;
} List;

static bool list_begin(List *l, Text *t, const char *name, uint32_t indent) {
  *l = (List){.text = t, .line = t->n, .indent = indent};
  return put(t, "%-*s", (int)indent, name);
}

static bool list_item(List *l, const char *fmt, ...) PIPER_PRINTF(2, 3);
static bool list_item(List *l, const char *fmt, ...) {
  char item[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(item, sizeof item, fmt, args);
  va_end(args);
  const bool breaks = l->n > 0 && l->text->n - l->line + strlen(item) + 3 > WIDTH;
  if (l->n++ > 0 && !put(l->text, breaks ? ",\n" : ", ")) return false;
  if (breaks) {
    l->line = l->text->n;
    if (!put(l->text, "%*s", (int)l->indent, "")) return false;
  }
  return put(l->text, "%s", item);
}

enum { NAME_WIDTH = 14 };

static bool put_nodes(const Plan *p, Text *t) {
  uint32_t kinds[NODE_KIND_COUNT] = {0}, passes[PASS_COUNT] = {0};
  for (uint32_t k = 0; k < p->n_order; k++) {
    const uint32_t n = p->order[k];
    kinds[p->dag->kind[n]]++;
    if (p->dag->kind[n] == NODE_COMPUTE) passes[p->dag->pass[n]]++;
  }
  List l;
  if (!list_begin(&l, t, "nodes", NAME_WIDTH) || !list_item(&l, "%u", p->n_order)) return false;
  for (int i = PASS_F; i < PASS_COUNT; i++)
    if (passes[i] > 0 && !list_item(&l, "%s %u", PASS_NAME[i], passes[i])) return false;
  for (int i = NODE_COMPUTE + 1; i < NODE_KIND_COUNT; i++)
    if (kinds[i] > 0 && !list_item(&l, "%s %u", NODE_KIND_NAME[i], kinds[i])) return false;
  return put(t, "\n");
}

static void seconds_text(double s, char *buf, size_t n) {
  if (s >= 1) snprintf(buf, n, "%.3g s", s);
  else if (s >= 1e-3) snprintf(buf, n, "%.3g ms", s * 1e3);
  else snprintf(buf, n, "%.3g us", s * 1e6);
}

static bool put_instrs(const Plan *p, Text *t) {
  uint64_t all[INSTR_KIND_COUNT] = {0}, n = 0, waits = 0, added = 0;
  for (uint32_t r = 0; r < p->n_ranks; r++) {
    const RankPlan *x = &p->ranks[r];
    for (int k = 0; k < INSTR_KIND_COUNT; k++) all[k] += x->calls[k], n += x->calls[k];
    waits += x->n_waits;
    added += x->waits_added;
  }
  List l;
  if (!list_begin(&l, t, "instructions", NAME_WIDTH) ||
      !list_item(&l, "%llu", (unsigned long long)n))
    return false;
  for (int k = 0; k < INSTR_KIND_COUNT; k++)
    if ((all[k] > 0 || k <= INSTR_ALL_REDUCE) &&
        !list_item(&l, "%s %llu", INSTR_NAME[k], (unsigned long long)all[k]))
      return false;
  char cost[40] = "";
  if (added > 0 && p->node_seconds != NULL) {
    memcpy(cost, ", ", 3);
    seconds_text(p->waits_seconds, cost + 2, sizeof cost - 2);
  }
  return list_item(&l, "waits %llu (%llu for reused memory%s)", (unsigned long long)waits,
                   (unsigned long long)added, cost) &&
         put(t, "\n");
}

static bool put_prediction(const Plan *p, Text *t) {
  char step[32], other[32];
  double busy = 0;
  List l;
  if (p->predicted_seconds <= 0) return true;
  seconds_text(p->predicted_seconds, step, sizeof step);
  if (!list_begin(&l, t, "predicted", NAME_WIDTH) || !list_item(&l, "step %s", step)) return false;
  if (p->busy_seconds != NULL) {
    for (uint32_t r = 0; r < p->n_ranks; r++) busy += p->busy_seconds[r];
    if (!list_item(&l, "bubble %.1f%%", 100 * (1 - busy / (p->n_ranks * p->predicted_seconds))))
      return false;
  }
  if (p->order_rule != NULL) {
    const bool downstream = strcmp(p->order_rule, "downstream") == 0;
    const double s = p->predicted_rule[!downstream];
    seconds_text(s, other, sizeof other);
    const bool held = s <= 0 ? list_item(&l, "order by %s", p->order_rule)
                             : list_item(&l, "order by %s (by %s %s)", p->order_rule,
                                         downstream ? "critical_path" : "downstream", other);
    if (!held) return false;
  }
  return put(t, "\n");
}

static bool put_head(const Plan *p, Text *t) {
  static const char *const OPTIMIZER[] = {"no optimizer", "sgd", "adamw"};
  const PlanOptions *o = &p->options;
  const char *name = graph_name(p->graph, p->graph->name);
  char ranks[80];
  List l;
  devsets_text(p->dag->devsets, p->world, ranks, sizeof ranks);
  if (!list_begin(&l, t, "plan", NAME_WIDTH) ||
      !list_item(&l, "%.60s", name[0] != '\0' ? name : "model") ||
      !list_item(&l, "batch %lld", (long long)p->dag->batch) ||
      !list_item(&l, "%s", dtype_name(o->dtype)) ||
      !list_item(&l, "%s", OPTIMIZER[o->optimizer.kind]))
    return false;
  if (o->clip_norm > 0 && !list_item(&l, "clip_norm %g", o->clip_norm)) return false;
  if (o->single_stream && !list_item(&l, "one stream a rank")) return false;
  if (!put(t, "\n%-*s%u (%s)", NAME_WIDTH, "ranks", p->n_ranks, ranks)) return false;
  if (o->threads_per_rank > 1 && !put(t, ", %u threads each", o->threads_per_rank)) return false;
  return put(t, "\n");
}

static bool put_memory(const Plan *p, Text *t) {
  bool held = put(t, "\nmemory of each rank at its peak\n%-6s", "rank");
  for (int c = 0; c < MEM_COUNT; c++) held = held && put(t, "%13s", MEM_NAME[c]);
  held = held && put(t, "%13s\n", "peak");
  for (uint32_t r = 0; held && r < p->n_ranks; r++) {
    held = put(t, "%-6d", p->ranks[r].rank);
    for (int c = 0; held && c < MEM_COUNT; c++)
      held = put(t, "%13s", bytes_text(p->ranks[r].at_peak[c]).text);
    held = held && put(t, "%13s\n", bytes_text(p->ranks[r].arena_bytes).text);
  }
  return held;
}

static bool put_traffic(const Plan *p, Text *t) {
  bool held = put(t, "\na step of each rank\n%-6s%9s%13s%9s%13s%13s%13s%11s%9s\n", "rank", "sends",
                  "bytes", "recvs", "bytes", "collectives", "bytes", "runs", "busy");
  for (uint32_t r = 0; held && r < p->n_ranks; r++) {
    const RankPlan *x = &p->ranks[r];
    uint64_t calls = 0, bytes = 0;
    for (int k = INSTR_ALL_REDUCE; k < INSTR_KIND_COUNT; k++)
      calls += x->calls[k], bytes += x->moved[k];
    held = put(t, "%-6d%9llu%13s%9llu%13s%13llu%13s%11llu", p->ranks[r].rank,
               (unsigned long long)x->calls[INSTR_SEND], bytes_text(x->moved[INSTR_SEND]).text,
               (unsigned long long)x->calls[INSTR_RECV], bytes_text(x->moved[INSTR_RECV]).text,
               (unsigned long long)calls, bytes_text(bytes).text, (unsigned long long)x->calls[INSTR_RUN]);
    if (p->busy_seconds != NULL && p->predicted_seconds > 0)
      held = held && put(t, "%8.1f%%", 100 * p->busy_seconds[r] / p->predicted_seconds);
    else held = held && put(t, "%9s", "-");
    held = held && put(t, "\n");
  }
  return held;
}

/* A base name without its channel: "pp_stream" of "pp_stream/F/0>1". */
static int stream_length(const CommRow *r) { return (int)strcspn(r->stream, "/"); }

static bool same_line(const CommRow *a, const CommRow *b) {
  const int n = stream_length(a);
  return a->what == b->what && a->kind == b->kind && n == stream_length(b) &&
         strncmp(a->stream, b->stream, (size_t)n) == 0;
}

/* Rows alike over all buckets and ranks. */
typedef struct CommLine {
  const CommRow *first;
  uint64_t calls, bytes;
  uint32_t buckets, last;
} CommLine;
typedef VEC(CommLine) CommLines;

static bool add_to_line(CommLines *lines, const CommRow *row) {
  size_t k = 0;
  while (k < lines->n && !same_line(lines->at[k].first, row)) k++;
  if (k == lines->n && !vec_push(lines, (CommLine){.first = row})) return false;
  CommLine *line = &lines->at[k];
  line->calls += row->calls;
  line->bytes += row->bytes;
  line->buckets += row->bucket != line->last;
  line->last = row->bucket;
  return true;
}

static bool put_communication(const Plan *p, Text *t) {
  CommRows rows = {0};
  CommLines lines = {0};
  bool held = plan_communication(p, &rows, NULL) == PIPER_OK;
  for (size_t k = 0; held && k < rows.n; k++) held = add_to_line(&lines, &rows.at[k]);
  if (held && lines.n > 0)
    held = put(t, "\ncommunication of a step\n%-16s%-12s%-24s%9s%9s%13s\n", "kind", "what",
               "stream", "buckets", "calls", "bytes");
  for (size_t k = 0; held && k < lines.n; k++) {
    const CommLine *line = &lines.at[k];
    const CommRow *first = line->first;
    held = put(t, "%-16s%-12s%-24.*s", first->group != 0 ? INSTR_NAME[first->kind] : "transfer",
               COMM_WHAT_NAME[first->what], stream_length(first), first->stream);
    if (first->bucket != 0) held = held && put(t, "%9u", line->buckets);
    else held = held && put(t, "%9s", "-");
    held = held && put(t, "%9llu%13s\n", (unsigned long long)line->calls, bytes_text(line->bytes).text);
  }
  vec_free(&rows), vec_free(&lines);
  return held;
}

static bool put_streams(const Plan *p, Text *t) {
  U32Vec n = {0};
  bool held = put(t, "\ninstructions of each stream\n");
  for (uint32_t r = 0; held && r < p->n_ranks; r++) {
    const RankPlan *rank = &p->ranks[r];
    char name[16];
    List l;
    n.n = 0;
    for (size_t s = 0; held && s < rank->streams.n; s++) held = vec_push(&n, 0);
    for (size_t i = 0; held && i < rank->instrs.n; i++) n.at[rank->instrs.at[i].stream]++;
    snprintf(name, sizeof name, "%d", rank->rank);
    held = held && list_begin(&l, t, name, 6);
    for (size_t s = 0; held && s < rank->streams.n; s++)
      held = list_item(&l, "%.60s %u", rank->streams.at[s].name, n.at[s]);
    held = held && put(t, "\n");
  }
  vec_free(&n);
  return held;
}

PiperStatus plan_table(const Plan *plan, char **out, PiperErr *err) {
  Text t = {0};
  TRY(plan_lists(plan, err));
  TRY(plan_find_wait_cost((Plan *)plan, err));
  const bool held =
      put_head(plan, &t) && put_nodes(plan, &t) && put_instrs(plan, &t) &&
      put_prediction(plan, &t) &&
      put(&t, "%-*s%016llx\n", NAME_WIDTH, "digest", (unsigned long long)plan->digest) &&
      put_memory(plan, &t) && put_traffic(plan, &t) && put_communication(plan, &t) &&
      put_streams(plan, &t);
  return finish(&t, held, out, err);
}
