/* plan_class - which ranks have the same lists but for what they name.
 *
 * Replicas of a stage do the same on other samples, with other shares and peers: the instructions, the
 * buffers and their sizes in memory, the waits are the same. Such ranks form a class; the first of a
 * class is lowered and placed, the others have its figures (and lists of their own when somebody asks).
 * Sizes are compared as memory is laid out, in multiples of 64 bytes, so that the shares of a division
 * that leaves a rest, which differ by an element, nearly always are one class; the figures of what a
 * rank keeps are taken from its own shares.
 *
 * A rank is described by a list of numbers, and ranks with equal lists are a class:
 *
 *   - the device sets that it is in: with the order of the nodes that says which nodes it takes part in;
 *   - samples: where it has one position in device sets of one size, and all nodes on them take equally
 *     many samples, then the samples of all its nodes differ from those of another such rank by one
 *     distance, whatever the position. Otherwise it is a class of its own;
 *   - the part of the experts that it has;
 *   - for each kind of transfer: what it sends and receives relative to its own samples, and which of
 *     the peers are the same one (a peer is a channel);
 *   - for each bucket that it keeps: its group, the sizes of its shares, and whether it updates all of
 *     what it keeps; where groups meet, the size of its share of what they join, and where they are of
 *     different size its position.
 *
 * Time: O(nodes), plus for each rank its sets, buckets and pieces of different transfers. */
#include "base/hash.h"
#include "ir/bucket.h"
#include "plan/pieces.h"
#include "plan/plan_lower.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

typedef struct SetUse {
  bool used;
  int64_t width;  /* samples of the nodes on it; 0: none has any; -1: not all alike */
  uint32_t parts; /* of the experts; 0: all on each; NONE: not all alike */
} SetUse;

/* Lists of numbers, one for each of n keys. */
typedef struct Lists {
  uint32_t *first, *at;
} Lists;

typedef VEC(uint64_t) Words;

typedef struct Class {
  uint32_t rank_index;
  uint64_t hash;
  size_t first, n; /* its description */
} Class;

typedef struct Classes {
  Plan *plan;
  const Dag *d;
  size_t float_bytes;
  uint32_t n_sets;
  SetUse *sets;
  U32Vec transfers;         /* the first node of each kind */
  uint32_t *slots, n_slots; /* hash table of classes: 1 + index */
  Lists of_transfers;       /* by set, as source or destination */
  Lists of_buckets;         /* by set of holders */
  Lists of_ranks;           /* by rank index: its sets */
  uint32_t *pos;            /* by set: that of the rank at hand; NONE */
  VEC(int32_t) peers;       /* of the rank at hand */
  PieceVec pieces;
  Words words; /* descriptions, end to end */
  VEC(Class) classes;
} Classes;

/* ---- lists by key ---------------------------------------------------------------------------- */

/* 'next' gives the i-th pair (key, value), false behind the last one; key NONE: no pair. */
typedef bool NextPair(const Classes *w, size_t i, uint32_t *key, uint32_t *value);

static bool lists_make(const Classes *w, uint32_t n, NextPair *next, Lists *out) {
  uint32_t key, value;
  out->first = calloc((size_t)n + 2, sizeof *out->first);
  if (out->first == NULL) return false;
  for (size_t i = 0; next(w, i, &key, &value); i++)
    if (key != NONE) out->first[key + 2]++;
  for (uint32_t k = 1; k <= n; k++) out->first[k + 1] += out->first[k];
  out->at = malloc((out->first[n + 1] + (size_t)1) * sizeof *out->at);
  if (out->at == NULL) return false;
  for (size_t i = 0; next(w, i, &key, &value); i++)
    if (key != NONE) out->at[out->first[key + 1]++] = value;
  return true;
}

static bool next_transfer(const Classes *w, size_t i, uint32_t *key, uint32_t *value) {
  if (i / 2 >= w->transfers.n) return false;
  const uint32_t n = w->transfers.at[i / 2], devs = w->d->devs[n], src_devs = w->d->src_devs[n];
  *value = (uint32_t)(i / 2);
  *key = i % 2 == 0 ? devs : src_devs == devs ? NONE : src_devs;
  return true;
}

static bool next_bucket(const Classes *w, size_t i, uint32_t *key, uint32_t *value) {
  if (i >= w->d->buckets.n) return false;
  const uint32_t holders = i > 0 ? w->d->buckets.at[i].holders : 0;
  *value = (uint32_t)i;
  *key = holders != 0 ? holders : NONE;
  return true;
}

