/* bytes.h - amounts of memory as tables and messages show them. */
#ifndef PIPER_BASE_BYTES_H
#define PIPER_BASE_BYTES_H

#include <stdint.h>

/* "0", "17 B", "1.50 KiB", "25 MiB", "2.63 GiB": in the largest unit of which there is one, with two
 * decimals where there is more than whole units. */
typedef struct BytesText {
  char text[24];
} BytesText;
BytesText bytes_text(uint64_t bytes);

#endif
