#include "runtime/params.h"

#include "base/rng.h"
#include "ir/shape.h"

#include <string.h>

#define CHUNK 4096 /* elements that are converted at a time */

/* Elements of a parameter as one rank holds them, in the plan's own type. */
typedef struct Place {
  RankExec *rank;
  unsigned char *at;
  DType dtype;
  int64_t elements;
} Place;

static int64_t elements_of(const Plan *plan, ParamId id) {
  return shape_elements(&graph_param(plan->graph, id)->shape, 1);
}

static const char *name_of(const Plan *plan, ParamId id) {
  return graph_name(plan->graph, graph_param(plan->graph, id)->name);
}

/* The place of a parameter's values or gradient; false: not on this rank. */
static bool place_of(const Params *p, uint32_t rank, ParamId id, bool grad, Place *out) {
  const ParamHome home = p->plan->dag->home[id.i];
  RankExec *x = &p->ranks[rank];
  const DType dtype = p->plan->options.dtype;
  uint64_t at;
  if (home.bucket.i == 0) return false;
  at = (grad ? x->grads_at : x->params_at)[home.bucket.i];
  if (at == EXEC_NOT_HERE) return false;
  *out = (Place){x, x->arena + at + (uint64_t)home.offset * dtype_bytes(dtype), dtype,
                 elements_of(p->plan, id)};
  return true;
}

static bool first_place(const Params *p, ParamId id, bool grad, Place *out) {
  for (uint32_t r = 0; r < p->plan->n_ranks; r++) {
    if (place_of(p, r, id, grad, out)) return true;
  }
  return false;
}

/* Elements [first, first + n), n <= CHUNK. */
static PiperStatus put_chunk(const Place *to, int64_t first, int64_t n, const double *values,
                             PiperErr *err) {
  Device *dev = to->rank->device;
  float narrow[CHUNK];
  if (to->dtype == DT_F64) {
    return dev->ops->copy_in(dev, to->at + first * (int64_t)sizeof *values, values,
                             (uint64_t)n * sizeof *values, err);
  }
  for (int64_t i = 0; i < n; i++) narrow[i] = (float)values[i];
  return dev->ops->copy_in(dev, to->at + first * (int64_t)sizeof *narrow, narrow,
                           (uint64_t)n * sizeof *narrow, err);
}

static PiperStatus read_place(const Place *from, double *values, PiperErr *err) {
  Device *dev = from->rank->device;
  float narrow[CHUNK];
  if (from->dtype == DT_F64) {
    return dev->ops->copy_out(dev, values, from->at, (uint64_t)from->elements * sizeof *values,
                              err);
  }
  for (int64_t at = 0; at < from->elements; at += CHUNK) {
    const int64_t n = from->elements - at < CHUNK ? from->elements - at : CHUNK;
    TRY(dev->ops->copy_out(dev, narrow, from->at + at * (int64_t)sizeof *narrow,
                           (uint64_t)n * sizeof *narrow, err));
    for (int64_t i = 0; i < n; i++) values[at + i] = narrow[i];
  }
  return PIPER_OK;
}

/* ---- initial values ------------------------------------------------------------------------------- */

static void initial_values(const Param *param, uint64_t seed, uint64_t key, int64_t first,
                           int64_t n, double *out) {
  switch (param->init) {
  case INIT_CONSTANT:
    for (int64_t i = 0; i < n; i++) out[i] = param->init_arg;
    return;
  case INIT_NORMAL:
    rng_fill_normal(seed, key, (uint64_t)first, (size_t)n, out);
    for (int64_t i = 0; i < n; i++) out[i] *= param->init_arg;
    return;
  case INIT_UNIFORM:
    rng_fill_uniform(seed, key, (uint64_t)first, (size_t)n, out);
    for (int64_t i = 0; i < n; i++) out[i] = param->init_arg * (2 * out[i] - 1);
    return;
  case INIT_VALUES:
    memcpy(out, param->values + first, (size_t)n * sizeof *out);
    return;
  }
}

