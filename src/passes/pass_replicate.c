/* pass_replicate - buckets, and what keeps the model state the same everywhere.
 *
 * requires  every node placed
 * ensures   every parameter that a chunk reads is in a bucket, held by all devices that use it, with
 *           the flags of the replicate directives and the groups that they make. A trained bucket has
 *           one UPDATE on all holders, and NORMs of each element on one of them. Every backward that
 *           contributes to its gradient feeds both, through what pass_reduce.c says. One ALL_REDUCE of
 *           the metrics over all ranks takes the losses and counts of every F that has one, and every
 *           NORM; with opt->clip each UPDATE waits for it. A forward that reads a bucket to whose gradient its
 *           chunk does not contribute precedes the UPDATE by a temporal edge (the others do through
 *           their backward)
 * breaks    nothing
 * on error  the DAG may be half rewritten: drop it
 *
 * One reduction joins the devices of a set and, for parameters that are used on several sets, the
 * sets (design 5.5). A chunk whose nodes have several devices needs a replicate directive that
 * matches all of it, or is one of experts that a shard directive spreads: each of these is held, and
 * reduced, by the devices that have its part; one that merely has microbatches on different single devices is joined without
 * being asked. What a directive says of a parameter, those of all its uses have to say. */
#include "base/bytes.h"
#include "ir/bucket.h"
#include "ir/grad_flow.h"
#include "passes/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is known of a chunk. */
typedef struct ChunkInfo {
  uint32_t n_nodes;
  uint32_t holders;   /* device set: all devices that run it */
  uint32_t last_devs; /* of the node seen last: already in holders */
  uint32_t wide;      /* a node on several devices; 0: none */
  uint32_t parts;     /* that its experts are spread over; 0: no shard directive matches it */
  uint32_t replicate; /* 1 + index of the directive; 0: none */
  uint32_t matched;   /* nodes matched by the directive at hand ... */
  uint32_t stamp;     /* ... 1 + index of it */
} ChunkInfo;

typedef struct Replicator {
  Dag *d;
  const Strategy *s;
  const PassOptions *opt;
  ChunkInfo *info; /* by chunk */
  BucketUses uses;
  uint32_t *directive; /* by bucket: 1 + index of the directive that its flags are from; 0: none */
} Replicator;

static PiperStatus collect_chunks(Replicator *w, PiperErr *err) {
  Dag *d = w->d;
  const uint32_t n_chunks = graph_n_chunks(d->graph);
  w->info = calloc((size_t)n_chunks + 1, sizeof *w->info);
  w->uses.nodes_first = calloc((size_t)n_chunks + 2, sizeof *w->uses.nodes_first);
  w->uses.chunk_nodes = malloc(d->n * sizeof *w->uses.chunk_nodes);
  if (w->info == NULL || w->uses.nodes_first == NULL || w->uses.chunk_nodes == NULL)
    return err_nomem(err, "replicate");
  for (uint32_t n = 1; n < d->n; n++) {
    if (d->kind[n] != NODE_COMPUTE) continue;
    ChunkInfo *info = &w->info[d->chunk[n]];
    info->n_nodes++;
    info->parts = d->parts[n];
    if (d->devs[n] == info->last_devs) continue;
    info->last_devs = d->devs[n];
    info->holders = devsets_union(d->devsets, info->holders, d->devs[n]);
    if (info->holders == 0) return err_nomem(err, "device sets");
    if (info->wide == 0 && devsets_size(d->devsets, d->devs[n]) > 1) info->wide = n;
  }
  for (uint32_t c = 1; c <= n_chunks; c++)
    w->uses.nodes_first[c + 1] = w->uses.nodes_first[c] + w->info[c].n_nodes;
  /* nodes_first[c] is the place of the next node of c while they are entered ... */
  for (uint32_t n = 1; n < d->n; n++)
    if (d->kind[n] == NODE_COMPUTE) w->uses.chunk_nodes[w->uses.nodes_first[d->chunk[n]]++] = n;
  /* ... and then stands where the next chunk's first node was. */
  for (uint32_t c = n_chunks + 1; c > 0; c--) w->uses.nodes_first[c] = w->uses.nodes_first[c - 1];
  return PIPER_OK;
}

