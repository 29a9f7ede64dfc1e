/* bind_run.h - runs of plans as Lua objects. */
#ifndef PIPER_BIND_BIND_RUN_H
#define PIPER_BIND_BIND_RUN_H

#include <lua.h>

int luaopen_piper_core_run(lua_State *L);

#endif
