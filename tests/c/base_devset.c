#include "base/devset.h"

#include "tap.h"

#define SET(t, ...)                                                                                \
  devsets_id(t, (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void text_is(const DevSets *t, uint32_t id, const char *want) {
  char text[32];
  devsets_text(t, id, text, sizeof text);
  is_str(text, want, "text of a list is \"%s\"", want);
}

int main(void) {
  DevSets *t = devsets_new();
  if (t == NULL) bail("no memory");
  is_int(devsets_count(t), 1, "a new table has the empty list");
  is_int(devsets_size(t, 0), 0, "id 0 is the empty list");
  is_int(devsets_id(t, NULL, 0), 0, "the empty list has id 0");

  const uint32_t a = SET(t, 0, 1), b = SET(t, 1, 0), c = SET(t, 0, 1, 2, 3, 8), one = SET(t, 5);
  ok(a != b && a != 0 && b != 0, "{0, 1} and {1, 0} are different sets");
  is_int(SET(t, 0, 1), a, "the same list has the same id");
  is_int(devsets_size(t, c), 5, "a list keeps its length");
  is_int(devsets_position(t, c, 8), 4, "position counts along the list");
  is_int(devsets_position(t, b, 0), 1, "position follows the list's own order");
  is_int(devsets_position(t, c, 7), -1, "a rank that is no member has no position");

  text_is(t, 0, "");
  text_is(t, one, "5");
  text_is(t, a, "0-1");
  text_is(t, b, "1,0");
  text_is(t, c, "0-3,8");
  text_is(t, SET(t, 0, 2, 3), "0,2-3");
  text_is(t, SET(t, 3, 0, 1, 2), "3,0,1,2");
  char small[8];
  devsets_text(t, SET(t, 1, 3, 5, 7, 9, 11), small, sizeof small);
  is_str(small, "1,3,...", "what does not fit ends in an ellipsis");

  is_int(devsets_union(t, a, c), c, "a union is the larger set where that holds both");
  is_int(devsets_union(t, b, one), SET(t, 0, 1, 5), "a union is sorted");
  is_int(devsets_union(t, b, a), b, "of two orders of one set the first stays");
  is_int(devsets_union(t, 0, one), one, "the empty list adds nothing");
  is_int(devsets_union(t, one, 0), one, "nothing is added to the empty list");

  bool same = true;
  uint32_t id[1000];
  for (int32_t i = 0; i < 1000; i++) id[i] = SET(t, i, i + 1, 2000 - i);
  for (int32_t i = 0; i < 1000; i++) {
    const int32_t *ranks = devsets_ranks(t, id[i]);
    same = same && SET(t, i, i + 1, 2000 - i) == id[i] && ranks[0] == i && ranks[2] == 2000 - i;
  }
  ok(same, "a thousand lists are found again after growth");
  devsets_free(t);
  devsets_free(NULL);
  return done_testing();
}
