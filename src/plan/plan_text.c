#include "plan/plan_text.h"

#include "base/bytes.h"
#include "base/hash.h"
#include "plan/plan_comm.h"
#include "plan/plan_lower.h"
#include "plan/plan_overlap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define WIDTH 100

enum {
  GROUP_ABOVE = 32,    /* ranks: of more, those that have the same text share it */
  MAX_TIMED = 1 << 19, /* instructions: of more, what overlaps is not looked at */
  NAME_WIDTH = 14,
  RANK_WIDTH = 6,
  GROUP_WIDTH = 14, /* of ranks */
};

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
    if (err != NULL && err->code != PIPER_OK) return err->code;
    return err_nomem(err, "the text of a plan");
  }
  if (t->n > 0 && t->at[t->n - 1] == '\n') t->n--;
  t->at[t->n] = '\0';
  *out = t->at;
  return PIPER_OK;
}

/* ---- ranks that have the same text ------------------------------------------------------------- */

/* What is said of a rank, without its number. */
typedef bool PutRank(void *ctx, const Plan *p, uint32_t index, Text *t);

typedef struct Group {
  size_t at, n;               /* its text */
  uint32_t first, last, size; /* its ranks, by index */
} Group;

typedef struct Groups {
  Text text;
  VEC(Group) at;            /* in the order of their first ranks */
  uint32_t *group_of;       /* by rank index */
  uint32_t *next;           /* by rank index: the next one of its group; NONE */
  uint32_t *slots, n_slots; /* hash table: 1 + group */
} Groups;

static void groups_free(Groups *g) {
  vec_free(&g->text), vec_free(&g->at);
  free(g->group_of), free(g->next), free(g->slots);
}

/* The group whose text is the newest one, which goes if there is such a group already. */
static bool find_group(Groups *g, size_t at, uint32_t *out) {
  const size_t n = g->text.n - at;
  uint32_t i = (uint32_t)hash_of(g->text.at + at, n) & (g->n_slots - 1);
  for (; g->slots[i] != 0; i = (i + 1) & (g->n_slots - 1)) {
    const Group *x = &g->at.at[g->slots[i] - 1];
    if (x->n != n || memcmp(g->text.at + x->at, g->text.at + at, n) != 0) continue;
    g->text.n = at;
    *out = g->slots[i] - 1;
    return true;
  }
  *out = (uint32_t)g->at.n;
  g->slots[i] = *out + 1;
  return vec_push(&g->at, ((Group){.at = at, .n = n, .first = NONE}));
}

/* 'alike': ranks of one class have one text. */
static bool groups_make(const Plan *p, PutRank *put_rank, void *ctx, bool alike, Groups *g) {
  *g = (Groups){.n_slots = 64};
  while (g->n_slots < 2 * p->n_ranks) g->n_slots *= 2;
  g->group_of = malloc(p->n_ranks * sizeof *g->group_of);
  g->next = malloc(p->n_ranks * sizeof *g->next);
  g->slots = calloc(g->n_slots, sizeof *g->slots);
  if (g->group_of == NULL || g->next == NULL || g->slots == NULL) return false;
  for (uint32_t r = 0; r < p->n_ranks; r++) {
    const size_t at = g->text.n;
    uint32_t k;
    if (alike && p->ranks[r].like < r) k = g->group_of[p->ranks[r].like];
    else if (!put_rank(ctx, p, r, &g->text) || !find_group(g, at, &k)) return false;
    Group *x = &g->at.at[k];
    g->group_of[r] = k;
    g->next[r] = NONE;
    if (x->size++ == 0) x->first = r;
    else g->next[x->last] = r;
    x->last = r;
  }
  return true;
}

/* "0-255", "0-3,8"; "0.. (64)" where 64 ranks are too many to name. */
static void group_label(const Plan *p, const Groups *g, const Group *x, char *buf, size_t size) {
  size_t n = 0;
  for (uint32_t r = x->first, end; r != NONE; r = end) {
    uint32_t last = r;
    for (end = g->next[r]; end != NONE && p->ranks[end].rank == p->ranks[last].rank + 1;)
      last = end, end = g->next[end];
    const char *comma = n > 0 ? "," : "";
    const int wrote = last == r ? snprintf(buf + n, size - n, "%s%d", comma, p->ranks[r].rank)
                                : snprintf(buf + n, size - n, "%s%d-%d", comma, p->ranks[r].rank,
                                           p->ranks[last].rank);
    n += (size_t)wrote;
    if (n < size) continue;
    snprintf(buf, size, "%d.. (%u)", p->ranks[x->first].rank, x->size);
    return;
  }
}