static bool sets_of_ranks(Classes *w) {
  const DevSets *t = w->d->devsets;
  const uint32_t n = w->plan->n_ranks;
  Lists *out = &w->of_ranks;
  out->first = calloc((size_t)n + 2, sizeof *out->first);
  if (out->first == NULL) return false;
  for (int filling = 0; filling < 2; filling++) {
    for (uint32_t s = 1; s < w->n_sets; s++)
      for (uint32_t j = 0; w->sets[s].used && j < devsets_size(t, s); j++) {
        const int32_t at = devsets_position(t, w->plan->world, devsets_ranks(t, s)[j]);
        if (at < 0) continue; /* it keeps parameters that no node of it uses */
        if (!filling) out->first[at + 2]++;
        else out->at[out->first[at + 1]++] = s;
      }
    if (filling) break;
    for (uint32_t k = 1; k <= n; k++) out->first[k + 1] += out->first[k];
    out->at = malloc((out->first[n + 1] + (size_t)1) * sizeof *out->at);
    if (out->at == NULL) return false;
  }
  return true;
}

/* ---- what nodes do on device sets ------------------------------------------------------------ */

static void use_samples(SetUse *s, int64_t lo, int64_t hi) {
  s->used = true;
  if (hi <= lo) return;
  if (s->width == 0) s->width = hi - lo;
  if (s->width != hi - lo || lo % s->width != 0) s->width = -1;
}

static bool grow_slots(Classes *w, size_t used) {
  if (2 * (used + 1) <= w->n_slots) return true;
  const uint32_t n = w->n_slots == 0 ? 256 : 2 * w->n_slots;
  uint32_t *slots = calloc(n, sizeof *slots);
  if (slots == NULL) return false;
  free(w->slots);
  w->slots = slots;
  w->n_slots = n;
  return true;
}

static bool look_at_nodes(Classes *w) {
  const Dag *d = w->d;
  for (uint32_t n = 1; n < d->n; n++) {
    SetUse *s = &w->sets[d->devs[n]];
    s->used = true;
    switch ((NodeKind)d->kind[n]) {
    case NODE_TRANSFER:
      use_samples(&w->sets[d->src_devs[n]], d->src_lo[n], d->src_hi[n]);
      use_samples(s, d->lo[n], d->hi[n]);
      break;
    case NODE_COMPUTE:
    case NODE_COUNT:
    case NODE_ALL_TO_ALL:
      use_samples(s, d->lo[n], d->hi[n]);
      if (d->parts[n] < 2) break;
      s->parts = s->parts == 0 || s->parts == d->parts[n] ? d->parts[n] : NONE;
      break;
    default:
      break;
    }
  }
  for (uint32_t b = 1; b < d->buckets.n; b++) w->sets[d->buckets.at[b].holders].used = true;
  return transfer_kinds(d, &w->transfers);
}

/* ---- the description of a rank --------------------------------------------------------------- */

static bool put(Classes *w, uint64_t x) { return vec_push(&w->words, x); }

static bool describe_sets(Classes *w, uint32_t index, const uint32_t *sets, uint32_t n) {
  const DevSets *t = w->d->devsets;
  uint32_t first = 0; /* the first one with samples */
  bool alike = true;
  for (uint32_t k = 0; k < n; k++) {
    const SetUse *s = &w->sets[sets[k]];
    const uint32_t pos = w->pos[sets[k]];
    if (!put(w, sets[k]) || !put(w, s->parts == 0 ? 0 : s->parts == NONE ? pos : pos % s->parts))
      return false;
    if (s->width == 0) continue;
    if (first == 0) first = sets[k];
    alike = alike && s->width > 0 && s->width == w->sets[first].width && pos == w->pos[first] &&
            devsets_size(t, sets[k]) == devsets_size(t, first);
  }
  return put(w, alike ? NONE : index);
}

static uint32_t peer_number(Classes *w, int32_t peer) {
  for (size_t k = 0; k < w->peers.n; k++)
    if (w->peers.at[k] == peer) return (uint32_t)k;
  return vec_push(&w->peers, peer) ? (uint32_t)w->peers.n - 1 : NONE;
}

