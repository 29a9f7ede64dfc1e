/* lua_modules.h - the Lua half of piper as bytes in the binary; lua/embed.sh writes the table. */
#ifndef PIPER_BIND_LUA_MODULES_H
#define PIPER_BIND_LUA_MODULES_H

#include <stddef.h>

typedef struct LuaModule {
  const char *name;          /* "piper.nn" */
  const char *file;          /* "nn.lua", below lua/piper/ */
  const unsigned char *text; /* source */
  size_t len;
} LuaModule;

extern const LuaModule lua_modules[]; /* ends with a row whose name is NULL */

#endif