static bool grouped(const Plan *p) { return p->n_ranks > GROUP_ABOVE; }
static int rank_width(const Plan *p) { return grouped(p) ? GROUP_WIDTH : RANK_WIDTH; }

/* Of each rank, or group of ranks. */
static bool put_ranks(const Plan *p, PutRank *put_rank, void *ctx, bool alike, Text *t) {
  Groups g = {0};
  bool held = true;
  if (!grouped(p)) {
    for (uint32_t r = 0; held && r < p->n_ranks; r++)
      held = put(t, "%-*d", RANK_WIDTH, p->ranks[r].rank) && put_rank(ctx, p, r, t);
    return held;
  }
  held = groups_make(p, put_rank, ctx, alike, &g);
  for (size_t k = 0; held && k < g.at.n; k++) {
    char label[GROUP_WIDTH];
    group_label(p, &g, &g.at.at[k], label, sizeof label);
    held =
        put(t, "%-*s %.*s", GROUP_WIDTH - 1, label, (int)g.at.at[k].n, g.text.at + g.at.at[k].at);
  }
  groups_free(&g);
  return held;
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
  ActVec *acts;          /* by rank index; of the first rank of each class */
  ActVec sorted;         /* of one rank, those of orders: by order, group, member, place */
  U32Vec group;          /* of one rank, by place: where its group begins in 'sorted'; NONE */
  VEC(uint64_t) printed; /* hash set: 1 + key */
  size_t n_printed;
} Actions;

static bool find_firsts(const Plan *p, uint32_t set, U32Vec *out) {
  const DevSets *sets = p->dag->devsets;
  out->n = 0;
  for (uint32_t j = 0; j < devsets_size(sets, set); j++) {
    const int32_t at = devsets_position(sets, p->world, devsets_ranks(sets, set)[j]);
    if (p->ranks[at].like == (uint32_t)at && !vec_push(out, (uint32_t)at)) return false;
  }
  return true;
}

