/* Runs as Lua objects: core.run.open(plan, data, options) and the run's methods. The user's face of
 * it is lua/piper/train.lua. */
#include "bind/bind_run.h"

#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "bind/bind.h"
#include "bind/bind_data.h"
#include "bind/bind_plan.h"
#include "runtime/compare.h"
#include "runtime/job.h"

#define RUN_MT "piper.Run"

typedef struct LuaRun {
  const Plan *plan;         /* user value 1 */
  const DataSource *source; /* user value 2 */
  const struct LuaRun *trains; /* user value 3; NULL: its parameters are its own */
  Job *job;
  uint64_t seed;
  void **batch;             /* one array of a whole batch's samples for each input */
} LuaRun;

static void run_release(LuaRun *run) {
  job_close(run->job);
  run->job = NULL;
  if (run->batch != NULL)
    for (size_t i = 0; i < run->plan->graph->inputs.n; i++) free(run->batch[i]);
  free(run->batch);
  run->batch = NULL;
}

static int run_lua_close(lua_State *L) {
  run_release(luaL_checkudata(L, 1, RUN_MT));
  return 0;
}

static LuaRun *check_run(lua_State *L, int idx) {
  LuaRun *run = luaL_checkudata(L, idx, RUN_MT);
  if (run->job == NULL) bind_fail(L, "run: it is closed");
  return run;
}

/* What the run asks its source for, for input i (samples to be filled in). */
static DataRequest request_for(const LuaRun *run, size_t i) {
  const Graph *g = run->plan->graph;
  const Input *in = &g->inputs.at[i];
  const Value *v = graph_value(g, in->value);
  return (DataRequest){
      .input = graph_name(g, in->name),
      .dtype = dtype_concrete(v->dtype, run->plan->options.dtype),
      .per_sample = shape_elements_per_sample(&v->shape),
      .limit = in->limit,
      .ignores = in->ignores,
      .ignore = in->ignore,
      .seed = run->seed,
  };
}

/* The source has every input of the model, of the right size; makes room for the batches. */
static PiperStatus prepare_inputs(LuaRun *run, PiperErr *err) {
  const Graph *g = run->plan->graph;
  const char *where = run->trains != NULL ? "evaluate" : "train";
  run->batch = calloc(g->inputs.n + 1, sizeof *run->batch);
  if (run->batch == NULL) return err_nomem(err, where);
  for (size_t i = 1; i < g->inputs.n; i++) {
    const DataRequest r = request_for(run, i);
    const int64_t has = data_per_sample(run->source, r.input);
    if (has == 0)
      return err_set(err, PIPER_EUSER, "%s: the model's input \"%s\" is not in the data (%s)",
                     where, r.input, data_name(run->source));
    if (has > 0 && has != r.per_sample)
      return err_set(err, PIPER_EUSER,
                     "%s: the model's input \"%s\" takes %lld values a sample, the data (%s) has %lld",
                     where, r.input, (long long)r.per_sample, data_name(run->source), (long long)has);
    if (data_is_ids(run->source) && r.dtype != DT_I32)
      return err_set(err, PIPER_EUSER, "%s: the input \"%s\" is %s; data.%s gives i32", where,
                     r.input, dtype_name(r.dtype), data_name(run->source));
    const size_t bytes = (size_t)(r.per_sample * run->plan->dag->batch) * dtype_bytes(r.dtype);
    run->batch[i] = malloc(bytes ? bytes : 1);
    if (run->batch[i] == NULL) return err_nomem(err, where);
  }
  return PIPER_OK;
}

/* open(plan, data, seed, the run whose parameters are used, or nil, whether PIPER_FAULT has to be about
 * this plan) */
static int run_lua_open(lua_State *L) {
  const Plan *plan = bind_check_plan(L, 1);
  const DataSource *source = bind_check_data(L, 2);
  const lua_Integer seed = luaL_checkinteger(L, 3);
  LuaRun *trains = lua_isnoneornil(L, 4) ? NULL : check_run(L, 4);
  const bool faults_exist = lua_toboolean(L, 5);
  LuaRun *run = lua_newuserdatauv(L, sizeof *run, 3);
  *run = (LuaRun){.plan = plan, .source = source, .trains = trains, .seed = (uint64_t)seed};
  luaL_setmetatable(L, RUN_MT);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  lua_pushvalue(L, 2);
  lua_setiuservalue(L, -2, 2);
  if (trains != NULL) {
    lua_pushvalue(L, 4);
    lua_setiuservalue(L, -2, 3);
  }
  PiperErr err = {0};
  BIND_TRY(L, prepare_inputs(run, &err), &err);
  const JobConfig config = {.seed = run->seed,
                            .trains = trains != NULL ? trains->job : NULL,
                            .faults_exist = faults_exist};
  BIND_TRY(L, job_open(plan, &config, &run->job, &err), &err);
  return 1;
}

