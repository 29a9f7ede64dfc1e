/* plan_digest - a hash of all that decides what each rank executes, in which order and where, what the
 * programs compute, and how parameters, inputs and samples are laid out: it has to be equal on every rank
 * before a step may start. The lists of the ranks follow from it (plan_lower.c, plan_mem.c), so they need
 * not be there. Field by field, so neither padding nor addresses get in; script lines stay out, since
 * they carry paths; so do predictions, which execution does not depend on, and the groups of orders,
 * which have done their work when the global order is there. */
#include "base/hash.h"
#include "plan/plan_lower.h"

#include <stdlib.h>

static void hash_i64(Hash *h, int64_t v) { hash_u64(h, (uint64_t)v); }

static void hash_devset(Hash *h, const DevSets *t, uint32_t id) {
  const uint32_t n = devsets_size(t, id);
  hash_u32(h, n);
  for (uint32_t j = 0; j < n; j++) hash_u32(h, (uint32_t)devsets_ranks(t, id)[j]);
}

static void hash_options(Hash *h, const PlanOptions *o) {
  hash_u32(h, (uint32_t)o->dtype);
  hash_u32(h, (uint32_t)o->optimizer.kind);
  hash_f64(h, o->optimizer.lr);
  hash_f64(h, o->optimizer.momentum);
  hash_f64(h, o->optimizer.beta1);
  hash_f64(h, o->optimizer.beta2);
  hash_f64(h, o->optimizer.eps);
  hash_f64(h, o->optimizer.weight_decay);
  hash_f64(h, o->clip_norm);
  hash_u32(h, o->single_stream);
  hash_u32(h, o->threads_per_rank);
}

static void hash_shape(Hash *h, const Shape *s) {
  hash_u32(h, s->rank);
  hash_u32(h, s->batched);
  for (uint32_t i = 0; i < s->rank; i++) hash_i64(h, s->dim[i]);
}

/* Inputs and parameters: what data is fed, and what the weights start from. */
static void hash_model(Hash *h, const Graph *g, const Dag *d) {
  hash_i64(h, d->batch);
  hash_u64(h, g->losses.n);
  for (uint32_t i = 0; i < g->inputs.n; i++) {
    const Input *x = &g->inputs.at[i];
    if (x->value.i == 0) continue; /* element 0 */
    hash_str(h, graph_name(g, x->name));
    hash_u32(h, (uint32_t)graph_value(g, x->value)->dtype);
    hash_shape(h, &graph_value(g, x->value)->shape);
    hash_i64(h, x->limit);
  }
  for (uint32_t i = 1; i < g->params.n; i++) {
    const Param *p = &g->params.at[i];
    hash_str(h, graph_name(g, p->name));
    hash_shape(h, &p->shape);
    hash_u32(h, (uint32_t)p->init);
    hash_f64(h, p->init_arg);
    const int64_t n = p->init == INIT_VALUES ? shape_elements_per_sample(&p->shape) : 0;
    for (int64_t k = 0; k < n; k++) hash_f64(h, p->values[k]);
    hash_u32(h, d->home[i].bucket.i);
    hash_i64(h, d->home[i].offset);
  }
  for (uint32_t b = 1; b < d->buckets.n; b++) {
    const Bucket *x = &d->buckets.at[b];
    hash_u32(h, (uint32_t)x->zero << 2 | (uint32_t)x->per_microbatch << 1 | x->trained);
    hash_i64(h, x->elements);
    hash_devset(h, d->devsets, x->holders);
    hash_u32(h, x->n_groups);
    for (uint32_t k = 0; k < x->n_groups; k++)
      hash_devset(h, d->devsets, d->bucket_groups.at[x->group_first + k]);
  }
}

static void hash_program(Hash *h, const Program *p) {
  hash_u32(h, p->n_bindings);
  for (uint32_t i = 0; i < p->n_bindings; i++) {
    const Binding *b = &p->bindings[i];
    hash_u32(h, (uint32_t)b->kind << 16 | (uint32_t)b->access << 8 | b->slot);
    hash_u32(h, b->value.i);
    hash_u32(h, b->chunk.i);
    hash_u32(h, b->bucket.i);
    hash_u64(h, b->bytes);
  }
  hash_u32(h, p->n_calls);
  for (uint32_t i = 0; i < p->n_calls; i++) {
    const KernelCall *c = &p->calls[i];
    hash_u32(h, (uint32_t)c->op << 24 | (uint32_t)c->part << 16 | (uint32_t)c->wrt << 8 |
                    (uint32_t)c->accumulate);
    hash_u32(h, (uint32_t)c->first_base << 16 | c->n_args);
    for (size_t k = 0; k < sizeof c->attrs.d / sizeof c->attrs.d[0]; k++)
      hash_f64(h, c->attrs.d[k]);
    for (uint32_t k = 0; k < c->n_args; k++) {
      const KernelArg *a = &c->args[k];
      hash_u64(h, a->offset);
      hash_u32(h, (uint32_t)a->base << 16 | (uint32_t)a->dtype << 8 | a->rank);
      for (uint32_t x = 0; x < a->rank; x++) hash_i64(h, a->dim[x]);
    }
  }
}

