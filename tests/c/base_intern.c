#include "base/intern.h"

#include "tap.h"

int main(void) {
  Intern *t = intern_new();
  if (t == NULL) bail("no memory");
  is_int(intern_count(t), 0, "a new table is empty");
  is_int(intern_id(t, "PP"), 1, "the first string has id 1");
  is_int(intern_id(t, "MB"), 2, "the next one 2");
  is_int(intern_id(t, "PP"), 1, "a known string keeps its id");
  is_int(intern_id(t, ""), 3, "the empty string is a string");
  is_int(intern_find(t, "EP"), 0, "find adds nothing");
  is_int(intern_find(t, "MB"), 2, "find gives the id");
  is_str(intern_text(t, 2), "MB", "back to the string");
  is_str(intern_text(t, 0), "", "id 0 is no string");

  const char *early = intern_text(t, 1);
  char name[32];
  bool in_order = true;
  for (int i = 0; i < 20000; i++) {
    snprintf(name, sizeof name, "layers.%d.weight", i);
    in_order &= intern_id(t, name) == (uint32_t)i + 4;
  }
  ok(in_order, "20000 strings get ids in order");
  bool found = true;
  for (int i = 0; i < 20000; i++) {
    snprintf(name, sizeof name, "layers.%d.weight", i);
    const uint32_t id = intern_find(t, name);
    found &= id == (uint32_t)i + 4 && strcmp(intern_text(t, id), name) == 0;
  }
  ok(found, "and are found again");
  ok(intern_text(t, 1) == early, "a name stays where it was");
  intern_free(t);
  intern_free(NULL);
  return done_testing();
}
