/* bind_dag.h - passes written in Lua, as the compiler calls them. */
#ifndef PIPER_BIND_BIND_DAG_H
#define PIPER_BIND_BIND_DAG_H

#include <lua.h>

#include "base/arena.h"
#include "passes/pipeline.h"

/* Makes the metatable of the box around a DAG; pushes nothing. */
void bind_open_dag(lua_State *L);

/* What a compilation needs to call passes; on the C stack of the caller, as long as it compiles. */
typedef struct LuaPasses {
  lua_State *L;
  const UserPass *at;
  int runs, boxes; /* stack: tables by pass: its function, the box around the DAG that it gets */
  int raised;      /* stack: what one of them raised */
  uint32_t failed; /* 1 + its index; 0: none did */
  int status;      /* of lua_pcall */
} LuaPasses;

/* Reads the list at 'idx' (nil: empty) of { name =, line =, after =, run = function(box) };
 * texts are copied into 'arena'. Leaves three values on the stack for 'p'. */
UserPasses bind_read_passes(lua_State *L, int idx, Arena *arena, LuaPasses *p);

/* Raises what stopped the compilation: what a pass raised, its name put in, or 'err'. */
int bind_raise_compile(LuaPasses *p, const PiperErr *err);

#endif
