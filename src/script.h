/* script.h - running chunks: protected calls with tracebacks that Ctrl-C can end. Main thread
 * only. */
#ifndef PIPER_SCRIPT_H
#define PIPER_SCRIPT_H

#include <lua.h>
#include <stdbool.h>

/* Once for a state: coroutines that Ctrl-C reaches too. */
void script_open(lua_State *L);

/* Calls the function below its 'n_args' arguments, like lua_pcall; a failure leaves a message with
 * a traceback of the frames of scripts. Ctrl-C raises "interrupted" in the script (see base/interrupt.h for C code); a
 * second one kills the process. Returns Lua's status. */
int script_call(lua_State *L, int n_args, int n_results);

/* Takes a failure's message off the stack and prints it on stderr, "program: " (may be NULL) in
 * front. Returns whether 'status' is LUA_OK; nothing happens then. */
bool script_report(lua_State *L, int status, const char *program);

/* SIGINT calls 'handler' from now on, and interrupts system calls. Gives the old action back
 * through 'old', unless that is NULL. */
struct sigaction;
void script_catch_interrupt(void (*handler)(int), struct sigaction *old);

#endif