/* ---- the DAG in its order --------------------------------------------------------------------- */

/* By where they are first used, so that nothing depends on the order in which passes made them. */
typedef struct Numbers {
  uint32_t *sets, n_sets; /* by device set: 1 + number; 0: not used yet */
  uint32_t *place;        /* by node: in the order */
} Numbers;

static void hash_set(Hash *h, const Dag *d, Numbers *x, uint32_t set) {
  const bool is_new = x->sets[set] == 0;
  if (is_new) x->sets[set] = ++x->n_sets;
  hash_u32(h, x->sets[set]);
  if (is_new) hash_devset(h, d->devsets, set);
}

static void hash_tensor(Hash *h, const Tensor *t) {
  hash_u32(h, (uint32_t)t->kind << 1 | t->spread);
  hash_u32(h, t->value.i);
  hash_u32(h, t->chunk.i);
  hash_u32(h, t->bucket.i);
}

static void hash_node(Hash *h, const Dag *d, Numbers *x, uint32_t n) {
  const bool transfer = d->kind[n] == NODE_TRANSFER;
  hash_u32(h, (uint32_t)d->kind[n] << 24 | (uint32_t)d->pass[n] << 16 | (d->recompute[n] != 0));
  hash_u32(h, d->chunk[n]);
  hash_u32(h, d->bucket[n]);
  hash_u32(h, d->parts[n]);
  hash_set(h, d, x, d->devs[n]);
  hash_i64(h, d->lo[n]);
  hash_i64(h, d->hi[n]);
  if (transfer) {
    hash_set(h, d, x, d->src_devs[n]);
    hash_i64(h, d->src_lo[n]);
    hash_i64(h, d->src_hi[n]);
  }
  if (!NODE_KIND_COMMUNICATES[d->kind[n]]) return;
  hash_tensor(h, &d->tensors.at[d->tensor[n]]);
  hash_str(h, d->stream[n] != 0 ? intern_text(d->names, d->stream[n]) : "");
}

/* Those that say where gradients and parameters of a bucket go, and in which order communication is;
 * compute nodes are ordered by their stream. */
static bool edge_matters(const Dag *d, const Edge *e) {
  if (e->src == 0) return false;
  if (e->kind == EDGE_TEMPORAL)
    return NODE_KIND_COMMUNICATES[d->kind[e->src]] || NODE_KIND_COMMUNICATES[d->kind[e->dst]];
  const TensorKind kind = d->tensors.at[e->tensor].kind;
  return kind == TENSOR_BUCKET || kind == TENSOR_PARAMS;
}

/* A sum, so in whatever order they stand. */
static uint64_t sum_of_edges(const Dag *d, const Numbers *x) {
  uint64_t sum = 0;
  for (size_t i = 1; i < d->edges.n; i++) {
    const Edge *e = &d->edges.at[i];
    if (!edge_matters(d, e)) continue;
    Hash h = HASH_START;
    hash_u32(&h, x->place[e->src]);
    hash_u32(&h, x->place[e->dst]);
    if (e->kind == EDGE_DATA) hash_tensor(&h, &d->tensors.at[e->tensor]);
    sum += hash_end(&h);
  }
  return sum;
}

static bool hash_order(Hash *h, const Plan *plan) {
  const Dag *d = plan->dag;
  Numbers x = {.sets = calloc(devsets_count(d->devsets), sizeof *x.sets),
               .place = calloc(d->n, sizeof *x.place)};
  const bool held = x.sets != NULL && x.place != NULL;
  if (held) {
    hash_u32(h, plan->n_order);
    for (uint32_t k = 0; k < plan->n_order; k++) x.place[plan->order[k]] = k;
    for (uint32_t k = 0; k < plan->n_order; k++) hash_node(h, d, &x, plan->order[k]);
    hash_u64(h, sum_of_edges(d, &x));
  }
  free(x.sets), free(x.place);
  return held;
}

/* What the memory planner made of it: a limit may have made it try harder. */
static void hash_figures(Hash *h, const RankPlan *r) {
  hash_u64(h, r->arena_bytes);
  hash_u64(h, r->shared_bytes);
  hash_u32(h, r->waits_added);
}

PiperStatus plan_compute_digest(Plan *plan, PiperErr *err) {
  Hash h = HASH_START;
  hash_options(&h, &plan->options);
  hash_model(&h, plan->graph, plan->dag);
  for (uint32_t i = 1; i <= programs_count(plan->programs); i++)
    hash_program(&h, programs_at(plan->programs, i));
  hash_devset(&h, plan->dag->devsets, plan->world);
  if (!hash_order(&h, plan)) return err_nomem(err, "the digest of a plan");
  for (uint32_t i = 0; i < plan->n_ranks; i++) hash_figures(&h, &plan->ranks[i]);
  hash_u64(&h, plan->trains != NULL ? plan->trains->digest : 0);
  plan->digest = hash_end(&h);
  return PIPER_OK;
}
