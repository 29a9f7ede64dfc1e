/* Ctrl-C sets a hook in the coroutine that is running, as lua(1) does in its main one. Which one
 * runs is known because coroutine.resume and coroutine.wrap are replaced here by functions that
 * note it; they behave as Lua's own. */
#include "config.h"

#include "script.h"

#include <lauxlib.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/interrupt.h"
#include "bind/bind.h"

static lua_State *volatile running; /* NULL: no script */
static pthread_t main_thread;

/* ---- Ctrl-C ---- */

#define EVERY_EVENT (LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT)

/* Raises, and goes on raising: a script that catches the error would run on. First a thousand
 * instructions later, so that what closes files and values is not hit at once; then at every
 * instruction, so that a loop around pcall ends as well. */
static void stop_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  const bool first = lua_gethookmask(L) != LUA_MASKCOUNT;
  lua_sethook(L, stop_hook, LUA_MASKCOUNT, first ? 1000 : 1);
  bind_where(L);
  lua_pushliteral(L, "interrupted");
  lua_concat(L, 2);
  lua_pushvalue(L, -1); /* nothing is wrong with the script: no traceback, only where it was */
  lua_setfield(L, LUA_REGISTRYINDEX, BIND_BLAMED);
  lua_error(L);
}

static void on_interrupt(int sig) {
  if (!pthread_equal(pthread_self(), main_thread)) {
    pthread_kill(main_thread, sig);
    return;
  }
  script_catch_interrupt(SIG_DFL, NULL); /* the next one kills */
  interrupt_request();
  if (running != NULL) lua_sethook(running, stop_hook, EVERY_EVENT, 1);
}

void script_catch_interrupt(void (*handler)(int), struct sigaction *old) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = handler;
  sigemptyset(&sa.sa_mask);
  sigaction(SIGINT, &sa, old);
}

/* 'L' is what runs from now on. */
static void switch_to(lua_State *L) {
  running = L;
  if (interrupt_pending() && lua_gethook(L) == NULL) lua_sethook(L, stop_hook, EVERY_EVENT, 1);
}

/* ---- coroutines ---- */

/* Was the message on top of the stack blamed on the user's line by the library? */
static bool is_blamed(lua_State *L) {
  lua_getfield(L, LUA_REGISTRYINDEX, BIND_BLAMED);
  const bool blamed = lua_rawequal(L, -1, -2);
  lua_pop(L, 1);
  return blamed;
}

/* Resumes 'co' with the top n_args values of L; leaves its results, or the error and returns -1. */
static int resume(lua_State *L, lua_State *co, int n_args) {
  if (!lua_checkstack(co, n_args)) {
    lua_pushliteral(L, "too many arguments to resume");
    return -1;
  }
  lua_xmove(L, co, n_args);
  int n_results = 0;
  switch_to(co);
  const int status = lua_resume(co, L, n_args, &n_results);
  switch_to(L);
  if (status != LUA_OK && status != LUA_YIELD) {
    lua_xmove(co, L, 1);
    return -1;
  }
  if (!lua_checkstack(L, n_results + 1)) {
    lua_pop(co, n_results);
    lua_pushliteral(L, "too many results to resume");
    return -1;
  }
  lua_xmove(co, L, n_results);
  return n_results;
}

static int co_resume(lua_State *L) {
  lua_State *co = lua_tothread(L, 1);
  luaL_argexpected(L, co != NULL, 1, "coroutine");
  const int n = resume(L, co, lua_gettop(L) - 1);
  lua_pushboolean(L, n >= 0);
  lua_insert(L, n >= 0 ? -(n + 1) : -2);
  return n >= 0 ? n + 1 : 2;
}

static int wrapped(lua_State *L) {
  lua_State *co = lua_tothread(L, lua_upvalueindex(1));
  const int n = resume(L, co, lua_gettop(L));
  if (n >= 0) return n;
  int status = lua_status(co);
  if (status != LUA_OK && status != LUA_YIELD) { /* it failed: close what it had open */
    status = lua_resetthread(co);
    lua_xmove(co, L, 1);
  }
  if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING && !is_blamed(L)) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