static bool describe_transfer(Classes *w, uint32_t transfer) {
  const Dag *d = w->d;
  const uint32_t n = w->transfers.at[transfer];
  const uint32_t src_pos = w->pos[d->src_devs[n]], pos = w->pos[d->devs[n]];
  const int64_t sent = src_pos == NONE ? 0
                                       : part_lo(d->src_lo[n], d->src_hi[n], src_pos,
                                                 devsets_size(d->devsets, d->src_devs[n]));
  const int64_t received =
      pos == NONE ? 0 : part_lo(d->lo[n], d->hi[n], pos, devsets_size(d->devsets, d->devs[n]));
  if (!transfer_possible(d, (NodeId){n})) return put(w, transfer); /* lowering refuses it */
  if (!transfer_pieces(d, (NodeId){n}, src_pos, pos, &w->pieces)) return false;
  if (!put(w, transfer) || !put(w, w->pieces.n)) return false;
  for (size_t k = 0; k < w->pieces.n; k++) {
    const Piece *p = &w->pieces.at[k];
    const bool sends = p->src_pos == src_pos;
    const uint32_t peer = peer_number(w, sends ? p->to : p->from);
    const int64_t own = sends ? sent : received;
    if (peer == NONE || !put(w, (uint64_t)peer << 1 | sends) || !put(w, (uint64_t)(p->lo - own)) ||
        !put(w, (uint64_t)(p->hi - own)))
      return false;
  }
  return true;
}

/* As it lies in memory; 0: empty. */
static bool put_share(Classes *w, Share s) {
  return put(w, ((uint64_t)share_size(s) * w->float_bytes + 63) / 64);
}

/* And adds up what the rank keeps of it. */
static bool describe_bucket(Classes *w, RankPlan *r, uint32_t bucket) {
  const Dag *d = w->d;
  const Plan *plan = w->plan;
  const BucketId b = {bucket};
  const Bucket *x = &d->buckets.at[bucket];
  const BucketPlace at = bucket_place(d, b, r->rank);
  const bool several = bucket_n_groups(d, b) > 1, uneven = several && !bucket_groups_even(d, b);
  const Share joined = several ? share_of(x->elements, at.pos, at.size) : (Share){0, 0};
  const Share params = bucket_params_kept(d, b, r->rank), grads = bucket_grads_kept(d, b, r->rank),
              updated = bucket_updated(d, b, r->rank);
  if (plan->trains == NULL) r->kept[MEM_PARAMS] += (uint64_t)share_size(params) * w->float_bytes;
  if (x->trained && !d->forward_only) {
    r->kept[MEM_GRADS] += (uint64_t)share_size(grads) * w->float_bytes;
    r->kept[MEM_OPTIMIZER] += (uint64_t)share_size(updated) * w->float_bytes *
                              optimizer_n_slots(&plan->options.optimizer);
  }
  return put(w, bucket) && put(w, at.group) && put(w, uneven ? at.pos : NONE) &&
         put_share(w, joined) && put_share(w, params) && put_share(w, grads) && put_share(w, updated) &&
         put(w, share_size(updated) == share_size(params)) &&
         put(w, share_size(updated) == share_size(grads));
}

static bool describe(Classes *w, uint32_t index) {
  Plan *plan = w->plan;
  RankPlan *r = &plan->ranks[index];
  const uint32_t *sets = w->of_ranks.at + w->of_ranks.first[index];
  const uint32_t n = w->of_ranks.first[index + 1] - w->of_ranks.first[index];
  w->peers.n = 0;
  memset(r->kept, 0, sizeof r->kept);
  for (uint32_t k = 0; k < n; k++)
    w->pos[sets[k]] = (uint32_t)devsets_position(w->d->devsets, sets[k], r->rank);
  bool held = describe_sets(w, index, sets, n);
  for (uint32_t k = 0; held && k < n; k++) {
    for (uint32_t i = w->of_transfers.first[sets[k]];
         held && i < w->of_transfers.first[sets[k] + 1]; i++) {
      const uint32_t devs = w->d->devs[w->transfers.at[w->of_transfers.at[i]]];
      if (sets[k] == devs || w->pos[devs] == NONE) /* once, also where it is on both sides */
        held = describe_transfer(w, w->of_transfers.at[i]);
    }
    for (uint32_t i = w->of_buckets.first[sets[k]]; held && i < w->of_buckets.first[sets[k] + 1];
         i++)
      held = describe_bucket(w, r, w->of_buckets.at[i]);
  }
  if (held && plan->trains != NULL) {
    const RankPlan *of = plan_rank(plan->trains, r->rank);
    held = put(w, of != NULL ? of->like : NONE);
  }
  for (uint32_t k = 0; k < n; k++) w->pos[sets[k]] = NONE;
  return held;
}

