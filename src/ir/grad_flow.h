/* grad_flow.h - where gradients flow: the one definition that the passes (which edges exist) and the
 * programs (which kernel calls exist) share. After graph_cut. */
#ifndef PIPER_IR_GRAD_FLOW_H
#define PIPER_IR_GRAD_FLOW_H

#include "ir/graph.h"

/* The gradient of op's output contributes to the gradient of its operand 'wrt'. */
bool op_grad_flows(const Graph *g, const Op *op, int wrt);
/* It contributes to that of parameter p, one of those that the operand is made of. */
bool op_param_grad_flows(const Graph *g, const Op *op, int wrt, ParamId p);
/* Some op of chunk c contributes to the gradient of value v (a parameter's value included). */
bool chunk_grad_flows(const Graph *g, ChunkId c, ValueId v);
/* The same for all values at once: mark[v] = c for each value v that chunk c contributes to. 'mark'
 * has an entry for each value. Time: that of one chunk_grad_flows. */
void chunk_mark_grad_flows(const Graph *g, ChunkId c, uint32_t *mark);

#endif
