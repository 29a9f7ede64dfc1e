/* A library frame is a Lua function whose chunk is named "=[piper]/file.lua", or any C function;
 * the first frame that is neither is the user's, and errors name its line. */
#include "config.h"

#include "bind/bind.h"

#include <lauxlib.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bind/lua_modules.h"

#define CHUNK_PREFIX "=[piper]/"

/* Sub-tables of piper.core: CORE_PART("plan", luaopen_piper_core_plan) makes core.plan. */
typedef struct CorePart {
  const char *name;
  lua_CFunction open;
} CorePart;

static const CorePart core_parts[] = {
    {NULL, NULL},
};

/* ---- errors ---- */

void bind_where(lua_State *L) {
  lua_Debug ar;
  for (int level = 0; lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sl", &ar);
    if (ar.currentline > 0 && strncmp(ar.source, CHUNK_PREFIX, strlen(CHUNK_PREFIX)) != 0) {
      lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
      return;
    }
  }
  lua_pushliteral(L, "");
}

/* Does 'text' start with "file:12: "? */
static bool has_position(const char *text) {
  const char *end = strstr(text, ": ");
  if (end == NULL) return false;
  const char *p = end;
  while (p > text && p[-1] >= '0' && p[-1] <= '9') p--;
  return p < end && p > text + 1 && p[-1] == ':';
}

/* The message on top, blamed and marked as the user's to mend; main shows such a one without the
 * library's frames. */
static int raise_top(lua_State *L) {
  if (!has_position(lua_tostring(L, -1))) {
    bind_where(L);
    lua_insert(L, -2);
    lua_concat(L, 2);
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

/* ---- options ---- */

static int field(lua_State *L, int idx, const char *name) { return lua_getfield(L, idx, name); }

static void wrong_type(lua_State *L, const char *where, const char *name, const char *want) {
  if (lua_isnil(L, -1)) bind_fail(L, "%s: field \"%s\" is missing: it is %s", where, name, want);
  const char *got = luaL_tolstring(L, -1, NULL);
  bind_fail(L, "%s: field \"%s\" is %s, not %s", where, name, got, want);
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
  field(L, idx, name);
  return int_on_top(L, where, name, min, max);
}

lua_Integer bind_opt_int(lua_State *L, int idx, const char *where, const char *name,
                         lua_Integer min, lua_Integer max, lua_Integer def) {
  if (field(L, idx, name) != LUA_TNIL) return int_on_top(L, where, name, min, max);
  lua_pop(L, 1);
  return def;
}

lua_Number bind_num(lua_State *L, int idx, const char *where, const char *name) {
  if (field(L, idx, name) != LUA_TNUMBER) wrong_type(L, where, name, "a number");
  lua_Number v = lua_tonumber(L, -1);
  lua_pop(L, 1);
  return v;
}

lua_Number bind_opt_num(lua_State *L, int idx, const char *where, const char *name,
                        lua_Number def) {
  int type = field(L, idx, name);
  lua_pop(L, 1);
  return type == LUA_TNIL ? def : bind_num(L, idx, where, name);
}

bool bind_opt_bool(lua_State *L, int idx, const char *where, const char *name, bool def) {
  int type = field(L, idx, name);
  if (type != LUA_TNIL && type != LUA_TBOOLEAN) wrong_type(L, where, name, "true or false");
  bool v = type == LUA_TNIL ? def : lua_toboolean(L, -1);
  lua_pop(L, 1);
  return v;
}

const char *bind_str(lua_State *L, int idx, const char *where, const char *name) {
  if (field(L, idx, name) != LUA_TSTRING) wrong_type(L, where, name, "a string");
  const char *v = lua_tostring(L, -1);
  lua_pop(L, 1);
  return v;
}

const char *bind_opt_str(lua_State *L, int idx, const char *where, const char *name,
                         const char *def) {
  int type = field(L, idx, name);
  lua_pop(L, 1);
  return type == LUA_TNIL ? def : bind_str(L, idx, where, name);
}

/* ---- modules ---- */

int luaopen_piper_core(lua_State *L) {
  lua_newtable(L);
  lua_pushliteral(L, PACKAGE_VERSION);
  lua_setfield(L, -2, "version");
  for (const CorePart *part = core_parts; part->name != NULL; part++) {
    lua_pushcfunction(L, part->open);
    lua_call(L, 0, 1);
    lua_setfield(L, -2, part->name);
  }
  return 1;
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
  const LuaModule *m = lua_modules;
  while (m->name != NULL && strcmp(m->name, name) != 0) m++;
  if (m->name == NULL) {
    lua_pushfstring(L, "no part \"%s\" in piper", name);
    return 1;
  }
  lua_pushfstring(L, CHUNK_PREFIX "%s", m->file);
  const char *chunk = lua_tostring(L, -1);
  (void)dir;
  if (luaL_loadbufferx(L, (const char *)m->text, m->len, chunk, "t") != LUA_OK)
    return lua_error(L);
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
