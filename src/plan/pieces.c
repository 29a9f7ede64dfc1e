#include "plan/pieces.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

typedef struct Span {
  int64_t lo, hi;
} Span;

static Span part(int64_t lo, int64_t hi, uint32_t j, uint32_t n) {
  return (Span){part_lo(lo, hi, j, n), part_lo(lo, hi, j + 1, n)};
}

static bool batched(const Dag *d, NodeId n) {
  return graph_value(d->graph, d->tensors.at[d->tensor[n.i]].value)->shape.batched;
}

bool transfer_possible(const Dag *d, NodeId n) {
  return batched(d, n) ||
         (devsets_size(d->devsets, d->src_devs[n.i]) == devsets_size(d->devsets, d->devs[n.i]) &&
          d->lo[n.i] == d->src_lo[n.i] && d->hi[n.i] == d->src_hi[n.i]);
}

/* Which of the n parts of [lo, hi) meet the span: [*first, *end). */
static void parts_meeting(int64_t lo, int64_t hi, uint32_t n, Span s, uint32_t *first,
                          uint32_t *end) {
  *first = *end = 0;
  if (n == 0 || s.hi <= lo || s.lo >= hi || s.lo >= s.hi) return;
  const int64_t width = (hi - lo) / n;
  *first = s.lo <= lo ? 0 : (uint32_t)((s.lo - lo) / width);
  *end = s.hi >= hi ? n : (uint32_t)((s.hi - lo + width - 1) / width);
}

/* What source i has of what destination j wants. */
static bool add_piece(const Dag *d, NodeId n, uint32_t i, uint32_t j, PieceVec *out) {
  const int32_t from = devsets_ranks(d->devsets, d->src_devs[n.i])[i];
  const int32_t to = devsets_ranks(d->devsets, d->devs[n.i])[j];
  if (from == to) return true;
  const Span has =
      part(d->src_lo[n.i], d->src_hi[n.i], i, devsets_size(d->devsets, d->src_devs[n.i]));
  const Span wants = part(d->lo[n.i], d->hi[n.i], j, devsets_size(d->devsets, d->devs[n.i]));
  const Piece p = {.from = from,
                   .to = to,
                   .src_pos = i,
                   .pos = j,
                   .lo = has.lo > wants.lo ? has.lo : wants.lo,
                   .hi = has.hi < wants.hi ? has.hi : wants.hi};
  return vec_push(out, p);
}

static bool whole_pieces(const Dag *d, NodeId n, uint32_t src_pos, uint32_t pos, PieceVec *out) {
  const uint32_t a = src_pos < pos ? src_pos : pos, b = src_pos < pos ? pos : src_pos;
  if (a != NONE && !add_piece(d, n, a, a, out)) return false;
  return b == NONE || b == a || add_piece(d, n, b, b, out);
}

bool transfer_pieces(const Dag *d, NodeId n, uint32_t src_pos, uint32_t pos, PieceVec *out) {
  const uint32_t n_src = devsets_size(d->devsets, d->src_devs[n.i]),
                 n_dst = devsets_size(d->devsets, d->devs[n.i]);
  out->n = 0;
  if (!batched(d, n)) return whole_pieces(d, n, src_pos, pos, out);
  uint32_t in = 0, in_end = 0, to = 0, to_end = 0;
  if (pos != NONE)
    parts_meeting(d->src_lo[n.i], d->src_hi[n.i], n_src, part(d->lo[n.i], d->hi[n.i], pos, n_dst),
                  &in, &in_end);
  if (src_pos != NONE)
    parts_meeting(d->lo[n.i], d->hi[n.i], n_dst,
                  part(d->src_lo[n.i], d->src_hi[n.i], src_pos, n_src), &to, &to_end);
  /* What earlier sources send, what this one sends, the rest. */
  for (; in < in_end && in < src_pos && src_pos != NONE; in++)
    if (!add_piece(d, n, in, pos, out)) return false;
  for (; to < to_end; to++)
    if (!add_piece(d, n, src_pos, to, out)) return false;
  for (; in < in_end; in++)
    if (!add_piece(d, n, in, pos, out)) return false;
  return true;
}

bool transfer_sends(const Dag *d, NodeId n, uint32_t src_pos, PieceVec *out) {
  return transfer_pieces(d, n, src_pos, NONE, out);
}

