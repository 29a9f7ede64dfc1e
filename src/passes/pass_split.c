/* pass_split - one copy of the matched nodes for each microbatch.
 *
 * requires  F and B nodes only, no communication, no temporal edges
 * ensures   the M copies of a node take the M equal parts of its samples, carry the tag
 *           dim_name = 0 .. M-1, and count their microbatch as mb * M + i; the node itself is copy
 *           0, copies 1 .. M-1 are new nodes, in order of (node, i). Two copies are joined where
 *           their ends were and their samples intersect. A tensor without a batch axis joins nodes
 *           on the same samples only
 * breaks    nothing
 * on error  the DAG may be half rewritten: drop it
 *
 * Splits nest in the order in which they are written, outermost first. Two copies of both ends on
 * the same samples are i <-> i. Where a filter matches one end only, that end's M copies meet the
 * whole other end: readers then take slices, or a slice is one of the M pieces that are put
 * together. No node does this: the edges say which samples come from where.
 *
 * A tensor without a batch axis (the sum of a loss, something computed from parameters only) has no
 * slices, so both its ends have to be split alike. That is looked at when all splits are done: two
 * directives may split one end each. */
#include "passes/pass.h"

#include "base/interrupt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Some 4 GiB while it is compiled, forty times what the largest test has. */
enum { MAX_NODES = 1 << 22 };

typedef struct Splitter {
  Dag *d;
  const Strategy *s;
  U32Vec matched;
  U32Vec split_by;  /* by node: 1 + index of the last directive that split it; 0: none */
  uint32_t *copies; /* by node, of one directive: its copy 1; 0: not matched */
} Splitter;

static PiperStatus check(const Splitter *w, const Directive *x, PiperErr *err) {
  const Graph *g = w->d->graph;
  const char *dim = x->dim_name;
  if (x->filter.passes != 0)
    return directive_fail(err, x,
                          "forward and backward of a chunk are split alike: "
                          "leave PASS out of the filter");
  if (x->num_microbatches < 1)
    return directive_fail(err, x, "num_microbatches is %lld; it has to be at least 1",
                          (long long)x->num_microbatches);
  if (dim == NULL || dim[0] == '\0') return directive_fail(err, x, "dim_name is empty");
  if (strcmp(dim, "PASS") == 0)
    return directive_fail(err, x, "dim_name \"PASS\" means the pass in a filter; choose another");
  for (size_t i = 0; i < g->scope_tags.n; i++)
    if (strcmp(graph_name(g, g->scope_tags.at[i].tag), dim) == 0)
      return directive_fail(err, x,
                            "dim_name \"%s\" is the tag of a scope of the model; "
                            "choose another",
                            dim);
  return PIPER_OK;
}

/* The line of the first split with x's dim_name. */
static const char *first_split_by(const Splitter *w, const Directive *x) {
  const Directive *y = w->s->at;
  while (y->kind != DIRECTIVE_SPLIT || strcmp(y->dim_name, x->dim_name) != 0) y++;
  return y->line;
}

/* Says which numbers near x's would do: divisors come in pairs, one of them at most the square root. */
static PiperStatus no_division(const Directive *x, int64_t samples, bool microbatch, PiperErr *err) {
  const int64_t m = x->num_microbatches;
  int64_t below = 1, above = samples;
  for (int64_t d = 1; d <= samples / d; d++) {
    if (samples % d != 0) continue;
    for (int k = 0; k < 2; k++) {
      const int64_t n = k == 0 ? d : samples / d;
      if (n <= m && n > below) below = n;
      if (n >= m && n < above) above = n;
    }
  }
  if (m >= samples) below = above = samples;
  char fits[64];
  if (above > below)
    snprintf(fits, sizeof fits, "%lld or %lld", (long long)below, (long long)above);
  else snprintf(fits, sizeof fits, "at most %lld", (long long)below);
  const char *s = samples == 1 ? "" : "s", *es = samples == 1 ? "es" : "";
  if (microbatch)
    return directive_fail(err, x,
                          "%lld sample%s of a microbatch do%s not divide into %lld microbatches, "
                          "but into %s",
                          (long long)samples, s, es, (long long)x->num_microbatches, fits);
  return directive_fail(err, x,
                        "the %lld sample%s of compile's batch = %lld do%s not divide into %lld "
                        "microbatches, but into %s",
                        (long long)samples, s, (long long)samples, es,
                        (long long)x->num_microbatches, fits);
}

