/* bind_directives.h - a strategy's list of directives (lua/piper/strategy.lua: canonical form,
 * checked there) as C structures. */
#ifndef PIPER_BIND_BIND_DIRECTIVES_H
#define PIPER_BIND_BIND_DIRECTIVES_H

#include <lua.h>

#include "base/arena.h"
#include "passes/directive.h"

/* Reads the list at 'idx'; everything is copied into 'arena'. Raises when memory runs out or the
 * list is not canonical. */
Strategy bind_read_strategy(lua_State *L, int idx, Arena *arena);
/* One filter likewise. */
Filter bind_read_filter(lua_State *L, int idx, Arena *arena);

#endif
