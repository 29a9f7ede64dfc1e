/* bind_system.h - what the Lua half asks of the system. */
#ifndef PIPER_BIND_BIND_SYSTEM_H
#define PIPER_BIND_BIND_SYSTEM_H

#include <lua.h>

int luaopen_piper_core_system(lua_State *L);

#endif
