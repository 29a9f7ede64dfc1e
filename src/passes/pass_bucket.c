/* bucket_params - parameters into buckets.
 *
 * requires  a DAG without buckets
 * ensures   every parameter that a chunk reads has a home. A parameter that one chunk reads is in a
 *           bucket of that chunk, trained ones apart from the others, and where experts are spread
 *           those of each part apart; one that several chunks read (a tied one) is a bucket of its
 *           own. Buckets of the chunks come first, by chunk,
 *           trained ones before the others; then the tied ones. Inside a bucket parameters stay in
 *           the order of their ids, without gaps
 * on error  the DAG may be half rewritten: drop it
 *
 * Parameters fill buckets greedily up to the given size; one that is larger is alone. What is not
 * trained is neither reduced nor updated, so its size matters only where it is gathered. */
#include "passes/pass.h"

#include <stdlib.h>

bool param_is_trained(const Param *p) { return p->reached && !p->frozen; }

typedef struct Packer {
  Dag *d;
  size_t float_bytes;
  uint32_t *reader; /* by parameter: the chunk that reads it; 0: none; MANY */
} Packer;

enum { MANY = UINT32_MAX };

static bool open_bucket(Packer *w, ChunkId chunk, bool trained) {
  return vec_push(&w->d->buckets, ((Bucket){.param_first = (uint32_t)w->d->bucket_params.n,
                                            .chunk = chunk,
                                            .trained = trained}));
}

static PiperStatus put_param(Packer *w, ParamId p, PiperErr *err) {
  Dag *d = w->d;
  const Param *param = graph_param(d->graph, p);
  Bucket *b = &d->buckets.at[d->buckets.n - 1];
  const int64_t elements = shape_elements_per_sample(&param->shape);
  if (elements < 0 || elements > INT64_MAX / (int64_t)w->float_bytes - b->elements)
    return err_set(err, PIPER_EUSER, "%s: parameter \"%s\" is too large",
                   graph_name(d->graph, param->line), graph_name(d->graph, param->name));
  if (!vec_push(&d->bucket_params, p.i)) return err_nomem(err, "buckets");
  d->home[p.i] = (ParamHome){{(uint32_t)d->buckets.n - 1}, b->elements};
  b->elements += elements;
  b->n_params++;
  return PIPER_OK;
}

/* The trained, or the other, parameters that only this chunk reads, of experts [first, end). */
typedef struct Wanted {
  ChunkId chunk;
  bool trained;
  int64_t limit;      /* bytes; 0: none */
  int64_t first, end; /* end 0: all parameters */
} Wanted;

static PiperStatus pack(Packer *w, const Wanted *x, PiperErr *err) {
  const Graph *g = w->d->graph;
  const ChunkId c = x->chunk;
  const Chunk *chunk = graph_chunk(g, c);
  const bool trained = x->trained;
  const int64_t limit = x->limit;
  bool open = false;
  for (uint32_t k = 0; k < chunk->n_params; k++) {
    const ParamId p = {g->chunk_params.at[chunk->param_first + k]};
    const Param *param = graph_param(g, p);
    if (w->reader[p.i] != c.i || param_is_trained(param) != trained) continue;
    const int64_t expert = x->end > 0 ? graph_param_expert(g, c, p) : 0;
    if (x->end > 0 && (expert < x->first || expert >= x->end)) continue;
    if (open && limit > 0) {
      const int64_t held = w->d->buckets.at[w->d->buckets.n - 1].elements;
      const int64_t more = shape_elements_per_sample(&param->shape);
      if (more > limit / (int64_t)w->float_bytes - held) open = false;
    }
    if (!open && !open_bucket(w, c, trained)) return err_nomem(err, "buckets");
    open = true;
    TRY(put_param(w, p, err));
  }
  return PIPER_OK;
}

static PiperStatus pack_chunk(Packer *w, Wanted x, uint32_t parts, PiperErr *err) {
  if (parts < 2) return pack(w, &x, err);
  const int64_t each = graph_chunk(w->d->graph, x.chunk)->n_experts / parts;
  for (uint32_t i = 0; i < parts; i++) {
    x.first = i * each;
    x.end = x.first + each;
    TRY(pack(w, &x, err));
  }
  return PIPER_OK;
}

PiperStatus bucket_params(Dag *d, const int64_t *bucket_bytes, const uint32_t *parts,
                          size_t float_bytes, PiperErr *err) {
  const Graph *g = d->graph;
  const uint32_t n_chunks = graph_n_chunks(g);
  Packer w = {.d = d, .float_bytes = float_bytes};
  w.reader = calloc(g->params.n + 1, sizeof *w.reader);
  PiperStatus st = w.reader == NULL ? err_nomem(err, "buckets") : PIPER_OK;
  for (uint32_t c = 1; st == PIPER_OK && c <= n_chunks; c++) {
    const Chunk *chunk = graph_chunk(g, (ChunkId){c});
    for (uint32_t k = 0; k < chunk->n_params; k++) {
      uint32_t *reader = &w.reader[g->chunk_params.at[chunk->param_first + k]];
      *reader = *reader == 0 ? c : MANY;
    }
  }
  for (uint32_t c = 1; st == PIPER_OK && c <= n_chunks; c++) {
    const int64_t limit = bucket_bytes[c] < 0 ? -bucket_bytes[c] : bucket_bytes[c];
    const Wanted trained = {.chunk = {c}, .trained = true, .limit = limit};
    const Wanted others = {.chunk = {c}, .limit = bucket_bytes[c] < 0 ? limit : 0};
    st = pack_chunk(&w, trained, parts[c], err);
    if (st == PIPER_OK) st = pack_chunk(&w, others, parts[c], err);
  }
  for (uint32_t p = 1; st == PIPER_OK && p < g->params.n; p++) {
    if (w.reader[p] != MANY) continue;
    const bool trained = param_is_trained(graph_param(g, (ParamId){p}));
    st = open_bucket(&w, (ChunkId){0}, trained) ? put_param(&w, (ParamId){p}, err)
                                                : err_nomem(err, "buckets");
  }
  free(w.reader);
  return st;
}