/* What transfers of one kind have in common; no padding. */
typedef struct TransferKey {
  uint32_t src_devs, devs, stream, gradient;
  int64_t lo, hi, src_hi; /* received [lo, hi) of sent [0, src_hi) */
  uint64_t batched;
} TransferKey;

static TransferKey key_of(const Dag *d, uint32_t n) {
  return (TransferKey){.src_devs = d->src_devs[n],
                       .devs = d->devs[n],
                       .stream = d->stream[n],
                       .gradient = d->tensors.at[d->tensor[n]].kind == TENSOR_GRAD,
                       .lo = d->lo[n] - d->src_lo[n],
                       .hi = d->hi[n] - d->src_lo[n],
                       .src_hi = d->src_hi[n] - d->src_lo[n],
                       .batched = batched(d, (NodeId){n})};
}

/* In a hash table of 1 + index into 'nodes'. */
static uint32_t *kind_slot(const Dag *d, const U32Vec *nodes, uint32_t *slots, uint32_t n_slots,
                           const TransferKey *k) {
  uint32_t i = (uint32_t)hash_of(k, sizeof *k) & (n_slots - 1);
  for (; slots[i] != 0; i = (i + 1) & (n_slots - 1)) {
    const TransferKey other = key_of(d, nodes->at[slots[i] - 1]);
    if (memcmp(&other, k, sizeof *k) == 0) break;
  }
  return &slots[i];
}

bool transfer_kinds(const Dag *d, U32Vec *nodes) {
  uint32_t n_slots = 0, *slots = NULL;
  bool held = true;
  nodes->n = 0;
  for (uint32_t n = 1; held && n < d->n; n++) {
    if (d->kind[n] != NODE_TRANSFER) continue;
    if (2 * (nodes->n + 1) > n_slots) {
      n_slots = n_slots == 0 ? 256 : 2 * n_slots;
      free(slots);
      slots = calloc(n_slots, sizeof *slots);
      if (slots == NULL) return false;
      for (uint32_t i = 0; i < nodes->n; i++) {
        const TransferKey k = key_of(d, nodes->at[i]);
        *kind_slot(d, nodes, slots, n_slots, &k) = i + 1;
      }
    }
    const TransferKey k = key_of(d, n);
    uint32_t *slot = kind_slot(d, nodes, slots, n_slots, &k);
    if (*slot != 0) continue;
    *slot = (uint32_t)nodes->n + 1;
    held = vec_push(nodes, n);
  }
  free(slots);
  return held;
}

bool node_exchange(const Dag *d, NodeId n, DType dtype, Exchange *out) {
  const uint32_t size = devsets_size(d->devsets, d->devs[n.i]), parts = d->parts[n.i];
  const Tensor *t = &d->tensors.at[d->tensor[n.i]];
  const Shape *shape = &graph_value(d->graph, t->value)->shape;
  if (shape->rank != 4 || parts < 2 || shape->dim[1] % parts != 0) return false;
  const uint64_t row = (uint64_t)shape->dim[3] * dtype_bytes(dtype);
  *out = (Exchange){.samples = (d->hi[n.i] - d->lo[n.i]) / size,
                    .blocks = shape->dim[1] / parts,
                    .block_bytes = row * (uint64_t)shape->dim[2],
                    .row_bytes = row,
                    .to_experts = !t->spread};
  return true;
}

uint32_t node_exchange_group(Dag *d, NodeId n, uint32_t g) {
  const uint32_t parts = d->parts[n.i];
  int32_t few[16], *ranks = parts <= 16 ? few : malloc(parts * sizeof *ranks);
  if (ranks == NULL) return 0; /* devsets_id may move the list it is given a part of */
  memcpy(ranks, devsets_ranks(d->devsets, d->devs[n.i]) + (size_t)g * parts, parts * sizeof *ranks);
  const uint32_t id = devsets_id(d->devsets, ranks, parts);
  if (ranks != few) free(ranks);
  return id;
}

uint64_t value_whole_bytes(const Graph *g, ValueId v, DType dtype) {
  const Value *value = graph_value(g, v);
  return (uint64_t)shape_elements_per_sample(&value->shape) *
         dtype_bytes(dtype_concrete(value->dtype, dtype));
}

uint64_t value_sample_bytes(const Graph *g, ValueId v, DType dtype) {
  return graph_value(g, v)->shape.batched ? value_whole_bytes(g, v, dtype) : 0;
}
