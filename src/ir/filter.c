/* Nodes with the same tags share one interned tag set, so the index works on sets: (tag, index) ->
 * tag sets -> nodes. A filter starts from the sets of its rarest term, checks the other terms once a
 * set, and collects the nodes of those that pass. A chunk's sets are created side by side, so ids
 * outside the range of another term's sets are skipped: of { PP = 3, MB = 7 } one set is looked at. */
#include "ir/filter.h"

#include "base/nearest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One (tag, index) in use. */
typedef struct Key {
  uint32_t tag;
  int32_t index;
  uint32_t first, end; /* its tag sets: key_sets[first .. end), ascending */
} Key;

/* The keys of one tag: keys.at[first .. end). */
typedef struct KeyRange {
  uint32_t tag;
  size_t first, end;
} KeyRange;

struct FilterIndex {
  const Dag *dag;
  uint32_t *set_first, *set_nodes; /* COMPUTE nodes of tag set s: set_nodes[set_first[s] ..
                                      set_first[s + 1]), ascending */
  uint32_t *used;                  /* tag sets that have such nodes, ascending */
  uint32_t n_used;
  VEC(Key) keys;        /* ascending by (tag, index) */
  VEC(KeyRange) ranges; /* of each tag in use; a handful */
  uint32_t *key_sets;
};

typedef struct Triple {
  Tag tag;
  uint32_t set;
} Triple;

static int by_tag(const void *a, const void *b) {
  const Triple *x = a, *y = b;
  if (x->tag.tag != y->tag.tag) return x->tag.tag < y->tag.tag ? -1 : 1;
  if (x->tag.index != y->tag.index) return x->tag.index < y->tag.index ? -1 : 1;
  return (x->set > y->set) - (x->set < y->set);
}

/* Stable counting sort by the tag or by the index; false: out of memory. */
static bool sort_pass(const Triple *in, Triple *out, size_t n, bool tag, int64_t lowest,
                      size_t n_values) {
  size_t *at = calloc(n_values + 1, sizeof *at);
  if (at == NULL) return false;
#define VALUE(t) (size_t)((tag ? (int64_t)(t).tag.tag : (int64_t)(t).tag.index) - lowest)
  for (size_t i = 0; i < n; i++) at[VALUE(in[i]) + 1]++;
  for (size_t v = 1; v <= n_values; v++) at[v] += at[v - 1];
  for (size_t i = 0; i < n; i++) out[at[VALUE(in[i])]++] = in[i];
#undef VALUE
  free(at);
  return true;
}

/* By (tag, index, set); they come in order of sets. Tags and indices lie close together, so counting
 * sorts are fastest; otherwise a general sort. */
static bool sort_triples(Triple *t, size_t n) {
  int64_t low_tag = INT64_MAX, high_tag = 0, low = INT64_MAX, high = INT64_MIN;
  for (size_t i = 0; i < n; i++) {
    const Tag tag = t[i].tag;
    if (tag.tag < low_tag) low_tag = tag.tag;
    if (tag.tag > high_tag) high_tag = tag.tag;
    if (tag.index < low) low = tag.index;
    if (tag.index > high) high = tag.index;
  }
  if (n < 2) return true;
  if ((uint64_t)(high - low) > n || (uint64_t)(high_tag - low_tag) > n) {
    qsort(t, n, sizeof *t, by_tag);
    return true;
  }
  Triple *spare = malloc(n * sizeof *spare);
  const bool sorted = spare != NULL &&
                      sort_pass(t, spare, n, false, low, (size_t)(high - low) + 1) &&
                      sort_pass(spare, t, n, true, low_tag, (size_t)(high_tag - low_tag) + 1);
  free(spare);
  return sorted;
}

void filter_index_free(FilterIndex *x) {
  if (x == NULL) return;
  free(x->set_first);
  free(x->set_nodes);
  free(x->used);
  vec_free(&x->keys);
  vec_free(&x->ranges);
  free(x->key_sets);
  free(x);
}

