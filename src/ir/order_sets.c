/* Nodes are reduced to keys (device sets, stream, direction, how the two sides' samples overlap),
 * and only distinct keys are expanded to queues, so a DAG costs O(nodes) plus the sizes of its distinct
 * sets. Atoms come from partition refinement: each set in turn splits the classes that it cuts. */
#include "ir/order_sets.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* Two nodes with equal keys occupy the same queues. */
typedef struct SetKey {
  uint32_t devs, src_devs; /* src_devs 0: queues of the ranks in devs */
  uint32_t stream;         /* 0: the compute stream */
  uint32_t gradient;       /* direction of a channel */
  int64_t lo, hi, src_hi;  /* a channel's samples: received [lo, hi) of sent [0, src_hi) */
} SetKey;

typedef struct Queue {
  uint32_t stream_and_direction;
  int32_t rank, peer; /* peer -1: a stream of the rank; otherwise the channel rank -> peer */
} Queue;

typedef struct Sets {
  const Dag *d;
  uint32_t default_stream;
  bool *shared;     /* by stream: transfers have no channels, they queue with others */
  VEC(SetKey) keys; /* by set; element 0 unused */
  VEC(Queue) queues;
  U32Vec queue_first, queue_at; /* of set s: indices into queues */
  uint32_t *slots, n_slots;     /* hash table: of keys while nodes are read, then of queues */
} Sets;

/* ---- keys ------------------------------------------------------------------------------------ */

static uint32_t stream_of(const Sets *s, uint32_t n) {
  if (!NODE_KIND_COMMUNICATES[s->d->kind[n]] || s->d->stream[n] == s->default_stream) return 0;
  return s->d->stream[n];
}

/* A name that collectives use, too, or the compute stream's, is one queue a rank for all. */
static bool find_shared(Sets *s) {
  const Dag *d = s->d;
  s->shared = calloc((size_t)intern_count(d->names) + 1, sizeof *s->shared);
  if (s->shared == NULL) return false;
  s->shared[0] = true;
  for (uint32_t n = 1; n < d->n; n++)
    if (NODE_KIND_COMMUNICATES[d->kind[n]] && d->kind[n] != NODE_TRANSFER)
      s->shared[stream_of(s, n)] = true;
  return true;
}

static SetKey key_of(const Sets *s, uint32_t n) {
  const Dag *d = s->d;
  SetKey k = {.devs = d->devs[n], .stream = stream_of(s, n)};
  if (d->kind[n] == NODE_JOIN || k.devs == 0) return (SetKey){0};
  if (d->kind[n] != NODE_TRANSFER) return k;
  k.src_devs = d->src_devs[n];
  if (s->shared[k.stream]) return k; /* both sides' ranks */
  k.gradient = d->tensors.at[d->tensor[n]].kind == TENSOR_GRAD;
  k.hi = k.src_hi = 1;
  if (d->lo[n] == d->src_lo[n] && d->hi[n] == d->src_hi[n]) return k; /* any interval will do */
  k.lo = d->lo[n] - d->src_lo[n];
  k.hi = d->hi[n] - d->src_lo[n];
  k.src_hi = d->src_hi[n] - d->src_lo[n];
  return k;
}

static bool grow_table(Sets *s, size_t used, bool *grown) {
  *grown = used * 2 >= s->n_slots;
  if (!*grown) return true;
  const uint32_t n = s->n_slots == 0 ? 256 : s->n_slots * 2;
  uint32_t *bigger = calloc(n, sizeof *bigger);
  if (bigger == NULL) return false;
  free(s->slots);
  s->slots = bigger;
  s->n_slots = n;
  return true;
}

static uint32_t *key_slot(const Sets *s, const SetKey *k) {
  uint32_t i = (uint32_t)hash_of(k, sizeof *k) & (s->n_slots - 1);
  while (s->slots[i] != 0 && memcmp(&s->keys.at[s->slots[i]], k, sizeof *k) != 0)
    i = (i + 1) & (s->n_slots - 1);
  return &s->slots[i];
}

