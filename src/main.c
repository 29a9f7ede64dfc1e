/* piper - runs Lua scripts with the library "piper" at hand.
 *
 * Arguments, one lua_State, one protected call, the exit code. Options, 'arg', messages and exit
 * codes are those of lua(1), so that what one knows about it holds here. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bind/bind.h"
#include "repl.h"
#include "script.h"

typedef struct Options {
  int script; /* index in argv of the script's name; argc: none */
  bool interactive, show_version, has_chunk, ignore_environment;
  bool features, help; /* --version, --help: nothing else is done */
  int first_bad; /* index in argv of an option that is wrong; 0: all fine */
} Options;

static const char program[] = "piper";

/* ---- output ---- */

static int output_error; /* why something did not get out; 0: not known, or nothing was lost */

static void flush_output(void) {
  if (fflush(stdout) != 0 && output_error == 0) output_error = errno;
}

/* At the end, however it is reached: what was printed is not lost in silence. */
static void end_output(void) {
  flush_output();
  if (!ferror(stdout) && output_error == 0) return;
  fprintf(stderr, "%s: cannot write the output%s%s\n", program, output_error != 0 ? ": " : "",
          output_error != 0 ? strerror(output_error) : "");
  _exit(EXIT_FAILURE);
}

/* As lua(1) has it, which flushes line by line, too, but then forgets why that failed. */
static int print(lua_State *L) {
  const int n = lua_gettop(L);
  for (int i = 1; i <= n; i++) {
    size_t len;
    const char *s = luaL_tolstring(L, i, &len);
    if (i > 1) putc('\t', stdout);
    if (fwrite(s, 1, len, stdout) < len && output_error == 0) output_error = errno;
    lua_pop(L, 1);
  }
  putc('\n', stdout);
  flush_output();
  return 0;
}

/* A standard stream that is closed would become the first file that is opened, and get what is
 * printed. Opened the wrong way round it stays an error to use it. */
static void occupy_closed(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF &&
        open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
      return;
}

/* ---- options ---- */

static void print_version(void) {
  fputs("Piper " PACKAGE_VERSION " (" LUA_RELEASE ")\n", stdout);
}

static void print_features(void) {
  print_version();
  fputs("devices: cpu\ncommunicators: threads\nkernels:"
#ifdef PIPER_KERNEL_X86
        " x86-64-v3 x86-64-v4\n"
#else
        " generic\n"
#endif
        "line editing: libedit\n",
        stdout);
}

static const char *const usage =
    "  -e CHUNK    run the string CHUNK\n"
    "  -i          enter interactive mode after running the script\n"
    "  -l MOD      require MOD into global MOD\n"
    "  -l G=MOD    require MOD into global G\n"
    "  -v          show the version\n"
    "  -E          ignore environment variables\n"
    "  -W          turn warnings on\n"
    "  --version   show the version and what is compiled in\n"
    "  --help      show this\n"
    "  --          stop handling options\n"
    "  -           stop handling options and run stdin\n"
    "Without a script: an interactive session on a terminal, otherwise stdin is run.\n"
    "A script says: local piper = require \"piper\"\n"
    "The session has the globals piper, nn and schedules; help says more, Ctrl-D ends it.\n"
    "Documents: doc/guide.md of the source tree, installed in " PIPER_DOC_DIR "/doc\n";

static void print_usage(FILE *out) {
  fprintf(out, "usage: %s [options] [script [args]]\n%s", program, usage);
}