PiperStatus filter_index_new(const Dag *d, FilterIndex **out, PiperErr *err) {
  const uint32_t n_sets = (uint32_t)d->tags_first.n - 1;
  Triple *triples = NULL;
  FilterIndex *x = calloc(1, sizeof *x);
  if (x == NULL) return err_nomem(err, "filter index");
  x->dag = d;
  x->set_first = calloc((size_t)n_sets + 1, sizeof *x->set_first);
  x->set_nodes = malloc(d->n * sizeof *x->set_nodes);
  x->used = malloc((size_t)n_sets * sizeof *x->used);
  if (x->set_first == NULL || x->set_nodes == NULL || x->used == NULL) goto nomem;

  /* Counts become ends; filling from the last node down turns ends into starts. */
  for (uint32_t i = 1; i < d->n; i++)
    if (d->kind[i] == NODE_COMPUTE) x->set_first[d->tags[i]]++;
  uint32_t end = 0;
  size_t n_triples = 0;
  for (uint32_t s = 0; s < n_sets; s++) {
    if (x->set_first[s] > 0) {
      x->used[x->n_used++] = s;
      n_triples += d->tags_first.at[s + 1] - d->tags_first.at[s];
    }
    x->set_first[s] = end += x->set_first[s];
  }
  x->set_first[n_sets] = end;
  for (uint32_t i = d->n; i-- > 1;)
    if (d->kind[i] == NODE_COMPUTE) x->set_nodes[--x->set_first[d->tags[i]]] = i;

  triples = malloc((n_triples + 1) * sizeof *triples);
  x->key_sets = malloc((n_triples + 1) * sizeof *x->key_sets);
  if (triples == NULL || x->key_sets == NULL) goto nomem;
  n_triples = 0;
  for (uint32_t u = 0; u < x->n_used; u++)
    for (uint32_t t = d->tags_first.at[x->used[u]]; t < d->tags_first.at[x->used[u] + 1]; t++)
      triples[n_triples++] = (Triple){d->tags_at.at[t], x->used[u]};
  if (!sort_triples(triples, n_triples)) goto nomem;
  for (uint32_t t = 0; t < n_triples; t++) {
    const Tag tag = triples[t].tag;
    x->key_sets[t] = triples[t].set;
    if (t == 0 || tag.tag != triples[t - 1].tag.tag || tag.index != triples[t - 1].tag.index) {
      const Key key = {.tag = tag.tag, .index = tag.index, .first = t};
      if (!vec_push(&x->keys, key)) goto nomem;
      if (t == 0 || tag.tag != triples[t - 1].tag.tag) {
        const KeyRange range = {.tag = tag.tag, .first = x->keys.n - 1};
        if (!vec_push(&x->ranges, range)) goto nomem;
      }
      x->ranges.at[x->ranges.n - 1].end = x->keys.n;
    }
    x->keys.at[x->keys.n - 1].end = t + 1;
  }
  free(triples);
  *out = x;
  return PIPER_OK;
nomem:
  free(triples);
  filter_index_free(x);
  return err_nomem(err, "filter index");
}

static KeyRange keys_of(const FilterIndex *x, uint32_t tag) {
  for (size_t i = 0; i < x->ranges.n; i++)
    if (x->ranges.at[i].tag == tag) return x->ranges.at[i];
  return (KeyRange){0};
}

static const Key *find_key(const FilterIndex *x, KeyRange r, int32_t index) {
  const Key *keys = x->keys.at;
  if (r.first == r.end || index < keys[r.first].index) return NULL;
  /* Indices ascend, so a key is at most as far from the first one as its index is; mostly just so. */
  const int64_t from_first = (int64_t)index - keys[r.first].index;
  size_t lo = r.first, hi = r.end;
  if ((uint64_t)from_first < hi - lo) hi = lo + (size_t)from_first + 1;
  if (keys[hi - 1].index == index) return &keys[hi - 1];
  while (lo < hi) {
    const size_t mid = lo + (hi - lo) / 2;
    if (keys[mid].index < index) lo = mid + 1;
    else hi = mid;
  }
  return lo < r.end && keys[lo].index == index ? &keys[lo] : NULL;
}

/* ---- text -------------------------------------------------------------------------------------- */

typedef struct Out {
  char *buf;
  size_t size, at;
} Out;

static void put(Out *o, const char *fmt, ...) PIPER_PRINTF(2, 3);
static void put(Out *o, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(o->buf + o->at, o->size - o->at, fmt, args);
  va_end(args);
  if (n > 0) o->at += (size_t)n < o->size - o->at ? (size_t)n : o->size - o->at - 1;
}

#define LISTED 12 /* of longer lists only the beginning is shown */

static void put_term(Out *o, const FilterTerm *t) {
  put(o, "%s = ", t->tag);
  if (t->kind == TERM_ANY) {
    put(o, "\"*\"");
  } else if (t->kind == TERM_NONE) {
    put(o, "false");
  } else if (t->n_indices == 1) {
    put(o, "%d", t->indices[0]);
  } else {
    for (uint32_t i = 0; i < t->n_indices && i < LISTED; i++)
      put(o, "%s%d", i == 0 ? "{ " : ", ", t->indices[i]);
    put(o, t->n_indices > LISTED ? ", ... }" : t->n_indices == 0 ? "{}" : " }");
  }
}

