/* JSON texts as Lua values: core.json.
 *
 * A text comes from a file of someone else's: it is bounded in size and nesting before it is parsed,
 * and Jansson rejects what it does not know, bytes that are no UTF-8, NUL in strings, numbers that
 * do not fit and keys given twice, each with its position. */
#include "bind/bind_json.h"

#include <jansson.h>
#include <lauxlib.h>
#include <stdbool.h>
#include <stdio.h>

#define JSON_MT "piper.Json"          /* owns what Jansson has parsed while Lua values are made */
#define OBJECT_MT "piper.JsonObject"  /* of every table that was an object */
#define MAX_BYTES (64 << 20)
#define MAX_DEPTH 32

typedef struct LuaJson {
  json_t *root;
} LuaJson;

static int json_gc(lua_State *L) {
  LuaJson *self = luaL_checkudata(L, 1, JSON_MT);
  json_decref(self->root); /* NULL is fine */
  self->root = NULL;
  return 0;
}

typedef struct Position {
  int line, column; /* from 1; columns are bytes */
} Position;

/* Is some value of the text nested more than MAX_DEPTH deep? Then 'at' is where. */
static bool too_deep(const char *text, size_t len, Position *at) {
  int depth = 0;
  bool in_string = false;
  *at = (Position){1, 0};
  for (size_t i = 0; i < len; i++) {
    at->column++;
    switch (text[i]) {
    case '\n':
      at->line++;
      at->column = 0;
      break;
    case '"': in_string = !in_string; break;
    case '\\':
      if (in_string && i + 1 < len && text[i + 1] != '\n') {
        i++;
        at->column++;
      }
      break;
    case '[':
    case '{':
      if (!in_string && ++depth > MAX_DEPTH) return true;
      break;
    case ']':
    case '}':
      if (!in_string) depth--;
      break;
    default: break;
    }
  }
  return false;
}

/* Pushes 'v', which is at most MAX_DEPTH deep. */
static void push(lua_State *L, const json_t *v) {
  luaL_checkstack(L, 4, "json");
  switch (json_typeof(v)) {
  case JSON_OBJECT: {
    const char *key;
    json_t *item;
    lua_createtable(L, 0, (int)json_object_size(v));
    luaL_setmetatable(L, OBJECT_MT);
    json_object_foreach((json_t *)v, key, item) {
      push(L, item);
      lua_setfield(L, -2, key);
    }
    break;
  }
  case JSON_ARRAY: {
    const size_t n = json_array_size(v);
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
      push(L, json_array_get(v, i));
      lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    break;
  }
  case JSON_STRING: lua_pushlstring(L, json_string_value(v), json_string_length(v)); break;
  case JSON_INTEGER: lua_pushinteger(L, json_integer_value(v)); break;
  case JSON_REAL: lua_pushnumber(L, json_real_value(v)); break;
  case JSON_TRUE:
  case JSON_FALSE: lua_pushboolean(L, json_is_true(v)); break;
  case JSON_NULL: lua_pushlightuserdata(L, NULL); break;
  }
}

static int failure(lua_State *L, const char *what, Position at) {
  lua_pushnil(L);
  lua_pushstring(L, what);
  lua_pushinteger(L, at.line);
  lua_pushinteger(L, at.column);
  return 4;
}

/* decode(text) -> value, an object or an array; or nil, what is wrong, line, column */
static int decode(lua_State *L) {
  size_t len;
  char message[96];
  Position at = {1, 1};
  const char *text = luaL_checklstring(L, 1, &len);
  if (len > MAX_BYTES) {
    snprintf(message, sizeof message, "the text has %zu bytes; at most %d are read", len, MAX_BYTES);
    return failure(L, message, at);
  }
  if (too_deep(text, len, &at)) {
    snprintf(message, sizeof message, "values are nested more than %d deep", MAX_DEPTH);
    return failure(L, message, at);
  }
  LuaJson *self = lua_newuserdatauv(L, sizeof *self, 0);
  self->root = NULL;
  luaL_setmetatable(L, JSON_MT);
  json_error_t error;
  self->root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
  if (self->root == NULL)
    return failure(L, error.text, (Position){error.line, error.column});
  push(L, self->root);
  json_decref(self->root);
  self->root = NULL;
  return 1;
}

int luaopen_piper_core_json(lua_State *L) {
  static const luaL_Reg FUNCTIONS[] = {{"decode", decode}, {NULL, NULL}};
  if (luaL_newmetatable(L, JSON_MT)) {
    lua_pushcfunction(L, json_gc);
    lua_setfield(L, -2, "__gc");
  }
  lua_pop(L, 1);
  luaL_newlib(L, FUNCTIONS);
  luaL_newmetatable(L, OBJECT_MT);
  lua_setfield(L, -2, "object");
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "null");
  return 1;
}
