#include "ir/dag_draw.h"

#include "base/text.h"
#include "ir/topo.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_WIDTH = 44, NAME_TEXT = 160 };

static void name_of(const Dag *d, uint32_t n, char *buf) {
  dag_name(d, (NodeId){n}, buf, NAME_TEXT);
}

static void where_text(const Dag *d, uint32_t n, char *buf, uint32_t size) {
  size_t at = 0;
  if (d->src_devs[n] != 0) {
    devsets_text(d->devsets, d->src_devs[n], buf, size / 2);
    at = strlen(buf);
    buf[at++] = '>';
  }
  devsets_text(d->devsets, d->devs[n], buf + at, size - (uint32_t)at);
}

static const char *stream_of(const Dag *d, uint32_t n) {
  const char *stream = intern_text(d->names, d->stream[n]);
  return strcmp(stream, "default_stream") == 0 ? "" : stream;
}

/* ---- list ------------------------------------------------------------------------------------ */

typedef struct Widths {
  size_t name, where, stream;
} Widths;

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static Widths widths_of(const Dag *d, const uint32_t *order, uint32_t n) {
  Widths w = {0};
  char buf[NAME_TEXT];
  for (uint32_t k = 0; k < n; k++) {
    name_of(d, order[k], buf);
    if (strlen(buf) <= NAME_MAX_WIDTH) w.name = larger(w.name, strlen(buf));
    where_text(d, order[k], buf, sizeof buf);
    if (strlen(buf) <= NAME_MAX_WIDTH) w.where = larger(w.where, strlen(buf));
    w.stream = larger(w.stream, strlen(stream_of(d, order[k])));
  }
  return w;
}

/* The nodes that node n waits for; seen[]: 1 + the last node in whose list one was. */
static void put_sources(const Dag *d, const Adjacency *a, uint32_t n, uint32_t *seen, Text *t) {
  const char *between = "<- ";
  char buf[NAME_TEXT];
  for (int temporal = 0; temporal < 2; temporal++)
    for (uint32_t k = a->in_first[n]; k < a->in_first[n + 1]; k++) {
      const Edge *e = &d->edges.at[a->in_edge[k]];
      if ((e->kind == EDGE_TEMPORAL) != temporal || seen[e->src] == n + 1) continue;
      seen[e->src] = n + 1;
      name_of(d, e->src, buf);
      text_put(t, "%s%s%s", between, temporal ? "~" : "", buf);
      between = ", ";
    }
}

static PiperStatus list(const Dag *d, const Adjacency *a, const uint32_t *order, uint32_t n,
                        char **out, PiperErr *err) {
  const Widths w = widths_of(d, order, n);
  Text t = {0};
  char buf[NAME_TEXT];
  uint32_t *seen = calloc(d->n, sizeof *seen);
  if (seen == NULL) return err_nomem(err, "the list of nodes");
  for (uint32_t k = 0; k < n; k++) {
    const size_t line = t.chars.n;
    name_of(d, order[k], buf);
    text_put(&t, "%s", buf);
    text_pad(&t, line, w.name);
    where_text(d, order[k], buf, sizeof buf);
    text_put(&t, "  %s", buf);
    text_pad(&t, line, w.name + 2 + w.where);
    if (w.stream > 0) text_put(&t, "  %-*s", (int)w.stream, stream_of(d, order[k]));
    text_put(&t, "  ");
    put_sources(d, a, order[k], seen, &t);
    text_trim(&t, ' ');
    text_put(&t, "\n");
  }
  free(seen);
  text_trim(&t, '\n');
  return text_finish(&t, "the list of nodes", out, err);
}

PiperStatus dag_list(const Dag *d, const uint32_t *order, uint32_t n, char **out, PiperErr *err) {
  Adjacency a = {0};
  uint32_t *own = NULL;
  PiperStatus st = adjacency_new(d, &a, err);
  if (st != PIPER_OK) return st;
  if (order == NULL) {
    own = malloc(d->n * sizeof *own);
    st = own != NULL ? topo_order(d, &a, own, &n, err) : err_nomem(err, "the list of nodes");
  }
  if (st == PIPER_OK) st = list(d, &a, order != NULL ? order : own, n, out, err);
  free(own);
  adjacency_free(&a);
  return st;
}

/* ---- picture --------------------------------------------------------------------------------- */

