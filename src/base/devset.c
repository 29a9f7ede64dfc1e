/* Lists lie end to end in one array; a hash table with open addressing finds the id of a list. */
#include "base/devset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct DevSets {
  VEC(uint32_t) first; /* set i: ranks.at[first.at[i]] up to first.at[i + 1] */
  VEC(int32_t) ranks;
  VEC(bool) ascending; /* by set */
  uint32_t *slots; /* ids, 0 = free; n_slots is a power of two, at most half full */
  uint32_t n_slots;
};

DevSets *devsets_new(void) {
  DevSets *t = calloc(1, sizeof *t);
  if (t == NULL) return NULL;
  t->n_slots = 32;
  t->slots = calloc(t->n_slots, sizeof *t->slots);
  if (t->slots == NULL || !vec_push(&t->first, 0) || !vec_push(&t->first, 0) ||
      !vec_push(&t->ascending, true) || !vec_reserve(&t->ranks, 32)) {
    devsets_free(t);
    return NULL;
  }
  return t;
}

void devsets_free(DevSets *t) {
  if (t == NULL) return;
  vec_free(&t->first);
  vec_free(&t->ranks);
  vec_free(&t->ascending);
  free(t->slots);
  free(t);
}

uint32_t devsets_count(const DevSets *t) { return (uint32_t)t->first.n - 1; }

uint32_t devsets_size(const DevSets *t, uint32_t id) {
  return t->first.at[id + 1] - t->first.at[id];
}

const int32_t *devsets_ranks(const DevSets *t, uint32_t id) {
  return t->ranks.at + t->first.at[id];
}

static uint32_t hash_ranks(const int32_t *ranks, uint32_t n) {
  uint32_t h = 2166136261u;
  for (uint32_t i = 0; i < n; i++) h = (h ^ (uint32_t)ranks[i]) * 16777619u;
  return h ^ h >> 15;
}

static uint32_t *slot_of(const DevSets *t, const int32_t *ranks, uint32_t n) {
  uint32_t i = hash_ranks(ranks, n) & (t->n_slots - 1);
  for (;; i = (i + 1) & (t->n_slots - 1)) {
    const uint32_t id = t->slots[i];
    if (id == 0 ||
        (devsets_size(t, id) == n && memcmp(devsets_ranks(t, id), ranks, n * sizeof *ranks) == 0))
      return &t->slots[i];
  }
}

static bool grow_slots(DevSets *t) {
  uint32_t *bigger = calloc((size_t)t->n_slots * 2, sizeof *bigger);
  if (bigger == NULL) return false;
  free(t->slots);
  t->slots = bigger;
  t->n_slots *= 2;
  for (uint32_t id = 1; id < devsets_count(t); id++)
    *slot_of(t, devsets_ranks(t, id), devsets_size(t, id)) = id;
  return true;
}

uint32_t devsets_id(DevSets *t, const int32_t *ranks, uint32_t n) {
  if (n == 0) return 0;
  uint32_t *slot = slot_of(t, ranks, n);
  if (*slot != 0) return *slot;
  if (devsets_count(t) * 2 > t->n_slots) {
    if (!grow_slots(t)) return 0;
    slot = slot_of(t, ranks, n);
  }
  if (t->ranks.n + n > UINT32_MAX || !vec_reserve(&t->ranks, n) || !vec_reserve(&t->first, 1) ||
      !vec_reserve(&t->ascending, 1))
    return 0;
  bool ascending = true;
  for (uint32_t i = 1; i < n; i++) ascending = ascending && ranks[i] > ranks[i - 1];
  memcpy(t->ranks.at + t->ranks.n, ranks, n * sizeof *ranks);
  t->ranks.n += n;
  (void)vec_push(&t->first, (uint32_t)t->ranks.n); /* reserved above */
  (void)vec_push(&t->ascending, ascending);
  return *slot = devsets_count(t) - 1;
}

int32_t devsets_position(const DevSets *t, uint32_t id, int32_t rank) {
  const int32_t *ranks = devsets_ranks(t, id);
  const uint32_t n = devsets_size(t, id);
  if (t->ascending.at[id]) {
    uint32_t lo = 0, hi = n;
    while (lo < hi) {
      const uint32_t mid = (lo + hi) / 2;
      if (ranks[mid] < rank) lo = mid + 1;
      else hi = mid;
    }
    return lo < n && ranks[lo] == rank ? (int32_t)lo : -1;
  }
  for (uint32_t i = 0; i < n; i++)
    if (ranks[i] == rank) return (int32_t)i;
  return -1;
}

static int by_rank(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

uint32_t devsets_union(DevSets *t, uint32_t a, uint32_t b) {
  const uint32_t na = devsets_size(t, a), nb = devsets_size(t, b);
  if (a == b || nb == 0) return a;
  if (na == 0) return b;
  int32_t *both = malloc(((size_t)na + nb) * sizeof *both);
  if (both == NULL) return 0;
  memcpy(both, devsets_ranks(t, a), na * sizeof *both);
  memcpy(both + na, devsets_ranks(t, b), nb * sizeof *both);
  qsort(both, (size_t)na + nb, sizeof *both, by_rank);
  uint32_t n = 0;
  for (uint32_t i = 0; i < na + nb; i++)
    if (i == 0 || both[i] != both[i - 1]) both[n++] = both[i];
  const uint32_t id = n == na ? a : n == nb ? b : devsets_id(t, both, n);
  free(both);
  return id;
}

void devsets_text(const DevSets *t, uint32_t id, char *buf, uint32_t n) {
  const int32_t *ranks = devsets_ranks(t, id);
  const uint32_t size = devsets_size(t, id);
  if (n == 0) return;
  buf[0] = '\0';
  const bool ascending = t->ascending.at[id];
  uint32_t at = 0;
  for (uint32_t i = 0, end; i < size; i = end) {
    for (end = i + 1; ascending && end < size && ranks[end] == ranks[end - 1] + 1;) end++;
    const char *comma = i > 0 ? "," : "";
    const int wrote = end - i > 1
                          ? snprintf(buf + at, n - at, "%s%d-%d", comma, ranks[i], ranks[end - 1])
                          : snprintf(buf + at, n - at, "%s%d", comma, ranks[i]);
    if (wrote < 0 || (uint32_t)wrote >= n - at) { /* no room: an ellipsis over the tail */
      if (n >= 4) memcpy(buf + n - 4, "...", 4);
      return;
    }
    at += (uint32_t)wrote;
  }
}