static int by_rank(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

/* The set in ascending order; 0: out of memory. */
static uint32_t sorted_devs(DevSets *t, uint32_t devs) {
  const uint32_t n = devsets_size(t, devs);
  int32_t *ranks = malloc(n * sizeof *ranks);
  if (ranks == NULL) return 0;
  memcpy(ranks, devsets_ranks(t, devs), n * sizeof *ranks);
  qsort(ranks, n, sizeof *ranks, by_rank);
  const uint32_t id = devsets_id(t, ranks, n);
  free(ranks);
  return id;
}

static PiperStatus collect_ranks(Replicator *w, PiperErr *err) {
  DevSets *t = w->d->devsets;
  VEC(int32_t) ranks = {0};
  PiperStatus st = PIPER_OK;
  for (uint32_t c = 1; c <= graph_n_chunks(w->d->graph); c++) {
    const uint32_t holders = w->info[c].holders;
    if (c > 1 && holders == w->info[c - 1].holders) continue;
    for (uint32_t i = 0; i < devsets_size(t, holders); i++)
      if (!vec_push(&ranks, devsets_ranks(t, holders)[i])) st = err_nomem(err, "replicate");
  }
  if (ranks.n > 0) qsort(ranks.at, ranks.n, sizeof *ranks.at, by_rank);
  uint32_t n = 0;
  for (size_t i = 0; i < ranks.n; i++)
    if (n == 0 || ranks.at[i] != ranks.at[n - 1]) ranks.at[n++] = ranks.at[i];
  w->uses.all_devs = devsets_id(t, ranks.at, n);
  if (n > 0 && w->uses.all_devs == 0) st = err_nomem(err, "device sets");
  vec_free(&ranks);
  return st;
}

/* ---- directives ------------------------------------------------------------------------------ */

static const char *reduce_stream_of(const Directive *x) {
  return x->reduce_stream != NULL ? x->reduce_stream : "dp_stream";
}

static const char *gather_stream_of(const Directive *x) {
  return x->gather_stream != NULL ? x->gather_stream : "ag_stream";
}

/* What is divided, and when gradients are reduced: the same in two directives about 'what'. */
static PiperStatus check_same_flags(const Directive *x, const Directive *y, const char *what,
                                    PiperErr *err) {
  static const char *const LEVEL[] = {"no shard_ flag", "shard_optimizer", "shard_grads",
                                      "shard_params"};
  static const char *const REDUCE[] = {"step", "microbatch"};
  if (x->zero != y->zero)
    return directive_fail(err, x, "the %s has %s here and %s at %s", what, LEVEL[x->zero],
                          LEVEL[y->zero], y->line);
  if (x->per_microbatch != y->per_microbatch)
    return directive_fail(err, x, "the %s has reduce = \"%s\" here and \"%s\" at %s", what,
                          REDUCE[x->per_microbatch], REDUCE[y->per_microbatch], y->line);
  return PIPER_OK;
}

/* Two directives that match the same chunk say the same of it. */
static PiperStatus check_same(const Directive *x, const Directive *y, const char *chunk,
                              PiperErr *err) {
  const char *const streams[][3] = {{"reduced", reduce_stream_of(x), reduce_stream_of(y)},
                                    {"gathered", gather_stream_of(x), gather_stream_of(y)}};
  for (int i = 0; i < 2; i++)
    if (strcmp(streams[i][1], streams[i][2]) != 0)
      return directive_fail(err, x, "the %s is %s on \"%s\" here and on \"%s\" at %s", chunk,
                            streams[i][0], streams[i][1], streams[i][2], y->line);
  if (x->bucket_bytes != y->bucket_bytes)
    return directive_fail(err, x, "the %s has buckets of %s here and of %s at %s", chunk,
                          bytes_text((uint64_t)x->bucket_bytes).text,
                          bytes_text((uint64_t)y->bucket_bytes).text, y->line);
  if (x->prefetch != y->prefetch)
    return directive_fail(err, x, "the %s has prefetch = %u here and %u at %s", chunk, x->prefetch,
                          y->prefetch, y->line);
  if (x->keep_bytes != y->keep_bytes)
    return directive_fail(err, x, "the %s has keep = %s here and %s at %s", chunk,
                          bytes_text((uint64_t)x->keep_bytes).text,
                          bytes_text((uint64_t)y->keep_bytes).text, y->line);
  return check_same_flags(x, y, chunk, err);
}

/* The first node of chunk c that directive i does not match. */
static uint32_t unmatched_node(const Replicator *w, uint32_t c, const U32Vec *nodes) {
  size_t k = 0;
  for (uint32_t i = w->uses.nodes_first[c]; i < w->uses.nodes_first[c + 1]; i++) {
    const uint32_t n = w->uses.chunk_nodes[i];
    while (k < nodes->n && nodes->at[k] < n) k++;
    if (k == nodes->n || nodes->at[k] != n) return n;
  }
  return 0;
}

/* Directive i matches chunk c. */
static PiperStatus replicate_chunk(Replicator *w, uint32_t i, uint32_t c, uint32_t devs,
                                   const U32Vec *nodes, PiperErr *err) {
  Dag *d = w->d;
  const Directive *x = &w->s->at[i];
  ChunkInfo *info = &w->info[c];
  char chunk[TEXT], a[TEXT], b[TEXT];
  chunk_text(d, (ChunkId){c}, chunk, sizeof chunk);
  if (info->matched != info->n_nodes) {
    dag_label(d, (NodeId){unmatched_node(w, c, nodes)}, a, sizeof a);
    return directive_fail(err, x,
                          "the filter matches only a part of the %s and not its %s: leave "
                          "PASS and microbatches out",
                          chunk, a);
  }
  const uint32_t want = sorted_devs(d->devsets, info->holders);
  const uint32_t got = sorted_devs(d->devsets, devs);
  if (want == 0 || got == 0) return err_nomem(err, "device sets");
  if (want != got) {
    devices_text(d, info->holders, a, sizeof a);
    devices_text(d, devs, b, sizeof b);
    return directive_fail(err, x, "the %s is placed on %s, but replicated over %s: give both "
                                  "directives the same devices", chunk, a, b);
  }
  if (info->replicate != 0) return check_same(x, &w->s->at[info->replicate - 1], chunk, err);
  info->replicate = i + 1;
  return PIPER_OK;
}

static PiperStatus replicate_one(Replicator *w, const FilterIndex *index, uint32_t i, U32Vec *nodes,
                                 PiperErr *err) {
  Dag *d = w->d;
  const Directive *x = &w->s->at[i];
  uint32_t devs;
  TRY(directive_devices(d, x, &devs, err));
  if (x->bucket_bytes < 1) return directive_fail(err, x, "bucket_size has to be more than nothing");
  TRY(directive_nodes(index, x, nodes, err));
  for (size_t k = 0; k < nodes->n; k++) {
    ChunkInfo *info = &w->info[d->chunk[nodes->at[k]]];
    if (info->stamp != i + 1) info->matched = 0;
    info->stamp = i + 1;
    info->matched++;
  }
  for (uint32_t c = 1; c <= graph_n_chunks(d->graph); c++)
    if (w->info[c].stamp == i + 1) TRY(replicate_chunk(w, i, c, devs, nodes, err));
  return PIPER_OK;
}

static bool has_trained(const Graph *g, uint32_t c, ParamId *first) {
  const Chunk *chunk = graph_chunk(g, (ChunkId){c});
  for (uint32_t k = 0; k < chunk->n_params; k++) {
    *first = (ParamId){g->chunk_params.at[chunk->param_first + k]};
    if (param_is_trained(graph_param(g, *first))) return true;
  }
  return false;
}

/* The place directive that matches a node. */
static PiperStatus place_of(const Replicator *w, const FilterIndex *index, uint32_t node,
                            const Directive **out, PiperErr *err) {
  U32Vec nodes = {0};
  *out = NULL;
  PiperStatus st = PIPER_OK;
  for (uint32_t i = 0; st == PIPER_OK && *out == NULL && i < w->s->n; i++) {
    if (w->s->at[i].kind != DIRECTIVE_PLACE) continue;
    st = directive_nodes(index, &w->s->at[i], &nodes, err);
    for (size_t k = 0; k < nodes.n; k++)
      if (nodes.at[k] == node) *out = &w->s->at[i];
  }
  vec_free(&nodes);
  return st;
}

/* A chunk on several devices keeps its trained parameters the same on all, or it has none. */
static PiperStatus check_wide_chunks(Replicator *w, const FilterIndex *index, PiperErr *err) {
  Dag *d = w->d;
  for (uint32_t c = 1; c <= graph_n_chunks(d->graph); c++) {
    const ChunkInfo *info = &w->info[c];
    ParamId p;
    if (info->wide == 0 || info->replicate != 0 || info->parts != 0) continue;
    if (!has_trained(d->graph, c, &p)) continue;
    const Directive *place;
    char chunk[TEXT], devs[TEXT];
    TRY(place_of(w, index, info->wide, &place, err));
    chunk_text(d, (ChunkId){c}, chunk, sizeof chunk);
    devices_text(d, info->holders, devs, sizeof devs);
    if (place == NULL) return err_set(err, PIPER_EBUG, "replicate: %s has no place", chunk);
    return directive_fail(err, place,
                          "the %s trains \"%s\" on %s, but nothing keeps it the same "
                          "there: add a replicate directive that matches this chunk, with these "
                          "devices",
                          chunk, graph_name(d->graph, graph_param(d->graph, p)->name), devs);
  }
  return PIPER_OK;
}

/* Something that has to be matched with nodes: a directive, or a chunk without one. */
static bool needs_index(const Replicator *w) {
  for (uint32_t i = 0; i < w->s->n; i++)
    if (w->s->at[i].kind == DIRECTIVE_REPLICATE) return true;
  for (uint32_t c = 1; c <= graph_n_chunks(w->d->graph); c++)
    if (w->info[c].wide != 0) return true;
  return false;
}

static PiperStatus run_directives(Replicator *w, PiperErr *err) {
  if (!needs_index(w)) return PIPER_OK;
  FilterIndex *index;
  U32Vec nodes = {0};
  TRY(filter_index_new(w->d, &index, err));
  PiperStatus st = PIPER_OK;
  for (uint32_t i = 0; st == PIPER_OK && i < w->s->n; i++)
    if (w->s->at[i].kind == DIRECTIVE_REPLICATE) st = replicate_one(w, index, i, &nodes, err);
  if (st == PIPER_OK) st = check_wide_chunks(w, index, err);
  filter_index_free(index);
  vec_free(&nodes);
  return st;
}

/* ---- buckets --------------------------------------------------------------------------------- */

static PiperStatus make_buckets(Replicator *w, PiperErr *err) {
  const uint32_t n_chunks = graph_n_chunks(w->d->graph);
  int64_t *limit = calloc((size_t)n_chunks + 1, sizeof *limit);
  uint32_t *parts = calloc((size_t)n_chunks + 1, sizeof *parts);
  PiperStatus st = limit == NULL || parts == NULL ? err_nomem(err, "replicate") : PIPER_OK;
  for (uint32_t c = 1; st == PIPER_OK && c <= n_chunks; c++) {
    parts[c] = w->info[c].parts;
    if (w->info[c].replicate != 0) {
      const Directive *x = &w->s->at[w->info[c].replicate - 1];
      limit[c] = x->zero == ZERO_PARAMS ? -x->bucket_bytes : x->bucket_bytes;
    }
  }
  if (st == PIPER_OK) st = bucket_params(w->d, limit, parts, w->opt->float_bytes, err);
  free(limit);
  free(parts);
  return st;
}

static int by_bucket(const void *a, const void *b) {
  const BucketUse *x = a, *y = b;
  if (x->bucket != y->bucket) return x->bucket < y->bucket ? -1 : 1;
  return (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

/* The devices of a chunk that use the bucket. */
static uint32_t users_of(Replicator *w, uint32_t b, uint32_t c) {
  Dag *d = w->d;
  if (w->info[c].parts < 2) return w->info[c].holders;
  uint32_t users = 0, last = 0;
  for (uint32_t i = w->uses.nodes_first[c]; i < w->uses.nodes_first[c + 1]; i++) {
    const NodeId n = {w->uses.chunk_nodes[i]};
    if (d->devs[n.i] == last) continue;
    last = d->devs[n.i];
    const uint32_t more = bucket_users(d, (BucketId){b}, n);
    users = more != 0 ? devsets_union(d->devsets, users, more) : 0;
    if (users == 0) return 0;
  }
  return users;
}

/* One use joins the bucket's holders, and brings what its chunk's directive says. */
static PiperStatus join_bucket(Replicator *w, uint32_t b, uint32_t c, bool first, PiperErr *err) {
  Dag *d = w->d;
  Bucket *bucket = &d->buckets.at[b];
  const ChunkInfo *info = &w->info[c];
  const uint32_t users = users_of(w, b, c);
  if (users != 0) bucket->holders = devsets_union(d->devsets, bucket->holders, users);
  if (users == 0 || bucket->holders == 0) return err_nomem(err, "device sets");
  bucket->replicated = (first || bucket->replicated) && info->replicate != 0;
  if (info->replicate == 0) return PIPER_OK;
  const Directive *x = &w->s->at[info->replicate - 1];
  if (w->directive[b] != 0) {
    char what[TEXT];
    const ParamId p = {d->bucket_params.at[bucket->param_first]};
    snprintf(what, sizeof what, "parameter \"%.100s\", which several chunks use,",
             graph_name(d->graph, graph_param(d->graph, p)->name));
    return check_same_flags(x, &w->s->at[w->directive[b] - 1], what, err);
  }
  w->directive[b] = info->replicate;
  bucket->zero = x->zero;
  bucket->per_microbatch = x->per_microbatch;
  bucket->prefetch = x->prefetch;
  bucket->keep_bytes = x->keep_bytes;
  bucket->reduce_stream = intern_id(d->names, reduce_stream_of(x));
  bucket->gather_stream = intern_id(d->names, gather_stream_of(x));
  bucket->line = directive_line(d, x);
  if (bucket->reduce_stream == 0 || bucket->gather_stream == 0 || bucket->line == 0)
    return err_nomem(err, "replicate");
  return PIPER_OK;
}

/* Which chunks use each bucket, and whether they contribute to its gradients. */
static PiperStatus collect_uses(Replicator *w, PiperErr *err) {
  Dag *d = w->d;
  const Graph *g = d->graph;
  uint32_t *flows = calloc(g->values.n, sizeof *flows);
  uint32_t *last = calloc(d->buckets.n, sizeof *last); /* 1 + index of the bucket's last use */
  PiperStatus st = PIPER_OK;
  w->directive = calloc(d->buckets.n, sizeof *w->directive);
  if (flows == NULL || last == NULL || w->directive == NULL) st = err_nomem(err, "replicate");
  for (uint32_t c = 1; st == PIPER_OK && c <= graph_n_chunks(g); c++) {
    const Chunk *chunk = graph_chunk(g, (ChunkId){c});
    chunk_mark_grad_flows(g, (ChunkId){c}, flows);
    for (uint32_t k = 0; st == PIPER_OK && k < chunk->n_params; k++) {
      const ParamId p = {g->chunk_params.at[chunk->param_first + k]};
      const uint32_t b = d->home[p.i].bucket.i;
      if (last[b] == 0 || w->uses.at.at[last[b] - 1].chunk != c) {
        st = join_bucket(w, b, c, last[b] == 0, err);
        if (st == PIPER_OK && !vec_push(&w->uses.at, ((BucketUse){.bucket = b, .chunk = c})))
          st = err_nomem(err, "replicate");
        last[b] = (uint32_t)w->uses.at.n;
      }
      if (st == PIPER_OK && d->buckets.at[b].trained && flows[graph_param(g, p)->value.i] == c)
        w->uses.at.at[last[b] - 1].contributes = true;
    }
  }
  free(flows);
  free(last);
  if (w->uses.at.n > 0) qsort(w->uses.at.at, w->uses.at.n, sizeof *w->uses.at.at, by_bucket);
  return st;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Two device sets have a rank in common. */
static bool overlap(const DevSets *t, uint32_t a, uint32_t b) {
  if (a == b) return true;
  for (uint32_t i = 0; i < devsets_size(t, a); i++)
    if (devsets_position(t, b, devsets_ranks(t, a)[i]) >= 0) return true;
  return false;
}

/* A device set that uses the bucket joins the groups that it overlaps with. */
static PiperStatus add_to_groups(DevSets *t, U32Vec *groups, uint32_t devs, PiperErr *err) {
  size_t n = 0;
  for (size_t k = 0; k < groups->n; k++) {
    if (groups->at[k] == devs) return PIPER_OK;
    if (overlap(t, groups->at[k], devs)) devs = devsets_union(t, groups->at[k], devs);
    else groups->at[n++] = groups->at[k];
    if (devs == 0) return err_nomem(err, "device sets");
  }
  groups->n = n;
  return vec_push(groups, devs) ? PIPER_OK : err_nomem(err, "replicate");
}

static PiperStatus find_groups(Replicator *w, uint32_t b, size_t first, size_t end, U32Vec *groups,
                               PiperErr *err) {
  Dag *d = w->d;
  Bucket *bucket = &d->buckets.at[b];
  groups->n = 0;
  for (size_t u = first; u < end; u++) {
    const uint32_t c = w->uses.at.at[u].chunk;
    uint32_t last = 0;
    for (uint32_t i = w->uses.nodes_first[c]; i < w->uses.nodes_first[c + 1]; i++) {
      const NodeId n = {w->uses.chunk_nodes[i]};
      if (d->devs[n.i] == last) continue;
      last = d->devs[n.i];
      const uint32_t users = bucket_users(d, (BucketId){b}, n);
      if (users == 0) return err_nomem(err, "device sets");
      TRY(add_to_groups(d->devsets, groups, users, err));
    }
  }
  if (groups->n < 2) return PIPER_OK; /* one: the holders */
  bucket->group_first = (uint32_t)d->bucket_groups.n;
  bucket->n_groups = (uint32_t)groups->n;
  for (size_t k = 0; k < groups->n; k++)
    if (!vec_push(&d->bucket_groups, groups->at[k])) return err_nomem(err, "replicate");
  return PIPER_OK;
}

/* What the flags mean for each bucket; its line and stream where no directive says them. */
static PiperStatus finish_buckets(Replicator *w, PiperErr *err) {
  Dag *d = w->d;
  const uint32_t dp_stream = intern_id(d->names, "dp_stream");
  U32Vec groups = {0};
  PiperStatus st = dp_stream == 0 ? err_nomem(err, "replicate") : PIPER_OK;
  size_t use = 0;
  for (uint32_t b = 1; st == PIPER_OK && b < d->buckets.n; b++) {
    Bucket *bucket = &d->buckets.at[b];
    const size_t first = use;
    while (use < w->uses.at.n && w->uses.at.at[use].bucket == b) use++;
    const ParamId p = {d->bucket_params.at[bucket->param_first]};
    if (bucket->line == 0)
      bucket->line = intern_id(d->names, graph_name(d->graph, graph_param(d->graph, p)->line));
    if (bucket->reduce_stream == 0) bucket->reduce_stream = dp_stream;
    if (bucket->line == 0) st = err_nomem(err, "replicate");
    const bool several = devsets_size(d->devsets, bucket->holders) > 1;
    if (!several || !bucket->trained) bucket->per_microbatch = false;
    if (!several || (!bucket->trained && bucket->zero != ZERO_PARAMS)) bucket->zero = ZERO_NONE;
    /* What is reduced after each backward pass is a share, and no more of it is needed then. */
    if (bucket->per_microbatch && bucket->zero == ZERO_OPTIMIZER) bucket->zero = ZERO_GRADS;
    if (bucket->zero == ZERO_NONE && !bucket->per_microbatch) bucket->gather_stream = 0;
    if (st == PIPER_OK && (bucket->per_microbatch || bucket->zero == ZERO_PARAMS))
      st = find_groups(w, b, first, use, &groups, err);
  }
  vec_free(&groups);
  return st;
}

PiperStatus pass_replicate(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  Replicator w = {.d = d, .s = s, .opt = opt};
  PiperStatus st = collect_chunks(&w, err);
  if (st == PIPER_OK) st = collect_ranks(&w, err);
  if (st == PIPER_OK) st = run_directives(&w, err);
  if (st == PIPER_OK) st = make_buckets(&w, err);
  if (st == PIPER_OK) st = collect_uses(&w, err);
  if (st == PIPER_OK) st = finish_buckets(&w, err);
  if (st == PIPER_OK && !add_bucket_nodes(d, &w.uses, opt->clip)) st = err_nomem(err, "replicate");
  free(w.info);
  free(w.directive);
  free(w.uses.nodes_first);
  free(w.uses.chunk_nodes);
  vec_free(&w.uses.at);
  return st;
}
