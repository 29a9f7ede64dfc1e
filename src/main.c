/* piper - runs a Lua script with the library "piper" at hand. */
#include "config.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>

#include "bind/bind.h"

static int message_handler(lua_State *L) {
  const char *msg = lua_tostring(L, 1);
  luaL_traceback(L, L, msg != NULL ? msg : luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

static int run(lua_State *L) {
  char **argv = lua_touserdata(L, 1);
  luaL_openlibs(L);
  bind_open(L, getenv("PIPER_LUA"));
  lua_newtable(L);
  for (int i = 0; argv[i] != NULL; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - 1);
  }
  lua_setglobal(L, "arg");
  lua_pushcfunction(L, message_handler);
  int n = 0;
  if (luaL_loadfile(L, argv[1]) != LUA_OK) return lua_error(L);
  for (int i = 2; argv[1] != NULL && argv[i] != NULL; i++, n++) lua_pushstring(L, argv[i]);
  if (lua_pcall(L, n, 0, -n - 2) != LUA_OK) return lua_error(L);
  return 0;
}

int main(int argc, char **argv) {
  (void)argc;
  lua_State *L = luaL_newstate();
  if (L == NULL) return EXIT_FAILURE;
  lua_pushcfunction(L, run);
  lua_pushlightuserdata(L, argv);
  int st = lua_pcall(L, 1, 0, 0);
  if (st != LUA_OK) fprintf(stderr, "piper: %s\n", lua_tostring(L, -1));
  lua_close(L);
  return st == LUA_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
