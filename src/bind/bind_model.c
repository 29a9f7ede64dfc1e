/* core.graph: the calls that lua/piper/ traces a model with, and what it asks a graph afterwards.
 * Values and parameters are plain integers here; the Lua side wraps them. A graph owns nothing of
 * Lua's and is owned by its box, so errors may be raised at any point. */
#include "bind/bind_model.h"

#include <lauxlib.h>
#include <string.h>

#include "bind/bind.h"
#include "bind/bind_shape.h"
#include "ir/grad_flow.h"

#define GRAPH_MT "piper.Graph"

typedef struct LuaGraph {
  Graph *graph;
} LuaGraph;

/* Also before it is cut. */
static Graph *self_graph(lua_State *L) {
  return ((LuaGraph *)luaL_checkudata(L, 1, GRAPH_MT))->graph;
}

const Graph *bind_check_graph(lua_State *L, int idx) {
  const Graph *g = ((LuaGraph *)luaL_checkudata(L, idx, GRAPH_MT))->graph;
  if (!g->cut)
    bind_fail(L, "model \"%s\" is not complete: its function has not returned",
              graph_name(g, g->name));
  return g;
}

static const Graph *cut_graph(lua_State *L) { return bind_check_graph(L, 1); }

static int graph_lua_new(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  LuaGraph *self = lua_newuserdatauv(L, sizeof *self, 0);
  self->graph = NULL;
  luaL_setmetatable(L, GRAPH_MT);
  self->graph = graph_new(name);
  return self->graph != NULL ? 1 : luaL_error(L, "model: not enough memory");
}

static int graph_lua_gc(lua_State *L) {
  LuaGraph *self = luaL_checkudata(L, 1, GRAPH_MT);
  graph_free(self->graph);
  self->graph = NULL;
  return 0;
}

/* ---- tracing ---------------------------------------------------------------------------------- */

static uint32_t line_arg(lua_State *L, Graph *g, int arg) {
  const uint32_t line = intern_id(g->names, luaL_checkstring(L, arg));
  if (line == 0) luaL_error(L, "model: not enough memory");
  return line;
}

static ValueId value_arg(lua_State *L, const Graph *g, int arg) {
  if (lua_isnoneornil(L, arg)) return (ValueId){0};
  const lua_Integer i = luaL_checkinteger(L, arg);
  luaL_argcheck(L, i > 0 && (lua_Unsigned)i < g->values.n, arg, "no such value");
  return (ValueId){(uint32_t)i};
}

static ParamId param_arg(lua_State *L, const Graph *g, int arg) {
  const lua_Integer i = luaL_checkinteger(L, arg);
  luaL_argcheck(L, i > 0 && (lua_Unsigned)i < g->params.n, arg, "no such parameter");
  return (ParamId){(uint32_t)i};
}

static int push_value(lua_State *L, ValueId v) {
  lua_pushinteger(L, v.i);
  return 1;
}

/* graph:add_input(line, name, shape, is_i32) -> value */
static int add_input(lua_State *L) {
  Graph *g = self_graph(L);
  const uint32_t line = line_arg(L, g, 2);
  const char *name = luaL_checkstring(L, 3);
  Shape shape;
  PiperErr err = {0};
  ValueId v = {0};
  bind_read_shape(L, 4, lua_pushfstring(L, "input \"%s\"", name), &shape);
  const DType dtype = lua_toboolean(L, 5) ? DT_I32 : DT_FLOAT;
  BIND_TRY(L, graph_add_input(g, name, &shape, dtype, line, &v, &err), &err);
  return push_value(L, v);
}

/* What the function at 'idx' gives for each flat index from 0, in a userdata on top. It is called
 * with the parameter's name as well; 'what' begins messages. */
static const double *call_init(lua_State *L, int idx, const char *what, const char *name,
                               int64_t n) {
  luaL_checktype(L, idx, LUA_TFUNCTION);
  double *values = lua_newuserdatauv(L, (size_t)n * sizeof *values, 0);
  for (int64_t i = 0; i < n; i++) {
    lua_pushvalue(L, idx);
    lua_pushinteger(L, i);
    lua_pushstring(L, name);
    lua_call(L, 2, 1);
    if (lua_type(L, -1) != LUA_TNUMBER)
      bind_fail(L, "%s: the init function gave %s for element %I, not a number", what,
                bind_show(L, -1), (LUAI_UACINT)i);
    values[i] = lua_tonumber(L, -1);
    lua_pop(L, 1);
  }
  return values;
}

/* graph:add_param(line, where, name, shape, kind, number or function) -> value; 'where' begins the
 * messages */
