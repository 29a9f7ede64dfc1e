/* The readers of strategy files, JSON and CSV, on any bytes; tests/lib/hostile_files.lua says what
 * has to hold. The first byte chooses the reader. Each line of the Lua half that runs is a counter of
 * the fuzzer, so that it is guided there as it is in C.
 * make fuzz && tests/fuzz/strategy_file tests/data/damaged; tests/lua/damaged_files.lua runs the same
 * on damaged files. */
#include "base/hash.h"
#include "bind/bind.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t lines[1 << 14];

static void on_line(lua_State *L, lua_Debug *ar) {
  Hash h = HASH_START;
  lua_getinfo(L, "S", ar);
  for (const char *s = ar->short_src; *s != '\0'; s++) hash_u32(&h, (uint32_t)*s);
  hash_u32(&h, (uint32_t)ar->currentline);
  lines[hash_end(&h) % sizeof lines]++;
}

static void die(const char *what) {
  fprintf(stderr, "strategy_file: %s\n", what);
  abort();
}

static lua_State *prepare(void) {
  lua_State *L = luaL_newstate();
  if (L == NULL) die("no memory");
  luaL_openlibs(L);
  bind_open(L, NULL);
  if (luaL_dofile(L, FUZZ_SRCDIR "/tests/lib/hostile_files.lua") != LUA_OK) die(lua_tostring(L, -1));
  lua_getfield(L, -1, "check");
  lua_sethook(L, on_line, LUA_MASKLINE, 0);
  return L;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static lua_State *L;
  if (L == NULL) L = prepare();
  if (size == 0) return 0;
  lua_pushvalue(L, -1);
  lua_pushstring(L, data[0] == 'c' ? "csv" : "json");
  lua_pushlstring(L, (const char *)data + 1, size - 1);
  if (lua_pcall(L, 2, 0, 0) != LUA_OK) die(lua_tostring(L, -1));
  return 0;
}