static bool intern_keys(Sets *s, uint32_t *set) {
  const SetKey none = {0};
  if (!vec_push(&s->keys, none)) return false;
  uint32_t last = 0;
  for (uint32_t n = 1; n < s->d->n; n++) {
    const SetKey k = key_of(s, n);
    if (memcmp(&k, &s->keys.at[last], sizeof k) != 0) {
      bool grown;
      if (!grow_table(s, s->keys.n + 1, &grown)) return false;
      for (uint32_t i = 0; grown && i < s->keys.n; i++) *key_slot(s, &s->keys.at[i]) = i;
      last = memcmp(&k, &none, sizeof k) == 0 ? 0 : *key_slot(s, &k);
      if (last == 0 && memcmp(&k, &none, sizeof k) != 0) {
        last = *key_slot(s, &k) = (uint32_t)s->keys.n;
        if (!vec_push(&s->keys, k)) return false;
      }
    }
    set[n] = last;
  }
  return true;
}

/* ---- queues ---------------------------------------------------------------------------------- */

static uint32_t *queue_slot(const Sets *s, const Queue *q) {
  uint32_t i = (uint32_t)hash_of(q, sizeof *q) & (s->n_slots - 1);
  while (s->slots[i] != 0 && memcmp(&s->queues.at[s->slots[i]], q, sizeof *q) != 0)
    i = (i + 1) & (s->n_slots - 1);
  return &s->slots[i];
}

static bool add_queue(Sets *s, Queue q) {
  bool grown;
  if (!grow_table(s, s->queues.n + 1, &grown)) return false;
  for (uint32_t i = 1; grown && i < s->queues.n; i++) *queue_slot(s, &s->queues.at[i]) = i;
  uint32_t *slot = queue_slot(s, &q);
  if (*slot == 0) {
    *slot = (uint32_t)s->queues.n;
    if (!vec_push(&s->queues, q)) return false;
  }
  return vec_push(&s->queue_at, *slot);
}

static bool add_ranks(Sets *s, uint32_t devs, uint32_t stream) {
  const int32_t *ranks = devsets_ranks(s->d->devsets, devs);
  for (uint32_t j = 0; j < devsets_size(s->d->devsets, devs); j++)
    if (!add_queue(s, (Queue){.stream_and_direction = stream * 2, .rank = ranks[j], .peer = -1}))
      return false;
  return true;
}

/* Both sides cut their samples into equal parts; a channel carries the intersection of two parts.
 * Positions are scaled by both numbers of parts, so that ends of parts are integers. */
static bool add_channels(Sets *s, const SetKey *k) {
  const DevSets *t = s->d->devsets;
  const int64_t n_to = devsets_size(t, k->devs), n_from = devsets_size(t, k->src_devs);
  const int32_t *to = devsets_ranks(t, k->devs), *from = devsets_ranks(t, k->src_devs);
  const int64_t begin = k->lo * n_to * n_from, to_part = (k->hi - k->lo) * n_from,
                from_part = k->src_hi * n_to;
  int64_t i = 0, j = 0;
  while (i < n_from && j < n_to) {
    const int64_t from_end = from_part * (i + 1), to_end = begin + to_part * (j + 1);
    const int64_t lo = from_part * i > begin + to_part * j ? from_part * i : begin + to_part * j;
    const Queue q = {k->stream * 2 + k->gradient, from[i], to[j]};
    if (lo < from_end && lo < to_end && q.rank != q.peer && !add_queue(s, q)) return false;
    if (from_end < to_end) i++;
    else j++;
  }
  return true;
}

static bool expand_keys(Sets *s) {
  if (s->n_slots > 0) memset(s->slots, 0, s->n_slots * sizeof *s->slots);
  if (!vec_push(&s->queues, (Queue){0})) return false;
  for (uint32_t i = 0; i < s->keys.n; i++) {
    const SetKey *k = &s->keys.at[i];
    if (!vec_push(&s->queue_first, (uint32_t)s->queue_at.n)) return false;
    if (k->src_devs != 0 && k->src_hi != 0) {
      if (!add_channels(s, k)) return false;
    } else if (!add_ranks(s, k->devs, k->stream) || !add_ranks(s, k->src_devs, k->stream)) {
      return false;
    }
  }
  return vec_push(&s->queue_first, (uint32_t)s->queue_at.n);
}

/* ---- atoms ----------------------------------------------------------------------------------- */

/* class[q]: 0 for all at first; after set s equal for queues that are in the same ones of the sets
 * up to s. Every set takes its queues out of their classes into new ones, one for each class that it
 * meets: 'split_to', by class, good while 'split_by' is the set. */
