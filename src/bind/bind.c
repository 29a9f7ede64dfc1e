/* A library frame is a Lua function whose chunk is named "=[piper]/file.lua", or any C function;
 * the first frame that is neither is the user's, and errors name its line. */
#include "config.h"

#include "bind/bind.h"

#include <ctype.h>
#include <lauxlib.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/nearest.h"
#include "bind/bind_data.h"
#include "bind/bind_json.h"
#include "bind/bind_model.h"
#include "bind/bind_plan.h"
#include "bind/bind_run.h"
#include "bind/bind_system.h"
#include "bind/lua_modules.h"

#define CHUNK_PREFIX "=[piper]/"

/* Sub-tables of piper.core: CORE_PART("plan", luaopen_piper_core_plan) makes core.plan. */
typedef struct CorePart {
  const char *name;
  lua_CFunction open;
} CorePart;

static const CorePart core_parts[] = {
    {"data", luaopen_piper_core_data}, {"graph", luaopen_piper_core_graph},
    {"json", luaopen_piper_core_json}, {"plan", luaopen_piper_core_plan},
    {"run", luaopen_piper_core_run},   {"system", luaopen_piper_core_system},
    {NULL, NULL},
};

/* ---- errors ---- */

bool bind_user_frame(lua_State *L, lua_Debug *ar) {
  lua_getinfo(L, "Sl", ar);
  return ar->currentline > 0 && strncmp(ar->source, CHUNK_PREFIX, strlen(CHUNK_PREFIX)) != 0;
}

/* Pushes "file:line: " of the first frame outside the library and returns its level; "" and -1: there
 * is none. */
static int push_where(lua_State *L) {
  lua_Debug ar;
  for (int level = 0; lua_getstack(L, level, &ar); level++) {
    if (bind_user_frame(L, &ar)) {
      lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
      return level;
    }
  }
  lua_pushliteral(L, "");
  return -1;
}

void bind_where(lua_State *L) { push_where(L); }

/* The frame at 'level' of the script is not where the library was called: a function that it calls
 * ended with "return f(...)", and Lua keeps no frame, and no line, of what ends so. The library itself
 * may end so as well; then the last of its frames is not of a function that scripts call. */
static bool lost_caller(lua_State *L, int level) {
  lua_Debug ar;
  do { /* pcall and the like are on the way to it */
    if (level < 1 || !lua_getstack(L, --level, &ar)) return false;
    lua_getinfo(L, "St", &ar);
  } while (ar.what[0] == 'C');
  if (!ar.istailcall) return false;
  const int top = lua_gettop(L);
  bool lost = false;
  lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  if (lua_getfield(L, -1, "piper.check") == LUA_TTABLE &&
      lua_getfield(L, -1, "is_public") == LUA_TFUNCTION) {
    lua_getinfo(L, "f", &ar);
    lost = lua_pcall(L, 1, 1, 0) == LUA_OK && lua_toboolean(L, -1);
  }
  lua_settop(L, top);
  return lost;
}

size_t bind_position(const char *text) {
  const char *end = strstr(text, ": ");
  if (end == NULL) return 0;
  const char *p = end;
  while (p > text && p[-1] >= '0' && p[-1] <= '9') p--;
  return p < end && p > text + 1 && p[-1] == ':' ? (size_t)(end - text) + strlen(": ") : 0;
}

/* The message on top, blamed and marked as the user's to mend; main shows such a one without the
 * library's frames. */
static int raise_top(lua_State *L) {
  if (bind_position(lua_tostring(L, -1)) == 0) {
    luaL_checkstack(L, 8, NULL);
    const int level = push_where(L);
    if (level < 0) { /* a coroutine, or a tail call, without a frame of the user's */
      lua_pop(L, 1);
      return lua_error(L);
    }
    lua_insert(L, -2);
    lua_pushstring(L, lost_caller(L, level)
                          ? " (called by the \"return\" of a function that this line calls)"
                          : "");
    lua_concat(L, 3);
  }
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, BIND_BLAMED);
  return lua_error(L);
}

int bind_raise(lua_State *L, const PiperErr *err) {
  lua_pushstring(L, err->text);
  return raise_top(L);
}

int bind_fail(lua_State *L, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  lua_pushvfstring(L, fmt, args);
  va_end(args);
  return raise_top(L);
}

/* ---- values in messages ---- */