static void put_passes(Out *o, uint32_t passes) {
  const bool several = (passes & (passes - 1)) != 0;
  const char *before = several ? "{ " : "";
  put(o, "PASS = ");
  for (unsigned p = 0; p < PASS_COUNT; p++) {
    if ((passes >> p & 1) == 0) continue;
    put(o, "%s\"%s\"", before, PASS_NAME[p]);
    before = ", ";
  }
  if (several) put(o, " }");
}

/* The terms before 'n_terms', and PASS when 'with_pass', in the order of their names. */
static void put_terms(Out *o, const Filter *f, uint32_t n_terms, bool with_pass,
                      const char *comma) {
  bool pass_due = with_pass && f->passes != 0;
  const char *before = "";
  for (uint32_t i = 0; i <= n_terms; i++) {
    if (pass_due && (i == n_terms || strcmp(f->terms[i].tag, "PASS") > 0)) {
      put(o, "%s", before);
      put_passes(o, f->passes);
      before = comma;
      pass_due = false;
    }
    if (i == n_terms) break;
    put(o, "%s", before);
    put_term(o, &f->terms[i]);
    before = comma;
  }
}

void filter_text(const Filter *f, char *buf, size_t n) {
  if (n == 0) return;
  buf[0] = '\0';
  Out o = {buf, n, 0};
  if (f->n_terms == 0 && f->passes == 0) {
    put(&o, "{}");
    return;
  }
  put(&o, "{ ");
  put_terms(&o, f, f->n_terms, true, ", ");
  put(&o, " }");
}

/* ---- what matches nothing ---------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static PiperStatus unknown_tag(const FilterIndex *x, const Filter *f, const char *tag,
                               PiperErr *err) {
  char what[256], known[256];
  Out o = {known, sizeof known, 0};
  filter_text(f, what, sizeof what);
  VEC(const char *) names = {0};
  for (size_t k = 0; k < x->keys.n; k = keys_of(x, x->keys.at[k].tag).end)
    if (!vec_push(&names, intern_text(x->dag->names, x->keys.at[k].tag))) {
      vec_free(&names);
      return err_nomem(err, "filter");
    }
  if (names.n == 0) {
    vec_free(&names);
    return err_set(err, PIPER_EUSER,
                   "filter %s matches nothing; there is no tag \"%s\", nothing is "
                   "annotated or split",
                   what, tag);
  }
  qsort(names.at, names.n, sizeof *names.at, by_name);
  Nearest nearest = {0};
  for (size_t i = 0; i < names.n; i++) {
    nearest_try(&nearest, tag, names.at[i]);
    if (i < LISTED) put(&o, "%s%s", i > 0 ? ", " : "", names.at[i]);
    else if (i == LISTED) put(&o, ", ...");
  }
  char hint[96] = "";
  if (nearest.best != NULL) snprintf(hint, sizeof hint, " (did you mean \"%s\"?)", nearest.best);
  const bool one = names.n == 1;
  vec_free(&names);
  return err_set(err, PIPER_EUSER, "filter %s matches nothing; there is no tag \"%s\"%s; %s %s",
                 what, tag, hint, one ? "the only tag is" : "the tags are", known);
}

/* "PP runs from 0 to 3", "PP is always 0", "PP has the values 0-2, 8" */
static void put_values(Out *o, const FilterIndex *x, KeyRange r, const char *tag) {
  const Key *keys = x->keys.at;
  const int64_t first = keys[r.first].index, last = keys[r.end - 1].index;
  if (first == last) {
    put(o, "%s is always %d", tag, (int)first);
  } else if (last - first + 1 == (int64_t)(r.end - r.first)) {
    put(o, "%s runs from %d to %d", tag, (int)first, (int)last);
  } else {
    put(o, "%s has the values ", tag);
    size_t shown = 0;
    for (size_t k = r.first, end; k < r.end; k = end, shown++) {
      for (end = k + 1; end < r.end && keys[end].index == keys[end - 1].index + 1;) end++;
      if (shown == LISTED) {
        put(o, ", ...");
        break;
      }
      put(o, shown > 0 ? ", %d" : "%d", keys[k].index);
      if (end - k > 1) put(o, "-%d", keys[end - 1].index);
    }
  }
}

