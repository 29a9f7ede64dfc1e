#include "ir/grad_flow.h"

bool op_grad_flows(const Graph *g, const Op *op, int wrt) {
  if (wrt >= OP_INFO[op->kind].n_operands || op->in[wrt].i == 0) return false;
  if (OP_INFO[op->kind].saves[wrt][0] == '!') return false;
  return graph_value(g, op->in[wrt])->needs_grad && graph_value(g, op->out)->needs_grad;
}

bool chunk_grad_flows(const Graph *g, ChunkId c, ValueId v) {
  const Chunk *chunk = graph_chunk(g, c);
  for (uint32_t o = chunk->first_op; o < chunk->end_op; o++) {
    const Op *op = graph_op(g, (OpId){o});
    for (int wrt = 0; wrt < 3; wrt++)
      if (op->in[wrt].i == v.i && op_grad_flows(g, op, wrt)) return true;
  }
  return false;
}

void chunk_mark_grad_flows(const Graph *g, ChunkId c, uint32_t *mark) {
  const Chunk *chunk = graph_chunk(g, c);
  for (uint32_t o = chunk->first_op; o < chunk->end_op; o++) {
    const Op *op = graph_op(g, (OpId){o});
    for (int wrt = 0; wrt < 3; wrt++)
      if (op_grad_flows(g, op, wrt)) mark[op->in[wrt].i] = c.i;
  }
}
