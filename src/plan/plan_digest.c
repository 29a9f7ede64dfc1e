/* plan_digest - a hash of all that has to be equal on every rank before a step may start: what each
 * rank executes, in which order and where, what the programs compute, and how parameters, inputs
 * and samples are laid out. Field by field, so neither padding nor addresses get in; script lines stay
 * out, since they carry paths; so do predictions, which execution does not depend on. */
#include "base/hash.h"
#include "plan/plan_lower.h"

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
    hash_u32(h, d->buckets.at[b].trained);
    hash_i64(h, d->buckets.at[b].elements);
    hash_devset(h, d->devsets, d->buckets.at[b].holders);
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

static void hash_rank(Hash *h, const Plan *plan, const RankPlan *r) {
  hash_u32(h, (uint32_t)r->rank);
  hash_u64(h, r->arena_bytes);
  hash_u64(h, r->step_offset);
  hash_u64(h, r->metrics_offset);
  hash_u64(h, r->scratch_offset);
  hash_u64(h, r->scratch_bytes);
  hash_u64(h, r->shared_bytes);
  hash_u64(h, r->streams.n);
  for (size_t i = 0; i < r->streams.n; i++) {
    hash_str(h, r->streams.at[i].name);
    hash_u32(h, (uint32_t)r->streams.at[i].kind);
  }
  hash_u64(h, r->instrs.n);
  for (size_t i = 0; i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    hash_u32(h, (uint32_t)x->kind << 24 | (uint32_t)x->dtype << 16 | (x->stream & 0xffff));
    hash_u32(h, x->n_waits);
    for (uint32_t k = 0; k < x->n_waits; k++) hash_u32(h, r->waits.at[x->wait_first + k]);
    if (x->kind != INSTR_RUN) {
      hash_u64(h, x->offset);
      hash_u64(h, x->bytes);
      if (!instr_is_collective(x->kind)) {
        hash_u32(h, (uint32_t)x->peer);
        continue;
      }
      hash_devset(h, plan->dag->devsets, x->group);
      hash_u64(h, x->part);
      hash_u32(h, (uint32_t)x->adds << 31 | x->share_first);
      continue;
    }
    hash_u32(h, x->program);
    hash_i64(h, x->sample_lo);
    for (uint32_t k = 0; k < x->n_accesses; k++) {
      hash_u64(h, r->bind_offset.at[x->bind_first + k]);
      hash_u32(h, r->bind_first_write.at[x->bind_first + k]);
    }
  }
  /* Where the host finds parameters, state and inputs. */
  for (size_t i = 0; i < r->buffers.n; i++) {
    const Buffer *b = &r->buffers.at[i];
    if (!b->whole_step) continue;
    hash_u32(h, (uint32_t)b->role << 24 | b->id);
    hash_u32(h, b->slot);
    hash_i64(h, b->lo);
    hash_i64(h, b->hi);
    hash_u64(h, b->offset);
    hash_u64(h, b->bytes);
  }
}

void plan_compute_digest(Plan *plan) {
  Hash h = HASH_START;
  hash_options(&h, &plan->options);
  hash_model(&h, plan->graph, plan->dag);
  for (uint32_t i = 1; i <= programs_count(plan->programs); i++)
    hash_program(&h, programs_at(plan->programs, i));
  hash_devset(&h, plan->dag->devsets, plan->world);
  hash_u64(&h, plan->shares.n);
  for (size_t i = 0; i < plan->shares.n; i++) {
    hash_i64(&h, plan->shares.at[i].lo);
    hash_i64(&h, plan->shares.at[i].hi);
  }
  hash_u64(&h, plan->exchanges.n);
  for (size_t i = 0; i < plan->exchanges.n; i++) {
    const Exchange *x = &plan->exchanges.at[i];
    hash_i64(&h, x->samples);
    hash_i64(&h, x->blocks);
    hash_u64(&h, x->block_bytes);
    hash_u64(&h, x->row_bytes);
    hash_u32(&h, x->to_experts);
  }
  for (uint32_t i = 0; i < plan->n_ranks; i++) hash_rank(&h, plan, &plan->ranks[i]);
  plan->digest = hash_end(&h);
}
