#include "bind/bind_directives.h"

#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>

static void *need(lua_State *L, void *p) {
  if (p == NULL) luaL_error(L, "compile: not enough memory");
  return p;
}

static char *copy_string(lua_State *L, int idx, Arena *arena) {
  size_t len;
  const char *s = luaL_checklstring(L, idx, &len);
  return need(L, arena_strdup(arena, s, len));
}

/* Field 'name' of the table at 'idx', copied; NULL where it is nil. */
static const char *string_field(lua_State *L, int idx, const char *name, Arena *arena) {
  const char *s = lua_getfield(L, idx, name) == LUA_TNIL ? NULL : copy_string(L, -1, arena);
  lua_pop(L, 1);
  return s;
}

static lua_Integer int_field(lua_State *L, int idx, const char *name, lua_Integer otherwise) {
  const lua_Integer v =
      lua_getfield(L, idx, name) == LUA_TNIL ? otherwise : luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return v;
}

static bool word_is(lua_State *L, int idx, const char *name, const char *word) {
  const bool is =
      lua_getfield(L, idx, name) == LUA_TSTRING && strcmp(lua_tostring(L, -1), word) == 0;
  lua_pop(L, 1);
  return is;
}

static int32_t *int_list(lua_State *L, int idx, Arena *arena, uint32_t *n) {
  idx = lua_absindex(L, idx);
  *n = (uint32_t)luaL_len(L, idx);
  int32_t *list = need(L, arena_alloc(arena, *n + 1, sizeof *list));
  for (uint32_t i = 0; i < *n; i++) {
    lua_geti(L, idx, (lua_Integer)i + 1);
    const lua_Integer v = luaL_checkinteger(L, -1);
    list[i] = v > INT32_MAX ? INT32_MAX : (int32_t)v; /* no tag or rank is that large: it matches nothing */
    lua_pop(L, 1);
  }
  return list;
}

static int ascending(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

static uint32_t pass_bit(lua_State *L, const char *name) {
  for (int p = PASS_F; p < PASS_COUNT; p++)
    if (strcmp(name, PASS_NAME[p]) == 0) return 1u << p;
  luaL_error(L, "compile: \"%s\" is not a pass", name);
  return 0;
}

/* PASS: the value on top, a name or a list of names. */
static uint32_t read_passes(lua_State *L) {
  if (lua_type(L, -1) == LUA_TSTRING) return pass_bit(L, lua_tostring(L, -1));
  uint32_t bits = 0;
  for (lua_Integer i = 1, n = luaL_len(L, -1); i <= n; i++) {
    lua_geti(L, -1, i);
    bits |= pass_bit(L, luaL_checkstring(L, -1));
    lua_pop(L, 1);
  }
  return bits;
}

/* The term for 'tag' from the value on top. */
static FilterTerm read_term(lua_State *L, const char *tag, Arena *arena) {
  FilterTerm t = {.tag = tag};
  if (lua_type(L, -1) == LUA_TSTRING) {
    t.kind = TERM_ANY;
  } else if (lua_type(L, -1) == LUA_TBOOLEAN) {
    t.kind = TERM_NONE;
  } else if (lua_type(L, -1) == LUA_TTABLE) {
    int32_t *indices = int_list(L, -1, arena, &t.n_indices);
    qsort(indices, t.n_indices, sizeof *indices, ascending);
    t.indices = indices;
  } else {
    int32_t *one = need(L, arena_alloc(arena, 1, sizeof *one));
    const lua_Integer v = luaL_checkinteger(L, -1);
    *one = v > INT32_MAX ? INT32_MAX : (int32_t)v;
    t.indices = one;
    t.n_indices = 1;
  }
  return t;
}

static int by_tag(const void *a, const void *b) {
  return strcmp(((const FilterTerm *)a)->tag, ((const FilterTerm *)b)->tag);
}

/* The filter on top. Terms are sorted, since the order of 'next' differs from run to run. */
static Filter read_filter(lua_State *L, Arena *arena) {
  Filter f = {0};
  uint32_t n = 0;
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) n++;
  FilterTerm *terms = need(L, arena_alloc(arena, n + 1, sizeof *terms));
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
    lua_pushvalue(L, -2); /* a copy: converting a key in place would confuse next */
    const char *tag = copy_string(L, -1, arena);
    lua_pop(L, 1);
    if (strcmp(tag, "PASS") == 0) f.passes = read_passes(L);
    else terms[f.n_terms++] = read_term(L, tag, arena);
  }
  qsort(terms, f.n_terms, sizeof *terms, by_tag);
  f.terms = terms;
  return f;
}

