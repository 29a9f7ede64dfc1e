/* What is known only when the model is whole: what needs gradients, what ids an integer input may
 * hold, and the chunks. */
#include "ir/graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- checks ---------------------------------------------------------------------------------- */

static PiperStatus check_scopes(const Graph *g, PiperErr *err) {
  if (g->open_tags.n == 0) return PIPER_OK;
  const size_t last = g->open_tags.n - 1;
  const char *tag = graph_name(g, g->open_tags.at[last]);
  return err_set(err, PIPER_EUSER,
                 "annotate: \"%s\" (entered at %s) is still open at the end of the model; write "
                 "local _ <close> = piper.annotate(\"%s\")",
                 tag, graph_name(g, g->open_lines.at[last]), tag);
}

static PiperStatus check_params_used(const Graph *g, PiperErr *err) {
  unsigned char *used = calloc(g->params.n, 1);
  if (used == NULL) return err_nomem(err, "model");
  for (size_t o = 1; o < g->ops.n; o++)
    for (int i = 0; i < 3; i++) {
      uint32_t n;
      const uint32_t *params = graph_value_params(g, g->ops.at[o].in[i], &n);
      for (uint32_t k = 0; k < n; k++) used[params[k]] = 1;
    }
  size_t p = 1;
  while (p < g->params.n && used[p]) p++;
  free(used);
  if (p == g->params.n) return PIPER_OK;
  return err_set(err, PIPER_EUSER, "model \"%s\": parameter \"%s\" (made at %s) is never used",
                 graph_name(g, g->name), graph_name(g, g->params.at[p].name),
                 graph_name(g, g->params.at[p].line));
}