static void refine(const Sets *s, uint32_t *class, uint32_t *split_by, uint32_t *split_to) {
  uint32_t n = 1;
  for (uint32_t set = 1; set < s->keys.n; set++)
    for (uint32_t i = s->queue_first.at[set]; i < s->queue_first.at[set + 1]; i++) {
      uint32_t *c = &class[s->queue_at.at[i]];
      if (split_by[*c] != set) {
        split_by[*c] = split_by[n] = set;
        split_to[*c] = split_to[n] = n; /* a queue that the set lists twice stays */
        n++;
      }
      *c = split_to[*c];
    }
}

/* Numbers the classes that are left, in order of first use, and lists them by set. 'atom_of' and
 * 'seen_in' are by class: 1 + atom, and the last set that has it. */
static bool list_atoms(const Sets *s, const uint32_t *class, uint32_t *atom_of, uint32_t *seen_in,
                       OrderSets *out) {
  out->n_sets = (uint32_t)s->keys.n;
  out->atom_first = calloc((size_t)out->n_sets + 1, sizeof *out->atom_first);
  out->atoms = calloc(s->queue_at.n + 1, sizeof *out->atoms);
  if (out->atom_first == NULL || out->atoms == NULL) return false;
  uint32_t n = 0;
  for (uint32_t set = 0; set < out->n_sets; set++) {
    out->atom_first[set] = n;
    for (uint32_t i = s->queue_first.at[set]; i < s->queue_first.at[set + 1]; i++) {
      const uint32_t c = class[s->queue_at.at[i]];
      if (seen_in[c] == set) continue;
      seen_in[c] = set;
      if (atom_of[c] == 0) atom_of[c] = ++out->n_atoms;
      out->atoms[n++] = atom_of[c] - 1;
    }
  }
  out->atom_first[out->n_sets] = n;
  return true;
}

static bool find_atoms(const Sets *s, OrderSets *out) {
  const size_t n_queues = s->queues.n, n_classes = s->queue_at.n + 2;
  uint32_t *block = calloc(n_queues + 4 * n_classes, sizeof *block);
  if (block == NULL) return false;
  uint32_t *class = block, *by_class = block + n_queues;
  refine(s, class, by_class, by_class + n_classes);
  const bool listed = list_atoms(s, class, by_class + 2 * n_classes, by_class + 3 * n_classes, out);
  free(block);
  return listed;
}

/* The inverse of atoms: counting sort. */
static bool list_sets(OrderSets *o) {
  const uint32_t n = o->atom_first[o->n_sets];
  o->set_first = calloc((size_t)o->n_atoms + 2, sizeof *o->set_first);
  o->sets = calloc((size_t)n + 1, sizeof *o->sets);
  if (o->set_first == NULL || o->sets == NULL) return false;
  for (uint32_t i = 0; i < n; i++) o->set_first[o->atoms[i] + 2]++;
  for (uint32_t a = 1; a <= o->n_atoms; a++) o->set_first[a + 1] += o->set_first[a];
  for (uint32_t set = 0; set < o->n_sets; set++)
    for (uint32_t i = o->atom_first[set]; i < o->atom_first[set + 1]; i++)
      o->sets[o->set_first[o->atoms[i] + 1]++] = set;
  return true;
}

PiperStatus order_sets_new(const Dag *d, OrderSets *out, PiperErr *err) {
  Sets s = {.d = d, .default_stream = intern_find(d->names, "default_stream")};
  *out = (OrderSets){.set = calloc(d->n, sizeof *out->set)};
  const bool done = out->set != NULL && find_shared(&s) && intern_keys(&s, out->set) &&
                    expand_keys(&s) && find_atoms(&s, out) && list_sets(out);
  free(s.shared);
  free(s.slots);
  vec_free(&s.keys);
  vec_free(&s.queues);
  vec_free(&s.queue_first);
  vec_free(&s.queue_at);
  if (done) return PIPER_OK;
  order_sets_free(out);
  return err_nomem(err, "global order");
}

void order_sets_free(OrderSets *s) {
  free(s->set);
  free(s->atom_first);
  free(s->atoms);
  free(s->set_first);
  free(s->sets);
  *s = (OrderSets){0};
}
