/* The text form of a DAG: one thing a line, fields that are 0 left out.
 *
 *   # to the end of a line: a comment
 *   dag batch=24 dims=1                                              (and forward_only)
 *   bucket 1 [layers.0.weight layers.0.bias] chunk=2 trained holders=0-1 replicated
 *          reduce_stream=dp_stream line="train.lua:30"                       (all on one line)
 *   1 compute F chunk=1 samples=0:12 devs=0 stream=default_stream tags={MB=0,PP=0} line="m.lua:4"
 *   2 transfer F tensor=v7 src_samples=0:12 src_devs=0 samples=0:12 devs=1-2 mb=3 <- 1:v7
 *   3 compute F chunk=2 samples=0:12 devs=1-2 order=1 group=2 member=1 <- 2:v7, 9~"train.lua:50"
 *
 * A line is "dag", then buckets, then nodes; buckets and nodes count from 1. A bucket lists its
 * parameters; their offsets follow from that. A node has a kind, a pass, fields in any order, and
 * after "<-" the edges that enter it, from whatever node: "3:v7" is data, "9~"line"" temporal. So
 * edge ids are not kept, but the order of the edges of each node is.
 *
 *   samples=LO:HI     the interval [LO, HI)
 *   devs=0-3,8        a list of ranks, "1,0" if it does not ascend
 *   recompute         1: its chunk is computed again before its backward pass
 *   order, group      as in dag->order_of and dag->group: they count from 1
 *   tensors           v7, grad(v7,2) (value, consuming chunk), saved(2), kept(2), counts(2), bucket(1)
 *                     (its gradients), params(1) (its parameters), metrics, and - for none; v7/e and
 *                     grad(v7,2)/e are divided by experts
 *   parts             devices of a group that experts are spread over
 *   names             as they are when made of letters, digits and _ . / -, otherwise in quotes with
 *                     \" \\ \xHH
 *
 * Printing is canonical (fields in the order of FIELDS, tags by name), so printing what was parsed
 * from a printed text gives that text. The parser takes nothing on trust: ids have to exist in the
 * graph or in the text, numbers to fit, device lists together to stay below a limit. What is well
 * formed may still break invariants: that is for dag_verify to say. */
#include "ir/dag_text.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- printing ---------------------------------------------------------------------------------- */

typedef struct Text {
  VEC(char) chars;
  bool failed;
} Text;

static void put_bytes(Text *t, const char *s, size_t n) {
  if (t->failed || !vec_reserve(&t->chars, n)) {
    t->failed = true;
    return;
  }
  memcpy(t->chars.at + t->chars.n, s, n);
  t->chars.n += n;
}

static void put(Text *t, const char *s) { put_bytes(t, s, strlen(s)); }

static void putf(Text *t, const char *fmt, ...) PIPER_PRINTF(2, 3);
static void putf(Text *t, const char *fmt, ...) { /* numbers only: always short */
  char buf[96];
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(buf, sizeof buf, fmt, args);
  va_end(args);
  put_bytes(t, buf, (size_t)n);
}

static bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '/' || c == '-';
}

static void put_quoted(Text *t, const char *s) {
  put(t, "\"");
  for (; *s != '\0'; s++) {
    if (*s == '"' || *s == '\\') putf(t, "\\%c", *s);
    else if ((unsigned char)*s < 0x20 || *s == 0x7f) putf(t, "\\x%02x", (unsigned)*s);
    else put_bytes(t, s, 1);
  }
  put(t, "\"");
}

static void put_name(Text *t, const char *s) {
  const char *end = s;
  while (is_bare(*end)) end++;
  if (end != s && *end == '\0') put(t, s);
  else put_quoted(t, s);
}

/* As devsets_text, of any length. */
static void put_devs(Text *t, const Dag *d, uint32_t devs) {
  const int32_t *ranks = devsets_ranks(d->devsets, devs);
  const uint32_t n = devsets_size(d->devsets, devs);
  bool ascending = true;
  for (uint32_t i = 1; i < n; i++) ascending = ascending && ranks[i] > ranks[i - 1];
  for (uint32_t i = 0, end; i < n; i = end) {
    for (end = i + 1; ascending && end < n && ranks[end] == ranks[end - 1] + 1;) end++;
    putf(t, i > 0 ? ",%d" : "%d", ranks[i]);
    if (end - i > 1) putf(t, "-%d", ranks[end - 1]);
  }
}

