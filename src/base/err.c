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
