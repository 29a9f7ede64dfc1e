/* A text of paragraphs, one a node: facts of the DAG (directives, devices, edges), and of the instructions of the
 * first rank that runs it (place in the list, waits), for the others of the set do the same. */
#include "compile/explain.h"

#include "base/text.h"
#include "ir/topo.h"
#include "plan/plan_time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of plans of more ranks, times are left out: they take the lists of all of them. */
enum { NAME_TEXT = 200, TIMED_RANKS = 64 };

typedef struct Explain {
  const Plan *plan;
  const Dag *dag;
  const Strategy *strategy;
  Text text;
  Adjacency edges;
  double *start, *end; /* by node */
  uint32_t *at;        /* by node: 1 + its place in the global order */
  uint32_t *of;        /* by directive: 1 + its index among the orders; 0: no order */
  U32Vec *matched;     /* by directive that is no order: nodes, ascending */
  const char *label;   /* of the line at hand, until it was put */
} Explain;

/* "  waits for    " before the first line of a kind, blanks before the others. */
static void put_head(Explain *x) {
  text_put(&x->text, "  %-12s ", x->label);
  x->label = "";
}

static void name_of(const Dag *d, uint32_t n, char *buf) {
  dag_name(d, (NodeId){n}, buf, NAME_TEXT);
}

/* ---- directives ------------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* What each directive's filter selects now, after all of them. Backward passes may have become halves. */
static PiperStatus match_all(Explain *x, const FilterIndex *index, PiperErr *err) {
  uint32_t orders = 0;
  for (uint32_t i = 0; i < x->strategy->n; i++) {
    const Directive *directive = &x->strategy->at[i];
    if (directive->kind == DIRECTIVE_ORDER) {
      x->of[i] = ++orders;
      continue;
    }
    Filter filter = directive->filter;
    PiperErr none = {0};
    if (filter.passes >> PASS_B & 1) filter.passes |= 1u << PASS_BI | 1u << PASS_BW;
    const PiperStatus st = filter_nodes(index, &filter, &x->matched[i], &none);
    if (st != PIPER_OK && st != PIPER_EUSER) return err_set(err, st, "%s", none.text);
  }
  return PIPER_OK;
}

static void put_directives(Explain *x, uint32_t n) {
  const Dag *d = x->dag;
  bool any = false;
  text_put(&x->text, "  %-12s ", "made by");
  for (uint32_t i = 0; i < x->strategy->n; i++) {
    const Directive *directive = &x->strategy->at[i];
    const U32Vec *m = &x->matched[i];
    const bool mine = x->of[i] != 0
                          ? d->order_of[n] == x->of[i]
                          : m->n > 0 && bsearch(&n, m->at, m->n, sizeof n, ascending) != NULL;
    if (!mine) continue;
    text_put(&x->text, "%s%s (%s)", any ? ", " : "", DIRECTIVE_NAME[directive->kind],
             directive->line);
    if (x->of[i] != 0 && directive->schedule != 0)
      text_put(&x->text, ": rank %u, column %u", directive->rank_in_schedule, d->group[n]);
    else if (x->of[i] != 0) text_put(&x->text, ": group %u", d->group[n]);
    any = true;
  }
  text_put(&x->text, any ? "\n" : "no directive\n");
}

/* ---- where and when -------------------------------------------------------------------------- */

static void put_seconds(Explain *x, double s) {
  if (s >= 1) text_put(&x->text, "%.4g s", s);
  else if (s >= 1e-3) text_put(&x->text, "%.4g ms", s * 1e3);
  else text_put(&x->text, "%.4g us", s * 1e6);
}

/* Its instruction on the rank; n: none, there is nothing to run. */
static size_t instr_of(const RankPlan *r, uint32_t n) {
  size_t i = 0;
  while (i < r->instrs.n && (r->instrs.at[i].node != n || r->instrs.at[i].kind != INSTR_RUN)) i++;
  return i;
}

static const RankPlan *first_rank(const Explain *x, uint32_t n) {
  return plan_rank(x->plan, devsets_ranks(x->dag->devsets, x->dag->devs[n])[0]);
}

static PiperStatus make_lists(const Explain *x, uint32_t n, PiperErr *err) {
  return plan_lists_of(x->plan, (uint32_t)(first_rank(x, n) - x->plan->ranks), err);
}

