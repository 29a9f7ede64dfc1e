/* Texts of DAGs, damaged in random places, through the fuzz target. MUTATIONS=n for more. */
#include "fuzz/dag_text.c"

static const char TEXT[] =
    "dag batch=24 dims=1\n"
    "bucket 1 [w0] chunk=1 trained holders=0-1 replicated reduce_stream=dp line=\"a.lua:3\"\n"
    "bucket 2 [w1 w2] trained holders=2,0 group=2 group=0 zero=2 per_microbatch prefetch=1 keep=9 "
    "gather_stream=ag\n"
    "1 compute F chunk=1 samples=0:12 devs=0-1 stream=default_stream tags={MB=0,PP=0} line=\"a\"\n"
    "2 compute F chunk=2 samples=0:12 devs=2 tags={MB=0,PP=1} mb=1 order=1 group=2 member=3 <- "
    "3:v4\n"
    "3 transfer F tensor=v4 src_samples=0:12 src_devs=0-1 samples=0:12 devs=2 stream=pp <- 1:v4\n"
    "4 compute B chunk=2 samples=0:12 devs=2 <- 2:saved(2), 1~\"a.lua:9\", 8:-\n"
    "5 compute BI chunk=1 <- 4:grad(v4,2)\n"
    "6 compute BW chunk=1 <- 5:kept(1), 8~\"\"\n"
    "7 all_reduce bucket=1 devs=0-1 tensor=bucket(1) <- 6:bucket(1)\n"
    "8 join devs=2 stream=\"quo\\\"te\\x0a\"\n"
    "9 norm bucket=1 devs=0 <- 7:bucket(1)\n"
    "10 update bucket=1 devs=0-1 <- 7:bucket(1), 11:metrics # a comment\n"
    "11 all_reduce tensor=metrics devs=0-2 <- 9:metrics\n"
    "12 reduce_scatter B chunk=2 bucket=2 tensor=bucket(2) devs=2,0 mb=1 <- 4:bucket(2)\n"
    "13 all_gather bucket=1 tensor=params(1) devs=0-1 <- 10:params(1)\n"
    "14 all_to_all F chunk=2 tensor=v4 samples=0:12 devs=2,0 parts=2 <- 4:grad(v4,2)/e\n";

static const char *const WORDS[] = {
    "0",
    "1",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-1",
    "0-65535",
    "\"",
    "\\x",
    "\n",
    " ",
    "#",
    "<- ",
    ":",
    "~\"\"",
    "v0",
    "v9",
    "grad(",
    "saved(1)",
    "bucket(2)",
    "params(1)",
    "group=0",
    "zero=3",
    "per_microbatch",
    "all_gather",
    "all_to_all",
    "parts=3",
    "/e",
    "metrics",
    "tags={A=1}",
    "{",
    "}",
    "devs=",
    ",",
    "12 join\n",
    "bucket 3 []\n",
    "dag batch=1\n",
    "samples=5:4",
    "order=",
    "\xff",
};

static uint64_t state = 20240607;
static size_t below(size_t n) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (size_t)(state >> 33) % n;
}

/* Replaces text[at .. at + out) by n bytes; false: no room. */
static bool splice(char *text, size_t *size, size_t room, size_t at, size_t out, const char *in,
                   size_t n) {
  if (at + out > *size || *size - out + n > room) return false;
  memmove(text + at + n, text + at + out, *size - at - out);
  memcpy(text + at, in, n);
  *size += n - out;
  return true;
}

static void mutate(char *text, size_t *size, size_t room) {
  char piece[64];
  const size_t at = below(*size), n = 1 + below(sizeof piece - 1), from = below(*size);
  const char *word = WORDS[below(sizeof WORDS / sizeof *WORDS)];
  switch (below(6)) {
  case 0:
    text[at] = (char)below(256);
    return;
  case 1:
    text[at] = (char)('0' + below(10));
    return;
  case 2:
    splice(text, size, room, at, n, "", 0);
    return;
  case 3:
    splice(text, size, room, at, 0, word, strlen(word));
    return;
  case 4:
    splice(text, size, room, at, below(4), word, strlen(word));
    return;
  case 5: /* a piece from elsewhere */
    if (from + n > *size) return;
    memcpy(piece, text + from, n);
    splice(text, size, room, at, 0, piece, n);
    return;
  }
}

int main(void) {
  const char *wanted = getenv("MUTATIONS");
  const long n = wanted != NULL ? atol(wanted) : 20000;
  char text[4096];
  LLVMFuzzerTestOneInput((const uint8_t *)TEXT, sizeof TEXT - 1);
  for (long i = 0; i < n; i++) {
    size_t size = sizeof TEXT - 1;
    memcpy(text, TEXT, size);
    for (size_t k = 1 + below(4); k > 0 && size > 0; k--) mutate(text, &size, sizeof text);
    LLVMFuzzerTestOneInput((const uint8_t *)text, size);
  }
  ok(true, "%ld damaged texts are errors with a place, or come back as they were", n);
  return done_testing();
}
