#include "plan/plan.h"

#include "plan/plan_lower.h"

#include <stdio.h>
#include <stdlib.h>

const char *const MEM_NAME[MEM_COUNT] = {"params",      "grads", "optimizer",
                                         "activations", "comm",  "workspace"};

const char *const INSTR_NAME[INSTR_KIND_COUNT] = {"run",        "send",           "recv",
                                                  "all_reduce", "reduce_scatter", "all_gather",
                                                  "all_to_all"};

void plan_drop_lists(RankPlan *r) {
  r->made = false;
  vec_free(&r->instrs);
  vec_free(&r->waits);
  vec_free(&r->bind_offset);
  vec_free(&r->bind_first_write);
  vec_free(&r->accesses);
  vec_free(&r->buffers);
  vec_free(&r->streams);
}

void plan_free(Plan *p) {
  if (p == NULL) return;
  if (p->ranks != NULL)
    for (uint32_t i = 0; i < p->n_ranks; i++) plan_drop_lists(&p->ranks[i]);
  free(p->ranks);
  plan_lower_end(p);
  vec_free(&p->shares);
  vec_free(&p->exchanges);
  free(p->order);
  free(p->busy_seconds);
  free(p->node_seconds);
  free(p->node_start);
  arena_free(p->arena);
  programs_free(p->programs);
  dag_free(p->dag);
  free(p);
}

const RankPlan *plan_rank(const Plan *p, int32_t rank) {
  uint32_t lo = 0, hi = p->n_ranks; /* ascending */
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (p->ranks[mid].rank < rank) lo = mid + 1;
    else hi = mid;
  }
  return lo < p->n_ranks && p->ranks[lo].rank == rank ? &p->ranks[lo] : NULL;
}

