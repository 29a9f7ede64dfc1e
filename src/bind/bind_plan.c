/* Plans as Lua objects: core.plan.compile(graph, directives, options) and the plan's methods. The
 * user's face of it, with option checks, is lua/piper/compile.lua. */
#include "bind/bind_plan.h"

#include <inttypes.h>
#include <lauxlib.h>
#include <stdlib.h>

#include "bind/bind.h"
#include "bind/bind_dag.h"
#include "bind/bind_directives.h"
#include "bind/bind_model.h"
#include "compile/compile.h"
#include "compile/explain.h"
#include "ir/dag_draw.h"
#include "plan/plan_comm.h"
#include "plan/plan_held.h"
#include "plan/plan_overlap.h"
#include "plan/plan_text.h"
#include "plan/plan_verify.h"

#define PLAN_MT "piper.Plan"
#define SCRATCH_MT "piper.Scratch"

typedef struct LuaPlan {
  Plan *plan; /* user value 1: the graph's userdata; 2: that of the plan whose parameters it uses */
} LuaPlan;

/* What a compilation holds while Lua calls may still raise. */
typedef struct Scratch {
  Arena *arena;
  char *text; /* malloc'ed */
  CommRows rows;
  Overlap overlap;
} Scratch;

static int scratch_gc(lua_State *L) {
  Scratch *s = luaL_checkudata(L, 1, SCRATCH_MT);
  arena_free(s->arena);
  free(s->text);
  vec_free(&s->rows);
  plan_overlap_free(&s->overlap);
  *s = (Scratch){0};
  return 0;
}

static Scratch *push_scratch(lua_State *L) {
  Scratch *s = lua_newuserdatauv(L, sizeof *s, 0);
  *s = (Scratch){0};
  luaL_setmetatable(L, SCRATCH_MT);
  return s;
}

Plan *bind_check_plan(lua_State *L, int idx) {
  LuaPlan *p = luaL_checkudata(L, idx, PLAN_MT);
  if (p->plan == NULL) luaL_error(L, "this plan was not compiled");
  return p->plan;
}

static int plan_gc(lua_State *L) {
  LuaPlan *p = luaL_checkudata(L, 1, PLAN_MT);
  plan_free(p->plan);
  p->plan = NULL;
  return 0;
}

/* Pushes and frees a malloc'ed text; the box on the stack frees it if the push raises. */
static int push_text(lua_State *L, PiperStatus (*make)(const Plan *, char **, PiperErr *)) {
  const Plan *plan = bind_check_plan(L, 1);
  Scratch *s = push_scratch(L);
  PiperErr err = {0};
  BIND_TRY(L, make(plan, &s->text, &err), &err);
  lua_pushstring(L, s->text);
  return 1;
}

