/* Scopes: which annotations are open while tracing, and the tag sets that they make. Each entry of
 * a tag has an index of its own, so an entered scope always is a new set, and a left one returns to
 * the set before: sets need no lookup. */
#include "ir/graph.h"

/* Room for tag 'id' in the tables by tag. */
static bool cover_tag(Graph *g, uint32_t id) {
  while (g->tag_entries.n <= id)
    if (!vec_push(&g->tag_entries, 0)) return false;
  while (g->tag_lines.n <= id)
    if (!vec_push(&g->tag_lines, 0)) return false;
  return true;
}

static uint32_t current_scope(const Graph *g) {
  return g->open_scopes.n > 0 ? g->open_scopes.at[g->open_scopes.n - 1] : 0;
}

/* The present set and one tag more, as the last set. There is room. */
static void push_set(Graph *g, Tag extra) {
  const uint32_t old = current_scope(g);
  uint32_t at = g->scope_first.at[old];
  const uint32_t end = g->scope_first.at[old + 1];
  for (; at < end && g->scope_tags.at[at].tag < extra.tag; at++)
    g->scope_tags.at[g->scope_tags.n++] = g->scope_tags.at[at];
  g->scope_tags.at[g->scope_tags.n++] = extra;
  for (; at < end; at++) g->scope_tags.at[g->scope_tags.n++] = g->scope_tags.at[at];
  g->scope_first.at[g->scope_first.n++] = (uint32_t)g->scope_tags.n;
}

PiperStatus graph_enter_at(Graph *g, const char *tag, uint32_t line, PiperErr *err) {
  const uint32_t id = intern_id(g->names, tag);
  for (size_t i = 0; i < g->open_tags.n; i++)
    if (g->open_tags.at[i] == id)
      return err_set(err, PIPER_EUSER, "annotate: \"%s\" is inside \"%s\" already (entered at %s)",
                     tag, tag, graph_name(g, g->open_lines.at[i]));
  if (id == 0 || !cover_tag(g, id) || !vec_reserve(&g->open_tags, 1) ||
      !vec_reserve(&g->open_lines, 1) || !vec_reserve(&g->open_scopes, 1) ||
      !vec_reserve(&g->scope_first, 1) || !vec_reserve(&g->scope_tags, g->open_tags.n + 1))
    return err_nomem(err, "annotate");
  push_set(g, (Tag){.tag = id, .index = g->tag_entries.at[id]++});
  if (g->tag_lines.at[id] == 0) g->tag_lines.at[id] = line;
  g->open_tags.at[g->open_tags.n++] = id;
  g->open_lines.at[g->open_lines.n++] = line;
  g->open_scopes.at[g->open_scopes.n++] = (uint32_t)g->scope_first.n - 2;
  return PIPER_OK;
}

PiperStatus graph_enter(Graph *g, const char *tag, PiperErr *err) {
  return graph_enter_at(g, tag, 0, err);
}

PiperStatus graph_leave(Graph *g, const char *tag, PiperErr *err) {
  const size_t n = g->open_tags.n;
  if (n == 0) return err_set(err, PIPER_EUSER, "annotate: \"%s\" is not open", tag);
  const char *inner = graph_name(g, g->open_tags.at[n - 1]);
  if (g->open_tags.at[n - 1] != intern_find(g->names, tag))
    return err_set(err, PIPER_EUSER,
                   "annotate: \"%s\" ends while \"%s\" inside it is still open (entered at %s)",
                   tag, inner, graph_name(g, g->open_lines.at[n - 1]));
  g->open_tags.n--;
  g->open_lines.n--;
  g->open_scopes.n--;
  return PIPER_OK;
}

int32_t graph_scope_index(const Graph *g, uint32_t scope, uint32_t tag) {
  for (uint32_t i = g->scope_first.at[scope]; i < g->scope_first.at[scope + 1]; i++)
    if (g->scope_tags.at[i].tag == tag) return g->scope_tags.at[i].index;
  return -1;
}

const char *graph_tag_line(const Graph *g, uint32_t tag) {
  return tag < g->tag_lines.n ? graph_name(g, g->tag_lines.at[tag]) : "";
}