static bool list_acts(Actions *w) {
  const Plan *p = w->plan;
  const Dag *d = p->dag;
  const Graph *g = p->graph;
  const uint32_t pp = intern_find(g->names, "PP");
  const bool stages = pp != 0 && pp < g->tag_entries.n && g->tag_entries.at[pp] != 0;
  U32Vec firsts = {0}; /* of the device set at hand: first ranks of classes */
  uint32_t set = 0;
  bool held = true;
  w->stage = malloc((g->chunks.n + 1) * sizeof *w->stage);
  w->acts = calloc(p->n_ranks, sizeof *w->acts);
  if (w->stage == NULL || w->acts == NULL) return false;
  for (uint32_t c = 1; c <= graph_n_chunks(g); c++)
    w->stage[c] = stages ? graph_scope_index(g, graph_chunk(g, (ChunkId){c})->scope, pp) : 0;
  for (uint32_t k = 0; held && k < p->n_order; k++) {
    const uint32_t n = p->order[k];
    if (d->kind[n] != NODE_COMPUTE) continue;
    if (d->devs[n] != set) held = find_firsts(p, set = d->devs[n], &firsts);
    for (size_t j = 0; held && j < firsts.n; j++) {
      ActVec *acts = &w->acts[firsts.at[j]];
      const Act act = {.key = (uint64_t)(w->stage[d->chunk[n]] + 1) << 40 |
                              (uint64_t)d->pass[n] << 32 | d->mb[n],
                       .order_of = d->order_of[n],
                       .group = d->group[n],
                       .member = d->member[n],
                       .place = (uint32_t)acts->n};
      held = vec_push(acts, act);
    }
  }
  vec_free(&firsts);
  return held;
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

static bool put_acts(void *ctx, const Plan *p, uint32_t index, Text *t) {
  Actions *w = ctx;
  const ActVec *acts = &w->acts[p->ranks[index].like];
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
  Groups g = {0};
  bool held = list_acts(&w);
  const bool groups = held && grouped(plan);
  if (groups) held = groups_make(plan, put_acts, &w, true, &g);
  if (groups && held && g.at.n < plan->n_ranks) {
    for (size_t k = 0; held && k < g.at.n; k++) {
      char label[64];
      group_label(plan, &g, &g.at.at[k], label, sizeof label);
      held = put(&t, "%s: ", label) && vec_reserve(&t, g.at.at[k].n + 1);
      if (!held) break;
      memcpy(t.at + t.n, g.text.at + g.at.at[k].at, g.at.at[k].n);
      t.n += g.at.at[k].n;
    }
  } else {
    for (uint32_t r = 0; held && r < plan->n_ranks; r++) held = put_acts(&w, plan, r, &t);
  }
  groups_free(&g);
  if (w.acts != NULL)
    for (uint32_t r = 0; r < plan->n_ranks; r++) vec_free(&w.acts[r]);
  free(w.stage), free(w.acts), free(w.printed.at);
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

/* 'timed': what the waits cost is known. */
static bool put_instrs(const Plan *p, bool timed, Text *t) {
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
  char cost[80] = "", longer[32];
  if (added > 0 && timed && p->waits_seconds > 0) {
    plan_seconds_text(p->waits_seconds, longer, sizeof longer);
    snprintf(cost, sizeof cost, " make%s the step %s longer", added == 1 ? "s" : "", longer);
  } else if (added > 0 && timed) {
    snprintf(cost, sizeof cost, " cost%s no time", added == 1 ? "s" : "");
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
  plan_seconds_text(p->predicted_seconds, step, sizeof step);
  if (!list_begin(&l, t, "predicted", NAME_WIDTH) || !list_item(&l, "step %s", step)) return false;
  if (p->busy_seconds != NULL) {
    for (uint32_t r = 0; r < p->n_ranks; r++) busy += p->busy_seconds[r];
    if (!list_item(&l, "bubble %.1f%%", 100 * (1 - busy / (p->n_ranks * p->predicted_seconds))))
      return false;
  }
  if (p->order_rule != NULL) {
    const bool downstream = strcmp(p->order_rule, "downstream") == 0;
    const double s = p->predicted_rule[!downstream];
    plan_seconds_text(s, other, sizeof other);
    const bool same = s <= 0 || strcmp(other, step) == 0; /* nothing to be told */
    const bool held = same ? list_item(&l, "order by %s", p->order_rule)
                             : list_item(&l, "order by %s (by %s %s)", p->order_rule,
                                         downstream ? "critical_path" : "downstream", other);
    if (!held) return false;
  }
  if (p->apart_seconds > 0) {
    plan_seconds_text(p->apart_seconds, other, sizeof other);
    if (!list_item(&l, "members one after another %s", other)) return false;
  }
  return put(t, "\n");
}

static bool put_overlap(const Plan *p, Text *t) {
  Overlap o = {0};
  List l;
  bool held = plan_overlap(p, &o, NULL) == PIPER_OK;
  if (held && o.rows.n > 0) held = list_begin(&l, t, "overlap", NAME_WIDTH);
  for (size_t k = 0; held && k < o.rows.n; k++) {
    const OverlapRow *r = &o.rows.at[k];
    char all[32];
    plan_seconds_text(r->seconds, all, sizeof all);
    held = list_item(&l, "%s on %.*s %.0f%% of %s", plan_kind_name(r->kind), (int)r->stream_n, r->stream,
                     r->seconds > 0 ? 100 * r->hidden / r->seconds : 100, all);
  }
  if (held && o.rows.n > 0) held = list_item(&l, "hidden behind compute") && put(t, "\n");
  plan_overlap_free(&o);
  return held;
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

static int memory_width(const Plan *p) { return grouped(p) ? 12 : 13; }

static bool put_rank_memory(void *ctx, const Plan *p, uint32_t index, Text *t) {
  const RankPlan *r = &p->ranks[index];
  bool held = true;
  (void)ctx;
  const int width = memory_width(p);
  for (int c = 0; held && c < MEM_COUNT; c++)
    held = put(t, "%*s", width, bytes_text(r->at_peak[c]).text);
  return held && put(t, "%*s\n", width, bytes_text(r->arena_bytes).text);
}

static bool put_memory(const Plan *p, Text *t) {
  bool held = put(t, "\nmemory of each rank at its peak\n%-*s", rank_width(p), "rank");
  const int width = memory_width(p);
  for (int c = 0; c < MEM_COUNT; c++) held = held && put(t, "%*s", width, MEM_NAME[c]);
  return held && put(t, "%*s\n", width, "peak") && put_ranks(p, put_rank_memory, NULL, false, t);
}

static bool put_rank_traffic(void *ctx, const Plan *p, uint32_t index, Text *t) {
  const RankPlan *x = &p->ranks[index];
  uint64_t calls = 0, bytes = 0;
  (void)ctx;
  for (int k = INSTR_ALL_REDUCE; k < INSTR_KIND_COUNT; k++)
    calls += x->calls[k], bytes += x->moved[k];
  const int n = 9 - grouped(p), m = 13 - grouped(p), l = 11 - grouped(p); /* widths */
  if (!put(t, "%*llu%*s%*llu%*s%*llu%*s%*llu", n, (unsigned long long)x->calls[INSTR_SEND], m,
           bytes_text(x->moved[INSTR_SEND]).text, n, (unsigned long long)x->calls[INSTR_RECV], m,
           bytes_text(x->moved[INSTR_RECV]).text, m, (unsigned long long)calls, m,
           bytes_text(bytes).text, l, (unsigned long long)x->calls[INSTR_RUN]))
    return false;
  if (p->busy_seconds == NULL || p->predicted_seconds <= 0) return put(t, "%*s\n", n, "-");
  return put(t, "%*.1f%%\n", n - 1, 100 * p->busy_seconds[index] / p->predicted_seconds);
}

static bool put_traffic(const Plan *p, Text *t) {
  const int n = 9 - grouped(p), m = 13 - grouped(p), l = 11 - grouped(p);
  return put(t, "\na step of each rank\n%-*s%*s%*s%*s%*s%*s%*s%*s%*s\n", rank_width(p), "rank", n,
             "sends", m, "bytes", n, "recvs", m, "bytes", m, "collectives", m, "bytes", l, "runs",
             n, "busy") &&
         put_ranks(p, put_rank_traffic, NULL, false, t);
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

/* A stream, or of a group of ranks all channels of one name and direction: their peers differ. */
typedef struct StreamCount {
  char name[80];
  uint32_t n;
} StreamCount;
typedef VEC(StreamCount) StreamCounts;

static void stream_name(const RankPlan *r, const PlanStream *s, bool of_group, char *buf,
                        size_t n) {
  const char *channel = strrchr(s->name, '/');
  int32_t from, to;
  if (!of_group || channel == NULL || sscanf(channel, "/%d>%d", &from, &to) != 2)
    snprintf(buf, n, "%.60s", s->name);
  else
    snprintf(buf, n, "%.*s %s", channel - s->name < 60 ? (int)(channel - s->name) : 60, s->name,
             from == r->rank ? "sent" : "received");
}

static bool count_streams(const RankPlan *r, bool of_group, StreamCounts *out, U32Vec *index) {
  for (size_t s = 0; s < r->streams.n; s++) {
    StreamCount x = {.n = 0};
    size_t k = 0;
    stream_name(r, &r->streams.at[s], of_group, x.name, sizeof x.name);
    while (k < out->n && (!of_group || strcmp(out->at[k].name, x.name) != 0)) k++;
    if ((k == out->n && !vec_push(out, x)) || !vec_push(index, (uint32_t)k)) return false;
  }
  for (size_t i = 0; i < r->instrs.n; i++) out->at[index->at[r->instrs.at[i].stream]].n++;
  return true;
}

/* Lists that are made for this go again. */
static bool put_rank_streams(void *ctx, const Plan *p, uint32_t index, Text *t) {
  RankPlan *r = &p->ranks[index];
  const bool made = r->made;
  StreamCounts counts = {0};
  U32Vec number = {0};
  List l = {.text = t, .indent = (uint32_t)rank_width(p)};
  l.line = t->n - l.indent; /* the number is in front of it; less than nothing is fine */
  bool held =
      plan_lists_of(p, index, ctx) == PIPER_OK && count_streams(r, grouped(p), &counts, &number);
  for (size_t k = 0; held && k < counts.n; k++)
    held = list_item(&l, "%s %u", counts.at[k].name, counts.at[k].n);
  if (!made) plan_drop_lists(r);
  vec_free(&counts), vec_free(&number);
  return held && put(t, "\n");
}

static bool put_streams(const Plan *p, Text *t, PiperErr *err) {
  return put(t, "\ninstructions of each stream\n") && put_ranks(p, put_rank_streams, err, true, t);
}

/* What overlaps is looked at in the lists of all ranks, so where it is no great work. */
static PiperStatus find_few(const Plan *plan, bool *few, PiperErr *err) {
  uint64_t n = 0;
  for (uint32_t r = 0; r < plan->n_ranks; r++)
    for (int k = 0; k < INSTR_KIND_COUNT; k++) n += plan->ranks[r].calls[k];
  *few = plan->node_seconds != NULL && n <= MAX_TIMED;
  return *few ? plan_lists(plan, err) : PIPER_OK;
}

PiperStatus plan_table(const Plan *plan, char **out, PiperErr *err) {
  Text t = {0};
  bool timed, few;
  TRY(plan_find_wait_cost((Plan *)plan, &timed, err));
  TRY(find_few(plan, &few, err));
  const bool held =
      put_head(plan, &t) && put_nodes(plan, &t) && put_instrs(plan, timed, &t) &&
      put_prediction(plan, &t) && (!few || put_overlap(plan, &t)) &&
      put(&t, "%-*s%016llx\n", NAME_WIDTH, "digest", (unsigned long long)plan->digest) &&
      put_memory(plan, &t) && put_traffic(plan, &t) && put_communication(plan, &t) &&
      put_streams(plan, &t, err);
  return finish(&t, held, out, err);
}