const char *bind_show(lua_State *L, int idx) {
  switch (lua_type(L, idx)) {
  case LUA_TSTRING: {
    size_t len;
    const char *s = lua_tolstring(L, idx, &len);
    return lua_pushstring(L, err_quoted(s, len).text);
  }
  case LUA_TNIL:
  case LUA_TNUMBER:
  case LUA_TBOOLEAN: return luaL_tolstring(L, idx, NULL);
  default: return lua_pushfstring(L, "a %s", luaL_typename(L, idx));
  }
}

/* ---- options ---- */

static void wrong_type(lua_State *L, const char *where, const char *name, const char *want) {
  if (lua_isnil(L, -1)) bind_fail(L, "%s: field \"%s\" is missing: it is %s", where, name, want);
  bind_fail(L, "%s: field \"%s\" is %s, not %s", where, name, bind_show(L, -1), want);
}

static lua_Integer int_on_top(lua_State *L, const char *where, const char *name, lua_Integer min,
                              lua_Integer max) {
  int whole = 0;
  lua_Integer v = lua_type(L, -1) == LUA_TNUMBER ? lua_tointegerx(L, -1, &whole) : 0;
  if (!whole) wrong_type(L, where, name, "a whole number");
  if (v < min)
    bind_fail(L, "%s: field \"%s\" is %I, less than %I", where, name, (LUAI_UACINT)v,
              (LUAI_UACINT)min);
  if (v > max)
    bind_fail(L, "%s: field \"%s\" is %I, more than %I", where, name, (LUAI_UACINT)v,
              (LUAI_UACINT)max);
  lua_pop(L, 1);
  return v;
}

lua_Integer bind_int(lua_State *L, int idx, const char *where, const char *name, lua_Integer min,
                     lua_Integer max) {
  lua_getfield(L, idx, name);
  return int_on_top(L, where, name, min, max);
}

lua_Integer bind_opt_int(lua_State *L, int idx, const char *where, const char *name,
                         lua_Integer min, lua_Integer max, lua_Integer def) {
  if (lua_getfield(L, idx, name) != LUA_TNIL) return int_on_top(L, where, name, min, max);
  lua_pop(L, 1);
  return def;
}

lua_Number bind_num(lua_State *L, int idx, const char *where, const char *name) {
  if (lua_getfield(L, idx, name) != LUA_TNUMBER) wrong_type(L, where, name, "a number");
  lua_Number v = lua_tonumber(L, -1);
  lua_pop(L, 1);
  return v;
}

lua_Number bind_opt_num(lua_State *L, int idx, const char *where, const char *name,
                        lua_Number def) {
  int type = lua_getfield(L, idx, name);
  lua_pop(L, 1);
  return type == LUA_TNIL ? def : bind_num(L, idx, where, name);
}

bool bind_opt_bool(lua_State *L, int idx, const char *where, const char *name, bool def) {
  int type = lua_getfield(L, idx, name);
  if (type != LUA_TNIL && type != LUA_TBOOLEAN) wrong_type(L, where, name, "true or false");
  bool v = type == LUA_TNIL ? def : lua_toboolean(L, -1);
  lua_pop(L, 1);
  return v;
}

const char *bind_str(lua_State *L, int idx, const char *where, const char *name) {
  if (lua_getfield(L, idx, name) != LUA_TSTRING) wrong_type(L, where, name, "a string");
  const char *v = lua_tostring(L, -1);
  lua_pop(L, 1);
  return v;
}

const char *bind_opt_str(lua_State *L, int idx, const char *where, const char *name,
                         const char *def) {
  int type = lua_getfield(L, idx, name);
  lua_pop(L, 1);
  return type == LUA_TNIL ? def : bind_str(L, idx, where, name);
}

/* ---- modules ---- */

/* core.fail(message): raises it, blamed on the user's line */
static int core_fail(lua_State *L) {
  luaL_checkstring(L, 1);
  lua_settop(L, 1);
  return raise_top(L);
}

/* core.here() -> "file:line" of the user's frame, or "?" */
static int core_here(lua_State *L) {
  size_t len;
  bind_where(L);
  const char *where = lua_tolstring(L, -1, &len);
  if (len == 0) lua_pushliteral(L, "?");
  else lua_pushlstring(L, where, len - strlen(": "));
  return 1;
}

