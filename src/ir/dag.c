/* All node arrays grow together, by doubling, so that adding a node is amortised O(1). Tensors and
 * tag sets are found again through hash tables with open addressing over their ids. */
#include "ir/dag.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const PASS_NAME[PASS_COUNT] = {"", "F", "B", "BI", "BW", "R"};

const char *const NODE_KIND_NAME[NODE_KIND_COUNT] = {
    "",
#define NODE(NAME, text, comm) text,
#include "ir/node_kinds.def"
#undef NODE
};

const bool NODE_KIND_COMMUNICATES[NODE_KIND_COUNT] = {
    false,
#define NODE(NAME, text, comm) comm,
#include "ir/node_kinds.def"
#undef NODE
};

/* Every node field, once: growth, zeroing and freeing cannot forget one. */
// clang-format off
#define NODE_FIELDS(X)                                                                             \
  X(kind) X(pass) X(chunk) X(bucket) X(tensor) X(devs) X(src_devs) X(lo) X(hi) X(src_lo) X(src_hi) \
  X(stream) X(tags) X(mb) X(line) X(group) X(member) X(order_of) X(parts) X(recompute)
// clang-format on

/* Ids, 0 = free; n is a power of two, at most half of the slots are taken. */
typedef struct Slots {
  uint32_t *at;
  uint32_t n;
} Slots;

struct DagIndex {
  Slots tensors, tags; /* tags: 1 + tag set */
};

/* When one array cannot grow, those before it are larger than cap says: harmless. */
static bool grow_nodes(Dag *d) {
  if (d->cap > UINT32_MAX / 2) return false;
  const uint32_t cap = d->cap == 0 ? 64 : d->cap * 2;
#define GROW(field)                                                                                \
  {                                                                                                \
    void *p = realloc(d->field, cap * sizeof *d->field);                                           \
    if (p == NULL) return false;                                                                   \
    d->field = p;                                                                                  \
  }
  NODE_FIELDS(GROW)
#undef GROW
  if (d->cap == 0) {
#define ZERO(field) d->field[0] = 0;
    NODE_FIELDS(ZERO)
#undef ZERO
  }
  d->cap = cap;
  return true;
}

Dag *dag_new(const Graph *g, int64_t batch) {
  Dag *d = calloc(1, sizeof *d);
  if (d == NULL) return NULL;
  d->graph = g;
  d->batch = batch;
  d->n = 1;
  d->arena = arena_new();
  d->names = intern_new();
  d->devsets = devsets_new();
  d->index = calloc(1, sizeof *d->index);
  if (d->arena == NULL || d->names == NULL || d->devsets == NULL || d->index == NULL) goto fail;
  d->home = arena_alloc(d->arena, g->params.n > 0 ? g->params.n : 1, sizeof *d->home);
  if (d->home == NULL || !grow_nodes(d) || !vec_push(&d->edges, (Edge){0}) ||
      !vec_push(&d->tensors, (Tensor){0}) || !vec_push(&d->buckets, (Bucket){0}) ||
      !vec_push(&d->tags_first, 0) || !vec_reserve(&d->tags_at, 16) || dag_tags(d, NULL, 0) != 0)
    goto fail;
  return d;
fail:
  dag_free(d);
  return NULL;
}

void dag_free(Dag *d) {
  if (d == NULL) return;
#define FREE(field) free(d->field);
  NODE_FIELDS(FREE)
#undef FREE
  vec_free(&d->edges);
  vec_free(&d->tensors);
  vec_free(&d->buckets);
  vec_free(&d->bucket_params);
  vec_free(&d->bucket_groups);
  vec_free(&d->tags_first);
  vec_free(&d->tags_at);
  if (d->index != NULL) {
    free(d->index->tensors.at);
    free(d->index->tags.at);
    free(d->index);
  }
  devsets_free(d->devsets);
  intern_free(d->names);
  arena_free(d->arena);
  free(d);
}