static void put_place(Explain *x, uint32_t n) {
  const Dag *d = x->dag;
  const RankPlan *r = first_rank(x, n);
  const uint32_t size = devsets_size(d->devsets, d->devs[n]);
  char devs[64];
  devsets_text(d->devsets, d->devs[n], devs, sizeof devs);
  text_put(&x->text, "  %-12s device%s %s, %s; samples %lld to %lld", "where", size > 1 ? "s" : "",
           devs, intern_text(d->names, d->stream[n]), (long long)d->lo[n], (long long)d->hi[n] - 1);
  if (d->parts[n] > 1) text_put(&x->text, ", experts spread over %u devices", d->parts[n]);
  else if (size > 1) text_put(&x->text, ", %lld on each", (long long)(d->hi[n] - d->lo[n]) / size);
  text_put(&x->text, "\n  %-12s node %u of %u", "when", x->at[n], x->plan->n_order);
  const size_t i = instr_of(r, n);
  if (i < r->instrs.n)
    text_put(&x->text, ", instruction %zu of %zu on rank %d", i + 1, r->instrs.n, (int)r->rank);
  else text_put(&x->text, ", no instruction: there is nothing to compute");
  if (x->end[n] > 0) {
    text_put(&x->text, "; ");
    put_seconds(x, x->start[n]);
    text_put(&x->text, " to ");
    put_seconds(x, x->end[n]);
    text_put(&x->text, " of the predicted step");
  }
  text_put(&x->text, "\n");
}

/* ---- edges ----------------------------------------------------------------------------------- */

static void put_value(Explain *x, ValueId v) {
  const Graph *g = x->dag->graph;
  const Value *value = graph_value(g, v);
  const Op *op = graph_op(g, value->op);
  if (value->kind == VALUE_INPUT)
    text_put(&x->text, "%s", graph_name(g, g->inputs.at[value->input].name));
  else if (op->name != 0) text_put(&x->text, "%s", graph_name(g, op->name));
  else text_put(&x->text, "%s.%u", OP_INFO[op->kind].name, v.i);
}

static void put_tensor(Explain *x, uint32_t id) {
  const Tensor *t = &x->dag->tensors.at[id];
  switch (t->kind) {
  case TENSOR_VALUE:
    text_put(&x->text, "value ");
    put_value(x, t->value);
    return;
  case TENSOR_GRAD:
    text_put(&x->text, "gradient of ");
    put_value(x, t->value);
    return;
  case TENSOR_SAVED:
    text_put(&x->text, "what the forward pass keeps");
    return;
  case TENSOR_KEPT:
    text_put(&x->text, "what BI keeps for BW");
    return;
  case TENSOR_BUCKET:
    text_put(&x->text, "gradients of parameters");
    return;
  case TENSOR_PARAMS:
    text_put(&x->text, "parameters");
    return;
  case TENSOR_METRICS:
    text_put(&x->text, "loss");
    return;
  case TENSOR_COUNTS:
    text_put(&x->text, "counts of targets");
    return;
  case TENSOR_NONE:
    break;
  }
  text_put(&x->text, "nothing");
}

/* "transfer relu.5 0F3 (0>1, pp_stream)" */
static void put_node(Explain *x, uint32_t n) {
  const Dag *d = x->dag;
  char name[NAME_TEXT], devs[64];
  name_of(d, n, name);
  text_put(&x->text, "%s", name);
  if (!NODE_KIND_COMMUNICATES[d->kind[n]]) return;
  devsets_text(d->devsets, d->devs[n], devs, sizeof devs);
  text_put(&x->text, " (");
  if (d->src_devs[n] != 0) {
    char src[64];
    devsets_text(d->devsets, d->src_devs[n], src, sizeof src);
    text_put(&x->text, "%s>", src);
  }
  text_put(&x->text, "%s, %s)", devs, intern_text(d->names, d->stream[n]));
}

static bool is_order_line(const Explain *x, const char *line) {
  for (uint32_t i = 0; i < x->strategy->n; i++)
    if (x->of[i] != 0 && strcmp(x->strategy->at[i].line, line) == 0) return true;
  return false;
}

/* The data edges of a communication on the side away from n: "from 0F3", or "for 1F3". */
static void put_beyond(Explain *x, uint32_t node, bool in) {
  const Adjacency *a = &x->edges;
  const uint32_t *first = in ? a->in_first : a->out_first, *edge = in ? a->in_edge : a->out_edge;
  const char *between = in ? ", from " : ", for ";
  uint32_t n = 0;
  for (uint32_t k = first[node]; k < first[node + 1]; k++) {
    const Edge *e = &x->dag->edges.at[edge[k]];
    char name[NAME_TEXT];
    if (e->kind != EDGE_DATA) continue;
    if (n++ == 8) {
      text_put(&x->text, ", ..");
      return;
    }
    name_of(x->dag, in ? e->src : e->dst, name);
    text_put(&x->text, "%s%s", between, name);
    between = ", ";
  }
}

