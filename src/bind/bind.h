/* bind.h - the core as Lua modules: opening it, raising errors, reading options.
 *
 * Every bind_* function that takes a lua_State may raise a Lua error (longjmp), unless it says
 * otherwise. */
#ifndef PIPER_BIND_BIND_H
#define PIPER_BIND_BIND_H

#include <lua.h>
#include <stdbool.h>

#include "base/err.h"

/* Makes require find "piper", "piper.*" and "piper.core": Lua files from the binary, or from
 * <dir>/piper/ where 'dir' (borrowed for this call; NULL: none) is given. */
void bind_open(lua_State *L, const char *dir);

int luaopen_piper_core(lua_State *L);

/* Raise. The message is blamed on the first stack frame outside the library: "file:line: " is put
 * in front, unless the text already starts with a position. They return only in form. */
int bind_raise(lua_State *L, const PiperErr *err);
int bind_fail(lua_State *L, const char *fmt, ...); /* formats of lua_pushfstring */

/* How long the position is that a message starts with, "file:12: "; 0: it has none. */
size_t bind_position(const char *text);

/* Pushes the value at 'idx' as a message shows it: a string quoted, cut where it is long, without
 * control characters; of tables and the like only the type. */
const char *bind_show(lua_State *L, int idx);

/* The registry holds the last message that bind_raise, bind_fail or check.fail raised here. */
#define BIND_BLAMED "piper.blamed"

/* Fills 'ar' (from lua_getstack) with source and line; is it a frame of a script? Raises nothing. */
bool bind_user_frame(lua_State *L, lua_Debug *ar);

/* Push "file:line: " of the first frame outside the library, or "" if there is none. */
void bind_where(lua_State *L);

/* Raise unless 'st' is PIPER_OK. */
#define BIND_TRY(L, call, err)                                                                     \
  do {                                                                                             \
    if ((call) != PIPER_OK) return bind_raise((L), (err));                                         \
  } while (0)

/* Option readers: field 'name' of the options table at 'idx'; 'where' is the function's name as
 * the message shows it ("compile"). The opt_ forms give 'def' where the field is nil. */
lua_Integer bind_int(lua_State *L, int idx, const char *where, const char *name, lua_Integer min,
                     lua_Integer max);
lua_Integer bind_opt_int(lua_State *L, int idx, const char *where, const char *name,
                         lua_Integer min, lua_Integer max, lua_Integer def);
lua_Number bind_num(lua_State *L, int idx, const char *where, const char *name);
lua_Number bind_opt_num(lua_State *L, int idx, const char *where, const char *name, lua_Number def);
bool bind_opt_bool(lua_State *L, int idx, const char *where, const char *name, bool def);
/* The string lives as long as the table holds it. */
const char *bind_str(lua_State *L, int idx, const char *where, const char *name);
const char *bind_opt_str(lua_State *L, int idx, const char *where, const char *name,
                         const char *def);

#endif