static int add_param(lua_State *L) {
  static const char *const kinds[] = {"constant", "normal", "uniform", "function", NULL};
  static const InitKind inits[] = {INIT_CONSTANT, INIT_NORMAL, INIT_UNIFORM, INIT_VALUES};
  Graph *g = self_graph(L);
  const uint32_t line = line_arg(L, g, 2);
  const char *where = luaL_checkstring(L, 3);
  ParamSpec spec = {.name = luaL_checkstring(L, 4)};
  PiperErr err = {0};
  ValueId v = {0};
  const char *what = lua_pushfstring(L, "%s: parameter \"%s\"", where, spec.name);
  bind_read_shape(L, 5, what, &spec.shape);
  BIND_TRY(L, shape_check(&spec.shape, what, &err), &err); /* values are counted by it */
  spec.init = inits[luaL_checkoption(L, 6, NULL, kinds)];
  if (spec.init == INIT_VALUES)
    spec.values = call_init(L, 7, what, spec.name, shape_elements_per_sample(&spec.shape));
  else spec.init_arg = luaL_checknumber(L, 7);
  if (graph_add_param(g, &spec, line, &v, &err) != PIPER_OK)
    return bind_fail(L, "%s: %s", where, err.text);
  return push_value(L, v);
}

/* graph:add_stack({ parameter's value, ... }) -> value */
static int add_stack(lua_State *L) {
  Graph *g = self_graph(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  const lua_Unsigned n = lua_rawlen(L, 2);
  luaL_argcheck(L, n >= 1 && n <= INT32_MAX, 2, "no parameters");
  ValueId *params = lua_newuserdatauv(L, n * sizeof *params, 0), v = {0};
  PiperErr err = {0};
  for (lua_Unsigned i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    params[i] = value_arg(L, g, lua_gettop(L));
    lua_pop(L, 1);
  }
  BIND_TRY(L, graph_add_stack(g, params, (uint32_t)n, &v, &err), &err);
  return push_value(L, v);
}

static OpKind kind_arg(lua_State *L, int arg) {
  const char *name = luaL_checkstring(L, arg);
  OpKind kind = 1;
  while (kind < OP_KIND_COUNT && strcmp(OP_INFO[kind].name, name) != 0) kind++;
  luaL_argcheck(L, kind < OP_KIND_COUNT, arg, "no such op");
  return kind;
}

/* A number, a list of numbers or nothing. */
static OpAttrs attrs_arg(lua_State *L, int arg) {
  OpAttrs attrs = {{0}};
  if (!lua_istable(L, arg)) {
    attrs.d[0] = luaL_optnumber(L, arg, 0);
    return attrs;
  }
  const int n = (int)(sizeof attrs.d / sizeof attrs.d[0]);
  luaL_argcheck(L, lua_rawlen(L, arg) <= (lua_Unsigned)n, arg, "too many numbers");
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, arg, i + 1);
    attrs.d[i] = lua_tonumber(L, -1);
    lua_pop(L, 1);
  }
  return attrs;
}

/* graph:add_op(line, kind, name or nil, { operand, operand, operand }, number or list of numbers or
 * nil, shape or nil) -> value; an absent operand is nil or false */
static int add_op(lua_State *L) {
  Graph *g = self_graph(L);
  const uint32_t line = line_arg(L, g, 2);
  OpSpec spec = {.kind = kind_arg(L, 3), .name = luaL_optstring(L, 4, NULL)};
  Shape shape;
  PiperErr err = {0};
  ValueId v = {0};
  luaL_checktype(L, 5, LUA_TTABLE);
  for (int i = 0; i < 3; i++) {
    lua_rawgeti(L, 5, i + 1);
    if (lua_toboolean(L, -1)) spec.in[i] = value_arg(L, g, lua_gettop(L));
    lua_pop(L, 1);
  }
  spec.attrs = attrs_arg(L, 6);
  if (spec.kind == OP_RESHAPE) {
    bind_read_shape(L, 7, OP_INFO[spec.kind].name, &shape);
    spec.reshape_to = &shape;
  }
  BIND_TRY(L, graph_add_op(g, &spec, line, &v, &err), &err);
  return push_value(L, v);
}

/* graph:add_loss(line, value) */
static int add_loss(lua_State *L) {
  Graph *g = self_graph(L);
  const uint32_t line = line_arg(L, g, 2);
  PiperErr err = {0};
  BIND_TRY(L, graph_add_loss(g, value_arg(L, g, 3), line, &err), &err);
  return 0;
}

/* graph:enter(line, tag), graph:leave(tag) */
static int enter(lua_State *L) {
  Graph *g = self_graph(L);
  const uint32_t line = line_arg(L, g, 2);
  PiperErr err = {0};
  BIND_TRY(L, graph_enter_at(g, luaL_checkstring(L, 3), line, &err), &err);
  return 0;
}

