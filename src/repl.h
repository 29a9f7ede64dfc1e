/* repl.h - the interactive session. */
#ifndef PIPER_REPL_H
#define PIPER_REPL_H

#include <lua.h>

/* Reads and runs until the end of input; errors are printed and the session goes on. The globals
 * piper, nn and schedules are there. Lines are edited when stdin and stdout are a terminal. */
void repl_run(lua_State *L);

#endif
