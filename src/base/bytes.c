#include "base/bytes.h"

#include <stdio.h>

BytesText bytes_text(uint64_t bytes) {
  static const char *const UNIT[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  BytesText t = {"0"};
  int unit = 0;
  uint64_t one = 1;
  /* 1023.996 KiB would be printed as 1024.00 KiB: it is 1.00 MiB */
  for (; unit < 6 && (double)bytes / (double)one >= (unit == 0 ? 1024 : 1023.995); unit++) one *= 1024;
  if (bytes == 0) return t;
  const char *fmt = bytes % one == 0 ? "%.0f %s" : "%.2f %s";
  snprintf(t.text, sizeof t.text, fmt, (double)bytes / (double)one, UNIT[unit]);
  return t;
}