static int co_wrap(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_State *co = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1);
  lua_pushcclosure(L, wrapped, 1);
  return 1;
}

void script_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"resume", co_resume}, {"wrap", co_wrap}, {NULL, NULL}};
  main_thread = pthread_self();
  lua_getglobal(L, "coroutine");
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

/* ---- calls ---- */

/* A message that names the user's line already: the library's frames would only hide it, so what
 * is added is how the script came there. */
static void add_callers(lua_State *L) {
  const int text = lua_gettop(L);
  const char *said = lua_tostring(L, text), *before = said; /* the frame shown last */
  lua_pushnil(L); /* holds the string 'before' */
  const int last = lua_gettop(L);
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  lua_pushvalue(L, text);
  luaL_addvalue(&b);
  lua_Debug ar;
  for (int level = 1; lua_getstack(L, level, &ar); level++) {
    if (!bind_user_frame(L, &ar)) continue;
    const char *where = lua_pushfstring(L, "%s:%d", ar.short_src, ar.currentline);
    const size_t len = strlen(where);
    const bool shown =
        strncmp(before, where, len) == 0 && (before[len] == ':' || before[len] == '\0');
    if (shown) { /* functions that call one another in one line */
      lua_pop(L, 1);
      continue;
    }
    lua_replace(L, last);
    before = where;
    lua_pushfstring(L, "\n\tcalled from %s", where);
    luaL_addvalue(&b);
  }
  luaL_pushresult(&b);
}

/* Pushes the message with a traceback of the script's own frames: what C functions and the library do
 * on the way is their affair. */
static void add_traceback(lua_State *L, const char *msg) {
  static const char *const hidden[] = {"\t[C]:", "\t[piper]/", "\t(...tail calls...)"};
  luaL_traceback(L, L, NULL, 1);
  const char *line = lua_tostring(L, -1);
  bool any = false;
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  luaL_addstring(&b, msg);
  line += strcspn(line, "\n"); /* behind "stack traceback:" */
  while (*line == '\n') {
    const char *text = line + 1;
    const size_t len = strcspn(text, "\n");
    bool shown = true;
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
      shown = shown && strncmp(text, hidden[i], strlen(hidden[i])) != 0;
    if (shown) {
      if (!any) luaL_addstring(&b, "\nstack traceback:");
      any = true;
      luaL_addlstring(&b, line, len + 1);
    }
    line = text + len;
  }
  luaL_pushresult(&b);
}

static int message_handler(lua_State *L) {
  const char *msg = lua_tostring(L, 1);
  if (msg == NULL) {
    if (luaL_callmeta(L, 1, "__tostring") && lua_type(L, -1) == LUA_TSTRING) return 1;
    msg = lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
  }
  lua_settop(L, 1);
  lua_pushstring(L, msg);
  if (is_blamed(L))
    add_callers(L);
  else
    add_traceback(L, msg);
  return 1;
}

int script_call(lua_State *L, int n_args, int n_results) {
  const int base = lua_gettop(L) - n_args;
  lua_pushcfunction(L, message_handler);
  lua_insert(L, base);
  lua_State *outer = running;
  struct sigaction old;
  interrupt_clear();
  running = L;
  script_catch_interrupt(on_interrupt, &old);
  const int status = lua_pcall(L, n_args, n_results, base);
  sigaction(SIGINT, &old, NULL);
  running = outer;
  lua_sethook(L, NULL, 0, 0);
  lua_remove(L, base);
  return status;
}

bool script_report(lua_State *L, int status, const char *program) {
  if (status == LUA_OK) return true;
  const char *msg = lua_tostring(L, -1);
  fflush(stdout); /* what the script printed comes before what ended it */
  if (program != NULL) fprintf(stderr, "%s: ", program);
  fprintf(stderr, "%s\n", msg != NULL ? msg : "(error object is not a string)");
  fflush(stderr);
  lua_pop(L, 1);
  return false;
}