/* Above these, Graphviz is told to look less long for the best places (350 nodes: 0.7 s instead of 14 s), and
 * to draw straight edges. */
enum { MANY_NODES = 120, LARGE_NODES = 600 };

static void put_escaped(Text *t, const char *s) {
  for (; *s != '\0'; s++)
    if (*s == '"' || *s == '\\') text_put(t, "\\%c", *s);
    else text_put(t, "%c", (unsigned char)*s < 0x20 ? ' ' : *s);
}

static void put_quoted(Text *t, const char *s) {
  text_put(t, "\"");
  put_escaped(t, s);
  text_put(t, "\"");
}

static const char *colour_of(const Dag *d, uint32_t n) {
  static const char *const OF_PASS[PASS_COUNT] = {
      [PASS_NONE] = "#ffffff", [PASS_F] = "#bcd9f5",  [PASS_B] = "#f9cfa4",
      [PASS_BI] = "#f9cfa4",   [PASS_BW] = "#f6e3a1", [PASS_R] = "#d9c7ee"};
  switch ((NodeKind)d->kind[n]) {
  case NODE_COMPUTE:
    return OF_PASS[d->pass[n]];
  case NODE_TRANSFER:
    return "#ffffff";
  case NODE_ALL_REDUCE:
  case NODE_REDUCE_SCATTER:
    return "#bfe5c0";
  case NODE_ALL_GATHER:
    return "#b9e6e1";
  case NODE_ALL_TO_ALL:
    return "#f4c2d4";
  default:
    return "#e6e6e6";
  }
}

/* How much of a node is drawn. */
typedef enum Drawn { HIDDEN, BESIDE, FULL } Drawn;

static void put_node(const Dag *d, uint32_t n, Drawn drawn, int indent, Text *t) {
  char name[NAME_TEXT], where[NAME_TEXT];
  const bool communicates = NODE_KIND_COMMUNICATES[d->kind[n]];
  name_of(d, n, name);
  text_put(t, "%*sn%u [label=", indent, "", n);
  if (communicates) { /* narrow: the picture is long */
    char *space = strchr(name, ' ');
    where_text(d, n, where, sizeof where);
    if (space != NULL) *space = '\0';
    text_put(t, "\"%s\\n", name);
    if (space != NULL) put_escaped(t, space + 1);
    text_put(t, "\\n%s", where);
    if (stream_of(d, n)[0] != '\0') text_put(t, "  ");
    put_escaped(t, stream_of(d, n));
    text_put(t, "\"");
  } else {
    put_quoted(t, name);
  }
  if (drawn == BESIDE)
    text_put(t, ", fillcolor=\"#f2f2f2\", color=\"#b0b0b0\", fontcolor=\"#808080\", fontsize=7, "
                "height=0.15");
  else
    text_put(t, ", fillcolor=\"%s\"%s", colour_of(d, n),
             communicates ? ", shape=ellipse, fontsize=8" : "");
  text_put(t, ", tooltip=");
  put_quoted(t, dag_line(d, d->line[n]));
  text_put(t, "];\n");
}

/* Where a node is drawn: the device set and the stage of a cluster; 0: outside. */
typedef struct Spot {
  uint32_t devs, node;
  int32_t stage;
} Spot;

static int by_spot(const void *a, const void *b) {
  const Spot *x = a, *y = b;
  if (x->devs != y->devs) return x->devs < y->devs ? -1 : 1;
  if (x->stage != y->stage) return x->stage < y->stage ? -1 : 1;
  return (x->node > y->node) - (x->node < y->node);
}

static int32_t stage_at(const Dag *d, uint32_t n) {
  const Graph *g = d->graph;
  const uint32_t pp = intern_find(g->names, "PP");
  if (pp == 0 || d->kind[n] != NODE_COMPUTE) return -1;
  return graph_scope_index(g, graph_chunk(g, (ChunkId){d->chunk[n]})->scope, pp);
}

/* Transfers lie between clusters; so does what joins device sets of which none computes as a whole. */
static uint32_t find_spots(const Dag *d, const uint8_t *drawn, bool *computes, Spot *spots) {
  uint32_t n_spots = 0;
  for (uint32_t n = 1; n < d->n; n++)
    if (d->kind[n] == NODE_COMPUTE) computes[d->devs[n]] = true;
  for (uint32_t n = 1; n < d->n; n++) {
    if (d->kind[n] == NODE_NONE || drawn[n] == HIDDEN) continue;
    const bool inside = d->kind[n] != NODE_TRANSFER && computes[d->devs[n]];
    spots[n_spots++] = (Spot){inside ? d->devs[n] : 0, n, inside ? stage_at(d, n) : -1};
  }
  qsort(spots, n_spots, sizeof *spots, by_spot);
  return n_spots;
}