static int leave(lua_State *L) {
  PiperErr err = {0};
  BIND_TRY(L, graph_leave(self_graph(L), luaL_checkstring(L, 2), &err), &err);
  return 0;
}

/* graph:freeze(index of a parameter) */
static int freeze(lua_State *L) {
  Graph *g = self_graph(L);
  graph_param(g, param_arg(L, g, 2))->frozen = true;
  return 0;
}

static int cut(lua_State *L) {
  PiperErr err = {0};
  BIND_TRY(L, graph_cut(self_graph(L), &err), &err);
  return 0;
}

/* ---- questions --------------------------------------------------------------------------------- */

static void set_string(lua_State *L, const char *key, const char *s) {
  lua_pushstring(L, s);
  lua_setfield(L, -2, key);
}

static void set_integer(lua_State *L, const char *key, int64_t i) {
  lua_pushinteger(L, i);
  lua_setfield(L, -2, key);
}

static void set_bool(lua_State *L, const char *key, bool b) {
  lua_pushboolean(L, b);
  lua_setfield(L, -2, key);
}

/* shape = the list, shape_text = "[batch, 128]" */
static void set_shape(lua_State *L, const Shape *s) {
  char text[160];
  shape_text(s, text, sizeof text);
  set_string(L, "shape_text", text);
  bind_push_shape(L, s);
  lua_setfield(L, -2, "shape");
}

/* graph:value(value) -> { shape =, shape_text =, dtype = "float" or "i32" } */
static int value_info(lua_State *L) {
  const Graph *g = self_graph(L);
  const Value *v = graph_value(g, value_arg(L, g, 2));
  lua_newtable(L);
  set_shape(L, &v->shape);
  set_string(L, "dtype", dtype_name(v->dtype));
  return 1;
}

static bool is_read(const Graph *g, ValueId v) {
  for (size_t o = 1; o < g->ops.n; o++)
    for (int i = 0; i < 3; i++)
      if (g->ops.at[o].in[i].i == v.i) return true;
  return false;
}

/* graph:inputs() -> list of { name, shape, shape_text, dtype, line, limit (0: none), used } */
static int inputs(lua_State *L) {
  const Graph *g = self_graph(L);
  lua_newtable(L);
  for (size_t i = 1; i < g->inputs.n; i++) {
    const Input *in = &g->inputs.at[i];
    lua_newtable(L);
    set_string(L, "name", graph_name(g, in->name));
    set_string(L, "line", graph_name(g, in->line));
    set_string(L, "dtype", dtype_name(graph_value(g, in->value)->dtype));
    set_shape(L, &graph_value(g, in->value)->shape);
    set_integer(L, "limit", in->limit);
    set_bool(L, "used", is_read(g, in->value));
    lua_rawseti(L, -2, (lua_Integer)i);
  }
  return 1;
}

static const char *init_name(InitKind kind) {
  static const char *const names[] = {[INIT_CONSTANT] = "constant",
                                      [INIT_NORMAL] = "normal",
                                      [INIT_UNIFORM] = "uniform",
                                      [INIT_VALUES] = "function"};
  return names[kind];
}

static void push_param(lua_State *L, const Graph *g, const Param *p) {
  lua_newtable(L);
  set_string(L, "name", graph_name(g, p->name));
  set_string(L, "line", graph_name(g, p->line));
  set_shape(L, &p->shape);
  set_integer(L, "elements", shape_elements_per_sample(&p->shape));
  set_bool(L, "frozen", p->frozen);
  set_bool(L, "trained", p->reached);
  set_string(L, "init", init_name(p->init));
  if (p->init != INIT_VALUES) {
    lua_pushnumber(L, p->init_arg);
    lua_setfield(L, -2, "init_arg");
  }
}

/* graph:params() -> list of { name, shape, shape_text, elements, frozen, trained, init, init_arg,
 * line } */
static int params(lua_State *L) {
  const Graph *g = self_graph(L);
  lua_newtable(L);
  for (size_t i = 1; i < g->params.n; i++) {
    push_param(L, g, &g->params.at[i]);
    lua_rawseti(L, -2, (lua_Integer)i);
  }
  return 1;
}

/* graph:find_param(name) -> its value, or nil */
static int find_param(lua_State *L) {
  const Graph *g = self_graph(L);
  const ParamId p = graph_find_param(g, luaL_checkstring(L, 2));
  if (p.i == 0) return 0;
  return push_value(L, graph_param(g, p)->value);
}

