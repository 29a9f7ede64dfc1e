/* bind_data.h - data sources as Lua objects. */
#ifndef PIPER_BIND_BIND_DATA_H
#define PIPER_BIND_BIND_DATA_H

#include <lua.h>

#include "runtime/data.h"

/* The source at 'idx', or a Lua error. It lives as long as its userdata. */
const DataSource *bind_check_data(lua_State *L, int idx);
int luaopen_piper_core_data(lua_State *L);

#endif
