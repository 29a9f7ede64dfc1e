/* tap.h - points of a C unit test in TAP.
 *
 *   int main(void) {
 *     is_int(add(1, 2), 3, "1 and 2 make 3");
 *     return done_testing();
 *   }
 *
 * Every check takes a printf-like name, prints one point and returns whether it held. */
#ifndef PIPER_TESTS_TAP_H
#define PIPER_TESTS_TAP_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { int planned, run, failed; } tap_ = {-1, 0, 0};

static inline void plan(int n) {
  tap_.planned = n;
  printf("1..%d\n", n);
  fflush(stdout);
}

static inline void diag(const char *fmt, ...) {
  va_list args;
  printf("# ");
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
  fflush(stdout);
}

static inline bool tap_point_(bool held, const char *fmt, va_list args) {
  tap_.run++;
  if (!held) tap_.failed++;
  printf("%sok %d - ", held ? "" : "not ", tap_.run);
  vprintf(fmt, args);
  printf("\n");
  fflush(stdout);
  return held;
}

static inline bool tap_ok_(bool held, const char *file, int line, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  tap_point_(held, fmt, args);
  va_end(args);
  if (!held) diag("at %s:%d", file, line);
  return held;
}

static inline bool tap_int_(long long got, long long want, const char *file, int line,
                            const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  tap_point_(got == want, fmt, args);
  va_end(args);
  if (got != want) diag("at %s:%d: got %lld, want %lld", file, line, got, want);
  return got == want;
}

static inline bool tap_near_(double got, double want, double tol, const char *file, int line,
                             const char *fmt, ...) {
  const bool held = fabs(got - want) <= tol;
  va_list args;
  va_start(args, fmt);
  tap_point_(held, fmt, args);
  va_end(args);
  if (!held) diag("at %s:%d: got %.17g, want %.17g within %g", file, line, got, want, tol);
  return held;
}

static inline bool tap_str_(const char *got, const char *want, const char *file, int line,
                            const char *fmt, ...) {
  const bool held = got == NULL || want == NULL ? got == want : strcmp(got, want) == 0;
  va_list args;
  va_start(args, fmt);
  tap_point_(held, fmt, args);
  va_end(args);
  if (!held) { /* texts may have many lines: each becomes a comment line of its own */
    const char *texts[2] = {got, want};
    diag("at %s:%d", file, line);
    for (int i = 0; i < 2; i++) {
      printf("# %s: ", i == 0 ? " got" : "want");
      for (const char *p = texts[i] != NULL ? texts[i] : "(null)"; *p != '\0'; p++) {
        putchar(*p);
        if (*p == '\n') printf("#       ");
      }
      printf("\n");
    }
    fflush(stdout);
  }
  return held;
}

#define ok(held, ...) tap_ok_((held), __FILE__, __LINE__, __VA_ARGS__)
#define is_int(got, want, ...)                                                                     \
  tap_int_((long long)(got), (long long)(want), __FILE__, __LINE__, __VA_ARGS__)
#define is_near(got, want, tol, ...) tap_near_((got), (want), (tol), __FILE__, __LINE__, __VA_ARGS__)
#define is_str(got, want, ...) tap_str_((got), (want), __FILE__, __LINE__, __VA_ARGS__)

/* One point that could not be tried, and why. */
static inline void skip(const char *why) {
  printf("ok %d # SKIP %s\n", ++tap_.run, why);
  fflush(stdout);
}

/* Whether a kernel's results have the same bits on every instruction set. Between the reads and writes
 * that TSan announces GCC contracts products and sums to other multiply-adds in each. */
static inline void bits_of_isas(bool same, const char *what) {
#ifdef __SANITIZE_THREAD__
  (void)same, (void)what;
  skip("TSan changes which products and sums are contracted");
#else
  ok(same, "%s: same bits on every instruction set", what);
#endif
}

/* The whole file cannot be tried on this machine. */
static inline void skip_all(const char *why) {
  printf("1..0 # SKIP %s\n", why);
  exit(0);
}

static inline void bail(const char *why) {
  printf("Bail out! %s\n", why);
  exit(1);
}

static inline int done_testing(void) {
  if (tap_.planned < 0) plan(tap_.run);
  return tap_.failed != 0 || tap_.planned != tap_.run;
}

#endif