static PiperStatus init_param(const Params *p, ParamId id, uint64_t seed, PiperErr *err) {
  const Param *param = graph_param(p->plan->graph, id);
  const uint64_t key = rng_key(name_of(p->plan, id));
  const int64_t elements = elements_of(p->plan, id);
  double values[CHUNK];
  for (int64_t at = 0; at < elements; at += CHUNK) {
    const int64_t n = elements - at < CHUNK ? elements - at : CHUNK;
    initial_values(param, seed, key, at, n, values);
    for (uint32_t r = 0; r < p->plan->n_ranks; r++) {
      Place to;
      if (place_of(p, r, id, false, &to)) TRY(put_chunk(&to, at, n, values, err));
    }
  }
  return PIPER_OK;
}

PiperStatus params_init(const Params *p, uint64_t seed, PiperErr *err) {
  const Plan *plan = p->plan;
  for (uint32_t i = 1; i < plan->graph->params.n; i++) {
    TRY(init_param(p, (ParamId){i}, seed, err));
  }
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    const RankExec *x = &p->ranks[r];
    for (size_t i = 0; i < x->rank->buffers.n; i++) {
      const Buffer *b = &x->rank->buffers.at[i];
      if (b->role == BUFFER_STATE) {
        TRY(x->device->ops->zero(x->device, x->arena + b->offset, b->bytes, err));
      }
    }
  }
  return PIPER_OK;
}

/* ---- reading and writing ---------------------------------------------------------------------------- */

PiperStatus params_get(const Params *p, ParamId id, double *values, PiperErr *err) {
  Place from;
  if (first_place(p, id, false, &from)) return read_place(&from, values, err);
  return err_set(err, PIPER_EBUG, "no rank holds parameter %s", name_of(p->plan, id));
}

PiperStatus params_set(const Params *p, ParamId id, const double *values, PiperErr *err) {
  const int64_t elements = elements_of(p->plan, id);
  for (uint32_t r = 0; r < p->plan->n_ranks; r++) {
    Place to;
    if (!place_of(p, r, id, false, &to)) continue;
    for (int64_t at = 0; at < elements; at += CHUNK) {
      TRY(put_chunk(&to, at, elements - at < CHUNK ? elements - at : CHUNK, values + at, err));
    }
  }
  return PIPER_OK;
}

PiperStatus params_get_grad(const Params *p, ParamId id, double *values, PiperErr *err) {
  const BucketId bucket = p->plan->dag->home[id.i].bucket;
  Place from;
  if (bucket.i != 0 && p->plan->dag->buckets.at[bucket.i].trained &&
      first_place(p, id, true, &from)) {
    return read_place(&from, values, err);
  }
  for (int64_t i = 0; i < elements_of(p->plan, id); i++) values[i] = 0;
  return PIPER_OK;
}

static PiperStatus compare_places(const Plan *plan, ParamId id, const Place *a, const Place *b,
                                  PiperErr *err) {
  const uint64_t size = dtype_bytes(a->dtype);
  const uint64_t bytes = (uint64_t)a->elements * size;
  unsigned char x[CHUNK], y[CHUNK];
  for (uint64_t at = 0; at < bytes; at += CHUNK) {
    const uint64_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
    TRY(a->rank->device->ops->copy_out(a->rank->device, x, a->at + at, n, err));
    TRY(b->rank->device->ops->copy_out(b->rank->device, y, b->at + at, n, err));
    for (uint64_t i = 0; i < n; i++) {
      if (x[i] == y[i]) continue;
      return err_set(err, PIPER_EBUG, "element %llu of parameter %s differs between ranks %d and %d",
                     (unsigned long long)((at + i) / size), name_of(plan, id),
                     (int)a->rank->rank->rank, (int)b->rank->rank->rank);
    }
  }
  return PIPER_OK;
}

PiperStatus params_replicas_equal(const Params *p, PiperErr *err) {
  for (uint32_t i = 1; i < p->plan->graph->params.n; i++) {
    const ParamId id = {i};
    Place first, other;
    if (!first_place(p, id, false, &first)) continue;
    for (uint32_t r = 0; r < p->plan->n_ranks; r++) {
      if (!place_of(p, r, id, false, &other)) continue;
      TRY(compare_places(p->plan, id, &first, &other, err));
    }
  }
  return PIPER_OK;
}
