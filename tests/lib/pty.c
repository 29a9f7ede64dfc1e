/* pty - drives a program on a terminal of its own, for tests of what only happens there.
 *
 *   pty PROGRAM [ARGS] <<'END'
 *   send 1 + 1\r
 *   expect 2
 *   send \x03
 *   exit
 *   END
 *
 * send TEXT     types it; \r, \n, \\ and \xHH are understood
 * expect TEXT   waits until it has been shown after what was last expected
 * pause MS      lets time go by
 * exit          waits for the end of the program and prints "exit N" or "signal N"
 *
 * Fails with a message, and with what was shown, after ten seconds without progress. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_MS 10000

static int terminal;
static pid_t child;
static char shown[1 << 20];
static size_t n_shown, n_matched;

static void fail(const char *what, const char *text) {
  printf("pty: %s: %s\n", what, text);
  printf("pty: shown since the last match: %.*s\n", (int)(n_shown - n_matched), shown + n_matched);
  kill(child, SIGKILL);
  exit(1);
}

static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000L + t.tv_nsec / 1000000L;
}

/* Reads what there is, waiting for it up to 'ms'; false: the program has closed the terminal. */
static bool take(int ms) {
  struct pollfd p = {.fd = terminal, .events = POLLIN};
  if (poll(&p, 1, ms) <= 0) return true;
  if (n_shown + 1 >= sizeof shown) fail("too much output", "");
  const ssize_t n = read(terminal, shown + n_shown, sizeof shown - n_shown - 1);
  if (n <= 0) return false;
  const size_t end = n_shown + (size_t)n;
  for (size_t i = n_shown; i < end; i++) /* NULs are padding for slow terminals */
    if (shown[i] != '\0') shown[n_shown++] = shown[i];
  shown[n_shown] = '\0';
  return true;
}

static void expect(const char *text) {
  const long end = now_ms() + LIMIT_MS;
  bool open = true;
  for (;;) {
    const char *at = strstr(shown + n_matched, text);
    if (at != NULL) {
      n_matched = (size_t)(at - shown) + strlen(text);
      return;
    }
    if (!open) fail("the program ended before it showed", text);
    if (now_ms() > end) fail("not shown in time", text);
    open = take(100);
  }
}

static void send_text(char *text) {
  char *to = text;
  for (const char *p = text; *p != '\0'; p++) {
    if (*p != '\\') {
      *to++ = *p;
      continue;
    }
    switch (*++p) {
    case 'r': *to++ = '\r'; break;
    case 'n': *to++ = '\n'; break;
    case 'x': {
      const char hex[3] = {p[1], p[2], '\0'};
      *to++ = (char)strtol(hex, NULL, 16);
      p += 2;
      break;
    }
    default: *to++ = *p; break;
    }
  }
  for (const char *p = text; p < to;) {
    const ssize_t n = write(terminal, p, (size_t)(to - p));
    if (n < 0) fail("cannot type", strerror(errno));
    p += n;
  }
}

static void wait_for_exit(void) {
  const long end = now_ms() + LIMIT_MS;
  int status;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (now_ms() > end) fail("no end in time", "");
    if (!take(20)) poll(NULL, 0, 20);
  }
  if (WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
  else printf("exit %d\n", WEXITSTATUS(status));
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) {
    printf("pty: no terminal: %s\n", strerror(errno));
    return 77;
  }
  child = fork();
  if (child < 0) return 2;
  if (child == 0) {
    setsid();
    const int fd = open(ptsname(terminal), O_RDWR); /* becomes the controlling terminal */
    const struct winsize size = {.ws_row = 40, .ws_col = 160};
    ioctl(fd, TIOCSWINSZ, &size);
    dup2(fd, 0);
    dup2(fd, 1);
    dup2(fd, 2);
    if (fd > 2) close(fd);
    close(terminal);
    execvp(argv[1], argv + 1);
    _exit(127);
  }
  char line[4096];
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "send ", 5) == 0) send_text(line + 5);
    else if (strncmp(line, "expect ", 7) == 0) expect(line + 7);
    else if (strncmp(line, "pause ", 6) == 0) poll(NULL, 0, atoi(line + 6));
    else if (strcmp(line, "exit") == 0) wait_for_exit();
    else if (line[0] != '\0') fail("no command", line);
  }
  return 0;
}
