/* bind_model.h - op graphs as Lua objects (core.graph). */
#ifndef PIPER_BIND_BIND_MODEL_H
#define PIPER_BIND_BIND_MODEL_H

#include <lua.h>

#include "ir/graph.h"

int luaopen_piper_core_graph(lua_State *L);

/* The graph at 'idx', cut, or a Lua error. It lives as long as its userdata: keep that one. */
const Graph *bind_check_graph(lua_State *L, int idx);

#endif
