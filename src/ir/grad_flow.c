#include "ir/grad_flow.h"

bool op_grad_flows(const Graph *g, const Op *op, int wrt) {
  if (wrt >= OP_INFO[op->kind].n_operands || op->in[wrt].i == 0) return false;
  if (OP_INFO[op->kind].saves[wrt][0] == '!') return false;
  return graph_value(g, op->in[wrt])->needs_grad && graph_value(g, op->out)->needs_grad;
}

bool op_param_grad_flows(const Graph *g, const Op *op, int wrt, ParamId p) {
  return op_grad_flows(g, op, wrt) && graph_value(g, graph_param(g, p)->value)->needs_grad;
}

bool chunk_grad_flows(const Graph *g, ChunkId c, ValueId v) {
  const Chunk *chunk = graph_chunk(g, c);
  for (uint32_t o = chunk->first_op; o < chunk->end_op; o++) {
    const Op *op = graph_op(g, (OpId){o});
    for (int wrt = 0; wrt < 3; wrt++) {
      uint32_t n;
      const uint32_t *params = graph_value_params(g, op->in[wrt], &n);
      if (op->in[wrt].i == v.i && op_grad_flows(g, op, wrt)) return true;
      for (uint32_t k = 0; k < n; k++)
        if (graph_param(g, (ParamId){params[k]})->value.i == v.i &&
            op_param_grad_flows(g, op, wrt, (ParamId){params[k]}))
          return true;
    }
  }
  return false;
}

void chunk_mark_grad_flows(const Graph *g, ChunkId c, uint32_t *mark) {
  const Chunk *chunk = graph_chunk(g, c);
  for (uint32_t o = chunk->first_op; o < chunk->end_op; o++) {
    const Op *op = graph_op(g, (OpId){o});
    for (int wrt = 0; wrt < 3; wrt++) {
      uint32_t n;
      const uint32_t *params = graph_value_params(g, op->in[wrt], &n);
      if (!op_grad_flows(g, op, wrt)) continue;
      mark[op->in[wrt].i] = c.i;
      for (uint32_t k = 0; k < n; k++)
        if (op_param_grad_flows(g, op, wrt, (ParamId){params[k]}))
          mark[graph_param(g, (ParamId){params[k]})->value.i] = c.i;
    }
  }
}
