/* What the Lua half asks of the system: core.system. */
#include <lauxlib.h>
#include <time.h>
#include <unistd.h>

#include "bind/bind_system.h"

/* seconds() -> monotonic time */
static int system_seconds(lua_State *L) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  lua_pushnumber(L, (lua_Number)t.tv_sec + (lua_Number)t.tv_nsec * 1e-9);
  return 1;
}

/* stderr_is_terminal() -> boolean */
static int system_stderr_is_terminal(lua_State *L) {
  lua_pushboolean(L, isatty(STDERR_FILENO));
  return 1;
}

int luaopen_piper_core_system(lua_State *L) {
  static const luaL_Reg FUNCTIONS[] = {{"seconds", system_seconds},
                                       {"stderr_is_terminal", system_stderr_is_terminal},
                                       {NULL, NULL}};
  luaL_newlib(L, FUNCTIONS);
  return 1;
}