static PiperStatus index_out_of_range(const FilterIndex *x, const Filter *f, const FilterTerm *term,
                                      int32_t index, KeyRange keys, PiperErr *err) {
  char what[256], values[512];
  Out o = {values, sizeof values, 0};
  filter_text(f, what, sizeof what);
  put_values(&o, x, keys, term->tag);
  if (term->n_indices == 1)
    return err_set(err, PIPER_EUSER, "filter %s matches nothing; %s", what, values);
  return err_set(err, PIPER_EUSER, "filter %s: %s = %d matches nothing; %s", what, term->tag, index,
                 values);
}

/* ---- matching ---------------------------------------------------------------------------------- */

/* A term with its tag looked up. */
typedef struct Term {
  const FilterTerm *term;
  uint32_t tag;
  KeyRange keys;   /* of the tag; empty: TERM_NONE of a tag that occurs nowhere */
  const Key *only; /* TERM_INDEX with one index: its key */
} Term;

static PiperStatus resolve(const FilterIndex *x, const Filter *f, Term *terms, PiperErr *err) {
  for (uint32_t i = 0; i < f->n_terms; i++) {
    const FilterTerm *t = &f->terms[i];
    terms[i] = (Term){.term = t, .tag = intern_find(x->dag->names, t->tag)};
    if (terms[i].tag != 0) terms[i].keys = keys_of(x, terms[i].tag);
    if (terms[i].keys.first == terms[i].keys.end) { /* also names that are no tags */
      if (t->kind == TERM_NONE) continue;
      return unknown_tag(x, f, t->tag, err);
    }
    for (uint32_t k = 0; t->kind == TERM_INDEX && k < t->n_indices; k++) {
      const Key *key = find_key(x, terms[i].keys, t->indices[k]);
      if (key == NULL) return index_out_of_range(x, f, t, t->indices[k], terms[i].keys, err);
      if (t->n_indices == 1) terms[i].only = key;
    }
  }
  return PIPER_OK;
}

static bool has_index(const FilterTerm *t, int32_t index) {
  uint32_t lo = 0, hi = t->n_indices;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (t->indices[mid] < index) lo = mid + 1;
    else hi = mid;
  }
  return lo < t->n_indices && t->indices[lo] == index;
}

static bool set_has(const Dag *d, uint32_t set, const Term *t) {
  const uint32_t end = d->tags_first.at[set + 1];
  for (uint32_t i = d->tags_first.at[set]; i < end; i++)
    if (d->tags_at.at[i].tag == t->tag)
      return t->term->kind == TERM_ANY ||
             (t->term->kind == TERM_INDEX && has_index(t->term, d->tags_at.at[i].index));
  return t->term->kind == TERM_NONE;
}

/* All terms but 'known' (NULL: all) hold. */
static bool set_has_all(const Dag *d, uint32_t set, const Term *terms, uint32_t n,
                        const Term *known) {
  for (uint32_t i = 0; i < n; i++)
    if (&terms[i] != known && !set_has(d, set, &terms[i])) return false;
  return true;
}

static bool collect(const FilterIndex *x, const Filter *f, const Term *terms, const Term *known,
                    uint32_t set, U32Vec *out) {
  if (!set_has_all(x->dag, set, terms, f->n_terms, known)) return true;
  for (uint32_t i = x->set_first[set]; i < x->set_first[set + 1]; i++) {
    const uint32_t node = x->set_nodes[i];
    if (f->passes != 0 && (f->passes >> x->dag->pass[node] & 1) == 0) continue;
    if (!vec_push(out, node)) return false;
  }
  return true;
}

/* The tag sets of a key, as far as they lie in the range of every term with one index. */
static bool collect_key(const FilterIndex *x, const Filter *f, const Term *terms, const Term *known,
                        const Key *key, U32Vec *out) {
  uint32_t first = key->first, lowest = 0, highest = UINT32_MAX;
  for (uint32_t i = 0; i < f->n_terms; i++) {
    if (terms[i].only == NULL) continue;
    const uint32_t a = x->key_sets[terms[i].only->first], b = x->key_sets[terms[i].only->end - 1];
    if (a > lowest) lowest = a;
    if (b < highest) highest = b;
  }
  for (uint32_t hi = key->end; first < hi;) { /* the first set that is not below the range */
    const uint32_t mid = first + (hi - first) / 2;
    if (x->key_sets[mid] < lowest) first = mid + 1;
    else hi = mid;
  }
  for (uint32_t s = first; s < key->end && x->key_sets[s] <= highest; s++)
    if (!collect(x, f, terms, known, x->key_sets[s], out)) return false;
  return true;
}

