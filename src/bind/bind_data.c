/* Data sources as Lua objects: core.data.text, .tokens, .table, .random. Checks of options are in
 * lua/piper/data.lua. */
#include <lauxlib.h>
#include <stdlib.h>

#include "bind/bind.h"
#include "bind/bind_data.h"

#define DATA_MT "piper.Data"

typedef struct LuaData {
  DataSource *source;
} LuaData;

const DataSource *bind_check_data(lua_State *L, int idx) {
  LuaData *d = luaL_checkudata(L, idx, DATA_MT);
  if (d->source == NULL) luaL_error(L, "data: this source was not opened");
  return d->source;
}

static int data_gc(lua_State *L) {
  LuaData *d = luaL_checkudata(L, 1, DATA_MT);
  data_free(d->source);
  d->source = NULL;
  return 0;
}

static LuaData *push_data(lua_State *L) {
  LuaData *d = lua_newuserdatauv(L, sizeof *d, 0);
  d->source = NULL;
  luaL_setmetatable(L, DATA_MT);
  return d;
}

/* text({path, ...}, context, limit in bytes or nil) */
static int data_lua_text(lua_State *L) {
  const lua_Integer n = luaL_len(L, 1);
  const lua_Integer context = luaL_checkinteger(L, 2);
  const lua_Integer limit = luaL_optinteger(L, 3, INT64_MAX);
  /* The box for the array of strings; the strings stay alive in the table. */
  const char **paths = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *paths, 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_geti(L, 1, i + 1);
    paths[i] = luaL_checkstring(L, -1);
    lua_pop(L, 1);
  }
  LuaData *d = push_data(L);
  PiperErr err = {0};
  BIND_TRY(L, data_text(paths, (uint32_t)n, context, limit, &d->source, &err), &err);
  return 1;
}

/* tokens(path, width, context) */
static int data_lua_tokens(lua_State *L) {
  LuaData *d = push_data(L);
  PiperErr err = {0};
  const uint32_t width = (uint32_t)luaL_checkinteger(L, 2);
  BIND_TRY(L, data_tokens(luaL_checkstring(L, 1), width, luaL_checkinteger(L, 3), &d->source, &err),
           &err);
  return 1;
}

/* table(n_samples) */
static int data_lua_table(lua_State *L) {
  LuaData *d = push_data(L);
  PiperErr err = {0};
  BIND_TRY(L, data_table(luaL_checkinteger(L, 1), &d->source, &err), &err);
  return 1;
}

/* source:add(input, flat list of numbers, per_sample) */
static int data_lua_add(lua_State *L) {
  LuaData *d = luaL_checkudata(L, 1, DATA_MT);
  const char *input = luaL_checkstring(L, 2);
  const lua_Integer per_sample = luaL_checkinteger(L, 4), n = luaL_len(L, 3);
  if (n != per_sample * data_samples(d->source))
    return luaL_error(L, "data.table: %d values are not %d samples", (int)n,
                      (int)data_samples(d->source));
  double *values = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *values, 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_geti(L, 3, i + 1);
    values[i] = luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  PiperErr err = {0};
  BIND_TRY(L, data_table_add(d->source, input, values, per_sample, &err), &err);
  return 0;
}

static int data_lua_random(lua_State *L) {
  LuaData *d = push_data(L);
  PiperErr err = {0};
  BIND_TRY(L, data_random(&d->source, &err), &err);
  return 1;
}

/* source:samples() -> samples before it starts again; 0: never does */
static int data_lua_samples(lua_State *L) {
  lua_pushinteger(L, data_samples(bind_check_data(L, 1)));
  return 1;
}

static int data_lua_text_form(lua_State *L) {
  const DataSource *d = bind_check_data(L, 1);
  const int64_t n = data_samples(d);
  if (n > 0) lua_pushfstring(L, "data.%s: %I samples", data_name(d), (LUAI_UACINT)n);
  else lua_pushfstring(L, "data.%s: samples without end", data_name(d));
  return 1;
}

int luaopen_piper_core_data(lua_State *L) {
  static const luaL_Reg METHODS[] = {
      {"add", data_lua_add}, {"samples", data_lua_samples}, {NULL, NULL}};
  static const luaL_Reg FUNCTIONS[] = {
      {"text", data_lua_text},
      {"tokens", data_lua_tokens},
      {"table", data_lua_table},
      {"random", data_lua_random},
      {NULL, NULL},
  };
  luaL_newmetatable(L, DATA_MT);
  lua_pushcfunction(L, data_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushcfunction(L, data_lua_text_form);
  lua_setfield(L, -2, "__tostring");
  luaL_newlib(L, METHODS);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  luaL_newlib(L, FUNCTIONS);
  return 1;
}
