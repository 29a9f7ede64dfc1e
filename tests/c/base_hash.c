#include "base/hash.h"

#include <inttypes.h>

#include "tap.h"

static uint64_t of_strs(const char *a, const char *b) {
  Hash h = HASH_START;
  hash_str(&h, a);
  hash_str(&h, b);
  return hash_end(&h);
}

static uint64_t of_f64(double v) {
  Hash h = HASH_START;
  hash_f64(&h, v);
  return hash_end(&h);
}

int main(void) {
  Hash fnv = HASH_START;
  hash_bytes(&fnv, "foobar", 6);
  ok(fnv.state == UINT64_C(0x85944171f73967e8), "the state is FNV-1a's (foobar)");

  Hash whole = HASH_START, parts = HASH_START;
  hash_bytes(&whole, "abcdef", 6);
  hash_bytes(&parts, "ab", 2);
  hash_bytes(&parts, "cdef", 4);
  ok(hash_end(&whole) == hash_end(&parts), "a stream may come in pieces");
  ok(hash_of("abcdef", 6) == hash_end(&whole), "hash_of is the same in one call");

  Hash num = HASH_START, raw = HASH_START;
  hash_u32(&num, 0x04030201);
  hash_bytes(&raw, "\x01\x02\x03\x04", 4);
  ok(hash_end(&num) == hash_end(&raw), "numbers go in lowest byte first");

  ok(of_strs("ab", "c") != of_strs("a", "bc"), "where a string ends counts");
  ok(of_strs("", "a") != of_strs("a", ""), "an empty string counts");
  ok(of_f64(0.0) != of_f64(-0.0), "the two zeros differ");

  const uint64_t frozen = of_strs("plan", "digest");
  if (!ok(frozen == UINT64_C(0x3eadfaefa3253797), "the value is the same on every machine"))
    diag("got %016" PRIx64, frozen);
  return done_testing();
}
