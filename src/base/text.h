/* text.h - a text that grows. What is put after memory has run out is lost, and text_finish says so:
 * nothing in between needs a check. */
#ifndef PIPER_BASE_TEXT_H
#define PIPER_BASE_TEXT_H

#include "base/err.h"
#include "base/vec.h"

typedef struct Text {
  VEC(char) chars;
  bool failed; /* out of memory */
} Text;

void text_put(Text *t, const char *fmt, ...) PIPER_PRINTF(2, 3);
/* Spaces until the line that began at 'line' (an index of chars) has 'width' characters. */
void text_pad(Text *t, size_t line, size_t width);
/* Takes away what stands at the end. */
void text_trim(Text *t, char what);
/* The text, malloc'ed, in *out for the caller to free; t is empty again. 'what' is for the message. */
PiperStatus text_finish(Text *t, const char *what, char **out, PiperErr *err);

#endif
