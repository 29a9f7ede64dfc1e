#include "bind/bind.h"

#include <lauxlib.h>
#include <lualib.h>

#include "tap.h"

/* Each reader as a function of Lua: reads field x of its table. */
static int read_int(lua_State *L) {
  lua_pushinteger(L, bind_int(L, 1, "f", "x", 1, 8));
  return 1;
}
static int read_opt_int(lua_State *L) {
  lua_pushinteger(L, bind_opt_int(L, 1, "f", "x", 1, 8, 5));
  return 1;
}
static int read_num(lua_State *L) {
  lua_pushnumber(L, bind_num(L, 1, "f", "x"));
  return 1;
}
static int read_opt_num(lua_State *L) {
  lua_pushnumber(L, bind_opt_num(L, 1, "f", "x", 0.5));
  return 1;
}
static int read_opt_bool(lua_State *L) {
  lua_pushboolean(L, bind_opt_bool(L, 1, "f", "x", true));
  return 1;
}
static int read_str(lua_State *L) {
  lua_pushstring(L, bind_str(L, 1, "f", "x"));
  return 1;
}
static int read_opt_str(lua_State *L) {
  lua_pushstring(L, bind_opt_str(L, 1, "f", "x", "none"));
  return 1;
}

/* A failure of the core, with its text. */
static int raise(lua_State *L) {
  PiperErr err = {0};
  err_set(&err, PIPER_EUSER, "%s", luaL_checkstring(L, 1));
  return bind_raise(L, &err);
}

/* Runs 'chunk' as script s.lua; its result or message as text, good until the next call. */
static const char *eval(lua_State *L, const char *chunk) {
  lua_settop(L, 0);
  if (luaL_loadbuffer(L, chunk, strlen(chunk), "@s.lua") == LUA_OK) lua_pcall(L, 0, 1, 0);
  return luaL_tolstring(L, -1, NULL);
}

int main(void) {
  static const luaL_Reg readers[] = {
      {"int", read_int},           {"opt_int", read_opt_int}, {"num", read_num},
      {"opt_num", read_opt_num},   {"str", read_str},         {"opt_str", read_opt_str},
      {"opt_bool", read_opt_bool}, {"raise", raise},          {NULL, NULL}};
  lua_State *L = luaL_newstate();
  if (L == NULL) bail("no memory");
  luaL_openlibs(L);
  lua_pushglobaltable(L);
  luaL_setfuncs(L, readers, 0);

#define GIVES(chunk, want) is_str(eval(L, chunk), want, "%s", chunk)
  GIVES("return int{x = 1}", "1");
  GIVES("return int{x = 8.0}", "8");
  GIVES("local v = int{x = 0} return v", "s.lua:1: f: field \"x\" is 0, less than 1");
  GIVES("\nlocal v = int{x = 9} return v", "s.lua:2: f: field \"x\" is 9, more than 8");
  GIVES("local v = int{x = 1.5} return v", "s.lua:1: f: field \"x\" is 1.5, not a whole number");
  GIVES("local v = int{x = '1'} return v", "s.lua:1: f: field \"x\" is \"1\", not a whole number");
  GIVES("local v = int{x = {}} return v", "s.lua:1: f: field \"x\" is a table, not a whole number");
  GIVES("local v = int{} return v", "s.lua:1: f: field \"x\" is missing: it is a whole number");
  GIVES("return opt_int{}", "5");
  GIVES("return opt_int{x = 2}", "2");
  GIVES("return num{x = 2.5}", "2.5");
  GIVES("local v = num{x = true} return v", "s.lua:1: f: field \"x\" is true, not a number");
  GIVES("return opt_num{}", "0.5");
  GIVES("local v = opt_num{x = 'a'} return v", "s.lua:1: f: field \"x\" is \"a\", not a number");
  GIVES("return opt_bool{}", "true");
  GIVES("return opt_bool{x = false}", "false");
  GIVES("local v = opt_bool{x = 0} return v", "s.lua:1: f: field \"x\" is 0, not true or false");
  GIVES("return str{x = 'cpu'}", "cpu");
  GIVES("local v = str{x = 1} return v", "s.lua:1: f: field \"x\" is 1, not a string");
  GIVES("return opt_str{}", "none");

  GIVES("local v = raise 'order: no' return v", "s.lua:1: order: no");
  GIVES("local v = raise 'train.lua:42: order: no' return v", "train.lua:42: order: no");
  GIVES("local v = raise 'step 42: no' return v", "s.lua:1: step 42: no");
  GIVES("local v = raise '' return v", "s.lua:1: ");
  lua_close(L);
  return done_testing();
}
