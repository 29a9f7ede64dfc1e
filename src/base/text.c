#include "base/text.h"

#include <stdio.h>
#include <string.h>

void text_put(Text *t, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  const int n = vsnprintf(NULL, 0, fmt, again);
  va_end(again);
  if (n < 0 || t->failed || !vec_reserve(&t->chars, (size_t)n + 1)) {
    t->failed = true;
  } else {
    vsnprintf(t->chars.at + t->chars.n, (size_t)n + 1, fmt, args);
    t->chars.n += (size_t)n;
  }
  va_end(args);
}

void text_pad(Text *t, size_t line, size_t width) {
  const size_t wide = t->failed ? width : t->chars.n - line;
  if (wide < width) text_put(t, "%*s", (int)(width - wide), "");
}

void text_trim(Text *t, char what) {
  while (t->chars.n > 0 && t->chars.at[t->chars.n - 1] == what) t->chars.n--;
}

PiperStatus text_finish(Text *t, const char *what, char **out, PiperErr *err) {
  if (t->failed || !vec_reserve(&t->chars, 1)) {
    vec_free(&t->chars);
    *t = (Text){0};
    return err_nomem(err, what);
  }
  t->chars.at[t->chars.n] = '\0';
  *out = t->chars.at;
  *t = (Text){0};
  return PIPER_OK;
}