static int by_id(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* Tag sets to look at when starting from this term; no term: all. */
static uint64_t term_cost(const FilterIndex *x, const Term *t) {
  uint64_t n = 0;
  if (t->only != NULL) {
    n = t->only->end - t->only->first;
  } else if (t->term->kind == TERM_ANY) {
    n = x->keys.at[t->keys.end - 1].end - x->keys.at[t->keys.first].first;
  } else if (t->term->kind == TERM_INDEX) {
    for (uint32_t i = 0; i < t->term->n_indices; i++) {
      const Key *key = find_key(x, t->keys, t->term->indices[i]);
      n += key->end - key->first;
    }
  } else {
    n = x->n_used;
  }
  return n;
}

/* Passes that only a directive brings about. */
static const char *pass_hint(uint32_t passes) {
  const uint32_t split = 1u << PASS_BI | 1u << PASS_BW;
  if (passes == 1u << PASS_R) return " (a recompute directive that matches the chunk makes it)";
  if (passes != 0 && (passes & ~split) == 0) return " (an order that names BI and BW makes them)";
  return "";
}

/* Which term removes the last node: they are added one by one, PASS at the end. */
static PiperStatus explain_empty(const FilterIndex *x, const Filter *f, const Term *terms,
                                 PiperErr *err) {
  char what[256], kept[256] = "", removed[256];
  uint64_t before = 0;
  uint32_t n = 0; /* with the first n terms nothing is left; n_terms + 1: PASS takes the last */
  for (; n <= f->n_terms; n++) {
    uint64_t count = 0;
    for (uint32_t u = 0; u < x->n_used; u++)
      if (set_has_all(x->dag, x->used[u], terms, n, NULL))
        count += x->set_first[x->used[u] + 1] - x->set_first[x->used[u]];
    if (count == 0) break;
    before = count;
  }
  filter_text(f, what, sizeof what);
  if (n == 0)
    return err_set(err, PIPER_EUSER, "filter %s matches nothing; there are no nodes", what);
  Out o = {kept, sizeof kept, 0}, r = {removed, sizeof removed, 0};
  put_terms(&o, f, n - 1, false, " and ");
  if (n <= f->n_terms) put_term(&r, &f->terms[n - 1]);
  else put_passes(&r, f->passes);
  if (n == 1)
    return err_set(err, PIPER_EUSER, "filter %s matches nothing; no node has %s%s", what, removed,
                   n > f->n_terms ? pass_hint(f->passes) : "");
  return err_set(err, PIPER_EUSER,
                 "filter %s matches nothing; %llu node%s %s, but none of them %s%s", what,
                 (unsigned long long)before, before == 1 ? " has" : "s have", kept, removed,
                 n > f->n_terms ? pass_hint(f->passes) : "");
}

PiperStatus filter_nodes(const FilterIndex *x, const Filter *f, U32Vec *out, PiperErr *err) {
  Term few[8];
  Term *terms = f->n_terms <= 8 ? few : malloc(f->n_terms * sizeof *terms);
  if (terms == NULL) return err_nomem(err, "filter");
  const size_t first = out->n;
  PiperStatus st = resolve(x, f, terms, err);
  if (st != PIPER_OK) goto done;

  const Term *rarest = NULL;
  uint64_t least = x->n_used;
  for (uint32_t i = 0; i < f->n_terms; i++) {
    const uint64_t cost = term_cost(x, &terms[i]);
    if (terms[i].term->kind == TERM_NONE || (rarest != NULL && cost >= least)) continue;
    rarest = &terms[i];
    least = cost;
  }
  bool fits = true;
  if (rarest == NULL) {
    for (uint32_t u = 0; fits && u < x->n_used; u++)
      fits = collect(x, f, terms, NULL, x->used[u], out);
  } else if (rarest->term->kind == TERM_ANY) {
    for (size_t k = rarest->keys.first; fits && k < rarest->keys.end; k++)
      fits = collect_key(x, f, terms, rarest, &x->keys.at[k], out);
  } else {
    const FilterTerm *t = rarest->term;
    for (uint32_t i = 0; fits && i < t->n_indices; i++)
      if (i == 0 || t->indices[i] != t->indices[i - 1])
        fits = collect_key(x, f, terms, rarest, find_key(x, rarest->keys, t->indices[i]), out);
  }
  if (!fits) {
    out->n = first;
    st = err_nomem(err, "filter");
  } else if (out->n == first) {
    st = explain_empty(x, f, terms, err);
  } else {
    bool ascending = true;
    for (size_t i = first + 1; i < out->n; i++)
      ascending = ascending && out->at[i] > out->at[i - 1];
    if (!ascending) qsort(out->at + first, out->n - first, sizeof *out->at, by_id);
  }
done:
  if (terms != few) free(terms);
  return st;
}
