/* The box around the DAG that a pass in Lua works on: good only while its function runs.
 * lua/piper/pass.lua is the user's face of it. Nodes are plain integers here.
 *
 * A pass runs inside the compiler, which holds memory: so it is called in protected mode, and
 * nothing around that call can raise: function and box are made before the compilation, what it
 * raised waits on the stack until the compilation has ended and is raised then. */
#include "bind/bind_dag.h"

#include <lauxlib.h>
#include <string.h>

#include "base/interrupt.h"
#include "bind/bind.h"
#include "bind/bind_directives.h"
#include "ir/dag_text.h"
#include "ir/dag_verify.h"

#define DAG_MT "piper.Dag"

typedef struct LuaDag {
  DagEdit *edit; /* NULL: its pass has not begun, or has ended */
  Arena *arena;  /* filters */
  U32Vec found, ends;
  bool nomem; /* a primitive ran out of memory: whatever the script makes of it, the DAG is lost */
} LuaDag;

static LuaDag *check_box(lua_State *L) {
  LuaDag *box = luaL_checkudata(L, 1, DAG_MT);
  if (box->edit == NULL)
    bind_fail(L, "this pass has ended: its dag and nodes are good only while its function runs");
  return box;
}

static Dag *check_dag(lua_State *L) { return dag_edit_dag(check_box(L)->edit); }

static NodeId node_arg(lua_State *L, const Dag *d, int arg) {
  const lua_Integer n = luaL_checkinteger(L, arg);
  luaL_argcheck(L, n > 0 && n < (lua_Integer)d->n, arg, "no node has this id");
  return (NodeId){(uint32_t)n};
}

/* Raises "before: ..." after a primitive that failed. */
static int fail(lua_State *L, LuaDag *box, const char *primitive, const PiperErr *err) {
  box->nomem = box->nomem || err->code == PIPER_ENOMEM;
  return bind_fail(L, "%s: %s", primitive, err->text);
}

#define DO(call, primitive)                                                                        \
  do {                                                                                             \
    if ((call) != PIPER_OK) return fail(L, box, (primitive), &err);                                \
  } while (0)

/* ---- reading ----------------------------------------------------------------------------------- */

static void push_devices(lua_State *L, const Dag *d, uint32_t devs) {
  const uint32_t n = devsets_size(d->devsets, devs);
  lua_createtable(L, (int)n, 0);
  for (uint32_t j = 0; j < n; j++) {
    lua_pushinteger(L, devsets_ranks(d->devsets, devs)[j]);
    lua_seti(L, -2, (lua_Integer)j + 1);
  }
}

static void push_tags(lua_State *L, const Dag *d, uint32_t set) {
  lua_newtable(L);
  for (uint32_t i = d->tags_first.at[set]; i < d->tags_first.at[set + 1]; i++) {
    lua_pushinteger(L, d->tags_at.at[i].index);
    lua_setfield(L, -2, intern_text(d->names, d->tags_at.at[i].tag));
  }
}

/* Nothing where a number is 0. */
static void push_number(lua_State *L, uint64_t v) {
  if (v != 0) lua_pushinteger(L, (lua_Integer)v);
  else lua_pushnil(L);
}

typedef enum Field {
  KIND,
  PASS,
  CHUNK,
  MICROBATCH,
  BUCKET,
  TENSOR,
  DEVICES,
  SRC_DEVICES,
  LO,
  HI,
  STREAM,
  TAGS,
  LINE,
  LABEL,
  ORDER,
  GROUP,
  MEMBER,
  PARTS,
  RECOMPUTE
} Field;
static const char *const FIELD_NAME[] = {"kind",   "pass",    "chunk",       "microbatch", "bucket",
                                         "tensor", "devices", "src_devices", "lo",         "hi",
                                         "stream", "tags",    "line",        "label",      "order",
                                         "group",  "member",  "parts",       "recompute",  NULL};