NodeId dag_add_node(Dag *d, NodeKind kind, uint32_t line) {
  if (d->n >= d->cap && !grow_nodes(d)) return (NodeId){0};
  const uint32_t i = d->n++;
#define ZERO(field) d->field[i] = 0;
  NODE_FIELDS(ZERO)
#undef ZERO
  d->kind[i] = (uint8_t)kind;
  d->line[i] = line;
  return (NodeId){i};
}

static EdgeId add_edge(Dag *d, Edge e) {
  assert(e.src > 0 && e.src < d->n && e.dst > 0 && e.dst < d->n);
  if (d->edges.n >= UINT32_MAX || !vec_push(&d->edges, e)) return (EdgeId){0};
  return (EdgeId){(uint32_t)d->edges.n - 1};
}

EdgeId dag_add_edge(Dag *d, NodeId src, NodeId dst, TensorId tensor) {
  return add_edge(d, (Edge){.src = src.i, .dst = dst.i, .tensor = tensor.i, .kind = EDGE_DATA});
}

EdgeId dag_add_temporal(Dag *d, NodeId src, NodeId dst, uint32_t line) {
  return add_edge(d, (Edge){.src = src.i, .dst = dst.i, .line = line, .kind = EDGE_TEMPORAL});
}

void dag_remove_edge(Dag *d, EdgeId e) {
  assert(e.i > 0 && e.i < d->edges.n);
  d->edges.at[e.i] = (Edge){0};
}

/* ---- interning ------------------------------------------------------------------------------- */

static uint32_t mix(uint32_t h, uint32_t v) {
  h = (h ^ v) * 0x9e3779b1u;
  return h ^ h >> 15;
}

static uint32_t tensor_hash(const Tensor *t) {
  const uint32_t kind = (uint32_t)t->kind | (uint32_t)t->spread << 8;
  return mix(mix(mix(mix(0, kind), t->value.i), t->chunk.i), t->bucket.i);
}

static bool tensor_equal(const Tensor *a, const Tensor *b) {
  return a->kind == b->kind && a->value.i == b->value.i && a->chunk.i == b->chunk.i &&
         a->bucket.i == b->bucket.i && a->spread == b->spread;
}

static uint32_t *tensor_slot(const Dag *d, const Tensor *t) {
  const Slots *s = &d->index->tensors;
  uint32_t i = tensor_hash(t) & (s->n - 1);
  while (s->at[i] != 0 && !tensor_equal(&d->tensors.at[s->at[i]], t)) i = (i + 1) & (s->n - 1);
  return &s->at[i];
}

static uint32_t tags_hash(const Tag *tags, uint32_t n) {
  uint32_t h = n;
  for (uint32_t i = 0; i < n; i++) h = mix(mix(h, tags[i].tag), (uint32_t)tags[i].index);
  return h;
}

static uint32_t tags_size(const Dag *d, uint32_t set) {
  return d->tags_first.at[set + 1] - d->tags_first.at[set];
}

static bool tags_equal(const Dag *d, uint32_t set, const Tag *tags, uint32_t n) {
  if (tags_size(d, set) != n) return false;
  const Tag *at = d->tags_at.at + d->tags_first.at[set];
  for (uint32_t i = 0; i < n; i++)
    if (at[i].tag != tags[i].tag || at[i].index != tags[i].index) return false;
  return true;
}

static uint32_t *tags_slot(const Dag *d, const Tag *tags, uint32_t n) {
  const Slots *s = &d->index->tags;
  uint32_t i = tags_hash(tags, n) & (s->n - 1);
  while (s->at[i] != 0 && !tags_equal(d, s->at[i] - 1, tags, n)) i = (i + 1) & (s->n - 1);
  return &s->at[i];
}

/* Room for one more of 'used' entries; *grown: the caller has to enter all of them again. */
static bool slots_room(Slots *s, size_t used, bool *grown) {
  *grown = false;
  if ((used + 1) * 2 <= s->n) return true;
  if (s->n > UINT32_MAX / 2) return false;
  const uint32_t n = s->n == 0 ? 64 : s->n * 2;
  uint32_t *bigger = calloc(n, sizeof *bigger);
  if (bigger == NULL) return false;
  free(s->at);
  *s = (Slots){bigger, n};
  return *grown = true;
}