static void put_clusters(const Dag *d, const uint8_t *drawn, const Spot *spots, uint32_t n,
                         Text *t) {
  char devs[128];
  for (uint32_t k = 0, end; k < n; k = end) {
    uint32_t stages = 0;
    for (end = k; end < n && spots[end].devs == spots[k].devs; end++)
      stages += spots[end].stage >= 0 && (end == k || spots[end - 1].stage != spots[end].stage);
    if (spots[k].devs != 0) {
      devsets_text(d->devsets, spots[k].devs, devs, sizeof devs);
      text_put(t,
               "  subgraph cluster_%u {\n    label=\"%s %s\"; style=rounded; color=\"#888888\";\n",
               spots[k].devs, devsets_size(d->devsets, spots[k].devs) > 1 ? "devices" : "device",
               devs[0] != '\0' ? devs : "not placed");
    }
    for (uint32_t i = k; i < end; i++) {
      const bool apart = stages > 1 && spots[i].stage >= 0;
      if (apart && (i == k || spots[i - 1].stage != spots[i].stage))
        text_put(
            t,
            "    subgraph cluster_%u_%d {\n      label=\"stage %d\"; style=\"rounded,dotted\";\n",
            spots[k].devs, spots[i].stage, spots[i].stage);
      put_node(d, spots[i].node, (Drawn)drawn[spots[i].node], apart ? 6 : 4, t);
      if (apart && (i + 1 == end || spots[i + 1].stage != spots[i].stage)) text_put(t, "    }\n");
    }
    if (spots[k].devs != 0) text_put(t, "  }\n");
  }
}

static void put_edges(const Dag *d, const uint8_t *drawn, Text *t) {
  for (uint32_t e = 1; e < d->edges.n; e++) {
    const Edge *x = &d->edges.at[e];
    if (x->src == 0 || drawn[x->src] == HIDDEN || drawn[x->dst] == HIDDEN) continue;
    if (drawn[x->src] == BESIDE && drawn[x->dst] == BESIDE) continue;
    const TensorKind kind = x->kind == EDGE_DATA ? d->tensors.at[x->tensor].kind : TENSOR_NONE;
    text_put(t, "  n%u -> n%u", x->src, x->dst);
    if (x->kind == EDGE_TEMPORAL) {
      text_put(t, " [style=dashed, color=\"#c03030\", tooltip=");
      put_quoted(t, dag_line(d, x->line));
      text_put(t, "]");
    } else if (kind == TENSOR_SAVED || kind == TENSOR_KEPT) {
      text_put(t, " [color=\"#a0a0a0\", arrowsize=0.5]");
    }
    text_put(t, ";\n");
  }
}

/* Of the neighbours of what was selected those that do not compute are drawn in full, too; in grey
 * what computes beside it, or at the other end of what it sends or receives. Not the other sources
 * of a reduction: these are many. */
static void mark_neighbours(const Dag *d, uint8_t *drawn, uint8_t *selected) {
  memcpy(selected, drawn, d->n);
  for (uint32_t e = 1; e < d->edges.n; e++) {
    const Edge *x = &d->edges.at[e];
    if (x->src == 0) continue;
    for (int back = 0; back < 2; back++) {
      const uint32_t from = back ? x->dst : x->src, to = back ? x->src : x->dst;
      if (selected[from] != FULL || drawn[to] == FULL) continue;
      drawn[to] = d->kind[to] == NODE_COMPUTE ? BESIDE : FULL;
    }
  }
  for (uint32_t e = 1; e < d->edges.n; e++) {
    const Edge *x = &d->edges.at[e];
    for (int back = 0; x->src != 0 && back < 2; back++) {
      const uint32_t from = back ? x->dst : x->src, to = back ? x->src : x->dst;
      const bool passes_on = d->kind[from] == NODE_TRANSFER || d->kind[from] == NODE_ALL_TO_ALL;
      if (passes_on && drawn[from] == FULL && drawn[to] == HIDDEN) drawn[to] = BESIDE;
    }
  }
}

