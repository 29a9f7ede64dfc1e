/* bind_plan.h - plans as Lua objects. */
#ifndef PIPER_BIND_BIND_PLAN_H
#define PIPER_BIND_BIND_PLAN_H

#include <lua.h>

#include "plan/plan.h"

/* The plan at 'idx', or a Lua error. It lives as long as its userdata, which keeps its graph. */
Plan *bind_check_plan(lua_State *L, int idx);
int luaopen_piper_core_plan(lua_State *L);

#endif
