/* Open addressing over an array of ids; texts live in an arena. */
#include "base/intern.h"

#include "base/arena.h"
#include "base/vec.h"

#include <stdlib.h>
#include <string.h>

struct Intern {
  Arena *arena;
  VEC(const char *) texts; /* texts[0] = "" */
  uint32_t *slots;         /* ids, 0 = free; n_slots is a power of two, at most half full */
  uint32_t n_slots;
};

static uint32_t hash_text(const char *s) { /* FNV-1a */
  uint32_t h = 2166136261u;
  for (; *s != '\0'; s++) h = (h ^ (unsigned char)*s) * 16777619u;
  return h;
}

static uint32_t *slot_of(const Intern *t, const char *s) {
  uint32_t i = hash_text(s) & (t->n_slots - 1);
  while (t->slots[i] != 0 && strcmp(t->texts.at[t->slots[i]], s) != 0)
    i = (i + 1) & (t->n_slots - 1);
  return &t->slots[i];
}

Intern *intern_new(void) {
  Intern *t = calloc(1, sizeof *t);
  if (t == NULL) return NULL;
  t->arena = arena_new();
  t->n_slots = 64;
  t->slots = calloc(t->n_slots, sizeof *t->slots);
  if (t->arena == NULL || t->slots == NULL || !vec_push(&t->texts, "")) {
    intern_free(t);
    return NULL;
  }
  return t;
}

void intern_free(Intern *t) {
  if (t == NULL) return;
  arena_free(t->arena);
  free(t->slots);
  vec_free(&t->texts);
  free(t);
}

static bool grow(Intern *t) {
  uint32_t *bigger = calloc((size_t)t->n_slots * 2, sizeof *bigger);
  if (bigger == NULL) return false;
  free(t->slots);
  t->slots = bigger;
  t->n_slots *= 2;
  for (uint32_t id = 1; id < t->texts.n; id++) *slot_of(t, t->texts.at[id]) = id;
  return true;
}

uint32_t intern_find(const Intern *t, const char *s) { return *slot_of(t, s); }

uint32_t intern_id(Intern *t, const char *s) {
  uint32_t *slot = slot_of(t, s);
  if (*slot != 0) return *slot;
  if (t->texts.n * 2 > t->n_slots) {
    if (!grow(t)) return 0;
    slot = slot_of(t, s);
  }
  const char *copy = arena_strdup(t->arena, s, strlen(s));
  if (copy == NULL || !vec_push(&t->texts, copy)) return 0;
  return *slot = (uint32_t)t->texts.n - 1;
}

const char *intern_text(const Intern *t, uint32_t id) { return t->texts.at[id]; }
uint32_t intern_count(const Intern *t) { return (uint32_t)t->texts.n - 1; }