void dag_tensor_text(const Dag *d, TensorId id, char *buf, size_t n) {
  const Tensor *t = &d->tensors.at[id.i];
  switch (t->kind) {
  case TENSOR_NONE:
    snprintf(buf, n, "-");
    return;
  case TENSOR_VALUE:
    snprintf(buf, n, t->spread ? "v%u/e" : "v%u", t->value.i);
    return;
  case TENSOR_GRAD:
    snprintf(buf, n, t->spread ? "grad(v%u,%u)/e" : "grad(v%u,%u)", t->value.i, t->chunk.i);
    return;
  case TENSOR_SAVED:
    snprintf(buf, n, "saved(%u)", t->chunk.i);
    return;
  case TENSOR_KEPT:
    snprintf(buf, n, "kept(%u)", t->chunk.i);
    return;
  case TENSOR_BUCKET:
    snprintf(buf, n, "bucket(%u)", t->bucket.i);
    return;
  case TENSOR_PARAMS:
    snprintf(buf, n, "params(%u)", t->bucket.i);
    return;
  case TENSOR_METRICS:
    snprintf(buf, n, "metrics");
    return;
  case TENSOR_COUNTS:
    snprintf(buf, n, "counts(%u)", t->chunk.i);
    return;
  }
}

static void put_tensor(Text *t, const Dag *d, uint32_t id) {
  char text[DAG_TENSOR_TEXT];
  dag_tensor_text(d, (TensorId){id}, text, sizeof text);
  put(t, text);
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void put_tags(Text *t, const Dag *d, uint32_t set) {
  const uint32_t first = d->tags_first.at[set], n = d->tags_first.at[set + 1] - first;
  const char **names = malloc(n * sizeof *names);
  if (names == NULL) {
    t->failed = true;
    return;
  }
  for (uint32_t i = 0; i < n; i++) names[i] = intern_text(d->names, d->tags_at.at[first + i].tag);
  qsort(names, n, sizeof *names, by_name);
  for (uint32_t i = 0; i < n; i++) {
    put(t, i == 0 ? "{" : ",");
    put_name(t, names[i]);
    putf(t, "=%d", dag_tags_index(d, set, intern_find(d->names, names[i])));
  }
  put(t, "}");
  free(names);
}

static void put_bucket(Text *t, const Dag *d, uint32_t id) {
  const Bucket *b = &d->buckets.at[id];
  putf(t, "bucket %u [", id);
  for (uint32_t i = 0; i < b->n_params; i++) {
    const ParamId p = {d->bucket_params.at[b->param_first + i]};
    if (i > 0) put(t, " ");
    put_name(t, graph_name(d->graph, graph_param(d->graph, p)->name));
  }
  put(t, "]");
  if (b->chunk.i != 0) putf(t, " chunk=%u", b->chunk.i);
  if (b->trained) put(t, " trained");
  if (b->holders != 0) {
    put(t, " holders=");
    put_devs(t, d, b->holders);
  }
  for (uint32_t k = 0; k < b->n_groups; k++) {
    put(t, " group=");
    put_devs(t, d, d->bucket_groups.at[b->group_first + k]);
  }
  if (b->replicated) put(t, " replicated");
  if (b->zero != 0) putf(t, " zero=%u", b->zero);
  if (b->per_microbatch) put(t, " per_microbatch");
  if (b->prefetch != 0) putf(t, " prefetch=%u", b->prefetch);
  if (b->keep_bytes != 0) putf(t, " keep=%lld", (long long)b->keep_bytes);
  if (b->reduce_stream != 0) {
    put(t, " reduce_stream=");
    put_name(t, intern_text(d->names, b->reduce_stream));
  }
  if (b->gather_stream != 0) {
    put(t, " gather_stream=");
    put_name(t, intern_text(d->names, b->gather_stream));
  }
  if (b->line != 0) {
    put(t, " line=");
    put_quoted(t, intern_text(d->names, b->line));
  }
  put(t, "\n");
}

/* The fields of a node, in the order in which they are printed. */
typedef enum FieldType { F_NUMBER, F_TENSOR, F_SAMPLES, F_DEVS, F_NAME, F_LINE, F_TAGS } FieldType;

typedef struct Field {
  const char *name;
  FieldType type;
  size_t array, hi; /* where Dag has its uint32_t array; F_SAMPLES: its two int64_t arrays */
} Field;

// clang-format off
#define AT(field) offsetof(Dag, field)
static const Field FIELDS[] = {
    {"chunk",       F_NUMBER,  AT(chunk),    0},
    {"bucket",      F_NUMBER,  AT(bucket),   0},
    {"tensor",      F_TENSOR,  AT(tensor),   0},
    {"src_samples", F_SAMPLES, AT(src_lo),   AT(src_hi)},
    {"src_devs",    F_DEVS,    AT(src_devs), 0},
    {"samples",     F_SAMPLES, AT(lo),       AT(hi)},
    {"devs",        F_DEVS,    AT(devs),     0},
    {"stream",      F_NAME,    AT(stream),   0},
    {"tags",        F_TAGS,    AT(tags),     0},
    {"mb",          F_NUMBER,  AT(mb),       0},
    {"order",       F_NUMBER,  AT(order_of), 0},
    {"group",       F_NUMBER,  AT(group),    0},
    {"member",      F_NUMBER,  AT(member),   0},
    {"parts",       F_NUMBER,  AT(parts),    0},
    {"recompute",   F_NUMBER,  AT(recompute), 0},
    {"line",        F_LINE,    AT(line),     0},
};
#undef AT
// clang-format on
#define N_FIELDS (sizeof FIELDS / sizeof *FIELDS)

static uint32_t *ids_at(const Dag *d, size_t offset) {
  uint32_t *array;
  memcpy(&array, (const char *)d + offset, sizeof array);
  return array;
}

static int64_t *samples_at(const Dag *d, size_t offset) {
  int64_t *array;
  memcpy(&array, (const char *)d + offset, sizeof array);
  return array;
}

static void put_field(Text *t, const Dag *d, const Field *f, uint32_t node) {
  if (f->type == F_SAMPLES) {
    const int64_t lo = samples_at(d, f->array)[node], hi = samples_at(d, f->hi)[node];
    if (lo != 0 || hi != 0) putf(t, " %s=%lld:%lld", f->name, (long long)lo, (long long)hi);
    return;
  }
  const uint32_t v = ids_at(d, f->array)[node];
  if (v == 0) return;
  putf(t, " %s=", f->name);
  switch (f->type) {
  case F_NUMBER:
    putf(t, "%u", v);
    return;
  case F_TENSOR:
    put_tensor(t, d, v);
    return;
  case F_DEVS:
    put_devs(t, d, v);
    return;
  case F_NAME:
    put_name(t, intern_text(d->names, v));
    return;
  case F_LINE:
    put_quoted(t, intern_text(d->names, v));
    return;
  case F_TAGS:
    put_tags(t, d, v);
    return;
  case F_SAMPLES:
    return;
  }
}

static void put_edge(Text *t, const Dag *d, const Edge *e) {
  if (e->kind == EDGE_TEMPORAL) {
    putf(t, "%u~", e->src);
    put_quoted(t, intern_text(d->names, e->line));
  } else {
    putf(t, "%u:", e->src);
    put_tensor(t, d, e->tensor);
  }
}

PiperStatus dag_print(const Dag *d, char **out, PiperErr *err) {
  /* Entering edges by node: a counting sort, as in topo.c, which does not know removed nodes. */
  Text t = {0};
  uint32_t *first = calloc((size_t)d->n + 1, sizeof *first);
  uint32_t *edges = malloc(d->edges.n * sizeof *edges);
  if (first == NULL || edges == NULL) {
    t.failed = true;
    goto done;
  }
  for (size_t e = 1; e < d->edges.n; e++) first[d->edges.at[e].dst]++;
  first[0] = 0; /* removed edges */
  for (uint32_t i = 1; i <= d->n; i++) first[i] += first[i - 1];
  for (size_t e = d->edges.n; e-- > 1;)
    if (d->edges.at[e].dst != 0) edges[--first[d->edges.at[e].dst]] = (uint32_t)e;

  putf(&t, "dag batch=%lld dims=%u", (long long)d->batch, d->n_dims);
  put(&t, d->forward_only ? " forward_only\n" : "\n");
  for (uint32_t b = 1; b < d->buckets.n; b++) put_bucket(&t, d, b);
  for (uint32_t i = 1; i < d->n; i++) {
    putf(&t, "%u %s", i, NODE_KIND_NAME[d->kind[i]]);
    if (d->pass[i] != PASS_NONE) putf(&t, " %s", PASS_NAME[d->pass[i]]);
    for (size_t f = 0; f < N_FIELDS; f++) put_field(&t, d, &FIELDS[f], i);
    for (uint32_t k = first[i]; k < first[i + 1]; k++) {
      put(&t, k == first[i] ? " <- " : ", ");
      put_edge(&t, d, &d->edges.at[edges[k]]);
    }
    put(&t, "\n");
  }
  put_bytes(&t, "", 1);
done:
  free(first);
  free(edges);
  if (t.failed) {
    vec_free(&t.chars);
    return err_nomem(err, "text of the DAG");
  }
  *out = t.chars.at;
  return PIPER_OK;
}

/* ---- parsing ----------------------------------------------------------------------------------- */

#define MAX_RANK 65535         /* the highest rank of a device list */
#define MAX_DEVICES (1u << 22) /* in all different device lists together */
#define MAX_TAGS 64            /* of a node */

typedef struct Parser {
  const char *at, *line_start;
  uint32_t line;
  Dag *dag;
  uint32_t *rank_seen, rank_round; /* by rank: the device list in which it was met last */
  uint32_t n_devices;
  Intern *device_texts;      /* device lists as written ... */
  VEC(uint32_t) device_sets; /* ... and by 1 less than their ids the sets */
  VEC(char) name;            /* the name read last, NUL-terminated */
  VEC(int32_t) ranks;
  VEC(uint32_t) edge_columns; /* by edge: where its source stands, for the message */
  VEC(uint32_t) edge_lines;
  PiperErr *err;
} Parser;

static PiperStatus fail_at(Parser *p, uint32_t line, uint32_t column, const char *fmt,
                           va_list args) {
  char text[512];
  vsnprintf(text, sizeof text, fmt, args);
  return err_set(p->err, PIPER_EUSER, "DAG text, line %u, column %u: %s", line, column, text);
}

static PiperStatus fail(Parser *p, const char *fmt, ...) PIPER_PRINTF(2, 3);
static PiperStatus fail(Parser *p, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const PiperStatus st = fail_at(p, p->line, (uint32_t)(p->at - p->line_start) + 1, fmt, args);
  va_end(args);
  return st;
}

static void skip_blanks(Parser *p) {
  while (*p->at == ' ' || *p->at == '\t' || *p->at == '\r') p->at++;
  if (*p->at == '#')
    while (*p->at != '\n' && *p->at != '\0') p->at++;
}

static bool at_line_end(const Parser *p) { return *p->at == '\n' || *p->at == '\0'; }

/* To the first line with something on it, or to the end of the text. */
static void next_line(Parser *p) {
  skip_blanks(p);
  while (*p->at == '\n') {
    p->line++;
    p->line_start = ++p->at;
    skip_blanks(p);
  }
}

static bool take(Parser *p, char c) {
  if (*p->at != c) return false;
  p->at++;
  return true;
}

static PiperStatus expect(Parser *p, char c) {
  return take(p, c) ? PIPER_OK : fail(p, "expected '%c'", c);
}

static PiperStatus number(Parser *p, int64_t max, int64_t *out) {
  if (*p->at < '0' || *p->at > '9') return fail(p, "expected a number");
  const char *start = p->at;
  int64_t v = 0;
  for (; *p->at >= '0' && *p->at <= '9'; p->at++) {
    const int digit = *p->at - '0';
    if (v > max / 10 || (v == max / 10 && digit > max % 10)) {
      p->at = start;
      return fail(p, "number above %lld", (long long)max);
    }
    v = v * 10 + digit;
  }
  *out = v;
  return PIPER_OK;
}

static PiperStatus small_number(Parser *p, uint32_t max, uint32_t *out) {
  int64_t v;
  TRY(number(p, max, &v));
  *out = (uint32_t)v;
  return PIPER_OK;
}

/* An id of which 1 .. n exist. */
static PiperStatus id(Parser *p, const char *what, size_t n, uint32_t *out) {
  const char *start = p->at;
  TRY(small_number(p, UINT32_MAX, out));
  if (*out >= 1 && *out <= n) return PIPER_OK;
  p->at = start;
  return n == 0 ? fail(p, "there is no %s", what)
                : fail(p, "%s %u does not exist; they run from 1 to %zu", what, *out, n);
}

static int hex(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static PiperStatus quoted(Parser *p) {
  TRY(expect(p, '"'));
  p->name.n = 0;
  while (*p->at != '"') {
    char c = *p->at;
    if (c == '\0' || c == '\n') return fail(p, "a name without its closing quote");
    p->at++;
    if (c == '\\') {
      c = *p->at;
      if (c == 'x' && hex(p->at[1]) >= 0 && hex(p->at[2]) >= 0) {
        c = (char)(hex(p->at[1]) << 4 | hex(p->at[2]));
        if (c == '\0') return fail(p, "a name holds no NUL");
        p->at += 3;
      } else if (c == '"' || c == '\\') {
        p->at++;
      } else {
        return fail(p, "expected \\\", \\\\ or \\xHH");
      }
    }
    if (!vec_push(&p->name, c)) return err_nomem(p->err, "DAG text");
  }
  p->at++;
  return vec_push(&p->name, '\0') ? PIPER_OK : err_nomem(p->err, "DAG text");
}

static PiperStatus bare(Parser *p, const char *what) {
  p->name.n = 0;
  if (!is_bare(*p->at)) return fail(p, "expected %s", what);
  for (; is_bare(*p->at); p->at++)
    if (!vec_push(&p->name, *p->at)) return err_nomem(p->err, "DAG text");
  return vec_push(&p->name, '\0') ? PIPER_OK : err_nomem(p->err, "DAG text");
}

static PiperStatus name(Parser *p) {
  if (*p->at == '"') return quoted(p);
  return bare(p, "a name");
}

static PiperStatus intern_name(Parser *p, uint32_t *out) {
  *out = p->name.n == 1 ? 0 : intern_id(p->dag->names, p->name.at); /* "" is none */
  return *out != 0 || p->name.n == 1 ? PIPER_OK : err_nomem(p->err, "DAG text");
}

static PiperStatus new_device_list(Parser *p, uint32_t *out) {
  p->ranks.n = 0;
  p->rank_round++;
  do {
    uint32_t first, last;
    TRY(small_number(p, MAX_RANK, &first));
    last = first;
    if (take(p, '-')) TRY(small_number(p, MAX_RANK, &last));
    if (last < first) return fail(p, "%u comes before %u", last, first);
    for (uint32_t r = first; r <= last; r++) {
      if (p->rank_seen[r] == p->rank_round) return fail(p, "device %u twice", r);
      p->rank_seen[r] = p->rank_round;
      if (!vec_push(&p->ranks, (int32_t)r)) return err_nomem(p->err, "DAG text");
    }
  } while (take(p, ','));
  p->n_devices += (uint32_t)p->ranks.n;
  if (p->n_devices > MAX_DEVICES)
    return fail(p, "the device lists have more than %u devices in all", MAX_DEVICES);
  *out = devsets_id(p->dag->devsets, p->ranks.at, (uint32_t)p->ranks.n);
  return *out != 0 ? PIPER_OK : err_nomem(p->err, "DAG text");
}

/* A list that was read before is not taken apart again: a short text may stand for many ranks. */
static PiperStatus device_list(Parser *p, uint32_t *out) {
  const size_t length = strspn(p->at, "0123456789,-");
  p->name.n = 0;
  if (!vec_reserve(&p->name, length + 1)) return err_nomem(p->err, "DAG text");
  memcpy(p->name.at, p->at, length);
  p->name.at[length] = '\0';
  const uint32_t known = intern_find(p->device_texts, p->name.at);
  if (known != 0) {
    *out = p->device_sets.at[known - 1];
    p->at += length;
    return PIPER_OK;
  }
  TRY(new_device_list(p, out));
  return intern_id(p->device_texts, p->name.at) != 0 && vec_push(&p->device_sets, *out)
             ? PIPER_OK
             : err_nomem(p->err, "DAG text");
}

static PiperStatus tensor(Parser *p, uint32_t *out) {
  const Graph *g = p->dag->graph;
  Tensor t = {0};
  if (take(p, '-')) {
    *out = 0;
    return PIPER_OK;
  }
  if (*p->at == 'v') {
    p->at++;
    t.kind = TENSOR_VALUE;
    TRY(id(p, "value", g->values.n - 1, &t.value.i));
  } else {
    const char *start = p->at;
    TRY(bare(p, "a tensor"));
    const char *word = p->name.at;
    t.kind = strcmp(word, "grad") == 0      ? TENSOR_GRAD
             : strcmp(word, "saved") == 0   ? TENSOR_SAVED
             : strcmp(word, "kept") == 0    ? TENSOR_KEPT
             : strcmp(word, "bucket") == 0  ? TENSOR_BUCKET
             : strcmp(word, "counts") == 0  ? TENSOR_COUNTS
             : strcmp(word, "params") == 0  ? TENSOR_PARAMS
             : strcmp(word, "metrics") == 0 ? TENSOR_METRICS
                                            : TENSOR_NONE;
    if (t.kind == TENSOR_NONE) {
      p->at = start;
      return fail(p,
                  "expected a tensor: v1, grad(v1,1), saved(1), kept(1), counts(1), bucket(1), "
                  "params(1), metrics or -");
    }
    if (t.kind != TENSOR_METRICS) TRY(expect(p, '('));
    if (t.kind == TENSOR_GRAD) {
      TRY(expect(p, 'v'));
      TRY(id(p, "value", g->values.n - 1, &t.value.i));
      TRY(expect(p, ','));
    }
    if (t.kind == TENSOR_BUCKET || t.kind == TENSOR_PARAMS)
      TRY(id(p, "bucket", p->dag->buckets.n - 1, &t.bucket.i));
    else if (t.kind != TENSOR_METRICS) TRY(id(p, "chunk", graph_n_chunks(g), &t.chunk.i));
    if (t.kind != TENSOR_METRICS) TRY(expect(p, ')'));
  }
  if ((t.kind == TENSOR_VALUE || t.kind == TENSOR_GRAD) && take(p, '/')) {
    TRY(expect(p, 'e'));
    t.spread = true;
  }
  *out = dag_tensor(p->dag, t).i;
  return *out != 0 ? PIPER_OK : err_nomem(p->err, "DAG text");
}

static PiperStatus tag_set(Parser *p, uint32_t *out) {
  uint32_t n = 0;
  *out = 0;
  TRY(expect(p, '{'));
  do {
    uint32_t tag, index;
    TRY(name(p));
    TRY(intern_name(p, &tag));
    if (tag == 0) return fail(p, "a tag without a name");
    if (dag_tags_index(p->dag, *out, tag) >= 0) return fail(p, "tag %.64s twice", p->name.at);
    if (++n > MAX_TAGS) return fail(p, "more than %d tags", MAX_TAGS);
    TRY(expect(p, '='));
    TRY(small_number(p, INT32_MAX, &index));
    *out = dag_tags_with(p->dag, *out, (Tag){tag, (int32_t)index});
    if (*out == UINT32_MAX) return err_nomem(p->err, "DAG text");
  } while (take(p, ','));
  return expect(p, '}');
}

/* ---- lines ---- */

static PiperStatus header(Parser *p) {
  TRY(bare(p, "\"dag\""));
  if (strcmp(p->name.at, "dag") != 0) return fail(p, "the first line is: dag batch=N dims=N");
  for (skip_blanks(p); !at_line_end(p); skip_blanks(p)) {
    TRY(bare(p, "batch= or dims="));
    if (strcmp(p->name.at, "forward_only") == 0) {
      p->dag->forward_only = true;
      continue;
    }
    const bool batch = strcmp(p->name.at, "batch") == 0;
    if (!batch && strcmp(p->name.at, "dims") != 0)
      return fail(p, "unknown field \"%.64s\"; they are batch, dims and forward_only", p->name.at);
    TRY(expect(p, '='));
    if (batch) TRY(number(p, INT64_MAX, &p->dag->batch));
    else TRY(small_number(p, UINT32_MAX, &p->dag->n_dims));
  }
  return p->dag->batch >= 1 ? PIPER_OK : fail(p, "batch is at least 1");
}

static PiperStatus parameter(Parser *p, Bucket *b) {
  const Graph *g = p->dag->graph;
  const char *start = p->at;
  TRY(name(p));
  const uint32_t i = graph_find_param(g, p->name.at).i;
  if (i == 0 || p->dag->home[i].bucket.i != 0) {
    p->at = start;
    return i == 0 ? fail(p, "the model has no parameter \"%.128s\"", p->name.at)
                  : fail(p, "parameter %.128s is in bucket %u already", p->name.at,
                         p->dag->home[i].bucket.i);
  }
  const int64_t elements = shape_elements(&g->params.at[i].shape, 1);
  if (elements < 0 || elements > INT64_MAX - b->elements) return fail(p, "too many elements");
  p->dag->home[i] = (ParamHome){{(uint32_t)p->dag->buckets.n}, b->elements};
  b->elements += elements;
  b->n_params++;
  return vec_push(&p->dag->bucket_params, i) ? PIPER_OK : err_nomem(p->err, "DAG text");
}

static PiperStatus bucket_field(Parser *p, Bucket *b) {
  TRY(bare(p, "a field"));
  const char *word = p->name.at;
  if (strcmp(word, "trained") == 0) {
    b->trained = true;
  } else if (strcmp(word, "replicated") == 0) {
    b->replicated = true;
  } else if (strcmp(word, "chunk") == 0) {
    TRY(expect(p, '='));
    TRY(id(p, "chunk", graph_n_chunks(p->dag->graph), &b->chunk.i));
  } else if (strcmp(word, "holders") == 0) {
    TRY(expect(p, '='));
    TRY(device_list(p, &b->holders));
  } else if (strcmp(word, "group") == 0) {
    uint32_t devs;
    TRY(expect(p, '='));
    TRY(device_list(p, &devs));
    if (b->n_groups == 0) b->group_first = (uint32_t)p->dag->bucket_groups.n;
    b->n_groups++;
    if (!vec_push(&p->dag->bucket_groups, devs)) return err_nomem(p->err, "DAG text");
  } else if (strcmp(word, "zero") == 0) {
    uint32_t level;
    TRY(expect(p, '='));
    TRY(small_number(p, ZERO_PARAMS, &level));
    b->zero = (uint8_t)level;
  } else if (strcmp(word, "per_microbatch") == 0) {
    b->per_microbatch = true;
  } else if (strcmp(word, "prefetch") == 0) {
    TRY(expect(p, '='));
    TRY(small_number(p, UINT32_MAX, &b->prefetch));
  } else if (strcmp(word, "keep") == 0) {
    TRY(expect(p, '='));
    TRY(number(p, INT64_MAX, &b->keep_bytes));
  } else if (strcmp(word, "reduce_stream") == 0 || strcmp(word, "gather_stream") == 0) {
    uint32_t *stream = *word == 'r' ? &b->reduce_stream : &b->gather_stream;
    TRY(expect(p, '='));
    TRY(name(p));
    TRY(intern_name(p, stream));
  } else if (strcmp(word, "line") == 0) {
    TRY(expect(p, '='));
    TRY(quoted(p));
    TRY(intern_name(p, &b->line));
  } else {
    return fail(p, "a bucket has no field \"%.64s\"", word);
  }
  return PIPER_OK;
}

static PiperStatus bucket(Parser *p) {
  uint32_t number_;
  Bucket b = {.param_first = (uint32_t)p->dag->bucket_params.n};
  skip_blanks(p);
  TRY(small_number(p, UINT32_MAX, &number_));
  if (number_ != p->dag->buckets.n) return fail(p, "the next bucket is %zu", p->dag->buckets.n);
  skip_blanks(p);
  TRY(expect(p, '['));
  for (skip_blanks(p); !take(p, ']'); skip_blanks(p)) TRY(parameter(p, &b));
  for (skip_blanks(p); !at_line_end(p); skip_blanks(p)) TRY(bucket_field(p, &b));
  return vec_push(&p->dag->buckets, b) ? PIPER_OK : err_nomem(p->err, "DAG text");
}

static PiperStatus node_field(Parser *p, uint32_t node) {
  const char *start = p->at;
  TRY(bare(p, "a field or \"<-\""));
  const Field *f = FIELDS;
  while (f < FIELDS + N_FIELDS && strcmp(f->name, p->name.at) != 0) f++;
  if (f == FIELDS + N_FIELDS) {
    p->at = start;
    return fail(p, "a node has no field \"%.64s\"", p->name.at);
  }
  TRY(expect(p, '='));
  Dag *d = p->dag;
  uint32_t v = 0; /* the arrays stay where they are: a field adds no node */
  switch (f->type) {
  case F_SAMPLES:
    TRY(number(p, INT64_MAX, &samples_at(d, f->array)[node]));
    TRY(expect(p, ':'));
    return number(p, INT64_MAX, &samples_at(d, f->hi)[node]);
  case F_NUMBER:
    if (f->array == offsetof(Dag, chunk)) TRY(id(p, "chunk", graph_n_chunks(d->graph), &v));
    else if (f->array == offsetof(Dag, bucket)) TRY(id(p, "bucket", d->buckets.n - 1, &v));
    else TRY(small_number(p, UINT32_MAX, &v));
    break;
  case F_TENSOR:
    TRY(tensor(p, &v));
    break;
  case F_DEVS:
    TRY(device_list(p, &v));
    break;
  case F_NAME:
    TRY(name(p));
    TRY(intern_name(p, &v));
    break;
  case F_LINE:
    TRY(quoted(p));
    TRY(intern_name(p, &v));
    break;
  case F_TAGS:
    TRY(tag_set(p, &v));
    break;
  }
  ids_at(d, f->array)[node] = v;
  return PIPER_OK;
}

/* Where the edge comes from is checked when all nodes are known. */
static PiperStatus edge(Parser *p, uint32_t node) {
  Edge e = {.dst = node};
  const uint32_t column = (uint32_t)(p->at - p->line_start) + 1;
  TRY(small_number(p, UINT32_MAX, &e.src));
  if (take(p, '~')) {
    e.kind = EDGE_TEMPORAL;
    TRY(quoted(p));
    TRY(intern_name(p, &e.line));
  } else {
    e.kind = EDGE_DATA;
    if (!take(p, ':')) return fail(p, "expected ':' and a tensor, or '~' and a script line");
    TRY(tensor(p, &e.tensor));
  }
  return vec_push(&p->dag->edges, e) && vec_push(&p->edge_columns, column) &&
                 vec_push(&p->edge_lines, p->line)
             ? PIPER_OK
             : err_nomem(p->err, "DAG text");
}

static PiperStatus node(Parser *p) {
  uint32_t number_, kind = 1, pass = 1;
  TRY(small_number(p, UINT32_MAX, &number_));
  if (number_ != p->dag->n) return fail(p, "the next node is %u", p->dag->n);
  skip_blanks(p);
  TRY(bare(p, "a kind of node"));
  while (kind < NODE_KIND_COUNT && strcmp(NODE_KIND_NAME[kind], p->name.at) != 0) kind++;
  if (kind == NODE_KIND_COUNT) return fail(p, "there is no kind of node \"%.64s\"", p->name.at);
  const NodeId n = dag_add_node(p->dag, (NodeKind)kind, 0);
  if (n.i == 0) return err_nomem(p->err, "DAG text");

  skip_blanks(p);
  if (*p->at >= 'A' && *p->at <= 'Z') {
    TRY(bare(p, "a pass"));
    while (pass < PASS_COUNT && strcmp(PASS_NAME[pass], p->name.at) != 0) pass++;
    if (pass == PASS_COUNT) return fail(p, "there is no pass \"%.64s\"", p->name.at);
    p->dag->pass[n.i] = (uint8_t)pass;
  }
  for (skip_blanks(p); !at_line_end(p); skip_blanks(p)) {
    if (take(p, '<')) {
      TRY(expect(p, '-'));
      do {
        skip_blanks(p);
        TRY(edge(p, n.i));
        skip_blanks(p);
      } while (take(p, ','));
      return at_line_end(p) ? PIPER_OK : fail(p, "expected ',' or the end of the line");
    }
    TRY(node_field(p, n.i));
  }
  return PIPER_OK;
}

static PiperStatus fail_at_edge(Parser *p, size_t e, const char *fmt, ...) PIPER_PRINTF(3, 4);
static PiperStatus fail_at_edge(Parser *p, size_t e, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const PiperStatus st = fail_at(p, p->edge_lines.at[e - 1], p->edge_columns.at[e - 1], fmt, args);
  va_end(args);
  return st;
}

static PiperStatus parse(Parser *p) {
  next_line(p);
  TRY(header(p));
  for (next_line(p); *p->at != '\0'; next_line(p)) {
    if (*p->at >= '0' && *p->at <= '9') {
      TRY(node(p));
      continue;
    }
    TRY(bare(p, "a bucket or a node"));
    if (strcmp(p->name.at, "bucket") != 0)
      return fail(p, "a line starts with \"bucket\" or with the number of a node");
    if (p->dag->n > 1) return fail(p, "buckets stand before the nodes");
    TRY(bucket(p));
  }
  for (size_t e = 1; e < p->dag->edges.n; e++) {
    const uint32_t src = p->dag->edges.at[e].src;
    if (src == 0 || src >= p->dag->n)
      return fail_at_edge(p, e, "node %u does not exist; they run from 1 to %u", src,
                          p->dag->n - 1);
  }
  return PIPER_OK;
}

PiperStatus dag_parse(const Graph *graph, const char *text, Dag **out, PiperErr *err) {
  Parser p = {.at = text, .line_start = text, .line = 1, .err = err};
  p.dag = dag_new(graph, 0);
  p.rank_seen = calloc(MAX_RANK + 1, sizeof *p.rank_seen);
  p.device_texts = intern_new();
  PiperStatus st;
  if (p.dag == NULL || p.rank_seen == NULL || p.device_texts == NULL)
    st = err_nomem(err, "DAG text");
  else st = parse(&p);
  free(p.rank_seen);
  intern_free(p.device_texts);
  vec_free(&p.device_sets);
  vec_free(&p.name);
  vec_free(&p.ranks);
  vec_free(&p.edge_columns);
  vec_free(&p.edge_lines);
  if (st == PIPER_OK) *out = p.dag;
  else dag_free(p.dag);
  return st;
}