/* What the options say, without acting on them yet. */
static Options read_options(int argc, char **argv) {
  Options o = {.script = argc};
  for (int i = 1; i < argc; i++) {
    const char *a = argv[i];
    if (a[0] != '-' || a[1] == '\0') { /* a script's name, or a lone dash: stdin */
      o.script = i;
      return o;
    }
    if (strcmp(a, "--") == 0) {
      o.script = i + 1;
      return o;
    }
    if (strcmp(a, "--version") == 0 || strcmp(a, "--help") == 0) {
      o.features = a[2] == 'v';
      o.help = a[2] == 'h';
      return o;
    }
    switch (a[1]) {
    case 'E':
      o.ignore_environment = true;
      break;
    case 'i':
      o.interactive = o.show_version = true;
      break;
    case 'v':
      o.show_version = true;
      break;
    case 'W':
      break;
    case 'e':
      o.has_chunk = true; /* fall through */
    case 'l':
      if (a[2] == '\0' && (++i >= argc || argv[i][0] == '-')) {
        o.first_bad = i - 1;
        return o;
      }
      continue;
    default:
      o.first_bad = i;
      return o;
    }
    if (a[2] != '\0') { /* -i and the like stand alone */
      o.first_bad = i;
      return o;
    }
  }
  return o;
}

static void complain(const char *option) {
  if (strcmp(option, "-e") == 0 || strcmp(option, "-l") == 0)
    fprintf(stderr, "%s: '%s' needs argument\n", program, option);
  else
    fprintf(stderr, "%s: unrecognized option '%s'\n", program, option);
  print_usage(stderr);
}

/* ---- what runs ---- */

static bool run_chunk(lua_State *L, int status, int n_args) {
  if (status == LUA_OK) status = script_call(L, n_args, 0);
  return script_report(L, status, program);
}

static bool run_string(lua_State *L, const char *text, const char *name) {
  return run_chunk(L, luaL_loadbuffer(L, text, strlen(text), name), 0);
}

static bool run_init(lua_State *L) {
  const char *name = "=LUA_INIT_5_4";
  const char *init = getenv(name + 1);
  if (init == NULL) init = getenv((name = "=LUA_INIT") + 1);
  if (init == NULL) return true;
  return init[0] == '@' ? run_chunk(L, luaL_loadfile(L, init + 1), 0) : run_string(L, init, name);
}

/* -l mod or -l g=mod */
static bool run_library(lua_State *L, const char *spec) {
  const char *equals = strchr(spec, '=');
  lua_getglobal(L, "require");
  lua_pushstring(L, equals != NULL ? equals + 1 : spec);
  const int status = script_call(L, 1, 1);
  if (status == LUA_OK) {
    lua_pushlstring(L, spec, equals != NULL ? (size_t)(equals - spec) : strlen(spec));
    lua_insert(L, -2);
    lua_setglobal(L, lua_tostring(L, -2));
    lua_pop(L, 1);
  }
  return script_report(L, status, program);
}

/* -e, -l and -W, in order; stops at the first failure. */
static bool run_options(lua_State *L, char **argv, int end) {
  for (int i = 1; i < end; i++) {
    const char option = argv[i][1];
    if (option == 'W') lua_warning(L, "@on", 0);
    if (option != 'e' && option != 'l') continue;
    const char *value = argv[i][2] != '\0' ? argv[i] + 2 : argv[++i];
    if (!(option == 'e' ? run_string(L, value, "=(command line)") : run_library(L, value)))
      return false;
  }
  return true;
}

/* A file as lua(1) loads it, but with a variable to be closed at its start. So its last "return f(...)"
 * is no tail call, which would leave no frame of the script, and messages about f without a line. */
typedef struct Script {
  FILE *file;
  const char *before; /* what stands before the rest of the file; NULL: nothing any more */
  char buf[4096];
} Script;

static const char *read_script(lua_State *L, void *data, size_t *size) {
  Script *s = data;
  (void)L;
  if (s->before != NULL) {
    const char *text = s->before;
    s->before = NULL;
    *size = strlen(text);
    return text;
  }
  *size = fread(s->buf, 1, sizeof s->buf, s->file);
  return *size > 0 ? s->buf : NULL;
}