/* field(id, name) -> its value, or nil where a node of its kind has none */
static int dag_lua_field(lua_State *L) {
  const Dag *d = check_dag(L);
  const NodeId n = node_arg(L, d, 2);
  const bool samples = d->hi[n.i] > d->lo[n.i];
  char text[256];
  switch ((Field)luaL_checkoption(L, 3, NULL, FIELD_NAME)) {
  case KIND:
    lua_pushstring(L, NODE_KIND_NAME[d->kind[n.i]]);
    break;
  case PASS:
    lua_pushstring(L, d->pass[n.i] != PASS_NONE ? PASS_NAME[d->pass[n.i]] : NULL);
    break;
  case CHUNK:
    push_number(L, d->chunk[n.i]);
    break;
  case MICROBATCH:
    if (d->chunk[n.i] != 0 || d->kind[n.i] == NODE_TRANSFER) lua_pushinteger(L, d->mb[n.i]);
    else lua_pushnil(L);
    break;
  case BUCKET:
    push_number(L, d->bucket[n.i]);
    break;
  case TENSOR:
    if (d->tensor[n.i] == 0) return lua_pushnil(L), 1;
    dag_tensor_text(d, (TensorId){d->tensor[n.i]}, text, sizeof text);
    lua_pushstring(L, text);
    break;
  case DEVICES:
    push_devices(L, d, d->devs[n.i]);
    break;
  case SRC_DEVICES:
    if (d->kind[n.i] == NODE_TRANSFER) push_devices(L, d, d->src_devs[n.i]);
    else lua_pushnil(L);
    break;
  case LO:
    if (samples) lua_pushinteger(L, d->lo[n.i]);
    else lua_pushnil(L);
    break;
  case HI:
    if (samples) lua_pushinteger(L, d->hi[n.i]);
    else lua_pushnil(L);
    break;
  case STREAM:
    lua_pushstring(L, d->stream[n.i] != 0 ? intern_text(d->names, d->stream[n.i]) : NULL);
    break;
  case TAGS:
    push_tags(L, d, d->tags[n.i]);
    break;
  case LINE:
    lua_pushstring(L, d->line[n.i] != 0 ? dag_line(d, d->line[n.i]) : NULL);
    break;
  case LABEL:
    dag_label(d, n, text, sizeof text);
    lua_pushstring(L, text);
    break;
  case ORDER:
    push_number(L, d->order_of[n.i]);
    break;
  case GROUP:
    push_number(L, d->group[n.i]);
    break;
  case MEMBER:
    if (d->order_of[n.i] != 0) lua_pushinteger(L, d->member[n.i]);
    else lua_pushnil(L);
    break;
  case PARTS:
    push_number(L, d->parts[n.i]);
    break;
  case RECOMPUTE:
    lua_pushboolean(L, d->recompute[n.i] != 0);
    break;
  }
  return 1;
}

/* about() -> { nodes =, buckets =, batch =, forward_only = } */
static int dag_lua_about(lua_State *L) {
  const Dag *d = check_dag(L);
  lua_createtable(L, 0, 4);
  lua_pushinteger(L, (lua_Integer)d->n - 1);
  lua_setfield(L, -2, "nodes");
  lua_pushinteger(L, (lua_Integer)d->buckets.n - 1);
  lua_setfield(L, -2, "buckets");
  lua_pushinteger(L, d->batch);
  lua_setfield(L, -2, "batch");
  lua_pushboolean(L, d->forward_only);
  lua_setfield(L, -2, "forward_only");
  return 1;
}

static unsigned kinds_arg(lua_State *L, int arg) {
  const char *name = luaL_checkstring(L, arg);
  unsigned all = 0;
  for (int k = 1; k < NODE_KIND_COUNT; k++) {
    if (strcmp(name, NODE_KIND_NAME[k]) == 0) return 1u << k;
    all |= 1u << k;
  }
  luaL_argcheck(L, strcmp(name, "*") == 0, arg, "no node is of this kind");
  return all;
}

static void push_ids(lua_State *L, const U32Vec *ids) {
  lua_createtable(L, (int)ids->n, 0);
  for (size_t i = 0; i < ids->n; i++) {
    lua_pushinteger(L, ids->at[i]);
    lua_seti(L, -2, (lua_Integer)i + 1);
  }
}

/* nodes(filter, kind) -> ids, ascending. The filter is canonical (lua/piper/strategy.lua) */
static int dag_lua_nodes(lua_State *L) {
  LuaDag *box = check_box(L);
  PiperErr err = {0};
  luaL_checktype(L, 2, LUA_TTABLE);
  const unsigned kinds = kinds_arg(L, 3);
  if (box->arena == NULL) box->arena = arena_new();
  if (box->arena == NULL) return luaL_error(L, "nodes: not enough memory");
  arena_reset(box->arena);
  const Filter f = bind_read_filter(L, 2, box->arena);
  box->found.n = 0;
  DO(dag_edit_nodes(box->edit, &f, kinds, &box->found, &err), "nodes");
  push_ids(L, &box->found);
  return 1;
}

