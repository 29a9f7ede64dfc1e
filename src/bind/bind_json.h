/* bind_json.h - JSON texts as Lua values: core.json. */
#ifndef PIPER_BIND_BIND_JSON_H
#define PIPER_BIND_BIND_JSON_H

#include <lua.h>

int luaopen_piper_core_json(lua_State *L);

#endif