/* order: the list of groups at the top, each a list of filters. */
static void read_groups(lua_State *L, Arena *arena, Directive *d) {
  d->n_groups = (uint32_t)luaL_len(L, -1);
  OrderGroup *groups = need(L, arena_alloc(arena, d->n_groups + 1, sizeof *groups));
  for (uint32_t g = 0; g < d->n_groups; g++) {
    lua_geti(L, -1, (lua_Integer)g + 1);
    const uint32_t n = (uint32_t)luaL_len(L, -1);
    Filter *members = need(L, arena_alloc(arena, n + 1, sizeof *members));
    for (uint32_t m = 0; m < n; m++) {
      lua_geti(L, -1, (lua_Integer)m + 1);
      members[m] = read_filter(L, arena);
      lua_pop(L, 1);
    }
    groups[g] = (OrderGroup){members, n};
    lua_pop(L, 1);
  }
  d->groups = groups;
}

static DirectiveKind read_kind(lua_State *L, const char *op) {
  for (int k = 0; k < DIRECTIVE_KIND_COUNT; k++)
    if (strcmp(op, DIRECTIVE_NAME[k]) == 0) return (DirectiveKind)k;
  luaL_error(L, "compile: \"%s\" is not a directive", op);
  return DIRECTIVE_PLACE;
}

/* shard: the list at the top is one of ranks, or of lists of them of equal length. */
static void read_groups_of_devices(lua_State *L, Arena *arena, Directive *d) {
  const uint32_t n = (uint32_t)luaL_len(L, -1);
  uint32_t size = 0;
  if (n == 0 || lua_geti(L, -1, 1) != LUA_TTABLE) {
    if (n > 0) lua_pop(L, 1);
    d->devices = int_list(L, -1, arena, &d->n_devices);
    d->group_size = d->n_devices;
    return;
  }
  size = (uint32_t)luaL_len(L, -1);
  lua_pop(L, 1);
  int32_t *all = need(L, arena_alloc(arena, (size_t)n * size + 1, sizeof *all));
  for (uint32_t g = 0; g < n; g++) {
    uint32_t found;
    lua_geti(L, -1, (lua_Integer)g + 1);
    const int32_t *one = int_list(L, -1, arena, &found);
    if (found != size) luaL_error(L, "compile: groups of different size");
    memcpy(all + (size_t)g * size, one, size * sizeof *one);
    lua_pop(L, 1);
  }
  d->devices = all;
  d->n_devices = n * size;
  d->group_size = size;
}

/* The directive on top. */
static Directive read_directive(lua_State *L, Arena *arena) {
  const int at = lua_gettop(L);
  Directive d = {
      .kind = read_kind(L, string_field(L, at, "op", arena)),
      .line = string_field(L, at, "line", arena),
      .stream = string_field(L, at, "stream", arena),
      .reduce_stream = string_field(L, at, "reduce_stream", arena),
      .dim_name = string_field(L, at, "dim_name", arena),
      .gather_stream = string_field(L, at, "gather_stream", arena),
      .bucket_bytes = int_field(L, at, "bucket_bytes", 0),
      .zero = (uint8_t)int_field(L, at, "zero", ZERO_NONE),
      .prefetch = (uint32_t)int_field(L, at, "prefetch", 1),
      .keep_bytes = int_field(L, at, "keep_bytes", 0),
      .per_microbatch = word_is(L, at, "reduce", "microbatch"),
      .num_microbatches = int_field(L, at, "num_microbatches", 0),
      .schedule = (uint32_t)int_field(L, at, "schedule", 0),
      .rank_in_schedule = (uint32_t)int_field(L, at, "rank_in_schedule", 0),
  };
  if (lua_getfield(L, at, "filter") == LUA_TTABLE) d.filter = read_filter(L, arena);
  lua_pop(L, 1);
  if (lua_getfield(L, at, "devices") == LUA_TTABLE) {
    if (d.kind == DIRECTIVE_SHARD) read_groups_of_devices(L, arena, &d);
    else d.devices = int_list(L, -1, arena, &d.n_devices);
  }
  lua_pop(L, 1);
  if (lua_getfield(L, at, "filters") == LUA_TTABLE) read_groups(L, arena, &d);
  lua_pop(L, 1);
  return d;
}

Filter bind_read_filter(lua_State *L, int idx, Arena *arena) {
  luaL_checkstack(L, 16, "compile");
  lua_pushvalue(L, idx);
  const Filter f = read_filter(L, arena);
  lua_pop(L, 1);
  return f;
}

Strategy bind_read_strategy(lua_State *L, int idx, Arena *arena) {
  idx = lua_absindex(L, idx);
  luaL_checkstack(L, 16, "compile");
  Strategy s = {.n = (uint32_t)luaL_len(L, idx)};
  Directive *list = need(L, arena_alloc(arena, s.n + 1, sizeof *list));
  for (uint32_t i = 0; i < s.n; i++) {
    lua_geti(L, idx, (lua_Integer)i + 1);
    list[i] = read_directive(L, arena);
    lua_pop(L, 1);
  }
  s.at = list;
  return s;
}