/* edges(id, out) -> {{ id =, from = id, to = id, kind =, tensor = or nil, line = or nil }, ...} */
static int dag_lua_edges(lua_State *L) {
  const DagEdit *x = check_box(L)->edit;
  const Dag *d = check_dag(L);
  const NodeId n = node_arg(L, d, 2);
  const bool out = lua_toboolean(L, 3);
  lua_newtable(L);
  lua_Integer count = 0;
  for (EdgeId e = {0};;) {
    e = out ? dag_edit_next_out(x, n, e) : dag_edit_next_in(x, n, e);
    if (e.i == 0) return 1;
    const Edge edge = d->edges.at[e.i];
    lua_createtable(L, 0, 5);
    lua_pushinteger(L, e.i);
    lua_setfield(L, -2, "id");
    lua_pushinteger(L, edge.src);
    lua_setfield(L, -2, "from");
    lua_pushinteger(L, edge.dst);
    lua_setfield(L, -2, "to");
    lua_pushstring(L, edge.kind == EDGE_DATA ? "data" : "temporal");
    lua_setfield(L, -2, "kind");
    if (edge.kind == EDGE_DATA) {
      char text[DAG_TENSOR_TEXT];
      dag_tensor_text(d, (TensorId){edge.tensor}, text, sizeof text);
      lua_pushstring(L, text);
      lua_setfield(L, -2, "tensor");
    } else {
      lua_pushstring(L, dag_line(d, edge.line));
      lua_setfield(L, -2, "line");
    }
    lua_seti(L, -2, ++count);
  }
}

/* bucket(b) -> { id =, chunk = or nil, params = { names }, elements =, devices =, trained =,
 * zero =, reduce = } */
static int dag_lua_bucket(lua_State *L) {
  const Dag *d = check_dag(L);
  const lua_Integer id = luaL_checkinteger(L, 2);
  luaL_argcheck(L, id > 0 && id < (lua_Integer)d->buckets.n, 2, "there is no such bucket");
  const Bucket *b = &d->buckets.at[id];
  lua_createtable(L, 0, 8);
  lua_pushinteger(L, id);
  lua_setfield(L, -2, "id");
  push_number(L, b->chunk.i);
  lua_setfield(L, -2, "chunk");
  lua_createtable(L, (int)b->n_params, 0);
  for (uint32_t i = 0; i < b->n_params; i++) {
    const ParamId p = {d->bucket_params.at[b->param_first + i]};
    lua_pushstring(L, graph_name(d->graph, graph_param(d->graph, p)->name));
    lua_seti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "params");
  lua_pushinteger(L, b->elements);
  lua_setfield(L, -2, "elements");
  push_devices(L, d, b->holders);
  lua_setfield(L, -2, "devices");
  lua_pushboolean(L, b->trained);
  lua_setfield(L, -2, "trained");
  lua_pushinteger(L, b->zero);
  lua_setfield(L, -2, "zero");
  lua_pushstring(L, b->per_microbatch ? "microbatch" : "step");
  lua_setfield(L, -2, "reduce");
  return 1;
}

/* ---- primitives -------------------------------------------------------------------------------- */

/* before(a, b): a temporal edge that the script's line asked for */
static int dag_lua_before(lua_State *L) {
  LuaDag *box = check_box(L);
  Dag *d = check_dag(L);
  const NodeId a = node_arg(L, d, 2), b = node_arg(L, d, 3);
  PiperErr err = {0};
  size_t len;
  bind_where(L);
  const char *where = lua_tolstring(L, -1, &len);
  const char *at = lua_pushlstring(L, where, len > 2 ? len - strlen(": ") : 0);
  const uint32_t line = intern_id(d->names, at);
  if (line == 0) err_nomem(&err, "a pass of the script");
  if (line == 0) return fail(L, box, "before", &err);
  DO(dag_edit_before(box->edit, a, b, line, &err), "before");
  return 0;
}

/* remove(edge) */
static int dag_lua_remove(lua_State *L) {
  LuaDag *box = check_box(L);
  const lua_Integer e = luaL_checkinteger(L, 2);
  luaL_argcheck(L, e > 0 && e < (lua_Integer)check_dag(L)->edges.n, 2, "there is no such edge");
  PiperErr err = {0};
  DO(dag_edit_remove(box->edit, (EdgeId){(uint32_t)e}, &err), "remove");
  return 0;
}

/* reaches(a, b) -> boolean */
static int dag_lua_reaches(lua_State *L) {
  LuaDag *box = check_box(L);
  const Dag *d = check_dag(L);
  PiperErr err = {0};
  bool reaches = false;
  DO(dag_edit_reaches(box->edit, node_arg(L, d, 2), node_arg(L, d, 3), &reaches, &err), "reaches");
  lua_pushboolean(L, reaches);
  return 1;
}