/* ---- classes --------------------------------------------------------------------------------- */

/* Takes the words from 'first' on back where there is such a class already. */
static bool find_class(Classes *w, uint32_t index, size_t first) {
  const size_t n = w->words.n - first;
  const uint64_t hash = hash_of(w->words.at + first, n * sizeof *w->words.at);
  const uint32_t n_slots = w->n_slots;
  if (!grow_slots(w, w->classes.n)) return false;
  for (uint32_t k = 0; n_slots != w->n_slots && k < w->classes.n; k++) {
    uint32_t i = (uint32_t)w->classes.at[k].hash & (w->n_slots - 1);
    while (w->slots[i] != 0) i = (i + 1) & (w->n_slots - 1);
    w->slots[i] = k + 1;
  }
  uint32_t i = (uint32_t)hash & (w->n_slots - 1);
  for (; w->slots[i] != 0; i = (i + 1) & (w->n_slots - 1)) {
    const Class *c = &w->classes.at[w->slots[i] - 1];
    if (c->hash != hash || c->n != n ||
        memcmp(w->words.at + c->first, w->words.at + first, n * sizeof *w->words.at) != 0)
      continue;
    w->plan->ranks[index].like = c->rank_index;
    w->words.n = first;
    return true;
  }
  w->slots[i] = (uint32_t)w->classes.n + 1;
  w->plan->ranks[index].like = index;
  return vec_push(&w->classes, ((Class){index, hash, first, n}));
}

static bool find_all(Classes *w) {
  const uint32_t n_ranks = w->plan->n_ranks;
  w->n_sets = devsets_count(w->d->devsets);
  w->sets = calloc(w->n_sets, sizeof *w->sets);
  w->pos = malloc(w->n_sets * sizeof *w->pos);
  if (w->sets == NULL || w->pos == NULL) return false;
  memset(w->pos, 0xff, w->n_sets * sizeof *w->pos);
  if (!look_at_nodes(w) || !lists_make(w, w->n_sets, next_transfer, &w->of_transfers) ||
      !lists_make(w, w->n_sets, next_bucket, &w->of_buckets) || !sets_of_ranks(w))
    return false;
  for (uint32_t i = 0; i < n_ranks; i++) {
    const size_t first = w->words.n;
    if (!describe(w, i) || !find_class(w, i, first)) return false;
  }
  return true;
}

PiperStatus plan_find_classes(Plan *plan, PiperErr *err) {
  Classes w = {.plan = plan, .d = plan->dag, .float_bytes = dtype_bytes(plan->options.dtype)};
  const bool done = find_all(&w);
  free(w.sets), free(w.slots), free(w.pos);
  free(w.of_transfers.first), free(w.of_transfers.at), free(w.of_buckets.first);
  free(w.of_buckets.at), free(w.of_ranks.first), free(w.of_ranks.at);
  vec_free(&w.transfers), vec_free(&w.peers), vec_free(&w.pieces), vec_free(&w.words);
  vec_free(&w.classes);
  return done ? PIPER_OK : err_nomem(err, "the plan");
}

void plan_copy_figures(Plan *plan, uint32_t index) {
  RankPlan *r = &plan->ranks[index];
  const RankPlan *like = &plan->ranks[r->like];
  r->arena_bytes = like->arena_bytes;
  r->shared_bytes = like->shared_bytes;
  r->kept_bytes = like->kept_bytes;
  r->peak_instr = like->peak_instr;
  r->n_waits = like->n_waits;
  r->list_bytes = like->list_bytes;
  r->waits_added = like->waits_added;
  memcpy(r->calls, like->calls, sizeof r->calls);
  memcpy(r->moved, like->moved, sizeof r->moved);
  memcpy(r->at_peak, like->at_peak, sizeof r->at_peak);
  for (int c = MEM_PARAMS; c <= MEM_OPTIMIZER;
       c++) { /* alive all the time; what pads them is workspace */
    r->at_peak[c] += r->kept[c] - like->kept[c];
    r->at_peak[MEM_WORKSPACE] -= r->kept[c] - like->kept[c];
  }
}