static PiperStatus check_whole(const Graph *g, PiperErr *err) {
  TRY(check_scopes(g, err));
  if (g->losses.n == 1)
    return err_set(err, PIPER_EUSER,
                   "model \"%s\": no loss: say which value to minimise with m:loss(x)",
                   graph_name(g, g->name));
  return check_params_used(g, err);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static bool differentiable(const Op *op, int i) {
  return op->in[i].i != 0 && i < OP_INFO[op->kind].n_operands &&
         OP_INFO[op->kind].saves[i][0] != '!';
}

/* A stack is trained when one of its parameters is, and they are wanted when it is. */
static void stack_gradients(const Graph *g, unsigned char *of_stack, unsigned char *of_param,
                            bool to_params) {
  for (uint32_t v = 1; v < g->values.n; v++) {
    uint32_t n;
    if (g->values.at[v].kind != VALUE_STACK) continue;
    const uint32_t *params = graph_value_params(g, (ValueId){v}, &n);
    for (uint32_t k = 0; k < n; k++) {
      const uint32_t p = graph_param(g, (ParamId){params[k]})->value.i;
      if (to_params) of_param[p] |= of_stack[v];
      else of_stack[v] |= of_param[p];
    }
  }
}

/* Forward, then backward over the ops, which are in topological order. */
static PiperStatus find_gradients(Graph *g, PiperErr *err) {
  unsigned char *trained = calloc(g->values.n, 1); /* depends on a parameter that is trained */
  unsigned char *wanted = calloc(g->values.n, 1);  /* a loss depends on it */
  if (trained == NULL || wanted == NULL) {
    free(trained);
    free(wanted);
    return err_nomem(err, "model");
  }
  for (size_t p = 1; p < g->params.n; p++)
    trained[g->params.at[p].value.i] = !g->params.at[p].frozen;
  stack_gradients(g, trained, trained, false);
  for (size_t o = 1; o < g->ops.n; o++)
    for (int i = 0; i < 3; i++)
      if (differentiable(&g->ops.at[o], i))
        trained[g->ops.at[o].out.i] |= trained[g->ops.at[o].in[i].i];
  for (size_t l = 1; l < g->losses.n; l++) wanted[g->losses.at[l].value.i] = 1;
  for (size_t o = g->ops.n; o-- > 1;)
    for (int i = 0; i < 3; i++)
      if (differentiable(&g->ops.at[o], i))
        wanted[g->ops.at[o].in[i].i] |= wanted[g->ops.at[o].out.i];
  stack_gradients(g, wanted, wanted, true);
  for (size_t v = 1; v < g->values.n; v++) g->values.at[v].needs_grad = trained[v] && wanted[v];
  for (size_t p = 1; p < g->params.n; p++)
    g->params.at[p].reached = graph_value(g, g->params.at[p].value)->needs_grad;
  free(trained);
  free(wanted);
  return PIPER_OK;
}

/* ---- ids of integer inputs ------------------------------------------------------------------- */

/* Integer values are inputs, or inputs under another shape. */
static Input *input_behind(Graph *g, ValueId v) {
  while (graph_value(g, v)->kind == VALUE_OP) v = graph_op(g, graph_value(g, v)->op)->in[0];
  return &g->inputs.at[graph_value(g, v)->input];
}

static void find_id_limits(Graph *g) {
  for (size_t o = 1; o < g->ops.n; o++) {
    const Op *op = &g->ops.at[o];
    Input *input;
    int64_t limit;
    bool ignores = false;
    int32_t ignore = 0;
    if (op->kind == OP_EMBEDDING) {
      input = input_behind(g, op->in[0]);
      limit = graph_value(g, op->in[1])->shape.dim[0];
    } else if (op->kind == OP_CROSS_ENTROPY) {
      const Shape *logits = &graph_value(g, op->in[0])->shape;
      input = input_behind(g, op->in[1]);
      limit = logits->dim[logits->rank - 1];
      ignores = op->attrs.d[2] != 0;
      ignore = (int32_t)op->attrs.d[1];
    } else {
      continue;
    }
    if (input->limit == 0) {
      input->ignores = ignores;
      input->ignore = ignore;
    } else {
      input->ignores &= ignores && ignore == input->ignore;
    }
    if (input->limit == 0 || limit < input->limit) input->limit = limit;
  }
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Some target may be one to ignore: a class, or a value that the data may have besides. */
static bool must_count(Graph *g, const Op *op) {
  if (op->kind != OP_CROSS_ENTROPY || op->attrs.d[2] == 0) return false;
  const Shape *logits = &graph_value(g, op->in[0])->shape;
  const double ignore = op->attrs.d[1];
  return (ignore >= 0 && ignore < (double)logits->dim[logits->rank - 1]) ||
         input_behind(g, op->in[1])->ignores;
}

static PiperStatus cut_ops(Graph *g, PiperErr *err) {
  for (uint32_t o = 1; o < g->ops.n; o++) {
    Op *op = &g->ops.at[o];
    if (o == 1 || op->scope != g->ops.at[o - 1].scope) {
      const Chunk c = {.first_op = o, .scope = op->scope, .line = op->line};
      if (!vec_push(&g->chunks, c)) return err_nomem(err, "model");
    }
    Chunk *c = &g->chunks.at[g->chunks.n - 1];
    op->chunk = (ChunkId){(uint32_t)g->chunks.n - 1};
    c->end_op = o + 1;
    c->has_backward |= graph_value(g, op->out)->needs_grad;
    c->may_drop |= op_may_drop(g, op);
    if (op->kind == OP_EXPERT_ENDS) {
      c->n_experts = graph_value(g, op->in[0])->shape.dim[1];
      c->capacity = graph_value(g, op->in[0])->shape.dim[2] - 1;
    }
    if (must_count(g, op)) op->count = ++c->n_counts;
    if (op->kind == OP_PACK) c->packed_rows = graph_value(g, op->out)->shape.dim[1];
  }
  for (size_t l = 1; l < g->losses.n; l++)
    graph_chunk(g, graph_op(g, graph_value(g, g->losses.at[l].value)->op)->chunk)->has_loss = true;
  return PIPER_OK;
}

static int ascending(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* Sorts v[first ..) and drops repetitions; returns how many are left. */
static uint32_t sort_unique(U32Vec *v, uint32_t first) {
  if (v->n == first) return 0;
  qsort(v->at + first, v->n - first, sizeof *v->at, ascending);
  size_t to = first + 1;
  for (size_t i = first + 1; i < v->n; i++)
    if (v->at[i] != v->at[to - 1]) v->at[to++] = v->at[i];
  v->n = to;
  return (uint32_t)(to - first);
}

static bool computed_in(const Graph *g, const Value *v, ChunkId c) {
  return v->kind == VALUE_OP && graph_op(g, v->op)->chunk.i == c.i;
}

/* What chunk c reads; marks the values of other chunks in 'crosses'. */
static PiperStatus list_reads(Graph *g, ChunkId c, unsigned char *crosses, PiperErr *err) {
  Chunk *chunk = graph_chunk(g, c);
  chunk->in_first = (uint32_t)g->chunk_values.n;
  chunk->param_first = (uint32_t)g->chunk_params.n;
  for (uint32_t o = chunk->first_op; o < chunk->end_op; o++)
    for (int i = 0; i < 3; i++) {
      const ValueId in = g->ops.at[o].in[i];
      const Value *v = graph_value(g, in);
      uint32_t n;
      if (in.i == 0 || computed_in(g, v, c)) continue;
      const uint32_t *params = graph_value_params(g, in, &n);
      if (params == NULL ? !vec_push(&g->chunk_values, in.i) : !vec_reserve(&g->chunk_params, n))
        return err_nomem(err, "model");
      for (uint32_t k = 0; k < n; k++) g->chunk_params.at[g->chunk_params.n++] = params[k];
      crosses[in.i] = 1;
    }
  chunk->n_in = sort_unique(&g->chunk_values, chunk->in_first);
  chunk->n_params = sort_unique(&g->chunk_params, chunk->param_first);
  return PIPER_OK;
}

static PiperStatus list_outs(Graph *g, ChunkId c, const unsigned char *crosses, PiperErr *err) {
  Chunk *chunk = graph_chunk(g, c);
  chunk->out_first = (uint32_t)g->chunk_values.n;
  for (uint32_t o = chunk->first_op; o < chunk->end_op; o++) {
    const uint32_t out = g->ops.at[o].out.i;
    if (!crosses[out]) continue;
    if (!vec_push(&g->chunk_values, out)) return err_nomem(err, "model");
    chunk->n_out++;
  }
  return PIPER_OK;
}

/* Index into chunk_params; the chunk reads the parameter. */
static uint32_t find_chunk_param(const Graph *g, const Chunk *chunk, uint32_t p) {
  uint32_t lo = chunk->param_first, hi = lo + chunk->n_params;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (g->chunk_params.at[mid] < p) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

int32_t graph_param_expert(const Graph *g, ChunkId c, ParamId p) {
  const Chunk *chunk = graph_chunk(g, c);
  const uint32_t i = find_chunk_param(g, chunk, p.i);
  const bool found = i < chunk->param_first + chunk->n_params && g->chunk_params.at[i] == p.i;
  return found ? g->chunk_experts.at[i] : EXPERT_NONE;
}

/* Which expert each parameter of chunk c is of. */
static bool list_experts(Graph *g, ChunkId c) {
  const Chunk *chunk = graph_chunk(g, c);
  for (uint32_t i = 0; i < chunk->n_params; i++)
    if (!vec_push(&g->chunk_experts, EXPERT_NONE)) return false;
  for (uint32_t o = chunk->first_op; o < chunk->end_op; o++)
    for (int i = 0; i < 3; i++) {
      const ValueId v = g->ops.at[o].in[i];
      uint32_t n;
      if (graph_value(g, v)->kind != VALUE_STACK) continue;
      const uint32_t *params = graph_value_params(g, v, &n);
      for (uint32_t e = 0; e < n; e++) {
        int32_t *expert = &g->chunk_experts.at[find_chunk_param(g, chunk, params[e])];
        *expert = *expert == EXPERT_NONE || *expert == (int32_t)e ? (int32_t)e : EXPERT_SEVERAL;
      }
    }
  return true;
}

static PiperStatus list_edges(Graph *g, PiperErr *err) {
  unsigned char *crosses = calloc(g->values.n, 1);
  if (crosses == NULL) return err_nomem(err, "model");
  PiperStatus st = PIPER_OK;
  for (uint32_t c = 1; c < g->chunks.n && st == PIPER_OK; c++)
    if ((st = list_reads(g, (ChunkId){c}, crosses, err)) == PIPER_OK &&
        !list_experts(g, (ChunkId){c}))
      st = err_nomem(err, "model");
  for (uint32_t c = 1; c < g->chunks.n && st == PIPER_OK; c++)
    st = list_outs(g, (ChunkId){c}, crosses, err);
  free(crosses);
  return st;
}

PiperStatus graph_cut(Graph *g, PiperErr *err) {
  if (g->cut) return err_set(err, PIPER_EBUG, "model: cut twice");
  TRY(check_whole(g, err));
  TRY(find_gradients(g, err));
  find_id_limits(g);
  TRY(cut_ops(g, err));
  TRY(list_edges(g, err));
  g->cut = true;
  return PIPER_OK;
}