/* stream(id, name) */
static int dag_lua_stream(lua_State *L) {
  LuaDag *box = check_box(L);
  PiperErr err = {0};
  DO(dag_edit_stream(box->edit, node_arg(L, check_dag(L), 2), luaL_checkstring(L, 3), &err),
     "stream");
  return 0;
}

/* tag(id, name, index or false) */
static int dag_lua_tag(lua_State *L) {
  LuaDag *box = check_box(L);
  PiperErr err = {0};
  const NodeId n = node_arg(L, check_dag(L), 2);
  const char *tag = luaL_checkstring(L, 3);
  const lua_Integer index = lua_isboolean(L, 4) ? -1 : luaL_checkinteger(L, 4);
  luaL_argcheck(L, index >= -1 && index <= INT32_MAX, 4, "not an index");
  DO(dag_edit_tag(box->edit, n, tag, (int32_t)index, &err), "tag");
  return 0;
}

/* order(id, order, group, member): the position of a compute node in an order, as plans show it;
 * it makes no edge */
static int dag_lua_order(lua_State *L) {
  Dag *d = check_dag(L);
  const NodeId n = node_arg(L, d, 2);
  lua_Integer v[3];
  for (int i = 0; i < 3; i++) {
    v[i] = luaL_checkinteger(L, 3 + i);
    luaL_argcheck(L, v[i] >= (i < 2) && v[i] < INT32_MAX, 3 + i, "out of range");
  }
  if ((dag_edit_stages(check_box(L)->edit) & DAG_ORDERED) == 0)
    return bind_fail(L, "position: the built-in pass order comes later, and says where nodes "
                        "stand: use after = \"order\"");
  if (d->kind[n.i] != NODE_COMPUTE) {
    char label[256];
    dag_label(d, n, label, sizeof label);
    return bind_fail(L, "position: %s is not a compute node: only those stand in orders", label);
  }
  d->order_of[n.i] = (uint32_t)v[0];
  d->group[n.i] = (uint32_t)v[1];
  d->member[n.i] = (uint32_t)v[2];
  return 0;
}

/* split_reduction(id, {{ids}, ...}) -> ids */
static int dag_lua_split_reduction(lua_State *L) {
  LuaDag *box = check_box(L);
  const Dag *d = check_dag(L);
  const NodeId n = node_arg(L, d, 2);
  PiperErr err = {0};
  luaL_checktype(L, 3, LUA_TTABLE);
  const lua_Integer n_groups = luaL_len(L, 3);
  box->found.n = box->ends.n = 0;
  for (lua_Integer g = 1; g <= n_groups; g++) {
    lua_geti(L, 3, g);
    luaL_checktype(L, -1, LUA_TTABLE);
    for (lua_Integer i = 1, len = luaL_len(L, -1); i <= len; i++) {
      lua_geti(L, -1, i);
      if (!vec_push(&box->found, node_arg(L, d, -1).i))
        return luaL_error(L, "split_reduction: not enough memory");
      lua_pop(L, 1);
    }
    if (!vec_push(&box->ends, (uint32_t)box->found.n))
      return luaL_error(L, "split_reduction: not enough memory");
    lua_pop(L, 1);
  }
  const uint32_t n_sources = (uint32_t)box->found.n;
  /* Results go behind the sources, and may move them. */
  U32Vec out = {0};
  const PiperStatus st = dag_edit_split_reduction(box->edit, n, box->found.at, box->ends.at,
                                                  (uint32_t)box->ends.n, &out, &err);
  bool held = true;
  for (size_t i = 0; i < out.n; i++) held = held && vec_push(&box->found, out.at[i]);
  vec_free(&out);
  if (st != PIPER_OK) return fail(L, box, "split_reduction", &err);
  if (!held) return luaL_error(L, "split_reduction: not enough memory");
  lua_createtable(L, (int)n_groups, 0);
  for (size_t i = n_sources; i < box->found.n; i++) {
    lua_pushinteger(L, box->found.at[i]);
    lua_seti(L, -2, (lua_Integer)(i - n_sources) + 1);
  }
  return 1;
}

/* gather_again(gather, compute) -> id */
static int dag_lua_gather_again(lua_State *L) {
  LuaDag *box = check_box(L);
  const Dag *d = check_dag(L);
  PiperErr err = {0};
  NodeId out;
  DO(dag_edit_gather_again(box->edit, node_arg(L, d, 2), node_arg(L, d, 3), &out, &err),
     "gather_again");
  lua_pushinteger(L, out.i);
  return 1;
}

/* ---- the box ----------------------------------------------------------------------------------- */

