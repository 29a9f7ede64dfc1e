/* pieces.h - what TRANSFER and ALL_TO_ALL nodes move between which ranks. */
#ifndef PIPER_PLAN_PIECES_H
#define PIPER_PLAN_PIECES_H

#include "base/exchange.h"
#include "ir/dag.h"

typedef struct Piece {
  int32_t from, to;
  uint32_t src_pos, pos; /* of 'from' in the sending device set, of 'to' in the receiving one */
  int64_t lo, hi;        /* samples; those of the rank's own part where the tensor is not batched */
} Piece;
typedef VEC(Piece) PieceVec;

/* A tensor without a batch axis goes from device j to device j, so both sides have as many devices and
 * the same samples. */
bool transfer_possible(const Dag *d, NodeId n);

/* Those that a rank sends and receives, in the one order of (source, destination) that all ranks take
 * them in; in place of what 'out' holds. The rank's positions in the two device sets; UINT32_MAX: it
 * is not there. What stays on its rank is no piece. false: out of memory. */
bool transfer_pieces(const Dag *d, NodeId n, uint32_t src_pos, uint32_t pos, PieceVec *out);
/* Those that the rank at src_pos sends. */
bool transfer_sends(const Dag *d, NodeId n, uint32_t src_pos, PieceVec *out);

/* Fills 'nodes' with the first TRANSFER of each kind: the others of its kind move the same pieces on the
 * same channels, only of other samples. false: out of memory. */
bool transfer_kinds(const Dag *d, U32Vec *nodes);

/* What each group of an ALL_TO_ALL exchanges; false: its tensor has no blocks. */
bool node_exchange(const Dag *d, NodeId n, DType dtype, Exchange *out);
/* The devices of its g-th group; 0: out of memory. */
uint32_t node_exchange_group(Dag *d, NodeId n, uint32_t g);

/* Of a value or gradient in a plan of that type: bytes of a sample, 0 without a batch axis; of all of
 * one without. */
uint64_t value_sample_bytes(const Graph *g, ValueId v, DType dtype);
uint64_t value_whole_bytes(const Graph *g, ValueId v, DType dtype);

#endif