TensorId dag_tensor(Dag *d, Tensor t) {
  bool grown;
  if (!slots_room(&d->index->tensors, d->tensors.n, &grown)) return (TensorId){0};
  if (grown)
    for (uint32_t i = 1; i < d->tensors.n; i++) *tensor_slot(d, &d->tensors.at[i]) = i;
  uint32_t *slot = tensor_slot(d, &t);
  if (*slot == 0) {
    if (!vec_push(&d->tensors, t)) return (TensorId){0};
    *slot = (uint32_t)d->tensors.n - 1;
  }
  return (TensorId){*slot};
}

uint32_t dag_tags(Dag *d, const Tag *tags, uint32_t n) {
  bool grown;
  const uint32_t sets = (uint32_t)d->tags_first.n - 1;
  if (!slots_room(&d->index->tags, sets, &grown)) return UINT32_MAX;
  if (grown)
    for (uint32_t i = 0; i < sets; i++)
      *tags_slot(d, d->tags_at.at + d->tags_first.at[i], tags_size(d, i)) = i + 1;
  uint32_t *slot = tags_slot(d, tags, n);
  if (*slot == 0) {
    for (uint32_t i = 1; i < n; i++) assert(tags[i - 1].tag < tags[i].tag);
    if (d->tags_at.n + n > UINT32_MAX || !vec_reserve(&d->tags_first, 1) ||
        !vec_reserve(&d->tags_at, n))
      return UINT32_MAX;
    if (n > 0) memcpy(d->tags_at.at + d->tags_at.n, tags, n * sizeof *tags);
    d->tags_at.n += n;
    (void)vec_push(&d->tags_first, (uint32_t)d->tags_at.n); /* reserved above */
    *slot = sets + 1;
  }
  return *slot - 1;
}

uint32_t dag_tags_with(Dag *d, uint32_t set, Tag extra) {
  const uint32_t n = tags_size(d, set);
  Tag few[16];
  Tag *tags = n < 16 ? few : malloc((n + 1) * sizeof *tags); /* 'set' moves when dag_tags grows */
  if (tags == NULL) return UINT32_MAX;
  const Tag *at = d->tags_at.at + d->tags_first.at[set];
  uint32_t m = 0, i = 0;
  while (i < n && at[i].tag < extra.tag) tags[m++] = at[i++];
  tags[m++] = extra;
  if (i < n && at[i].tag == extra.tag) i++;
  while (i < n) tags[m++] = at[i++];
  const uint32_t id = dag_tags(d, tags, m);
  if (tags != few) free(tags);
  return id;
}

int32_t dag_tags_index(const Dag *d, uint32_t set, uint32_t tag) {
  const uint32_t end = d->tags_first.at[set + 1];
  for (uint32_t i = d->tags_first.at[set]; i < end; i++)
    if (d->tags_at.at[i].tag == tag) return d->tags_at.at[i].index;
  return -1;
}

/* ---- shares ---------------------------------------------------------------------------------- */

NodeShare dag_share(const Dag *d, NodeId n, uint32_t pos) {
  const uint32_t size = devsets_size(d->devsets, d->devs[n.i]), parts = d->parts[n.i];
  const uint32_t each = parts > 1 ? parts : 1, groups = size / each;
  NodeShare s = {.lo = d->lo[n.i], .hi = d->hi[n.i]};
  if (groups > 0) {
    s.lo = part_lo(d->lo[n.i], d->hi[n.i], pos / each, groups);
    s.hi = part_lo(d->lo[n.i], d->hi[n.i], pos / each + 1, groups);
  }
  if (parts > 1) {
    s.part = pos % parts;
    s.parts = parts;
  }
  return s;
}