static int load_script(lua_State *L, const char *name) {
  if (name == NULL) return luaL_loadfile(L, NULL);
  Script s = {.before = "local _ <close> = nil "};
  s.file = fopen(name, "rb");
  int c = s.file != NULL ? getc(s.file) : EOF;
  /* A byte order mark, a first line for the shell, a compiled file, one that cannot be read: left to Lua's own loader. */
  if (c == EOF || c == '#' || c == 0xEF || c == LUA_SIGNATURE[0]) {
    if (s.file != NULL) fclose(s.file);
    return luaL_loadfile(L, name);
  }
  ungetc(c, s.file);
  const int status = lua_load(L, read_script, &s, lua_pushfstring(L, "@%s", name), "t");
  const bool fine = ferror(s.file) == 0;
  fclose(s.file);
  lua_remove(L, -2); /* the chunk's name */
  if (fine) return status;
  lua_pop(L, 1);
  return luaL_loadfile(L, name); /* which has the message */
}

/* The script argv[script], with the rest as its arguments. */
static bool run_script(lua_State *L, char **argv, int script) {
  const char *name = argv[script];
  if (strcmp(name, "-") == 0 && strcmp(argv[script - 1], "--") != 0) name = NULL; /* stdin */
  const int status = load_script(L, name);
  int n = 0;
  if (status == LUA_OK) {
    for (char **a = argv + script + 1; *a != NULL; a++, n++) {
      luaL_checkstack(L, 3, "too many arguments to script");
      lua_pushstring(L, *a);
    }
  }
  return run_chunk(L, status, n);
}

/* arg[0] is the script (or the program), what stands before it has negative indices. */
static void set_arg(lua_State *L, int argc, char **argv, int script) {
  if (script == argc) script = 0;
  lua_createtable(L, argc - script, script + 1);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - script);
  }
  lua_setglobal(L, "arg");
}

typedef struct Run {
  int argc;
  char **argv;
  const Options *options;
  bool fine; /* result */
} Run;

static int run(lua_State *L) {
  Run *r = lua_touserdata(L, 1);
  const Options *o = r->options;
  luaL_checkversion(L);
  if (o->show_version) print_version();
  if (o->ignore_environment) {
    lua_pushboolean(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "LUA_NOENV");
  }
  luaL_openlibs(L);
  lua_pushcfunction(L, print);
  lua_setglobal(L, "print");
  script_open(L);
  bind_open(L, o->ignore_environment ? NULL : getenv("PIPER_LUA"));
  set_arg(L, r->argc, r->argv, o->script);

  r->fine = (o->ignore_environment || run_init(L)) && run_options(L, r->argv, o->script) &&
            (o->script >= r->argc || run_script(L, r->argv, o->script));
  if (!r->fine) return 0;
  if (o->interactive) {
    repl_run(L);
  } else if (o->script >= r->argc && !o->has_chunk && !o->show_version) {
    if (isatty(STDIN_FILENO)) {
      print_version();
      repl_run(L);
    } else {
      r->fine = run_chunk(L, luaL_loadfile(L, NULL), 0);
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  occupy_closed();
  if (atexit(end_output) != 0) return EXIT_FAILURE;
  const Options o = read_options(argc, argv);
  if (o.first_bad != 0) {
    complain(argv[o.first_bad]);
    return EXIT_FAILURE;
  }
  if (o.help) print_usage(stdout);
  if (o.features) print_features();
  if (o.help || o.features) return EXIT_SUCCESS;
  lua_State *L = luaL_newstate();
  if (L == NULL) {
    fprintf(stderr, "%s: cannot create state: not enough memory\n", program);
    return EXIT_FAILURE;
  }
  Run r = {argc, argv, &o, false};
  lua_pushcfunction(L, run);
  lua_pushlightuserdata(L, &r);
  const int status = lua_pcall(L, 1, 0, 0);
  const bool fine = script_report(L, status, program) && r.fine;
  lua_close(L);
  return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}