static void put_edge(Explain *x, const Edge *e, bool in, uint32_t through) {
  const uint32_t other = in ? e->src : e->dst;
  const Dag *d = x->dag;
  if (d->kind[other] == NODE_JOIN && through == 0) { /* the nodes behind it */
    const Adjacency *a = &x->edges;
    const uint32_t *first = in ? a->in_first : a->out_first, *edge = in ? a->in_edge : a->out_edge;
    for (uint32_t k = first[other]; k < first[other + 1]; k++)
      put_edge(x, &d->edges.at[edge[k]], in, other);
    return;
  }
  put_head(x);
  put_node(x, other);
  if (e->kind == EDGE_DATA) {
    text_put(&x->text, ": ");
    put_tensor(x, e->tensor);
    if (NODE_KIND_COMMUNICATES[d->kind[other]]) put_beyond(x, other, in);
  } else {
    const char *line = dag_line(d, e->line);
    text_put(&x->text, is_order_line(x, line) ? ": order (%s)" : ": order of a pass (%s)", line);
  }
  text_put(&x->text, "\n");
}

static void put_edges(Explain *x, uint32_t n, bool in) {
  const Adjacency *a = &x->edges;
  const uint32_t *first = in ? a->in_first : a->out_first, *edge = in ? a->in_edge : a->out_edge;
  for (int kind = EDGE_DATA; kind <= EDGE_TEMPORAL; kind++)
    for (uint32_t k = first[n]; k < first[n + 1]; k++)
      if (x->dag->edges.at[edge[k]].kind == kind) put_edge(x, &x->dag->edges.at[edge[k]], in, 0);
}

/* ---- instructions ---------------------------------------------------------------------------- */

static void put_instr(Explain *x, const RankPlan *r, size_t i, const char *why) {
  char label[NAME_TEXT];
  plan_instr_label(x->plan, r, (uint32_t)i, label, sizeof label);
  char *line = strrchr(label, '('); /* without its script line */
  if (line != NULL && line > label && line[-1] == ' ') line[-1] = '\0';
  put_head(x);
  text_put(&x->text, "%s: %s\n", label, why);
}

static void put_waits(Explain *x, uint32_t n) {
  const RankPlan *r = first_rank(x, n);
  const size_t i = instr_of(r, n);
  if (i == r->instrs.n) return;
  const Instr *instr = &r->instrs.at[i];
  for (size_t j = i; j-- > 0;)
    if (r->instrs.at[j].stream == instr->stream) {
      char why[NAME_TEXT];
      snprintf(why, sizeof why, "before it on %s", r->streams.at[instr->stream].name);
      put_instr(x, r, j, why);
      break;
    }
  for (uint32_t k = instr->n_waits - instr->n_added; k < instr->n_waits; k++)
    put_instr(x, r, r->waits.at[instr->wait_first + k], "memory that is used again");
}

static void put_followers(Explain *x, uint32_t n) {
  const RankPlan *r = first_rank(x, n);
  const size_t i = instr_of(r, n);
  if (i == r->instrs.n) return;
  size_t j = i + 1;
  while (j < r->instrs.n && r->instrs.at[j].stream != r->instrs.at[i].stream) j++;
  if (j < r->instrs.n) put_instr(x, r, j, "after it on the same stream");
  for (j = i + 1; j < r->instrs.n; j++) {
    const Instr *later = &r->instrs.at[j];
    for (uint32_t k = later->n_waits - later->n_added; k < later->n_waits; k++)
      if (r->waits.at[later->wait_first + k] == i) put_instr(x, r, j, "memory that is used again");
  }
}

static void put_paragraph(Explain *x, uint32_t n) {
  const Dag *d = x->dag;
  const Graph *g = d->graph;
  const Chunk *chunk = graph_chunk(g, (ChunkId){d->chunk[n]});
  static const char *const WHAT[PASS_COUNT] = {"",
                                               "forward pass",
                                               "backward pass",
                                               "backward pass, gradients of inputs",
                                               "backward pass, gradients of weights",
                                               "forward pass, computed again"};
  char name[NAME_TEXT];
  name_of(d, n, name);
  text_put(&x->text, "%s  %s of chunk %u (%s)\n", name, WHAT[d->pass[n]], d->chunk[n],
           graph_name(g, chunk->line));
  put_directives(x, n);
  put_place(x, n);
  x->label = "waits for";
  put_edges(x, n, true);
  put_waits(x, n);
  x->label = "awaited by";
  put_edges(x, n, false);
  put_followers(x, n);
}

/* ---- actions --------------------------------------------------------------------------------- */

