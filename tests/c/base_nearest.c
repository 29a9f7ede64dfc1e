#include "base/nearest.h"

#include "tap.h"

static const char *nearest(const char *name) {
  static const char *const fields[] = {"filter", "devices", "stream", "lr", "PP", "reduce_stream"};
  Nearest n = {0};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) nearest_try(&n, name, fields[i]);
  return n.best;
}

int main(void) {
  is_int(nearest_distance("", ""), 0, "nothing to do");
  is_int(nearest_distance("", "abc"), 3, "three insertions");
  is_int(nearest_distance("abc", ""), 3, "three deletions");
  is_int(nearest_distance("kitten", "sitting"), 3, "kitten to sitting");
  is_int(nearest_distance("devcies", "devices"), 1, "a swap of neighbours is one edit");
  is_int(nearest_distance("PP", "pp"), 0, "case does not count");
  char longer[200];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  is_int(nearest_distance(longer, ""), NEAREST_MAX, "long strings are cut");

  is_str(nearest("devcies"), "devices", "a swap");
  is_str(nearest("reduce_steam"), "reduce_stream", "a missing letter");
  is_str(nearest("pp"), "PP", "another case");
  is_str(nearest("le"), "lr", "one edit in a short name");
  is_str(nearest("xyz"), NULL, "nothing is near");
  is_str(nearest("momentum"), NULL, "nothing is near a long name either");
  is_str(nearest(longer), NULL, "nor one that was cut");
  return done_testing();
}