static int ascending(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

PiperStatus plan_find_world(Plan *plan, PiperErr *err) {
  const Dag *d = plan->dag;
  const uint32_t n_sets = devsets_count(d->devsets);
  VEC(int32_t) ranks = {0};
  bool *used = calloc(n_sets, sizeof *used), held = used != NULL;
  for (uint32_t i = 1; held && i < d->n; i++) used[d->devs[i]] = used[d->src_devs[i]] = true;
  for (uint32_t s = 1; held && s < n_sets; s++)
    for (uint32_t j = 0; held && used[s] && j < devsets_size(d->devsets, s); j++)
      held = vec_push(&ranks, devsets_ranks(d->devsets, s)[j]);
  uint32_t n = 0;
  if (held && ranks.n > 0) {
    qsort(ranks.at, ranks.n, sizeof *ranks.at, ascending);
    for (size_t i = 0; i < ranks.n; i++)
      if (n == 0 || ranks.at[n - 1] != ranks.at[i]) ranks.at[n++] = ranks.at[i];
    plan->world = devsets_id(d->devsets, ranks.at, n);
    plan->n_ranks = n;
    held = plan->world != 0;
  }
  free(used);
  vec_free(&ranks);
  if (!held) return err_nomem(err, "the plan");
  return n > 0 ? PIPER_OK : err_set(err, PIPER_EBUG, "plan: no node has a device");
}

/* Gradients that nothing on the rank contributes to: the only RUN of a node that is not its own. */
static bool zeroes(const Plan *p, const Instr *i) {
  if (i->kind != INSTR_RUN || p->dag->kind[i->node] == NODE_COMPUTE) return false;
  const Program *program = programs_at(p->programs, i->program);
  return program->n_bindings == 1 && program->bindings[0].kind == BIND_PGRAD;
}

void plan_instr_label(const Plan *p, const RankPlan *r, uint32_t instr, char *buf, size_t n) {
  const Instr *i = &r->instrs.at[instr];
  char node[160], what[32] = "";
  dag_label(p->dag, (NodeId){i->node}, node, sizeof node);
  if (i->kind == INSTR_SEND) snprintf(what, sizeof what, "send to %d of ", i->peer);
  if (i->kind == INSTR_RECV) snprintf(what, sizeof what, "recv from %d of ", i->peer);
  if (zeroes(p, i)) snprintf(what, sizeof what, "zeroes for ");
  const char *line = dag_line(p->dag, p->dag->line[i->node]);
  if (line[0] != '\0') snprintf(buf, n, "rank %d, %s%s (%s)", r->rank, what, node, line);
  else snprintf(buf, n, "rank %d, %s%s", r->rank, what, node);
}

/* Its op's name, otherwise the op's kind and the value's number, as in dag_label. */
static void value_name(const Graph *g, ValueId v, char *buf, size_t n) {
  const Value *value = graph_value(g, v);
  const Op *op = graph_op(g, value->op);
  if (value->kind == VALUE_INPUT)
    snprintf(buf, n, "%s", graph_name(g, g->inputs.at[value->input].name));
  else if (op->name != 0) snprintf(buf, n, "%s", graph_name(g, op->name));
  else snprintf(buf, n, "%s.%u", OP_INFO[op->kind].name, v.i);
}

void plan_buffer_label(const Plan *p, const RankPlan *r, uint32_t buffer, char *buf, size_t n) {
  static const char *const ROLE[] = {"parameters",
                                     "gradients",
                                     "optimizer state",
                                     "gathered parameters",
                                     "gradients to reduce",
                                     "input",
                                     "value",
                                     "gradient of",
                                     "saved values",
                                     "saved values",
                                     "kept gradients",
                                     "workspace",
                                     "step block",
                                     "metrics",
                                     "counts of targets",
                                     "scratch of kernels"};
  const Buffer *b = &r->buffers.at[buffer];
  char name[128] = "", samples[64] = "";
  switch ((BufferRole)b->role) {
  case BUFFER_PARAMS:
  case BUFFER_GRADS:
  case BUFFER_STATE:
  case BUFFER_FULL_PARAMS:
  case BUFFER_FULL_GRADS: {
    const Bucket *k = &p->dag->buckets.at[b->id];
    const ParamId first = {p->dag->bucket_params.at[k->param_first]};
    snprintf(name, sizeof name, " of %s%s",
             graph_name(p->graph, graph_param(p->graph, first)->name), k->n_params > 1 ? ".." : "");
    if (b->hi - b->lo < k->elements)
      snprintf(samples, sizeof samples, ", elements [%lld, %lld)", (long long)b->lo,
               (long long)b->hi);
    break;
  }
  case BUFFER_INPUT:
    snprintf(name, sizeof name, " %s", graph_name(p->graph, p->graph->inputs.at[b->id].name));
    break;
  case BUFFER_VALUE:
  case BUFFER_GRAD:
    name[0] = ' ';
    value_name(p->graph, p->dag->tensors.at[b->id].value, name + 1, sizeof name - 1);
    break;
  case BUFFER_SAVED_I:
  case BUFFER_SAVED_W:
  case BUFFER_KEPT:
  case BUFFER_WORKSPACE:
  case BUFFER_STEP:
  case BUFFER_METRICS:
  case BUFFER_COUNTS:
  case BUFFER_SCRATCH:
    break;
  }
  if (b->hi > b->lo && !buffer_is_of_bucket(b->role))
    snprintf(samples, sizeof samples, ", samples [%lld, %lld)", (long long)b->lo, (long long)b->hi);
  snprintf(buf, n, "%s%s%s", ROLE[b->role], name, samples);
}

void plan_seconds_text(double s, char *buf, size_t n) {
  if (s >= 1) snprintf(buf, n, "%.3g s", s);
  else if (s >= 1e-3) snprintf(buf, n, "%.3g ms", s * 1e3);
  else snprintf(buf, n, "%.3g us", s * 1e6);
}

const char *plan_kind_name(unsigned kind) {
  return instr_is_collective(kind) || kind == INSTR_RUN ? INSTR_NAME[kind] : "transfer";
}