static PiperStatus run_step(LuaRun *run, int64_t step, double lr, double *metrics, PiperErr *err) {
  const Graph *g = run->plan->graph;
  const int64_t batch = run->plan->dag->batch;
  for (size_t i = 1; i < g->inputs.n; i++) {
    DataRequest r = request_for(run, i);
    r.first = (step - 1) * batch;
    r.n = batch;
    TRY(data_fill(run->source, &r, run->batch[i], err));
  }
  const JobStep s = {
      .step = step, .lr = lr, .seed = run->seed, .inputs = (const void *const *)run->batch};
  return job_step(run->job, &s, metrics, err);
}

/* run:step(step, lr) -> { loss terms }, gradient norm, dropped choices of experts */
static int run_lua_step(lua_State *L) {
  LuaRun *run = check_run(L, 1);
  const lua_Integer step = luaL_checkinteger(L, 2);
  const lua_Number lr = luaL_checknumber(L, 3);
  const size_t n_losses = run->plan->graph->losses.n - 1;
  const Graph *g = run->plan->graph;
  double *metrics = lua_newuserdatauv(L, graph_n_metrics(g) * sizeof *metrics, 0);
  PiperErr err = {0};
  BIND_TRY(L, run_step(run, step, lr, metrics, &err), &err);
  lua_createtable(L, (int)n_losses, 0);
  for (size_t i = 0; i < n_losses; i++) {
    lua_pushnumber(L, metrics[i]);
    lua_seti(L, -2, (lua_Integer)i + 1);
  }
  lua_pushnumber(L, metrics[graph_metric_norm(g)]);
  lua_pushinteger(L, (lua_Integer)metrics[graph_metric_dropped(g)]);
  return 3;
}

/* run:counts() -> for each loss, how many targets the last step divided it by; false: it does not */
static int run_lua_counts(lua_State *L) {
  LuaRun *run = check_run(L, 1);
  const uint32_t n = (uint32_t)run->plan->graph->losses.n - 1;
  lua_createtable(L, (int)n, 0);
  for (uint32_t l = 1; l <= n; l++) {
    double count;
    PiperErr err = {0};
    BIND_TRY(L, job_loss_count(run->job, l, &count, &err), &err);
    if (count >= 0) lua_pushnumber(L, count);
    else lua_pushboolean(L, false);
    lua_seti(L, -2, l);
  }
  return 1;
}

/* The parameter whose name is argument 2; 'where' begins messages. */
static ParamId check_param(lua_State *L, const LuaRun *run, const char *where) {
  const Graph *g = run->plan->graph;
  size_t len;
  const char *name = luaL_checklstring(L, 2, &len);
  const uint32_t id = strlen(name) == len ? intern_find(g->names, name) : 0;
  Nearest near = {0};
  for (uint32_t p = 1; p < g->params.n; p++) {
    if (id != 0 && g->params.at[p].name == id) return (ParamId){p};
    nearest_try(&near, name, graph_name(g, g->params.at[p].name));
  }
  const char *meant =
      near.best != NULL ? lua_pushfstring(L, " (did you mean \"%s\"?)", near.best) : "";
  bind_fail(L, "%s: the model has no parameter %s%s", where, bind_show(L, 2), meant);
  return (ParamId){0};
}

typedef PiperStatus (*Getter)(Job *, ParamId, double *, PiperErr *);

/* -> { shape = { ... }, flat values } */
static int push_tensor(lua_State *L, Getter get, const char *where) {
  LuaRun *run = check_run(L, 1);
  const ParamId p = check_param(L, run, where);
  const Shape *shape = &graph_param(run->plan->graph, p)->shape;
  const int64_t n = shape_elements(shape, 1);
  double *values = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *values, 0);
  PiperErr err = {0};
  BIND_TRY(L, get(run->job, p, values, &err), &err);
  lua_createtable(L, (int)n, 1);
  for (int64_t i = 0; i < n; i++) {
    lua_pushnumber(L, values[i]);
    lua_seti(L, -2, i + 1);
  }
  lua_createtable(L, shape->rank, 0);
  for (int i = 0; i < shape->rank; i++) {
    lua_pushinteger(L, shape->dim[i]);
    lua_seti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "shape");
  return 1;
}