NodeShare dag_bucket_share(const Dag *d, NodeId n, BucketId b) {
  const uint32_t parts = d->parts[n.i];
  NodeShare s = {.lo = d->lo[n.i], .hi = d->hi[n.i]};
  const Bucket *bucket = &d->buckets.at[b.i];
  if (parts < 2 || bucket->n_params == 0) return s;
  const ChunkId c = {d->chunk[n.i]};
  const ParamId first = {d->bucket_params.at[bucket->param_first]};
  const int32_t expert = graph_param_expert(d->graph, c, first);
  const int64_t n_experts = graph_chunk(d->graph, c)->n_experts;
  if (expert < 0 || n_experts < parts) return s;
  s.part = (uint32_t)(expert / (n_experts / parts));
  s.parts = parts;
  return s;
}

/* ---- text for messages ----------------------------------------------------------------------- */

const char *dag_line(const Dag *d, uint32_t line) { return intern_text(d->names, line); }

/* Appends; what does not fit is cut off. */
typedef struct Out {
  char *buf;
  size_t size, at;
} Out;

static void put(Out *o, const char *fmt, ...) PIPER_PRINTF(2, 3);
static void put(Out *o, const char *fmt, ...) {
  if (o->at + 1 >= o->size) return;
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(o->buf + o->at, o->size - o->at, fmt, args);
  va_end(args);
  if (n > 0) o->at += (size_t)n < o->size - o->at ? (size_t)n : o->size - o->at - 1;
}

static void put_devs(Out *o, const Dag *d, uint32_t devs) {
  char text[64];
  devsets_text(d->devsets, devs, text, sizeof text);
  put(o, "%s", text[0] != '\0' ? text : "?");
}

int32_t dag_stage(const Dag *d, ChunkId c) {
  const Graph *g = d->graph;
  const uint32_t pp = intern_find(g->names, "PP");
  if (pp == 0 || pp >= g->tag_entries.n || g->tag_entries.at[pp] == 0) return 0;
  return graph_scope_index(g, graph_chunk(g, c)->scope, pp);
}

static void put_stage(Out *o, const Dag *d, ChunkId c) {
  const int32_t stage = dag_stage(d, c);
  if (stage >= 0) put(o, "%d", stage);
  else put(o, "-");
}

static char pass_letter(unsigned pass) {
  static const char letters[PASS_COUNT] = {'?', 'F', 'B', 'I', 'W', 'R'};
  return pass < PASS_COUNT ? letters[pass] : '?';
}

/* The user's name of the op that computes it, otherwise its kind and the value's number. */
static void put_value(Out *o, const Graph *g, ValueId v) {
  const Value *value = graph_value(g, v);
  if (v.i == 0) {
    put(o, "?");
  } else if (value->kind == VALUE_PARAM) {
    put(o, "%s", graph_name(g, graph_param(g, value->param)->name));
  } else if (value->kind == VALUE_INPUT) {
    put(o, "%s", graph_name(g, g->inputs.at[value->input].name));
  } else if (graph_op(g, value->op)->name != 0) {
    put(o, "%s", graph_name(g, graph_op(g, value->op)->name));
  } else {
    put(o, "%s.%u", OP_INFO[graph_op(g, value->op)->kind].name, v.i);
  }
}

static void put_bucket(Out *o, const Dag *d, uint32_t b) {
  const Bucket *bucket = &d->buckets.at[b];
  if (bucket->n_params == 0) {
    put(o, "bucket %u", b);
    return;
  }
  const ParamId first = {d->bucket_params.at[bucket->param_first]};
  put(o, "%s%s", graph_name(d->graph, graph_param(d->graph, first)->name),
      bucket->n_params > 1 ? ".." : "");
}

static int32_t stage_of(const Graph *g, uint32_t pp, uint32_t chunk) {
  return pp == 0 ? 0 : graph_scope_index(g, graph_chunk(g, (ChunkId){chunk})->scope, pp);
}

/* Whether another chunk has the same stage as this one: then an action stands for both. */
static bool shares_stage(const Dag *d, uint32_t chunk) {
  const Graph *g = d->graph;
  const uint32_t pp = intern_find(g->names, "PP");
  const int32_t stage = stage_of(g, pp, chunk);
  for (uint32_t c = 1; c <= graph_n_chunks(g); c++)
    if (c != chunk && stage_of(g, pp, c) == stage) return true;
  return false;
}

