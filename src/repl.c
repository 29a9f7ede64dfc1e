/* A chunk is complete when it compiles; it wants another line when its error is at the end of the
 * input. Each line is tried as "return <line>" first, so that expressions echo.
 *
 * Lua errors jump over C frames: what must be closed (editor, history) lives in 'session', which
 * repl_run closes after a protected call of the loop. */
#include "config.h"

#include "repl.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <lauxlib.h>
#include <limits.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "script.h"

#define HISTORY_LINES 1000

typedef struct Session {
  EditLine *editor; /* NULL: no terminal, lines are read plainly */
  History *history; /* NULL where editor is */
  char history_path[4096]; /* "": none */
  char prompt[64];
} Session;

typedef enum Got { GOT_LINE, GOT_INTERRUPT, GOT_END } Got;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig) {
  (void)sig;
  interrupted = 1;
}

/* ---- history ---- */

static void find_history(Session *s) {
  const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
  int n = 0;
  if (state != NULL && state[0] == '/') {
    n = snprintf(s->history_path, sizeof s->history_path, "%s/piper", state);
    if (n > 0 && (size_t)n < sizeof s->history_path) {
      (void)mkdir(state, 0700); /* if this fails, so does the open */
      (void)mkdir(s->history_path, 0700);
      n = snprintf(s->history_path, sizeof s->history_path, "%s/piper/history", state);
    }
  } else if (home != NULL && home[0] == '/') {
    n = snprintf(s->history_path, sizeof s->history_path, "%s/.piper_history", home);
  }
  if (n <= 0 || (size_t)n >= sizeof s->history_path) s->history_path[0] = '\0';
}

/* After each line, so that nothing is lost when the session ends badly. A place that cannot be
 * written is no news: the session works without. */
