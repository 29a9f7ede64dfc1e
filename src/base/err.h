/* err.h - status codes and the caller's message buffer.
 *
 * A function that can fail returns a PiperStatus and takes the caller's PiperErr last. The first
 * failure recorded stays: clean-up never hides the cause. One PiperErr belongs to one thread. */
#ifndef PIPER_BASE_ERR_H
#define PIPER_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>

typedef enum PiperStatus {
  PIPER_OK = 0,
  PIPER_EUSER,   /* the script, its data or its options are wrong */
  PIPER_ENOMEM,  /* out of memory */
  PIPER_EIO,     /* a file or the system failed */
  PIPER_EBUG,    /* an invariant of ours does not hold (a verifier found it) */
  PIPER_EPEER,   /* another rank failed first */
  PIPER_ESTOP,   /* interrupted (Ctrl-C) */
} PiperStatus;

#define PIPER_ERR_TEXT 2048

typedef struct PiperErr {
  PiperStatus code;
  char text[PIPER_ERR_TEXT];
} PiperErr;

#if defined(__GNUC__)
#define PIPER_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define PIPER_PRINTF(fmt, first)
#endif

/* Record a failure ('err' may be NULL); returns 'code'. The first one stays. */
PiperStatus err_set(PiperErr *err, PiperStatus code, const char *fmt, ...) PIPER_PRINTF(3, 4);
PiperStatus err_vset(PiperErr *err, PiperStatus code, const char *fmt, va_list args);

/* Record "out of memory" for 'what'; returns PIPER_ENOMEM. */
PiperStatus err_nomem(PiperErr *err, const char *what);

/* 'len' bytes from outside as a message shows them: quoted, cut where they are many, with ? for
 * control characters and what is not UTF-8. */
typedef struct ErrQuoted {
  char text[64];
} ErrQuoted;
ErrQuoted err_quoted(const char *s, size_t len);

/* For functions that hold nothing at this point. */
#define TRY(call)                                                                                  \
  do {                                                                                             \
    PiperStatus try_ = (call);                                                                     \
    if (try_ != PIPER_OK) return try_;                                                             \
  } while (0)

#endif