/* explain(plan, directives, filter, or an action such as "0B1") -> text; false: it is no action */
static int plan_lua_explain(lua_State *L) {
  const Plan *plan = bind_check_plan(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  ExplainAction action;
  const char *name = lua_type(L, 3) == LUA_TSTRING ? lua_tostring(L, 3) : NULL;
  if (name == NULL) luaL_checktype(L, 3, LUA_TTABLE);
  if (name != NULL && !explain_parse_action(name, &action)) {
    lua_pushboolean(L, false);
    return 1;
  }
  Scratch *s = push_scratch(L);
  s->arena = arena_new();
  if (s->arena == NULL) return luaL_error(L, "explain: not enough memory");
  const Strategy strategy = bind_read_strategy(L, 2, s->arena);
  const Filter filter = name != NULL ? (Filter){0} : bind_read_filter(L, 3, s->arena);
  PiperErr err = {0}, found = {0};
  const PiperStatus st =
      plan_explain(plan, &strategy, &filter, name != NULL ? &action : NULL, &s->text, &found);
  if (st != PIPER_OK)
    err_set(&err, st, "explain: %s%s%s", name != NULL ? name : "", name != NULL ? ": " : "", found.text);
  BIND_TRY(L, st, &err);
  lua_pushstring(L, s->text);
  return 1;
}

static PiperStatus plan_list(const Plan *p, char **out, PiperErr *err) {
  return dag_list(p->dag, p->order, p->n_order, out, err);
}

/* dot(plan, filter or nil) */
static int plan_lua_dot(lua_State *L) {
  const Plan *plan = bind_check_plan(L, 1);
  Scratch *s = push_scratch(L);
  s->arena = arena_new();
  if (s->arena == NULL) return luaL_error(L, "dot: not enough memory");
  const bool part = !lua_isnoneornil(L, 2) && lua_istable(L, 2);
  const Filter filter = part ? bind_read_filter(L, 2, s->arena) : (Filter){0};
  PiperErr err = {0}, found = {0};
  const PiperStatus st = dag_dot(plan->dag, part ? &filter : NULL, &s->text, &found);
  if (st != PIPER_OK) err_set(&err, st, "dot: %s", found.text);
  BIND_TRY(L, st, &err);
  lua_pushstring(L, s->text);
  return 1;
}

static int plan_lua_list(lua_State *L) { return push_text(L, plan_list); }
static int plan_lua_actions(lua_State *L) { return push_text(L, plan_actions); }
static int plan_lua_table(lua_State *L) { return push_text(L, plan_table); }

static OptimizerSpec read_optimizer(lua_State *L, int options) {
  OptimizerSpec o = {0};
  if (lua_getfield(L, options, "optimizer") == LUA_TTABLE) {
    const int at = lua_gettop(L);
    static const char *const KINDS[] = {"sgd", "adamw", NULL};
    lua_getfield(L, at, "kind");
    o.kind = luaL_checkoption(L, -1, NULL, KINDS) == 0 ? OPTIMIZER_SGD : OPTIMIZER_ADAMW;
    lua_pop(L, 1);
    o.lr = bind_num(L, at, "optimizer", "lr");
    o.momentum = bind_opt_num(L, at, "optimizer", "momentum", 0);
    o.beta1 = bind_opt_num(L, at, "optimizer", "beta1", 0);
    o.beta2 = bind_opt_num(L, at, "optimizer", "beta2", 0);
    o.eps = bind_opt_num(L, at, "optimizer", "eps", 0);
    o.weight_decay = bind_opt_num(L, at, "optimizer", "weight_decay", 0);
  }
  lua_pop(L, 1);
  return o;
}

/* compile(graph, directives, options) -> plan, text of the DAG after 'dump_after' or nil */
static int plan_lua_compile(lua_State *L) {
  static const char *const RULES[] = {"best", "critical_path", "downstream", NULL};
  const Graph *graph = bind_check_graph(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  CompileOptions options = {
      .batch = bind_int(L, 3, "compile", "batch", 1, INT32_MAX),
      .plan.dtype = dtype_parse(bind_str(L, 3, "compile", "dtype")),
      .plan.optimizer = read_optimizer(L, 3),
      .plan.clip_norm = bind_opt_num(L, 3, "compile", "clip_norm", 0),
      .plan.single_stream = bind_opt_bool(L, 3, "compile", "single_stream", false),
      .plan.threads_per_rank =
          (uint32_t)bind_opt_int(L, 3, "compile", "threads_per_rank", 0, 1024, 0),
      .memory_limit = (uint64_t)bind_opt_int(L, 3, "compile", "memory_limit", 0, INT64_MAX, 0),
      .verify = bind_opt_bool(L, 3, "compile", "verify", false),
      .dump_after = bind_opt_str(L, 3, "compile", "dump_after", NULL),
  };
  static const char *const FORMS[] = {"text", "list", "dot", NULL};
  lua_getfield(L, 3, "dump_form");
  options.dump_form = (DumpForm)luaL_checkoption(L, -1, "text", FORMS);
  lua_pop(L, 1);
  lua_getfield(L, 3, "order_rule");
  options.order_rule = (OrderRule)luaL_checkoption(L, -1, "best", RULES);
  lua_pop(L, 1);

  LuaPlan *self = lua_newuserdatauv(L, sizeof *self, 2);
  self->plan = NULL;
  luaL_setmetatable(L, PLAN_MT);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  if (lua_getfield(L, 3, "trains") != LUA_TNIL) {
    options.trains = bind_check_plan(L, -1);
    lua_setiuservalue(L, -2, 2);
  } else {
    lua_pop(L, 1);
  }
  Scratch *s = push_scratch(L);
  s->arena = arena_new();
  if (s->arena == NULL) return luaL_error(L, "compile: not enough memory");
  const Strategy strategy = bind_read_strategy(L, 2, s->arena);
  const int plan = lua_gettop(L) - 1;
  Filter dump_filter;
  if (lua_getfield(L, 3, "dump_filter") != LUA_TNIL) {
    dump_filter = bind_read_filter(L, lua_gettop(L), s->arena);
    options.dump_filter = &dump_filter;
  }
  lua_pop(L, 1);
  LuaPasses passes;
  lua_getfield(L, 3, "passes");
  options.user = bind_read_passes(L, -1, s->arena, &passes);
  PiperErr err = {0};
  if (compile_plan(graph, &strategy, &options, &self->plan, &s->text, &err) != PIPER_OK)
    return bind_raise_compile(&passes, &err);
  lua_pushvalue(L, plan);
  if (s->text != NULL) lua_pushstring(L, s->text);
  else lua_pushnil(L);
  return 2;
}

/* Sets t[name] of the table on top. */
static void set_int(lua_State *L, const char *name, uint64_t v) {
  lua_pushinteger(L, (lua_Integer)v);
  lua_setfield(L, -2, name);
}

/* {rank -> { params =, ..., peak = }}, bytes */
static int plan_lua_memory(lua_State *L) {
  const Plan *plan = bind_check_plan(L, 1);
  lua_createtable(L, 0, (int)plan->n_ranks);
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    const RankPlan *rank = &plan->ranks[r];
    lua_createtable(L, 0, MEM_COUNT + 1);
    for (int c = 0; c < MEM_COUNT; c++) set_int(L, MEM_NAME[c], rank->at_peak[c]);
    set_int(L, "peak", rank->arena_bytes);
    lua_seti(L, -2, rank->rank);
  }
  return 1;
}

/* {rank -> pairs of stage and microbatch} */
static int plan_lua_held(lua_State *L) {
  const Plan *plan = bind_check_plan(L, 1);
  lua_createtable(L, 0, (int)plan->n_ranks);
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    uint32_t most = 0;
    PiperErr err = {0};
    const uint32_t like = plan->ranks[r].like; /* its list says the same */
    if (like == r) {
      BIND_TRY(L, plan_held(plan, r, &most, &err), &err);
      lua_pushinteger(L, most);
    } else {
      lua_geti(L, -1, plan->ranks[like].rank);
    }
    lua_seti(L, -2, plan->ranks[r].rank);
  }
  return 1;
}