static int run_lua_param(lua_State *L) { return push_tensor(L, job_get_param, "params"); }
static int run_lua_grad(lua_State *L) { return push_tensor(L, job_get_grad, "gradients"); }

/* run:set(name, flat list) */
static int run_lua_set(lua_State *L) {
  LuaRun *run = check_run(L, 1);
  const ParamId p = check_param(L, run, "set_params");
  luaL_checktype(L, 3, LUA_TTABLE);
  const int64_t n = shape_elements(&graph_param(run->plan->graph, p)->shape, 1);
  if (luaL_len(L, 3) != n)
    return bind_fail(L, "set_params: \"%s\" has %d elements, not %d", lua_tostring(L, 2), (int)n,
                     (int)luaL_len(L, 3));
  double *values = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *values, 0);
  for (int64_t i = 0; i < n; i++) {
    if (lua_geti(L, 3, i + 1) != LUA_TNUMBER)
      return bind_fail(L, "set_params: element %d of \"%s\" is %s, not a number", (int)(i + 1),
                       lua_tostring(L, 2), bind_show(L, -1));
    values[i] = lua_tonumber(L, -1);
    lua_pop(L, 1);
  }
  PiperErr err = {0};
  BIND_TRY(L, job_set_param(run->job, p, values, &err), &err);
  return 0;
}

/* As allocated, in the form of plan:memory(). */
static int run_lua_memory(lua_State *L) {
  LuaRun *run = check_run(L, 1);
  lua_createtable(L, 0, (int)run->plan->n_ranks);
  for (uint32_t r = 0; r < run->plan->n_ranks; r++) {
    const int32_t rank = run->plan->ranks[r].rank;
    uint64_t bytes[MEM_COUNT], peak = 0;
    job_memory(run->job, rank, bytes);
    lua_createtable(L, 0, MEM_COUNT + 1);
    for (int c = 0; c < MEM_COUNT; c++) {
      peak += bytes[c];
      lua_pushinteger(L, (lua_Integer)bytes[c]);
      lua_setfield(L, -2, MEM_NAME[c]);
    }
    lua_pushinteger(L, (lua_Integer)peak);
    lua_setfield(L, -2, "peak");
    lua_seti(L, -2, rank);
  }
  return 1;
}

/* run:check_replicas(): raises where two holders of a parameter differ in a bit */
static int run_lua_check_replicas(lua_State *L) {
  LuaRun *run = check_run(L, 1);
  PiperErr err = {0};
  BIND_TRY(L, job_replicas_equal(run->job, &err), &err);
  return 0;
}

/* compare(run a, run b, "params" | "grads") -> largest relative error, name of the parameter or nil */
static int run_lua_compare(lua_State *L) {
  static const char *const WHAT[] = {"params", "grads", NULL};
  LuaRun *a = check_run(L, 1), *b = check_run(L, 2);
  const Graph *g = a->plan->graph;
  if (g != b->plan->graph) return luaL_error(L, "compare: the runs are of different models");
  Difference d;
  PiperErr err = {0};
  const CompareWhat what = (CompareWhat)luaL_checkoption(L, 3, NULL, WHAT);
  BIND_TRY(L, compare_jobs(g, a->job, b->job, what, &d, &err), &err);
  lua_pushnumber(L, d.worst);
  if (d.param.i == 0) return 1;
  lua_pushstring(L, graph_name(g, graph_param(g, d.param)->name));
  return 2;
}

int luaopen_piper_core_run(lua_State *L) {
  static const luaL_Reg METHODS[] = {
      {"step", run_lua_step},     {"counts", run_lua_counts},     {"param", run_lua_param},
      {"grad", run_lua_grad},     {"set", run_lua_set},
      {"memory", run_lua_memory}, {"check_replicas", run_lua_check_replicas},
      {"close", run_lua_close},   {NULL, NULL},
  };
  static const luaL_Reg FUNCTIONS[] = {
      {"open", run_lua_open}, {"compare", run_lua_compare}, {NULL, NULL}};
  luaL_newmetatable(L, RUN_MT);
  lua_pushcfunction(L, run_lua_close);
  lua_setfield(L, -2, "__gc");
  luaL_newlib(L, METHODS);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  luaL_newlib(L, FUNCTIONS);
  return 1;
}