/* "0F1", in a name "0F1/2" where several chunks have the stage. */
static void put_action(Out *o, const Dag *d, ChunkId c, unsigned pass, uint32_t mb, bool name) {
  put_stage(o, d, c);
  put(o, "%c%u", pass_letter(pass), mb);
  if (name && shares_stage(d, c.i)) put(o, "/%u", c.i);
}

/* A name of its own has no devices, and tells the chunks of a stage apart. */
static void label(const Dag *d, NodeId n, bool name, char *buf, size_t size) {
  Out o = {buf, size, 0};
  if (size > 0) buf[0] = '\0';
  const NodeKind kind = d->kind[n.i];
  const Tensor *t = &d->tensors.at[d->tensor[n.i]];
  switch (kind) {
  case NODE_COMPUTE:
    put_action(&o, d, (ChunkId){d->chunk[n.i]}, d->pass[n.i], d->mb[n.i], name);
    return;
  case NODE_TRANSFER: {
    const bool grad = t->kind == TENSOR_GRAD;
    const Value *value = graph_value(d->graph, t->value);
    const unsigned pass = d->pass[n.i] != PASS_NONE ? d->pass[n.i] : grad ? PASS_B : PASS_F;
    put(&o, "transfer %s", grad ? "grad " : "");
    put_value(&o, d->graph, t->value);
    put(&o, " ");
    if (grad || value->kind == VALUE_OP) {
      const ChunkId chunk = grad ? t->chunk : graph_op(d->graph, value->op)->chunk;
      put_action(&o, d, chunk, pass, d->mb[n.i], name);
      if (!name) put(&o, " ");
    }
    if (name) return;
    put_devs(&o, d, d->src_devs[n.i]);
    put(&o, ">");
    put_devs(&o, d, d->devs[n.i]);
    return;
  }
  case NODE_ALL_TO_ALL:
    put(&o, "all_to_all %s", t->kind == TENSOR_GRAD ? "grad " : "");
    put_value(&o, d->graph, t->value);
    put(&o, " %s experts ", t->spread ? "from" : "to");
    put_action(&o, d, (ChunkId){d->chunk[n.i]}, d->pass[n.i], d->mb[n.i], name);
    if (name) return;
    put(&o, " ");
    put_devs(&o, d, d->devs[n.i]);
    return;
  case NODE_ALL_REDUCE:
  case NODE_REDUCE_SCATTER:
  case NODE_ALL_GATHER:
  case NODE_NORM:
  case NODE_UPDATE:
    put(&o, "%s ", NODE_KIND_NAME[kind]);
    if (t->kind == TENSOR_METRICS) {
      put(&o, "metrics");
    } else if (t->kind == TENSOR_COUNTS) {
      put(&o, "counts ");
      put_stage(&o, d, t->chunk);
      put(&o, "F");
    } else {
      put_bucket(&o, d, t->bucket.i != 0 ? t->bucket.i : d->bucket[n.i]);
    }
    if (d->chunk[n.i] != 0) {
      put(&o, " ");
      put_action(&o, d, (ChunkId){d->chunk[n.i]}, d->pass[n.i], d->mb[n.i], name);
    }
    if (d->devs[n.i] != 0 && !name) {
      put(&o, " ");
      put_devs(&o, d, d->devs[n.i]);
    }
    return;
  case NODE_COUNT:
    put(&o, "count ");
    put_action(&o, d, (ChunkId){d->chunk[n.i]}, PASS_F, d->mb[n.i], name);
    return;
  case NODE_JOIN:
    put(&o, "join ");
    put_devs(&o, d, d->devs[n.i]);
    return;
  case NODE_NONE:
  case NODE_KIND_COUNT:
    break;
  }
  put(&o, "node %u", n.i);
}

void dag_label(const Dag *d, NodeId n, char *buf, size_t size) { label(d, n, false, buf, size); }
void dag_name(const Dag *d, NodeId n, char *buf, size_t size) { label(d, n, true, buf, size); }