/* The i-th row as a table on top. */
static void push_comm_row(lua_State *L, const Plan *plan, const CommRow *row) {
  char name[256];
  lua_createtable(L, 0, 7);
  lua_pushstring(L, COMM_WHAT_NAME[row->what]);
  lua_setfield(L, -2, "what");
  lua_pushstring(L, row->group != 0 ? INSTR_NAME[row->kind] : "transfer");
  lua_setfield(L, -2, "kind");
  lua_pushstring(L, row->stream);
  lua_setfield(L, -2, "stream");
  if (row->bucket != 0) {
    plan_bucket_name(plan, row->bucket, name, sizeof name);
    lua_pushstring(L, name);
    lua_setfield(L, -2, "bucket");
  }
  set_int(L, "calls", row->calls);
  set_int(L, "bytes", row->bytes);
  const int32_t pair[2] = {row->from, row->to};
  const uint32_t n = row->group != 0 ? devsets_size(plan->dag->devsets, row->group) : 2;
  const int32_t *ranks = row->group != 0 ? devsets_ranks(plan->dag->devsets, row->group) : pair;
  lua_createtable(L, (int)n, 0);
  for (uint32_t j = 0; j < n; j++) {
    lua_pushinteger(L, ranks[j]);
    lua_seti(L, -2, (lua_Integer)j + 1);
  }
  lua_setfield(L, -2, "devices");
}