/* n nodes become M each, beside 'others'. */
static PiperStatus check_number(const Directive *x, uint64_t n, uint64_t others, PiperErr *err) {
  const uint64_t most = n > 0 ? (MAX_NODES - others) / n : UINT64_MAX;
  if ((uint64_t)x->num_microbatches <= most) return PIPER_OK;
  return directive_fail(err, x,
                        "%lld microbatches of %llu nodes are too many: a DAG has at most %d nodes, "
                        "which is at most %llu microbatches here",
                        (long long)x->num_microbatches, (unsigned long long)n, (int)MAX_NODES,
                        (unsigned long long)most);
}

static bool names_split(const Splitter *w, const Directive *x) {
  for (const Directive *y = w->s->at; y < x; y++)
    for (uint32_t i = 0; y->kind == DIRECTIVE_SPLIT && i < x->filter.n_terms; i++)
      if (y->dim_name != NULL && strcmp(x->filter.terms[i].tag, y->dim_name) == 0) return true;
  return false;
}

/* Before any node is made: how many all splits together make. Those whose filters name microbatches of
 * others are left to copy_nodes. */
static PiperStatus check_numbers(Splitter *w, PiperErr *err) {
  const uint32_t n = w->d->n;
  FilterIndex *index = NULL;
  uint64_t *copies = malloc(n * sizeof *copies), all = n - 1;
  PiperStatus st = copies != NULL ? filter_index_new(w->d, &index, err) : err_nomem(err, "split");
  for (uint32_t u = 0; copies != NULL && u < n; u++) copies[u] = 1;
  for (uint32_t i = 0; st == PIPER_OK && i < w->s->n; i++) {
    const Directive *x = &w->s->at[i];
    uint64_t sum = 0;
    if (x->kind != DIRECTIVE_SPLIT || x->num_microbatches < 1 || names_split(w, x)) continue;
    w->matched.n = 0;
    PiperErr wrong = {0}; /* said later, with all tags that there are then */
    if (filter_nodes(index, &x->filter, &w->matched, &wrong) != PIPER_OK) {
      if (wrong.code == PIPER_ENOMEM) st = err_nomem(err, "split");
      continue;
    }
    for (size_t k = 0; k < w->matched.n; k++) sum += copies[w->matched.at[k]];
    st = check_number(x, sum, all - sum, err);
    all += sum * (uint64_t)(x->num_microbatches - 1);
    for (size_t k = 0; st == PIPER_OK && k < w->matched.n; k++)
      copies[w->matched.at[k]] *= (uint64_t)x->num_microbatches;
  }
  filter_index_free(index);
  free(copies);
  return st;
}

/* Copies 1 .. M-1 of the matched nodes, and the parts of all. */
static PiperStatus copy_nodes(Splitter *w, const Directive *x, PiperErr *err) {
  Dag *d = w->d;
  const int64_t m = x->num_microbatches;
  const uint32_t dim = intern_id(d->names, x->dim_name);
  const uint32_t by = 1 + (uint32_t)(x - w->s->at);
  if (dim == 0) return err_nomem(err, "split");
  for (size_t k = 0; k < w->matched.n; k++) {
    const uint32_t u = w->matched.at[k];
    const int64_t lo = d->lo[u], hi = d->hi[u];
    /* Parts of the DAG that have no node in common may use one name. */
    if (dag_tags_index(d, d->tags[u], dim) >= 0)
      return directive_fail(err, x, "dim_name \"%s\" was given to the split at %s; choose another",
                            x->dim_name, first_split_by(w, x));
    if ((hi - lo) % m != 0)
      return no_division(x, hi - lo, hi - lo < d->batch, err);
  }
  TRY(check_number(x, w->matched.n, d->n - 1 - w->matched.n, err));
  for (size_t k = 0; k < w->matched.n; k++) {
    const uint32_t u = w->matched.at[k];
    const int64_t lo = d->lo[u], part = (d->hi[u] - lo) / m;
    const uint32_t tags = d->tags[u], mb = d->mb[u];
    w->split_by.at[u] = by;
    for (uint32_t i = 0; i < (uint32_t)m; i++) {
      uint32_t v = u;
      TRY(interrupt_check_at(i, err));
      if (i > 0) {
        v = dag_add_node(d, NODE_COMPUTE, d->line[u]).i;
        if (v == 0 || !vec_push(&w->split_by, by)) return err_nomem(err, "split");
        d->pass[v] = d->pass[u];
        d->chunk[v] = d->chunk[u];
        d->stream[v] = d->stream[u];
      }
      if (i == 1) w->copies[u] = v;
      d->lo[v] = lo + part * i;
      d->hi[v] = lo + part * (i + 1);
      d->mb[v] = mb * (uint32_t)m + i;
      d->tags[v] = dag_tags_with(d, tags, (Tag){.tag = dim, .index = (int32_t)i});
      if (d->tags[v] == UINT32_MAX) return err_nomem(err, "split");
    }
  }
  return PIPER_OK;
}

