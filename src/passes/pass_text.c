/* The words that messages of several passes share. Each begins with the script line and the name of
 * the directive (design 3.5). */
#include "passes/pass.h"

#include <stdio.h>
#include <string.h>

const char *const DIRECTIVE_NAME[DIRECTIVE_KIND_COUNT] = {"place", "replicate", "shard",
                                                          "split", "order",     "recompute"};

PiperStatus directive_fail(PiperErr *err, const Directive *x, const char *fmt, ...) {
  char text[PIPER_ERR_TEXT];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return err_set(err, PIPER_EUSER, "%s: %s: %s", x->line, DIRECTIVE_NAME[x->kind], text);
}

uint32_t directive_line(Dag *d, const Directive *x) { return intern_id(d->names, x->line); }

/* The messages of filter_nodes begin after line and directive. */
static PiperStatus retell(PiperErr *err, const Directive *x, const char *where, PiperStatus st,
                          const PiperErr *found) {
  if (st == PIPER_EUSER) return directive_fail(err, x, "%s%s", where, found->text);
  return err_set(err, st, "%s", found->text);
}

PiperStatus directive_nodes(const FilterIndex *index, const Directive *x, U32Vec *out,
                            PiperErr *err) {
  PiperErr found;
  found.code = PIPER_OK;
  out->n = 0;
  const PiperStatus st = filter_nodes(index, &x->filter, out, &found);
  return st == PIPER_OK ? st : retell(err, x, "", st, &found);
}

PiperStatus member_nodes(const FilterIndex *index, const Directive *x, uint32_t g, uint32_t m,
                         U32Vec *out, PiperErr *err) {
  PiperErr found;
  found.code = PIPER_OK; /* not all of its text: there are as many members as actions */
  out->n = 0;
  const PiperStatus st = filter_nodes(index, &x->groups[g].members[m], out, &found);
  if (st == PIPER_OK) return st;
  char where[TEXT];
  order_where(x, g, where, sizeof where);
  return retell(err, x, where, st, &found);
}

PiperStatus directive_devices(Dag *d, const Directive *x, uint32_t *id, PiperErr *err) {
  if (x->n_devices == 0) return directive_fail(err, x, "the list of devices is empty");
  for (uint32_t i = 0; i < x->n_devices; i++)
    if (x->devices[i] < 0)
      return directive_fail(err, x, "device %d: devices count from 0", x->devices[i]);
  *id = devsets_id(d->devsets, x->devices, x->n_devices);
  if (*id == 0) return err_nomem(err, "device sets");
  /* A rank that occurs twice is found first at its first position. */
  for (uint32_t i = 0; i < x->n_devices; i++)
    if (devsets_position(d->devsets, *id, x->devices[i]) != (int32_t)i)
      return directive_fail(err, x, "device %d is listed twice", x->devices[i]);
  return PIPER_OK;
}

void order_where(const Directive *order, uint32_t g, char *buf, size_t n) {
  if (order->schedule != 0)
    snprintf(buf, n, "rank %u, column %u: ", order->rank_in_schedule, g + 1);
  else snprintf(buf, n, "group %u: ", g + 1);
}

/* Appends; what does not fit is cut off. */
static size_t put(char *buf, size_t n, size_t at, const char *fmt, ...) PIPER_PRINTF(4, 5);
static size_t put(char *buf, size_t n, size_t at, const char *fmt, ...) {
  if (at + 1 >= n) return at;
  va_list args;
  va_start(args, fmt);
  const int wrote = vsnprintf(buf + at, n - at, fmt, args);
  va_end(args);
  if (wrote < 0) return at;
  return (size_t)wrote < n - at ? at + (size_t)wrote : n - 1;
}

void chunk_text(const Dag *d, ChunkId c, char *buf, size_t n) {
  const Graph *g = d->graph;
  const Chunk *chunk = graph_chunk(g, c);
  const uint32_t first = g->scope_first.at[chunk->scope], end = g->scope_first.at[chunk->scope + 1];
  size_t at = put(buf, n, 0, "chunk ");
  for (uint32_t i = first; i < end; i++)
    at = put(buf, n, at, "%s%s = %d%s", i == first ? "{ " : ", ",
             graph_name(g, g->scope_tags.at[i].tag), g->scope_tags.at[i].index,
             i + 1 == end ? " }" : "");
  if (first == end) at = put(buf, n, at, "outside every scope");
  put(buf, n, at, " (%s)", graph_name(g, chunk->line));
}

void value_text(const Dag *d, ValueId v, char *buf, size_t n) {
  const Graph *g = d->graph;
  const Value *value = graph_value(g, v);
  if (value->kind == VALUE_PARAM) {
    put(buf, n, 0, "parameter \"%s\"", graph_name(g, graph_param(g, value->param)->name));
  } else if (value->kind == VALUE_INPUT) {
    put(buf, n, 0, "input \"%s\"", graph_name(g, g->inputs.at[value->input].name));
  } else {
    const Op *op = graph_op(g, value->op);
    size_t at = 0;
    if (op->name != 0)
      at = put(buf, n, at, "\"%s\" (%s, ", graph_name(g, op->name), OP_INFO[op->kind].name);
    else at = put(buf, n, at, "%s (", OP_INFO[op->kind].name);
    put(buf, n, at, "%s)", graph_name(g, op->line));
  }
}

void devices_text(const Dag *d, uint32_t devs, char *buf, size_t n) {
  const size_t at = put(buf, n, 0, devsets_size(d->devsets, devs) == 1 ? "device " : "devices ");
  devsets_text(d->devsets, devs, buf + at, (uint32_t)(n - at));
}