/* {{ bucket = or nil, what =, kind =, stream =, devices =, calls =, bytes = }, ...} */
static int plan_lua_communication(lua_State *L) {
  const Plan *plan = bind_check_plan(L, 1);
  Scratch *s = push_scratch(L);
  PiperErr err = {0};
  BIND_TRY(L, plan_communication(plan, &s->rows, &err), &err);
  lua_createtable(L, (int)s->rows.n, 0);
  for (size_t k = 0; k < s->rows.n; k++) {
    push_comm_row(L, plan, &s->rows.at[k]);
    lua_seti(L, -2, (lua_Integer)k + 1);
  }
  return 1;
}

static void set_seconds(lua_State *L, const char *name, double v) {
  lua_pushnumber(L, v);
  lua_setfield(L, -2, name);
}

/* t[name] = "0F1 (train.lua:12)" of an instruction; nothing where there is none. */
static void set_instr(lua_State *L, const Plan *plan, const char *name, uint32_t rank, uint32_t instr) {
  char label[256];
  if (instr == UINT32_MAX) return;
  plan_overlap_label(plan, rank, instr, label, sizeof label);
  lua_pushstring(L, label);
  lua_setfield(L, -2, name);
}

static void push_exposed(lua_State *L, const Plan *plan, const OverlapExposed *o) {
  const RankPlan *r = &plan->ranks[o->rank];
  const Instr *x = &r->instrs.at[o->instr];
  char why[768];
  lua_createtable(L, 0, 11);
  set_int(L, "rank", (uint64_t)r->rank);
  set_instr(L, plan, "op", o->rank, o->instr);
  lua_pushstring(L, plan_kind_name(x->kind));
  lua_setfield(L, -2, "kind");
  lua_pushstring(L, r->streams.at[x->stream].name);
  lua_setfield(L, -2, "stream");
  set_seconds(L, "seconds", o->seconds);
  set_seconds(L, "exposed", o->exposed);
  set_seconds(L, "late", o->late);
  lua_pushstring(L, OVERLAP_CAUSE_NAME[o->cause]);
  lua_setfield(L, -2, "cause");
  set_instr(L, plan, "waiting", o->rank, o->waiting);
  set_instr(L, plan, "blocker", o->blocker_rank, o->blocker);
  if (o->line != 0) {
    lua_pushstring(L, dag_line(plan->dag, o->line));
    lua_setfield(L, -2, "line");
  }
  plan_overlap_why(plan, o, why, sizeof why);
  lua_pushstring(L, why);
  lua_setfield(L, -2, "why");
}

/* {{ kind =, stream =, calls =, seconds =, hidden = }, ..., exposed = {{ rank =, op =, ... }, ...}} */
static int plan_lua_overlap(lua_State *L) {
  const Plan *plan = bind_check_plan(L, 1);
  Scratch *s = push_scratch(L);
  PiperErr err = {0};
  BIND_TRY(L, plan_overlap(plan, &s->overlap, &err), &err);
  lua_createtable(L, (int)s->overlap.rows.n, 1);
  for (size_t k = 0; k < s->overlap.rows.n; k++) {
    const OverlapRow *r = &s->overlap.rows.at[k];
    lua_createtable(L, 0, 5);
    lua_pushstring(L, plan_kind_name(r->kind));
    lua_setfield(L, -2, "kind");
    lua_pushlstring(L, r->stream, r->stream_n);
    lua_setfield(L, -2, "stream");
    set_int(L, "calls", r->calls);
    set_seconds(L, "seconds", r->seconds);
    set_seconds(L, "hidden", r->hidden);
    lua_seti(L, -2, (lua_Integer)k + 1);
  }
  lua_createtable(L, (int)s->overlap.n_worst, 0);
  for (uint32_t k = 0; k < s->overlap.n_worst; k++) {
    push_exposed(L, plan, &s->overlap.worst[k]);
    lua_seti(L, -2, (lua_Integer)k + 1);
  }
  lua_setfield(L, -2, "exposed");
  return 1;
}