/* core.bytes(n) -> "1.50 MiB" */
static int core_bytes(lua_State *L) {
  lua_pushstring(L, bytes_text((uint64_t)luaL_checkinteger(L, 1)).text);
  return 1;
}

/* core.nearest(name, list) -> the string of the list that 'name' may have meant, or nil */
static int core_nearest(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  Nearest n = {0};
  for (lua_Integer i = 1; lua_rawgeti(L, 2, i) != LUA_TNIL; i++) {
    nearest_try(&n, name, luaL_checkstring(L, -1)); /* the list keeps the string alive */
    lua_pop(L, 1);
  }
  lua_pushstring(L, n.best);
  return 1;
}

int luaopen_piper_core(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"fail", core_fail}, {"here", core_here}, {"nearest", core_nearest},
      {"bytes", core_bytes}, {NULL, NULL}};
  luaL_newlib(L, functions);
  lua_pushliteral(L, PACKAGE_VERSION);
  lua_setfield(L, -2, "version");
  for (const CorePart *part = core_parts; part->name != NULL; part++) {
    lua_pushcfunction(L, part->open);
    lua_call(L, 0, 1);
    lua_setfield(L, -2, part->name);
  }
  return 1;
}

/* Pushes what dir/piper/<file> holds and returns true; or pushes why that was not possible. */
static bool read_file(lua_State *L, const char *dir, const char *file) {
  const char *path = lua_pushfstring(L, "%s/piper/%s", dir, file);
  struct stat st;
  if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
    lua_pushfstring(L, "no file '%s' (PIPER_LUA)", path);
    return false;
  }
  char *text = lua_newuserdatauv(L, (size_t)st.st_size + 1, 0);
  FILE *f = fopen(path, "rb"); /* nothing of Lua's until it is closed */
  size_t n = 0;
  bool fine = f != NULL;
  if (fine) {
    n = fread(text, 1, (size_t)st.st_size, f);
    fine = ferror(f) == 0;
    fclose(f);
  }
  if (!fine) {
    lua_pushfstring(L, "cannot read '%s' (PIPER_LUA)", path);
    return false;
  }
  lua_pushlstring(L, text, n);
  return true;
}

/* Pushes the loaded chunk of a module whose source is 'text'; raises where it does not compile. */
static void load_chunk(lua_State *L, const char *text, size_t len, const char *file) {
  const char *chunk = lua_pushfstring(L, CHUNK_PREFIX "%s", file);
  if (luaL_loadbufferx(L, text, len, chunk, "t") != LUA_OK) lua_error(L);
}

/* A searcher (manual, package.searchers); its upvalue is the folder to read from, or nil. */
static int search(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const char *dir = lua_tostring(L, lua_upvalueindex(1));
  if (strcmp(name, "piper.core") == 0) {
    lua_pushcfunction(L, luaopen_piper_core);
    lua_pushliteral(L, ":piper:");
    return 2;
  }
  if (strcmp(name, "piper") != 0 && strncmp(name, "piper.", 6) != 0) {
    lua_pushnil(L);
    return 1;
  }
  if (dir != NULL) {
    const char *file = strcmp(name, "piper") == 0
                           ? "init.lua"
                           : lua_pushfstring(L, "%s.lua", luaL_gsub(L, name + 6, ".", "/"));
    if (!read_file(L, dir, file)) return 1;
    size_t len;
    const char *text = lua_tolstring(L, -1, &len);
    load_chunk(L, text, len, file);
  } else {
    const LuaModule *m = lua_modules;
    while (m->name != NULL && strcmp(m->name, name) != 0) m++;
    if (m->name == NULL) {
      lua_pushfstring(L, "piper has no module '%s'", name);
      return 1;
    }
    load_chunk(L, (const char *)m->text, m->len, m->file);
  }
  lua_pushliteral(L, ":piper:");
  return 2;
}

void bind_open(lua_State *L, const char *dir) {
  lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_getfield(L, -1, "package");
  lua_getfield(L, -1, "searchers");
  /* second, after preload: a folder "piper" of the user's does not hide the library */
  for (lua_Integer i = luaL_len(L, -1); i >= 2; i--) {
    lua_geti(L, -1, i);
    lua_seti(L, -2, i + 1);
  }
  lua_pushstring(L, dir);
  lua_pushcclosure(L, search, 1);
  lua_seti(L, -2, 2);
  lua_pop(L, 3);
}