static bool parse_number(const char **text, uint32_t *out) {
  uint64_t n = 0;
  const char *p = *text;
  while (*p >= '0' && *p <= '9' && n <= INT32_MAX) n = n * 10 + (uint64_t)(*p++ - '0');
  const bool fine = p > *text && n <= INT32_MAX;
  *text = p;
  *out = (uint32_t)n;
  return fine;
}

bool explain_parse_action(const char *text, ExplainAction *out) {
  static const char letters[PASS_COUNT] = {'?', 'F', 'B', 'I', 'W', 'R'};
  uint32_t stage = 0;
  *out = (ExplainAction){.stage = -1};
  if (*text == '-') text++;
  else if (parse_number(&text, &stage)) out->stage = (int32_t)stage;
  else return false;
  for (out->pass = PASS_F; out->pass < PASS_COUNT && letters[out->pass] != *text;) out->pass++;
  if (out->pass == PASS_COUNT) return false;
  text++;
  if (!parse_number(&text, &out->mb)) return false;
  if (*text == '/') {
    text++;
    if (!parse_number(&text, &out->chunk) || out->chunk == 0) return false;
  }
  return *text == '\0';
}

static PiperStatus action_nodes(const Dag *d, const ExplainAction *a, U32Vec *out, PiperErr *err) {
  for (uint32_t n = 1; n < d->n; n++) {
    if (d->kind[n] != NODE_COMPUTE || d->pass[n] != a->pass || d->mb[n] != a->mb) continue;
    if (a->chunk != 0 && d->chunk[n] != a->chunk) continue;
    if (dag_stage(d, (ChunkId){d->chunk[n]}) != a->stage) continue;
    if (!vec_push(out, n)) return err_nomem(err, "explain");
  }
  if (out->n > 0) return PIPER_OK;
  return err_set(err, PIPER_EUSER, "the plan has no such action; plan:actions() lists what it has");
}

static PiperStatus explain(Explain *x, const FilterIndex *index, const Filter *filter,
                           const ExplainAction *action, PiperErr *err) {
  U32Vec nodes = {0};
  PiperStatus st = match_all(x, index, err);
  if (st == PIPER_OK)
    st = action != NULL ? action_nodes(x->dag, action, &nodes, err)
                        : filter_nodes(index, filter, &nodes, err);
  if (st == PIPER_OK && x->plan->n_ranks <= TIMED_RANKS) {
    st = plan_lists(x->plan, err);
    if (st == PIPER_OK) st = plan_node_times(x->plan, x->start, x->end, err);
  }
  for (size_t k = 0; st == PIPER_OK && k < nodes.n; k++) st = make_lists(x, nodes.at[k], err);
  if (st == PIPER_OK) {
    for (uint32_t k = 0; k < x->plan->n_order; k++) x->at[x->plan->order[k]] = k + 1;
    for (size_t k = 0; k < nodes.n; k++) nodes.at[k] = x->at[nodes.at[k]];
    qsort(nodes.at, nodes.n, sizeof *nodes.at, ascending);
    for (size_t k = 0; k < nodes.n; k++) {
      if (k > 0) text_put(&x->text, "\n");
      put_paragraph(x, x->plan->order[nodes.at[k] - 1]);
    }
    text_trim(&x->text, '\n');
  }
  vec_free(&nodes);
  return st;
}

PiperStatus plan_explain(const Plan *plan, const Strategy *strategy, const Filter *filter,
                         const ExplainAction *action, char **out, PiperErr *err) {
  const Dag *d = plan->dag;
  Explain x = {.plan = plan, .dag = d, .strategy = strategy};
  FilterIndex *index = NULL;
  PiperStatus st = PIPER_OK;
  x.start = calloc(d->n, sizeof *x.start);
  x.end = calloc(d->n, sizeof *x.end);
  x.at = calloc(d->n, sizeof *x.at);
  x.of = calloc(strategy->n + 1, sizeof *x.of);
  x.matched = calloc(strategy->n + 1, sizeof *x.matched);
  if (x.start == NULL || x.end == NULL || x.at == NULL || x.of == NULL || x.matched == NULL)
    st = err_nomem(err, "explain");
  if (st == PIPER_OK) st = adjacency_new(d, &x.edges, err);
  if (st == PIPER_OK) {
    st = filter_index_new(d, &index, err);
    if (st == PIPER_OK) st = explain(&x, index, filter, action, err);
    filter_index_free(index);
    adjacency_free(&x.edges);
  }
  for (uint32_t i = 0; x.matched != NULL && i < strategy->n; i++) vec_free(&x.matched[i]);
  free(x.start), free(x.end), free(x.at), free(x.of), free(x.matched);
  if (st == PIPER_OK) return text_finish(&x.text, "explain", out, err);
  vec_free(&x.text.chars);
  return st;
}
