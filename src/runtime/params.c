#include "runtime/params.h"

#include "base/rng.h"
#include "ir/bucket.h"
#include "ir/shape.h"

#include <string.h>

#define CHUNK 4096 /* elements that are converted at a time */

/* Elements [first, first + elements) of a parameter as one rank keeps them, in the plan's own type. */
typedef struct Place {
  RankExec *rank;
  unsigned char *at;
  DType dtype;
  int64_t first, elements;
} Place;

static int64_t elements_of(const Plan *plan, ParamId id) {
  return shape_elements(&graph_param(plan->graph, id)->shape, 1);
}

static const char *name_of(const Plan *plan, ParamId id) {
  return graph_name(plan->graph, graph_param(plan->graph, id)->name);
}

/* The place of a parameter's values, or of those elements of its gradient that the rank has in full;
 * false: none on this rank. */
static bool place_of(const Params *p, uint32_t rank, ParamId id, bool grad, Place *out) {
  const Dag *d = p->plan->dag;
  const ParamHome home = d->home[id.i];
  RankExec *x = &p->ranks[rank];
  const DType dtype = p->plan->options.dtype;
  if (home.bucket.i == 0) return false;
  const Buffer *b = (grad ? x->grads : x->params)[home.bucket.i];
  if (b == NULL) return false;
  Share s = {home.offset, home.offset + elements_of(p->plan, id)};
  s = share_common(s, (Share){b->lo, b->hi});
  if (grad) s = share_common(s, bucket_updated(d, home.bucket, x->rank->rank));
  if (share_size(s) == 0) return false;
  *out = (Place){.rank = x,
                 .at = exec_at(x, b->offset) + (uint64_t)(s.lo - b->lo) * dtype_bytes(dtype),
                 .dtype = dtype,
                 .first = s.lo - home.offset,
                 .elements = share_size(s)};
  return true;
}

/* As much of elements [first, first + n) of the parameter, n <= CHUNK, as lies there. */
static PiperStatus put_chunk(const Place *to, int64_t first, int64_t n, const double *values,
                             PiperErr *err) {
  Device *dev = to->rank->device;
  float narrow[CHUNK];
  const Share s =
      share_common((Share){first, first + n}, (Share){to->first, to->first + to->elements});
  if (share_size(s) == 0) return PIPER_OK;
  values += s.lo - first;
  first = s.lo - to->first;
  n = share_size(s);
  if (to->dtype == DT_F64) {
    return dev->ops->copy_in(dev, to->at + first * (int64_t)sizeof *values, values,
                             (uint64_t)n * sizeof *values, err);
  }
  for (int64_t i = 0; i < n; i++) narrow[i] = (float)values[i];
  return dev->ops->copy_in(dev, to->at + first * (int64_t)sizeof *narrow, narrow,
                           (uint64_t)n * sizeof *narrow, err);
}

/* Elements [first, first + n) of the place. */
static PiperStatus read_place(const Place *from, int64_t first, int64_t n, double *values,
                              PiperErr *err) {
  Device *dev = from->rank->device;
  float narrow[CHUNK];
  if (from->dtype == DT_F64)
    return dev->ops->copy_out(dev, values, from->at + first * (int64_t)sizeof *values,
                              (uint64_t)n * sizeof *values, err);
  for (int64_t at = 0; at < n; at += CHUNK) {
    const int64_t m = n - at < CHUNK ? n - at : CHUNK;
    TRY(dev->ops->copy_out(dev, narrow, from->at + (first + at) * (int64_t)sizeof *narrow,
                           (uint64_t)m * sizeof *narrow, err));
    for (int64_t i = 0; i < m; i++) values[at + i] = narrow[i];
  }
  return PIPER_OK;
}

/* The place that has element 'at' and most of what follows; false: no rank has it. */
static bool place_with(const Params *p, ParamId id, bool grad, int64_t at, Place *out) {
  int64_t end = at;
  for (uint32_t r = 0; r < p->plan->n_ranks; r++) {
    Place x;
    if (!place_of(p, r, id, grad, &x) || x.first > at || x.first + x.elements <= end) continue;
    end = x.first + x.elements;
    *out = x;
  }
  return end > at;
}

/* All of it, from the ranks that keep its parts. */
static PiperStatus gather(const Params *p, ParamId id, bool grad, double *values, PiperErr *err) {
  const int64_t n = elements_of(p->plan, id);
  for (int64_t at = 0; at < n;) {
    Place x;
    if (!place_with(p, id, grad, at, &x))
      return err_set(err, PIPER_EBUG, "no rank holds element %lld of %s %s", (long long)at,
                     grad ? "the gradient of" : "parameter", name_of(p->plan, id));
    const int64_t end = x.first + x.elements;
    TRY(read_place(&x, at - x.first, end - at, values + at, err));
    at = end;
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
  return gather(p, id, false, values, err);
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
  if (bucket.i != 0 && p->plan->dag->buckets.at[bucket.i].trained)
    return gather(p, id, true, values, err);
  for (int64_t i = 0; i < elements_of(p->plan, id); i++) values[i] = 0;
  return PIPER_OK;
}

/* The elements that both have. */
static PiperStatus compare_places(const Plan *plan, ParamId id, const Place *a, const Place *b,
                                  PiperErr *err) {
  const uint64_t size = dtype_bytes(a->dtype);
  const Share s = share_common((Share){a->first, a->first + a->elements},
                               (Share){b->first, b->first + b->elements});
  const uint64_t bytes = (uint64_t)share_size(s) * size;
  const unsigned char *from_a = a->at + (uint64_t)(s.lo - a->first) * size;
  const unsigned char *from_b = b->at + (uint64_t)(s.lo - b->first) * size;
  unsigned char x[CHUNK], y[CHUNK];
  for (uint64_t at = 0; at < bytes; at += CHUNK) {
    const uint64_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
    TRY(a->rank->device->ops->copy_out(a->rank->device, x, from_a + at, n, err));
    TRY(b->rank->device->ops->copy_out(b->rank->device, y, from_b + at, n, err));
    for (uint64_t i = 0; i < n; i++) {
      if (x[i] == y[i]) continue;
      return err_set(err, PIPER_EBUG,
                     "element %llu of parameter %s differs between ranks %d and %d",
                     (unsigned long long)((uint64_t)s.lo + (at + i) / size), name_of(plan, id),
                     (int)a->rank->rank->rank, (int)b->rank->rank->rank);
    }
  }
  return PIPER_OK;
}

/* Every copy of an element against the one that params_get takes. */
PiperStatus params_replicas_equal(const Params *p, PiperErr *err) {
  for (uint32_t i = 1; i < p->plan->graph->params.n; i++) {
    const ParamId id = {i};
    Place first, other;
    for (int64_t at = 0; place_with(p, id, false, at, &first); at = first.first + first.elements)
      for (uint32_t r = 0; r < p->plan->n_ranks; r++)
        if (place_of(p, r, id, false, &other))
          TRY(compare_places(p->plan, id, &first, &other, err));
  }
  return PIPER_OK;
}
