/* What the Lua half asks of the system: core.system. */
#include <lauxlib.h>
#include <sys/stat.h>
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

/* replaceable(path) -> boolean: a file may be renamed to this name: there is none, or a regular one. A
 * device, a pipe or a link has to be written to instead. */
static int system_replaceable(lua_State *L) {
  struct stat st;
  lua_pushboolean(L, lstat(luaL_checkstring(L, 1), &st) != 0 || S_ISREG(st.st_mode));
  return 1;
}

int luaopen_piper_core_system(lua_State *L) {
  static const luaL_Reg FUNCTIONS[] = {{"seconds", system_seconds},
                                       {"stderr_is_terminal", system_stderr_is_terminal},
                                       {"replaceable", system_replaceable},
                                       {NULL, NULL}};
  luaL_newlib(L, FUNCTIONS);
  return 1;
}