static int dag_lua_gc(lua_State *L) {
  LuaDag *box = luaL_checkudata(L, 1, DAG_MT);
  arena_free(box->arena);
  vec_free(&box->found);
  vec_free(&box->ends);
  *box = (LuaDag){0};
  return 0;
}

void bind_open_dag(lua_State *L) {
  static const luaL_Reg METHODS[] = {
      {"about", dag_lua_about},
      {"before", dag_lua_before},
      {"bucket", dag_lua_bucket},
      {"edges", dag_lua_edges},
      {"field", dag_lua_field},
      {"gather_again", dag_lua_gather_again},
      {"nodes", dag_lua_nodes},
      {"order", dag_lua_order},
      {"reaches", dag_lua_reaches},
      {"remove", dag_lua_remove},
      {"split_reduction", dag_lua_split_reduction},
      {"stream", dag_lua_stream},
      {"tag", dag_lua_tag},
      {NULL, NULL},
  };
  luaL_newmetatable(L, DAG_MT);
  lua_pushcfunction(L, dag_lua_gc);
  lua_setfield(L, -2, "__gc");
  luaL_newlib(L, METHODS);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

/* ---- running passes ---------------------------------------------------------------------------- */

/* UserPasses.run. Nothing here raises. */
static PiperStatus run_pass(void *context, uint32_t i, DagEdit *edit, PiperErr *err) {
  LuaPasses *p = context;
  lua_State *L = p->L;
  lua_rawgeti(L, p->runs, (lua_Integer)i + 1);
  lua_rawgeti(L, p->boxes, (lua_Integer)i + 1);
  LuaDag *box = lua_touserdata(L, -1);
  box->edit = edit;
  p->status = lua_pcall(L, 1, 0, 0);
  box->edit = NULL;
  if (p->status == LUA_OK) return box->nomem ? err_nomem(err, "a pass of the script") : PIPER_OK;
  lua_replace(L, p->raised);
  p->failed = i + 1;
  return err_set(err, PIPER_EUSER, "%s: pass \"%s\" raised an error", p->at[i].line, p->at[i].name);
}

static const char *copy_field(lua_State *L, const char *name, Arena *arena) {
  size_t len;
  lua_getfield(L, -1, name);
  const char *s = luaL_checklstring(L, -1, &len);
  const char *copy = arena_strdup(arena, s, len);
  if (copy == NULL) luaL_error(L, "compile: not enough memory");
  lua_pop(L, 1);
  return copy;
}

UserPasses bind_read_passes(lua_State *L, int idx, Arena *arena, LuaPasses *p) {
  idx = lua_absindex(L, idx);
  luaL_checkstack(L, 16, "compile");
  const lua_Integer n = lua_isnil(L, idx) ? 0 : luaL_len(L, idx);
  UserPass *list = arena_alloc(arena, (size_t)n + 1, sizeof *list);
  if (list == NULL) luaL_error(L, "compile: not enough memory");
  lua_createtable(L, (int)n, 0);
  lua_createtable(L, (int)n, 0);
  lua_pushnil(L);
  *p = (LuaPasses){.L = L, .at = list, .raised = lua_gettop(L)};
  p->runs = p->raised - 2;
  p->boxes = p->raised - 1;
  for (lua_Integer i = 0; i < n; i++) {
    lua_geti(L, idx, i + 1);
    list[i].name = copy_field(L, "name", arena);
    list[i].line = copy_field(L, "line", arena);
    list[i].after = copy_field(L, "after", arena);
    lua_getfield(L, -1, "run");
    lua_rawseti(L, p->runs, i + 1);
    LuaDag *box = lua_newuserdatauv(L, sizeof *box, 0);
    *box = (LuaDag){0};
    luaL_setmetatable(L, DAG_MT);
    lua_rawseti(L, p->boxes, i + 1);
    lua_pop(L, 1);
  }
  return (UserPasses){list, (uint32_t)n, run_pass, p};
}

int bind_raise_compile(LuaPasses *p, const PiperErr *err) {
  lua_State *L = p->L;
  if (p->failed == 0) return bind_raise(L, err);
  lua_pushvalue(L, p->raised);
  if (lua_type(L, -1) != LUA_TSTRING || p->status == LUA_ERRMEM || interrupt_pending())
    return lua_error(L);
  const UserPass *pass = &p->at[p->failed - 1];
  const char *text = lua_tostring(L, -1);
  const size_t len = bind_position(text);
  if (len == 0) return bind_fail(L, "%s: pass \"%s\": %s", pass->line, pass->name, text);
  const char *where = lua_pushlstring(L, text, len);
  return bind_fail(L, "%spass \"%s\": %s", where, pass->name, text + len);
}