static PiperStatus find_drawn(const Dag *d, const Filter *filter, uint8_t *drawn, PiperErr *err) {
  memset(drawn, filter == NULL ? FULL : HIDDEN, d->n);
  if (filter == NULL) return PIPER_OK;
  FilterIndex *index = NULL;
  U32Vec nodes = {0};
  Filter f = *filter; /* backward passes may have become halves */
  if (f.passes >> PASS_B & 1) f.passes |= 1u << PASS_BI | 1u << PASS_BW;
  uint8_t *selected = malloc(d->n);
  PiperStatus st = selected != NULL ? filter_index_new(d, &index, err) : err_nomem(err, "the picture");
  if (st == PIPER_OK) st = filter_nodes(index, &f, &nodes, err);
  if (st == PIPER_OK) {
    for (size_t k = 0; k < nodes.n; k++) drawn[nodes.at[k]] = FULL;
    mark_neighbours(d, drawn, selected);
  }
  if (index != NULL) filter_index_free(index);
  free(selected);
  vec_free(&nodes);
  return st;
}

/* The colours that occur, and what they are of. */
static void put_legend(const Dag *d, const uint8_t *drawn, const Spot *spots, uint32_t n, Text *t) {
  static const struct {
    const char *colour, *what;
  } COLOURS[] = {{"#bcd9f5", "F"},          {"#f9cfa4", "B, BI"},      {"#f6e3a1", "BW"},
                 {"#d9c7ee", "R"},          {"#ffffff", "transfer"},   {"#f4c2d4", "all_to_all"},
                 {"#bfe5c0", "reduction"},  {"#b9e6e1", "all_gather"}, {"#e6e6e6", "norm, update, ..."},
                 {"#f2f2f2", "beside these"}};
  text_put(t, "  label=<<table border=\"0\" cellborder=\"1\" cellspacing=\"2\"><tr>");
  for (size_t c = 0; c < sizeof COLOURS / sizeof *COLOURS; c++) {
    bool occurs = false;
    for (uint32_t k = 0; k < n && !occurs; k++) {
      const uint32_t node = spots[k].node;
      occurs = strcmp(drawn[node] == BESIDE ? "#f2f2f2" : colour_of(d, node), COLOURS[c].colour) == 0;
    }
    if (occurs) text_put(t, "<td bgcolor=\"%s\">%s</td>", COLOURS[c].colour, COLOURS[c].what);
  }
  text_put(t, "<td>grey edge: kept for a backward pass</td>"
              "<td><font color=\"#c03030\">dashed: order</font></td></tr></table>>;\n");
}

PiperStatus dag_dot(const Dag *d, const Filter *filter, char **out, PiperErr *err) {
  Text t = {0};
  bool *computes = calloc(devsets_count(d->devsets), sizeof *computes);
  Spot *spots = malloc(d->n * sizeof *spots);
  uint8_t *drawn = malloc(d->n); /* Drawn */
  PiperStatus st = PIPER_OK;
  if (computes == NULL || spots == NULL || drawn == NULL) st = err_nomem(err, "the picture");
  if (st == PIPER_OK) st = find_drawn(d, filter, drawn, err);
  if (st != PIPER_OK) {
    free(computes), free(spots), free(drawn);
    return st;
  }
  const uint32_t n = find_spots(d, drawn, computes, spots);
  text_put(&t, "digraph ");
  put_quoted(&t, graph_name(d->graph, d->graph->name));
  text_put(&t,
           " {\n  rankdir=LR; ranksep=0.25; nodesep=0.12; newrank=true;%s\n"
           "  graph [fontname=\"sans-serif\", fontsize=11];\n"
           "  node [shape=box, style=filled, color=\"#606060\", fontname=\"sans-serif\", "
           "fontsize=10, height=0.25,\n"
           "        width=0.3, margin=\"0.06,0.03\"];\n"
           "  edge [color=\"#404040\", arrowsize=0.6];\n",
           n > LARGE_NODES  ? " splines=line; nslimit=1; nslimit1=1; mclimit=0.1;"
           : n > MANY_NODES ? " nslimit=1; nslimit1=1;"
                            : "");
  put_clusters(d, drawn, spots, n, &t);
  put_edges(d, drawn, &t);
  put_legend(d, drawn, spots, n, &t);
  text_put(&t, "}\n");
  free(computes), free(spots), free(drawn);
  return text_finish(&t, "the picture", out, err);
}