/* The copies of one end of an edge: n nodes on 'part' samples each, from lo on. */
typedef struct End {
  uint32_t first, rest; /* copy 0; copy 1, the others follow */
  uint32_t n;
  int64_t lo, part;
} End;

static End end_of(const Splitter *w, uint32_t node, uint32_t m) {
  const Dag *d = w->d;
  const uint32_t rest = w->copies[node];
  return (End){node, rest, rest != 0 ? m : 1, d->lo[node], d->hi[node] - d->lo[node]};
}

static uint32_t end_copy(const End *x, uint32_t i) { return i == 0 ? x->first : x->rest + i - 1; }

static bool join_copies(Splitter *w, EdgeId id, uint32_t m) {
  Dag *d = w->d;
  const Edge e = d->edges.at[id.i];
  const End u = end_of(w, e.src, m), v = end_of(w, e.dst, m);
  if (u.n == 1 && v.n == 1) return true;
  bool used = false; /* the edge itself becomes the first of the new ones */
  for (uint32_t i = 0; i < u.n; i++) {
    const int64_t lo = u.lo + u.part * i, hi = lo + u.part;
    int64_t j = lo > v.lo ? (lo - v.lo) / v.part : 0;
    for (; j < v.n && v.lo + v.part * j < hi; j++) {
      const NodeId src = {end_copy(&u, i)}, dst = {end_copy(&v, (uint32_t)j)};
      if (used) {
        if (dag_add_edge(d, src, dst, (TensorId){e.tensor}).i == 0) return false;
      } else {
        d->edges.at[id.i].src = src.i;
        d->edges.at[id.i].dst = dst.i;
        used = true;
      }
    }
  }
  return true;
}

static PiperStatus split_one(Splitter *w, const Directive *x, PiperErr *err) {
  Dag *d = w->d;
  FilterIndex *index = NULL;
  TRY(check(w, x, err));
  PiperStatus st = filter_index_new(d, &index, err);
  if (st == PIPER_OK) st = directive_nodes(index, x, &w->matched, err);
  filter_index_free(index);
  TRY(st);
  w->copies = calloc(d->n, sizeof *w->copies);
  if (w->copies == NULL) return err_nomem(err, "split");
  st = copy_nodes(w, x, err);
  const size_t n_edges = d->edges.n;
  for (uint32_t e = 1; st == PIPER_OK && x->num_microbatches > 1 && e < n_edges; e++)
    if (!join_copies(w, (EdgeId){e}, (uint32_t)x->num_microbatches)) st = err_nomem(err, "split");
    else st = interrupt_check(err);
  free(w->copies);
  return st;
}

/* Tensors without a batch axis join nodes on the same samples. */
static PiperStatus check_whole_tensors(const Splitter *w, PiperErr *err) {
  const Dag *d = w->d;
  for (size_t i = 1; i < d->edges.n; i++) {
    const Edge *e = &d->edges.at[i];
    const Tensor *t = &d->tensors.at[e->tensor];
    if (t->kind != TENSOR_VALUE || graph_value(d->graph, t->value)->batch == BATCH_SPLIT) continue;
    if (d->lo[e->src] == d->lo[e->dst] && d->hi[e->src] == d->hi[e->dst]) continue;
    const uint32_t a = w->split_by.at[e->src], b = w->split_by.at[e->dst];
    char value[TEXT], from[TEXT], to[TEXT];
    value_text(d, t->value, value, sizeof value);
    chunk_text(d, (ChunkId){d->chunk[e->src]}, from, sizeof from);
    chunk_text(d, (ChunkId){d->chunk[e->dst]}, to, sizeof to);
    return directive_fail(err, &w->s->at[(a > b ? a : b) - 1],
                          "%s has no batch axis to split, so the %s that computes it and the %s "
                          "that reads it have to be split alike",
                          value, from, to);
  }
  return PIPER_OK;
}

PiperStatus pass_split(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  (void)opt;
  Splitter w = {.d = d, .s = s};
  PiperStatus st = PIPER_OK;
  for (uint32_t i = 0; i < d->n; i++)
    if (!vec_push(&w.split_by, 0)) st = err_nomem(err, "split");
  if (st == PIPER_OK) st = check_numbers(&w, err);
  for (uint32_t i = 0; st == PIPER_OK && i < s->n; i++) {
    if (s->at[i].kind != DIRECTIVE_SPLIT) continue;
    st = split_one(&w, &s->at[i], err);
    d->n_dims++;
  }
  if (st == PIPER_OK && d->n_dims > 0) st = check_whole_tensors(&w, err);
  vec_free(&w.matched);
  vec_free(&w.split_by);
  return st;
}