static void save_history(const Session *s) {
  if (s->history_path[0] == '\0') return;
  const int fd = open(s->history_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  FILE *f = fdopen(fd, "w");
  if (f == NULL) {
    close(fd);
    return;
  }
  HistEvent ev;
  history(s->history, &ev, H_SAVE_FP, f);
  fclose(f);
}

static void remember(Session *s, const char *line) {
  HistEvent ev;
  if (line[strspn(line, " \t\n")] == '\0') return;
  history(s->history, &ev, H_ENTER, line);
  save_history(s);
}

/* ---- lines ---- */

/* A character for libedit. SIGINT is let in only while pselect waits, so that a Ctrl-C just before
 * is not slept over. 1: a character, 0: end of input, -1: failure or Ctrl-C (EINTR). */
static int read_character(EditLine *editor, wchar_t *out) {
  mbstate_t shift;
  memset(&shift, 0, sizeof shift);
  (void)editor;
  for (;;) {
    sigset_t blocked, old;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    pthread_sigmask(SIG_BLOCK, &blocked, &old);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(STDIN_FILENO, &in);
    int ready = -1;
    if (!interrupted) ready = pselect(STDIN_FILENO + 1, &in, NULL, NULL, NULL, &old);
    const int why = interrupted ? EINTR : errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (interrupted || (ready < 0 && why != EINTR)) {
      errno = why;
      return -1;
    }
    if (ready < 0) continue; /* another signal: the window was resized */

    char byte;
    const ssize_t n = read(STDIN_FILENO, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return (int)n;
    const size_t used = mbrtowc(out, &byte, 1, &shift);
    if (used == (size_t)-2) continue; /* inside a multi-byte character */
    if (used != (size_t)-1) return 1;
    memset(&shift, 0, sizeof shift); /* no character of this locale: left out */
  }
}

static char *prompt_of(EditLine *editor) {
  Session *s = NULL;
  el_get(editor, EL_CLIENTDATA, &s);
  return s->prompt;
}

static void open_editor(Session *s) {
  setlocale(LC_CTYPE, ""); /* libedit reads multi-byte characters by it */
  s->editor = el_init("piper", stdin, stdout, stderr);
  if (s->editor == NULL) return;
  s->history = history_init();
  if (s->history == NULL) {
    el_end(s->editor);
    s->editor = NULL;
    return;
  }
  HistEvent ev;
  history(s->history, &ev, H_SETSIZE, HISTORY_LINES);
  history(s->history, &ev, H_SETUNIQUE, 1);
  find_history(s);
  if (s->history_path[0] != '\0') history(s->history, &ev, H_LOAD, s->history_path);
  el_set(s->editor, EL_CLIENTDATA, s);
  el_set(s->editor, EL_PROMPT, prompt_of);
  el_set(s->editor, EL_GETCFN, read_character);
  el_set(s->editor, EL_HIST, history, s->history);
  el_set(s->editor, EL_EDITOR, "emacs");
  el_set(s->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
  el_source(s->editor, NULL); /* ~/.editrc */
}

static void close_editor(Session *s) {
  if (s->editor == NULL) return;
  el_end(s->editor);
  history_end(s->history);
  s->editor = NULL;
}

/* Pushes a line without its newline, when the result is GOT_LINE. */
static Got read_edited(lua_State *L, Session *s) {
  int n = 0;
  interrupted = 0;
  errno = 0;
  el_set(s->editor, EL_PREP_TERM, 1); /* before the prompt, or a Ctrl-D typed at its sight is lost */
  const char *line = el_gets(s->editor, &n);
  const bool stopped = interrupted || (line == NULL && errno == EINTR);
  if (stopped) {
    el_reset(s->editor);
    fputs("\n", stdout);
    return GOT_INTERRUPT;
  }
  if (line == NULL || n <= 0) return GOT_END;
  lua_pushlstring(L, line, line[n - 1] == '\n' ? (size_t)n - 1 : (size_t)n);
  remember(s, lua_tostring(L, -1));
  return GOT_LINE;
}

static Got read_plain(lua_State *L, const Session *s) {
  fputs(s->prompt, stdout);
  fflush(stdout);
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  int c;
  bool any = false;
  while ((c = getc(stdin)) != EOF) {
    any = true;
    if (c == '\n') break;
    luaL_addchar(&b, (char)c);
  }
  luaL_pushresult(&b);
  if (any) return GOT_LINE;
  lua_pop(L, 1);
  return GOT_END;
}

static Got read_line(lua_State *L, Session *s, bool first) {
  lua_getglobal(L, first ? "_PROMPT" : "_PROMPT2");
  const char *prompt = lua_isnil(L, -1) ? (first ? "> " : ">> ") : luaL_tolstring(L, -1, NULL);
  snprintf(s->prompt, sizeof s->prompt, "%s", prompt);
  lua_settop(L, 0);
  return s->editor != NULL ? read_edited(L, s) : read_plain(L, s);
}

/* ---- chunks ---- */

static int load(lua_State *L, const char *text, size_t len) {
  return luaL_loadbufferx(L, text, len, "=stdin", "t");
}

static bool wants_more(lua_State *L, int status) {
  static const char mark[] = "<eof>";
  if (status != LUA_ERRSYNTAX) return false;
  size_t len;
  const char *msg = lua_tolstring(L, -1, &len);
  return len >= sizeof mark - 1 && strcmp(msg + len - (sizeof mark - 1), mark) == 0;
}

/* Reads a whole chunk; leaves it compiled, or the message, alone on the stack. */
static Got read_chunk(lua_State *L, Session *s, int *status) {
  Got got = read_line(L, s, true);
  if (got != GOT_LINE) return got;
  lua_pushfstring(L, "return %s", lua_tostring(L, 1));
  *status = load(L, lua_tostring(L, 2), lua_rawlen(L, 2));
  if (*status == LUA_OK) {
    lua_replace(L, 1);
    lua_settop(L, 1);
    return GOT_LINE;
  }
  lua_settop(L, 1);
  for (;;) {
    *status = load(L, lua_tostring(L, 1), lua_rawlen(L, 1));
    if (!wants_more(L, *status)) break;
    lua_settop(L, 1);
    lua_State *T = lua_newthread(L); /* the next line on a stack of its own */
    got = read_line(T, s, false);
    if (got != GOT_LINE) {
      /* end of input inside a chunk: say what is wrong with it; Ctrl-C: forget it */
      if (got == GOT_INTERRUPT) return got;
      *status = load(L, lua_tostring(L, 1), lua_rawlen(L, 1));
      break;
    }
    lua_pushfstring(L, "%s\n%s", lua_tostring(L, 1), lua_tostring(T, -1));
    lua_replace(L, 1);
    lua_settop(L, 1);
  }
  lua_replace(L, 1);
  lua_settop(L, 1);
  return GOT_LINE;
}

/* A table that has no text of its own is shown by its contents, cut short. */
static void show_tables(lua_State *L, int n) {
  for (int i = 1; i <= n; i++) {
    if (lua_type(L, i) != LUA_TTABLE) continue;
    if (lua_getmetatable(L, i)) {
      lua_pop(L, 1);
      continue;
    }
    if (luaL_loadstring(L, "return require('piper.check').show(...)") == LUA_OK) {
      lua_pushvalue(L, i);
      if (lua_pcall(L, 1, 1, 0) == LUA_OK) lua_replace(L, i);
    }
    lua_settop(L, n);
  }
}

static void print_results(lua_State *L) {
  const int n = lua_gettop(L);
  if (n == 0) return;
  luaL_checkstack(L, LUA_MINSTACK, "too many results to print");
  show_tables(L, n);
  lua_getglobal(L, "print");
  lua_insert(L, 1);
  if (script_call(L, n, 0) != LUA_OK) {
    const char *msg = lua_tostring(L, -1);
    fprintf(stderr, "error calling 'print' (%s)\n", msg != NULL ? msg : "no message");
    lua_settop(L, 0);
  }
}

static int loop(lua_State *L) {
  Session *s = lua_touserdata(L, 1);
  lua_settop(L, 0);
  for (;;) {
    int status = LUA_OK;
    const Got got = read_chunk(L, s, &status);
    if (got == GOT_END) break;
    if (got == GOT_LINE) {
      if (status == LUA_OK) status = script_call(L, 0, LUA_MULTRET);
      if (script_report(L, status, NULL)) print_results(L);
    }
    lua_settop(L, 0);
  }
  fputs("\n", stdout);
  fflush(stdout);
  return 0;
}

/* Where the documents are: in the source tree while the binary is that of a build, else where they are
 * installed. */
static const char *doc_folder(void) {
  static char source[PATH_MAX]; /* without the ".." of a build inside the source tree */
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  const size_t len = strlen(PIPER_BUILD_DIR);
  if (n > 0 && (size_t)n > len && strncmp(path, PIPER_BUILD_DIR "/", len + 1) == 0 &&
      realpath(PIPER_SOURCE_DIR "/doc", source) != NULL)
    return source;
  return PIPER_DOC_DIR "/doc";
}

/* The library and its main parts as globals; a library that does not load leaves a message and a
 * plain Lua session. */
static void set_globals(lua_State *L) {
  static const char *const parts[] = {"nn", "schedules"};
  if (luaL_loadstring(L, "return require 'piper'") != LUA_OK ||
      !script_report(L, script_call(L, 0, 1), "piper")) {
    lua_settop(L, 0);
    return;
  }
  lua_pushvalue(L, -1);
  lua_setglobal(L, "piper");
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    lua_getfield(L, -1, parts[i]);
    lua_setglobal(L, parts[i]);
  }
  lua_pop(L, 1);
  if (luaL_loadstring(L, "local help = require 'piper.help' "
                         "_G.help, _G.quit, _G.exit = help.page(...), help.leave, help.leave") == LUA_OK) {
    lua_pushstring(L, doc_folder());
    script_report(L, script_call(L, 1, 0), "piper");
  }
  lua_settop(L, 0);
}

void repl_run(lua_State *L) {
  Session s = {0};
  struct sigaction old;
  lua_settop(L, 0);
  set_globals(L);
  if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) open_editor(&s);
  /* for the whole session, or a Ctrl-C that comes late would end it; scripts have their own */
  if (s.editor != NULL) script_catch_interrupt(on_interrupt, &old);
  lua_pushcfunction(L, loop);
  lua_pushlightuserdata(L, &s);
  const int status = lua_pcall(L, 1, 0, 0);
  if (s.editor != NULL) sigaction(SIGINT, &old, NULL);
  close_editor(&s);
  script_report(L, status, "piper");
}
