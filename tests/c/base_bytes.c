#include "base/bytes.h"

#include "tap.h"

int main(void) {
  static const struct {
    uint64_t bytes;
    const char *text;
  } CASES[] = {
      {0, "0"},
      {1, "1 B"},
      {1023, "1023 B"},
      {1024, "1 KiB"},
      {1025, "1.00 KiB"},
      {1536, "1.50 KiB"},
      {(1 << 20) - 1, "1.00 MiB"},
      {(1 << 20) - 6, "1023.99 KiB"},
      {25 << 20, "25 MiB"},
      {UINT64_C(2824000000), "2.63 GiB"},
      {UINT64_C(3) << 40, "3 TiB"},
      {UINT64_MAX, "16.00 EiB"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
    is_str(bytes_text(CASES[i].bytes).text, CASES[i].text, "%llu bytes", (unsigned long long)CASES[i].bytes);
  return done_testing();
}