static int plan_lua_verify(lua_State *L) {
  const Plan *plan = bind_check_plan(L, 1);
  PlanProof proof = {0};
  PiperErr err = {0};
  BIND_TRY(L, plan_verify(plan, &proof, &err), &err);
  lua_createtable(L, 0, 4);
  set_int(L, "instructions", proof.instrs);
  set_int(L, "transfers", proof.pairs);
  set_int(L, "collectives", proof.collectives);
  set_int(L, "conflicts", proof.conflicts);
  return 1;
}

/* Bytes that verify needs. */
static int plan_lua_verify_bytes(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)plan_verify_bytes(bind_check_plan(L, 1)));
  return 1;
}

static int plan_lua_digest(lua_State *L) {
  char hex[20];
  snprintf(hex, sizeof hex, "%016" PRIx64, bind_check_plan(L, 1)->digest);
  lua_pushstring(L, hex);
  return 1;
}

/* { batch =, dtype =, nodes =, order_rule =, seconds =, ranks = {0, 1, ...} } */
static int plan_lua_info(lua_State *L) {
  const Plan *plan = bind_check_plan(L, 1);
  lua_newtable(L);
  set_int(L, "batch", (uint64_t)plan->dag->batch);
  set_int(L, "nodes", plan->n_order);
  lua_pushstring(L, dtype_name(plan->options.dtype));
  lua_setfield(L, -2, "dtype");
  lua_pushstring(L, plan->order_rule);
  lua_setfield(L, -2, "order_rule");
  lua_pushnumber(L, plan->predicted_seconds);
  lua_setfield(L, -2, "seconds");
  lua_createtable(L, (int)plan->n_ranks, 0);
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    lua_pushinteger(L, plan->ranks[r].rank);
    lua_seti(L, -2, (lua_Integer)r + 1);
  }
  lua_setfield(L, -2, "ranks");
  return 1;
}

/* pass_names() -> { "build", "split", ... }, in the order in which they run */
static int plan_lua_pass_names(lua_State *L) {
  lua_newtable(L);
  for (uint32_t i = 0; passes_name(i) != NULL; i++) {
    lua_pushstring(L, passes_name(i));
    lua_seti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

int luaopen_piper_core_plan(lua_State *L) {
  static const luaL_Reg METHODS[] = {
      {"actions", plan_lua_actions},
      {"table", plan_lua_table},
      {"list", plan_lua_list},
      {"dot", plan_lua_dot},
      {"memory", plan_lua_memory},
      {"held", plan_lua_held},
      {"explain", plan_lua_explain},
      {"verify", plan_lua_verify},
      {"verify_bytes", plan_lua_verify_bytes},
      {"digest", plan_lua_digest},
      {"info", plan_lua_info},
      {"communication", plan_lua_communication},
      {"overlap", plan_lua_overlap},
      {NULL, NULL},
  };
  luaL_newmetatable(L, SCRATCH_MT);
  lua_pushcfunction(L, scratch_gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
  luaL_newmetatable(L, PLAN_MT);
  lua_pushcfunction(L, plan_gc);
  lua_setfield(L, -2, "__gc");
  luaL_newlib(L, METHODS);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushcfunction(L, plan_lua_compile);
  lua_setfield(L, -2, "compile");
  lua_pushcfunction(L, plan_lua_pass_names);
  lua_setfield(L, -2, "pass_names");
  bind_open_dag(L);
  return 1;
}