/* graph:losses() -> list of { line } */
static int losses(lua_State *L) {
  const Graph *g = self_graph(L);
  lua_newtable(L);
  for (size_t i = 1; i < g->losses.n; i++) {
    lua_newtable(L);
    set_string(L, "line", graph_name(g, g->losses.at[i].line));
    lua_rawseti(L, -2, (lua_Integer)i);
  }
  return 1;
}

static void push_tags(lua_State *L, const Graph *g, uint32_t scope) {
  lua_newtable(L);
  lua_Integer n = 0;
  for (uint32_t i = g->scope_first.at[scope]; i < g->scope_first.at[scope + 1]; i++) {
    lua_newtable(L);
    set_string(L, "tag", graph_name(g, g->scope_tags.at[i].tag));
    set_integer(L, "index", g->scope_tags.at[i].index);
    lua_rawseti(L, -2, ++n);
  }
}

static void push_ops(lua_State *L, const Chunk *c, const Graph *g) {
  lua_newtable(L);
  for (uint32_t o = c->first_op; o < c->end_op; o++) {
    lua_pushstring(L, OP_INFO[graph_op(g, (OpId){o})->kind].name);
    lua_rawseti(L, -2, o - c->first_op + 1);
  }
}

static void push_chunk(lua_State *L, const Graph *g, const Chunk *c) {
  lua_newtable(L);
  set_string(L, "line", graph_name(g, c->line));
  set_bool(L, "has_backward", c->has_backward);
  set_bool(L, "has_loss", c->has_loss);
  push_tags(L, g, c->scope);
  lua_setfield(L, -2, "tags");
  push_ops(L, c, g);
  lua_setfield(L, -2, "ops");
  lua_newtable(L);
  for (uint32_t i = 0; i < c->n_params; i++) {
    lua_pushinteger(L, g->chunk_params.at[c->param_first + i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "params");
}

/* graph:chunks() -> list of { line, has_backward, has_loss, tags = { { tag, index }, ... },
 * ops = { "linear", ... }, params = { index into params(), ... } } */
static int chunks(lua_State *L) {
  const Graph *g = cut_graph(L);
  lua_newtable(L);
  for (uint32_t i = 1; i <= graph_n_chunks(g); i++) {
    push_chunk(L, g, graph_chunk(g, (ChunkId){i}));
    lua_rawseti(L, -2, i);
  }
  return 1;
}

/* graph:flops(samples) -> forward, backward */
static int flops(lua_State *L) {
  const Graph *g = cut_graph(L);
  const int64_t samples = luaL_checkinteger(L, 2);
  double forward = 0, backward = 0;
  for (uint32_t o = 1; o < g->ops.n; o++) {
    const OpId op = {o};
    forward += graph_op_cost(g, op, KERNEL_F, 0, samples, 4).flops;
    for (int i = 0; i < 3; i++)
      if (op_grad_flows(g, graph_op(g, op), i))
        backward += graph_op_cost(g, op, KERNEL_B, i, samples, 4).flops;
  }
  lua_pushnumber(L, forward);
  lua_pushnumber(L, backward);
  return 2;
}

/* graph:tokens_per_sample(): elements of the first input of ids in one sample; 1 without one */
static int tokens_per_sample(lua_State *L) {
  const Graph *g = self_graph(L);
  int64_t n = 1;
  for (size_t i = g->inputs.n; i-- > 1;) {
    const Value *v = graph_value(g, g->inputs.at[i].value);
    if (v->dtype == DT_I32) n = shape_elements_per_sample(&v->shape);
  }
  lua_pushinteger(L, n);
  return 1;
}

int luaopen_piper_core_graph(lua_State *L) {
  static const luaL_Reg meta[] = {{"__gc", graph_lua_gc}, {NULL, NULL}};
  static const luaL_Reg methods[] = {{"add_input", add_input},
                                     {"add_param", add_param},
                                     {"add_stack", add_stack},
                                     {"add_op", add_op},
                                     {"add_loss", add_loss},
                                     {"enter", enter},
                                     {"leave", leave},
                                     {"freeze", freeze},
                                     {"cut", cut},
                                     {"value", value_info},
                                     {"inputs", inputs},
                                     {"params", params},
                                     {"find_param", find_param},
                                     {"losses", losses},
                                     {"chunks", chunks},
                                     {"flops", flops},
                                     {"tokens_per_sample", tokens_per_sample},
                                     {NULL, NULL}};
  static const luaL_Reg functions[] = {{"new", graph_lua_new}, {NULL, NULL}};
  luaL_newmetatable(L, GRAPH_MT);
  luaL_setfuncs(L, meta, 0);
  luaL_newlib(L, methods);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  luaL_newlib(L, functions);
  return 1;
}
