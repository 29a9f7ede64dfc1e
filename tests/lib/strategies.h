/* strategies.h - strategies in C tests, with filters as short texts: "PP=0 MB=1,3 EP=* X=false
 * PASS=F". In an order, ";" ends a group and "|" a member. Everything lives until
 * strategy_clear. */
#ifndef PIPER_TESTS_STRATEGIES_H
#define PIPER_TESTS_STRATEGIES_H

#include "base/arena.h"
#include "passes/pipeline.h"

#include "tap.h"

typedef struct TestStrategy {
  VEC(Directive) at;
  Arena *arena;
} TestStrategy;

static inline void *strategy_alloc(TestStrategy *t, size_t n, size_t size) {
  if (t->arena == NULL) t->arena = arena_new();
  void *p = t->arena == NULL ? NULL : arena_alloc(t->arena, n, size);
  if (p == NULL) bail("no memory");
  return p;
}

static inline void strategy_clear(TestStrategy *t) {
  vec_free(&t->at);
  arena_free(t->arena);
  *t = (TestStrategy){0};
}

static inline Strategy strategy_of(const TestStrategy *t) {
  return (Strategy){t->at.at, (uint32_t)t->at.n};
}

static inline const int32_t *strategy_ints(TestStrategy *t, const char *text, uint32_t *n) {
  int32_t *ints = strategy_alloc(t, strlen(text) + 1, sizeof *ints);
  char *end;
  *n = 0;
  for (const char *p = text; *p != '\0'; p = *end == ',' ? end + 1 : end) {
    ints[(*n)++] = (int32_t)strtol(p, &end, 10);
    if (end == p) bail(text);
  }
  return ints;
}

static inline int strategy_by_tag(const void *a, const void *b) {
  return strcmp(((const FilterTerm *)a)->tag, ((const FilterTerm *)b)->tag);
}

static inline Filter strategy_filter(TestStrategy *t, const char *text, size_t len) {
  FilterTerm *terms = strategy_alloc(t, len + 1, sizeof *terms);
  char *copy = strategy_alloc(t, len + 1, 1);
  Filter f = {.terms = terms};
  memcpy(copy, text, len);
  for (char *word = copy, *next; *word != '\0'; word = next) {
    next = word + strcspn(word, " ");
    if (*next != '\0') *next++ = '\0';
    char *value = strchr(word, '=');
    if (*word == '\0') continue;
    if (value == NULL) bail(word);
    *value++ = '\0';
    if (strcmp(word, "PASS") == 0) {
      for (unsigned p = 1; p < PASS_COUNT; p++)
        if (strcmp(PASS_NAME[p], value) == 0) f.passes = 1u << p;
      if (f.passes == 0) bail(value);
      continue;
    }
    FilterTerm *term = &terms[f.n_terms++];
    *term = (FilterTerm){.tag = word};
    if (strcmp(value, "*") == 0) term->kind = TERM_ANY;
    else if (strcmp(value, "false") == 0) term->kind = TERM_NONE;
    else term->indices = strategy_ints(t, value, &term->n_indices);
  }
  qsort(terms, f.n_terms, sizeof *terms, strategy_by_tag);
  return f;
}

static inline Directive *strategy_add(TestStrategy *t, DirectiveKind kind, const char *filter) {
  const Directive x = {.kind = kind, .filter = strategy_filter(t, filter, strlen(filter))};
  if (!vec_push(&t->at, x)) bail("no memory");
  Directive *added = &t->at.at[t->at.n - 1];
  char line[32];
  snprintf(line, sizeof line, "t.lua:%zu", t->at.n);
  added->line = strcpy(strategy_alloc(t, strlen(line) + 1, 1), line);
  return added;
}

/* The n-th directive is at "t.lua:n". The pointer returned is good until the next is added. */
static inline Directive *strategy_split(TestStrategy *t, const char *filter, const char *dim,
                                        int64_t num_microbatches) {
  Directive *x = strategy_add(t, DIRECTIVE_SPLIT, filter);
  x->dim_name = dim;
  x->num_microbatches = num_microbatches;
  return x;
}

static inline Directive *strategy_place(TestStrategy *t, const char *filter, const char *devices) {
  Directive *x = strategy_add(t, DIRECTIVE_PLACE, filter);
  x->devices = strategy_ints(t, devices, &x->n_devices);
  return x;
}

static inline Directive *strategy_replicate(TestStrategy *t, const char *filter,
                                            const char *devices) {
  Directive *x = strategy_add(t, DIRECTIVE_REPLICATE, filter);
  x->devices = strategy_ints(t, devices, &x->n_devices);
  x->bucket_bytes = 25 << 20;
  return x;
}

static inline Directive *strategy_shard(TestStrategy *t, const char *filter, const char *devices,
                                        uint32_t group_size) {
  Directive *x = strategy_add(t, DIRECTIVE_SHARD, filter);
  x->devices = strategy_ints(t, devices, &x->n_devices);
  x->group_size = group_size;
  return x;
}

static inline Directive *strategy_order(TestStrategy *t, const char *groups) {
  const size_t len = strlen(groups);
  OrderGroup *g = strategy_alloc(t, len + 1, sizeof *g);
  Filter *members = strategy_alloc(t, len + 1, sizeof *members);
  uint32_t n = 0;
  for (const char *p = groups; *p != '\0';) {
    const size_t group_len = strcspn(p, ";");
    g[n].members = members;
    for (const char *m = p; m <= p + group_len;) {
      size_t member_len = strcspn(m, "|");
      if (m + member_len > p + group_len) member_len = (size_t)(p + group_len - m);
      members[g[n].n_members++] = strategy_filter(t, m, member_len);
      m += member_len + 1;
    }
    members += g[n].n_members;
    n++;
    p += group_len + (p[group_len] != '\0');
  }
  Directive *x = strategy_add(t, DIRECTIVE_ORDER, "");
  x->groups = g;
  x->n_groups = n;
  return x;
}

#endif
