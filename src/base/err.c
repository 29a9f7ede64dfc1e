#include "base/err.h"

#include <stdio.h>

PiperStatus err_vset(PiperErr *err, PiperStatus code, const char *fmt, va_list args) {
  if (err != NULL && err->code == PIPER_OK) {
    err->code = code;
    vsnprintf(err->text, sizeof err->text, fmt, args);
  }
  return code;
}

PiperStatus err_set(PiperErr *err, PiperStatus code, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  err_vset(err, code, fmt, args);
  va_end(args);
  return code;
}

PiperStatus err_nomem(PiperErr *err, const char *what) {
  return err_set(err, PIPER_ENOMEM, "%s: not enough memory", what);
}

/* Bytes of the character that s[0 .. len) begins with; 0: it is none, or one that controls. */
static size_t utf8_char(const unsigned char *s, size_t len) {
  const unsigned char c = s[0];
  if (c < 0x80) return c >= ' ' && c != 0x7f;
  const size_t n = c < 0xc2 || c > 0xf4 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
  if (n > len) return 0;
  for (size_t i = 1; i < n; i++)
    if ((s[i] & 0xc0) != 0x80) return 0;
  if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xed && s[1] > 0x9f) || (c == 0xf0 && s[1] < 0x90) ||
      (c == 0xf4 && s[1] > 0x8f))
    return 0; /* longer than it has to be, half of a pair, or beyond the last */
  return n;
}

ErrQuoted err_quoted(const char *s, size_t len) {
  enum { SHOWN = 60, CUT = 57 };
  const size_t most = len > SHOWN ? CUT : len;
  ErrQuoted q;
  size_t n = 0;
  q.text[n++] = '"';
  for (size_t i = 0; i < most;) {
    const size_t c = utf8_char((const unsigned char *)s + i, len - i);
    if (i + c > most) break;
    if (c == 0) q.text[n++] = '?';
    for (size_t k = 0; k < c; k++) q.text[n++] = s[i + k];
    i += c > 0 ? c : 1;
  }
  snprintf(q.text + n, sizeof q.text - n, "%s", len > SHOWN ? "...\"" : "\"");
  return q;
}
