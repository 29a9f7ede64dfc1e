#include "bind/bind_shape.h"

#include <lauxlib.h>
#include <string.h>

#include "bind/bind.h"

static bool is_batch(lua_State *L, int idx) {
  return lua_type(L, idx) == LUA_TSTRING && strcmp(lua_tostring(L, idx), "batch") == 0;
}

/* A whole number that is on top. */
static bool whole(lua_State *L, int64_t *out) {
  int is_int = 0;
  *out = lua_type(L, -1) == LUA_TNUMBER ? lua_tointegerx(L, -1, &is_int) : 0;
  return is_int;
}

/* The axis on top is a multiple of the batch: "batch", or { "batch", k } with k in *dim. */
static bool batch_axis(lua_State *L, int64_t *dim) {
  if (is_batch(L, -1)) {
    *dim = 1;
    return true;
  }
  if (lua_type(L, -1) != LUA_TTABLE || lua_rawlen(L, -1) != 2) return false;
  lua_rawgeti(L, -1, 1);
  lua_rawgeti(L, -2, 2);
  const bool fits = is_batch(L, -2) && whole(L, dim);
  lua_pop(L, 2);
  return fits;
}

static void read_axis(lua_State *L, int axis, const char *what, Shape *out) {
  if (batch_axis(L, &out->dim[axis])) {
    if (axis > 0) bind_fail(L, "%s: axis %d is the batch, which must be the first", what, axis);
    out->batched = true;
    out->axis[0] = AXIS_BATCH;
  } else if (!whole(L, &out->dim[axis])) {
    bind_fail(L, "%s: axis %d is %s; an axis is a whole number%s", what, axis, bind_show(L, -1),
              axis == 0 ? ", \"batch\" or { \"batch\", k }" : "");
  }
}

void bind_read_shape(lua_State *L, int idx, const char *what, Shape *out) {
  *out = (Shape){0};
  if (lua_type(L, idx) != LUA_TTABLE)
    bind_fail(L, "%s: shape is %s; it is a list such as { \"batch\", 128 }", what, bind_show(L, idx));
  lua_Integer fields = 0;
  const lua_Integer n = (lua_Integer)lua_rawlen(L, idx);
  for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1)) fields++;
  for (lua_Integer i = 1; i <= n; i++) {
    if (lua_rawgeti(L, idx, i) == LUA_TNIL) bind_fail(L, "%s: axis %I of the shape is nil", what, (LUAI_UACINT)(i - 1));
    lua_pop(L, 1);
  }
  if (fields != n) bind_fail(L, "%s: shape has fields besides its %I axes", what, (LUAI_UACINT)n);
  if (n > SHAPE_MAX_RANK)
    bind_fail(L, "%s: %I axes; there can be %d", what, (LUAI_UACINT)n, SHAPE_MAX_RANK);
  out->rank = (uint8_t)n;
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, idx, i + 1);
    read_axis(L, i, what, out);
    lua_pop(L, 1);
  }
}

void bind_push_shape(lua_State *L, const Shape *s) {
  lua_createtable(L, s->rank, 0);
  for (int i = 0; i < s->rank; i++) {
    if (!s->batched || i > 0) {
      lua_pushinteger(L, s->dim[i]);
    } else if (s->dim[0] == 1) {
      lua_pushliteral(L, "batch");
    } else {
      lua_createtable(L, 2, 0);
      lua_pushliteral(L, "batch");
      lua_rawseti(L, -2, 1);
      lua_pushinteger(L, s->dim[0]);
      lua_rawseti(L, -2, 2);
    }
    lua_rawseti(L, -2, i + 1);
  }
}
