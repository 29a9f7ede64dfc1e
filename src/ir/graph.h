/* graph.h - the op graph: a model as traced once, symbolic in the batch size.
 *
 * Filled while the script's model function runs, then cut into chunks (graph_cut) and read-only.
 * Arrays, one record a thing, referring to each other by index; index 0 is "none" everywhere.
 * A pointer into an array is good until the next graph_add_*. Owner: the caller of graph_new.
 * Not thread-safe while it is filled. */
#ifndef PIPER_IR_GRAPH_H
#define PIPER_IR_GRAPH_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/intern.h"
#include "base/kernel.h"
#include "base/vec.h"
#include "ir/shape.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct { uint32_t i; } ValueId;
typedef struct { uint32_t i; } OpId;
typedef struct { uint32_t i; } ParamId;
typedef struct { uint32_t i; } ChunkId;

/* ---- records --------------------------------------------------------------------------------- */

typedef enum ValueKind { VALUE_INPUT, VALUE_PARAM, VALUE_OP, VALUE_STACK } ValueKind;

typedef struct Value {
  ValueKind kind;
  BatchKind batch;
  DType dtype;      /* DT_FLOAT or DT_I32 */
  Shape shape;
  OpId op;          /* VALUE_OP: who computes it */
  ParamId param;    /* VALUE_PARAM */
  uint32_t input;   /* VALUE_INPUT: index into inputs */
  uint32_t stack;   /* VALUE_STACK: index into stacks */
  bool needs_grad;  /* set by graph_cut: depends on a parameter that is trained, and a loss on it */
} Value;

typedef struct Op {
  OpKind kind;
  ValueId in[3];    /* 0: absent */
  ValueId out;
  ValueId aux;      /* OPF_AUX: the auxiliary output; no op reads it, no gradient flows to it */
  OpAttrs attrs;
  bool per_element_mean; /* MEAN, MSE, CROSS_ENTROPY: attrs.d[0] = divisor_per_sample * batch,
                            or divisor_per_sample itself where the operand is not batched */
  double divisor_per_sample;
  uint32_t scope;   /* tag set (graph_scope_*) */
  uint32_t line;    /* interned "file:line" of the script */
  uint32_t name;    /* interned: the user's name ("head"), 0: none */
  ChunkId chunk;    /* set by graph_cut */
  uint32_t count;   /* set by graph_cut, of a CROSS_ENTROPY that may meet targets to ignore: 1 + its place
                       among those of its chunk. It divides by how many targets are present in the
                       whole batch, which is counted before. 0: its divisor is known beforehand */
} Op;

typedef enum InitKind { INIT_CONSTANT, INIT_NORMAL, INIT_UNIFORM, INIT_VALUES } InitKind;

typedef struct Param {
  uint32_t name;    /* interned, unique */
  Shape shape;      /* never batched */
  InitKind init;
  double init_arg;        /* constant, deviation, or half width */
  const double *values;   /* INIT_VALUES: one an element (graph's arena) */
  bool frozen;
  bool reached;     /* set by graph_cut: gets a gradient */
  ValueId value;
  uint32_t line;
} Param;

typedef struct Input {
  uint32_t name;
  ValueId value;
  uint32_t line;
  /* Set by graph_cut for i32 inputs: ids run from 0 to limit - 1 (smallest vocabulary or number
   * of classes among their consumers); 0: no consumer says. Where all consumers are losses that
   * ignore one and the same value, that value may occur as well. */
  int64_t limit;
  bool ignores;
  int32_t ignore;
} Input;

/* Parameters of one shape, one for each expert, as one operand [experts, ...]: they stay parameters of
 * their own, which may lie anywhere. */
typedef struct Stack {
  uint32_t first, n; /* graph->stack_params */
} Stack;

typedef struct Loss {
  ValueId value;    /* scalar, BATCH_PARTIAL */
  uint32_t line;
} Loss;

/* One entry (tag, index) of a tag set. */
typedef struct Tag {
  uint32_t tag;     /* interned name */
  int32_t index;
} Tag;

/* A maximal run of ops, in trace order, inside the same scopes. */
typedef struct Chunk {
  uint32_t first_op, end_op;    /* OpId range [first, end) */
  uint32_t scope;               /* tag set */
  uint32_t line;                /* of its first op */
  uint32_t in_first, n_in;      /* graph->chunk_values: values it reads that others compute,
                                   and inputs; ascending, each once */
  uint32_t out_first, n_out;    /* values of it that other chunks read; ascending */
  uint32_t param_first, n_params; /* graph->chunk_params: parameters it reads; ascending */
  bool has_backward;            /* some value or parameter of it takes a gradient */
  bool has_loss;
  bool may_drop;                /* some token may find its expert full: counted in the metrics */
  int64_t n_experts, capacity;  /* it is the experts of one nn.moe; 0: it is not */
  uint32_t n_counts;            /* ops that divide by a count of targets */
  int64_t packed_rows;          /* that they have at most, for one sample, all together */
} Chunk;

typedef VEC(Value) ValueVec;
typedef VEC(Op) OpVec;
typedef VEC(Param) ParamVec;
typedef VEC(Input) InputVec;
typedef VEC(Loss) LossVec;
typedef VEC(Stack) StackVec;
typedef VEC(Chunk) ChunkVec;
typedef VEC(uint32_t) U32Vec;

typedef VEC(int32_t) I32Vec;
typedef VEC(Tag) TagVec;

typedef struct Graph {
  Arena *arena;
  Intern *names;      /* names of params, inputs, tags; script lines */
  uint32_t name;
  ValueVec values;    /* element 0 of each is unused */
  OpVec ops;
  ParamVec params;
  InputVec inputs;
  LossVec losses;     /* element 0 unused as well */
  StackVec stacks;    /* element 0 unused as well */
  U32Vec stack_params; /* ParamIds */
  ChunkVec chunks;    /* after graph_cut */
  U32Vec chunk_values, chunk_params;
  I32Vec chunk_experts; /* parallel to chunk_params: graph_param_expert */
  U32Vec scope_first; /* tag set s: scope_tags[scope_first[s] .. scope_first[s+1]) */
  TagVec scope_tags;  /* sorted by tag within a set; set 0 is empty */
  U32Vec open_tags;   /* while tracing: the scopes entered now, outermost first ... */
  U32Vec open_lines;  /* ... the script lines that entered them ... */
  U32Vec open_scopes; /* ... and the tag sets inside them; the last one is the present */
  I32Vec tag_entries; /* by interned tag id: times entered so far */
  U32Vec tag_lines;   /* by interned tag id: script line of the first entry */
  U32Vec name_params, name_inputs; /* by interned name: its index; 0 or out of range: none */
  bool cut;
} Graph;

Graph *graph_new(const char *name); /* NULL: out of memory */
void graph_free(Graph *g);          /* NULL is fine */

/* ---- tracing; each checks everything and leaves the graph unchanged on an error --------------- */

/* Messages carry no position; the caller knows the script line and passes it, interned, as 'line'
 * so that faults found later can name it. */
PiperStatus graph_add_input(Graph *g, const char *name, const Shape *shape, DType dtype,
                            uint32_t line, ValueId *out, PiperErr *err);
typedef struct ParamSpec {
  const char *name;
  Shape shape;
  InitKind init;
  double init_arg;
  const double *values; /* INIT_VALUES: one an element; copied */
} ParamSpec;
/* The same name again, with the same shape, is the same parameter (tied; its first init stays). */
PiperStatus graph_add_param(Graph *g, const ParamSpec *spec, uint32_t line, ValueId *out,
                            PiperErr *err);
/* The values of 'n' parameters, of one shape each, as one operand. Takes no scope and no name. */
PiperStatus graph_add_stack(Graph *g, const ValueId *params, uint32_t n, ValueId *out,
                            PiperErr *err);
typedef struct OpSpec {
  OpKind kind;
  ValueId in[3];
  OpAttrs attrs;
  const Shape *reshape_to;  /* RESHAPE */
  const char *name;         /* the user's name or NULL */
} OpSpec;
/* Checks dtypes, shapes and what the op does to the batch axis (ir/op_rules.c). Besides the ops
 * marked OPF_MODEL it takes OP_FILL, without operands: the constant scalar attrs.d[0]. Where a sum
 * over samples meets a value that does not depend on them, ONCE is put around the latter. An
 * operand of an OPF_JOINT op that is a parameter or another operand again (under whatever shape) is
 * copied (SCALE by 1): the gradients that one call writes lie apart, and none in a parameter's. */
PiperStatus graph_add_op(Graph *g, const OpSpec *spec, uint32_t line, ValueId *out, PiperErr *err);
/* 'value' must be a scalar that sums over samples or (then entered once) does not depend on them.
 * A value that is a loss already counts twice: the second term is a copy (SCALE by 1), so that no two
 * losses are the same value. */
PiperStatus graph_add_loss(Graph *g, ValueId value, uint32_t line, PiperErr *err);
/* Enter a scope: the tag's next index (0, 1, ...). A tag inside itself is an error. */
PiperStatus graph_enter_at(Graph *g, const char *tag, uint32_t line, PiperErr *err);
PiperStatus graph_enter(Graph *g, const char *tag, PiperErr *err); /* at no line */
PiperStatus graph_leave(Graph *g, const char *tag, PiperErr *err); /* scopes close in reverse order */

/* ---- after tracing ----------------------------------------------------------------------------- */

/* Checks the whole (a loss, closed scopes, every parameter in use; an input may be unused), finds
 * which values need gradients, and cuts the ops into chunks. Once; freeze parameters before. */
PiperStatus graph_cut(Graph *g, PiperErr *err);

static inline Value *graph_value(const Graph *g, ValueId v) { return &g->values.at[v.i]; }
static inline Op *graph_op(const Graph *g, OpId o) { return &g->ops.at[o.i]; }
static inline Param *graph_param(const Graph *g, ParamId p) { return &g->params.at[p.i]; }
static inline Chunk *graph_chunk(const Graph *g, ChunkId c) { return &g->chunks.at[c.i]; }
static inline uint32_t graph_n_chunks(const Graph *g) { return (uint32_t)g->chunks.n - 1; }
static inline const char *graph_name(const Graph *g, uint32_t id) { return intern_text(g->names, id); }

/* The parameters that a value is made of, ParamIds: of a parameter itself, of a stack its own, of any
 * other value (also 0) none. */
const uint32_t *graph_value_params(const Graph *g, ValueId v, uint32_t *n);

/* A step's metrics, f64: each loss term, the squared norm of the gradient, the number of choices of
 * experts that were dropped. */
static inline uint32_t graph_metric_norm(const Graph *g) { return (uint32_t)g->losses.n - 1; }
static inline uint32_t graph_metric_dropped(const Graph *g) { return (uint32_t)g->losses.n; }
static inline uint32_t graph_n_metrics(const Graph *g) { return (uint32_t)g->losses.n + 1; }
/* Which expert of chunk c the parameter is of: an index, EXPERT_NONE, or EXPERT_SEVERAL. */
enum { EXPERT_NONE = -1, EXPERT_SEVERAL = -2 };
int32_t graph_param_expert(const Graph *g, ChunkId c, ParamId p);

/* The op is a ROUTE whose experts take less than all tokens of a sample. */
static inline bool op_may_drop(const Graph *g, const Op *op) {
  return op->kind == OP_ROUTE &&
         op->attrs.d[1] < (double)g->values.at[op->in[0].i].shape.dim[1];
}
static inline bool chunk_has_metrics(const Chunk *c) { return c->has_loss || c->may_drop; }

ParamId graph_find_param(const Graph *g, const char *name); /* 0: none is called so */
uint32_t graph_find_input(const Graph *g, const char *name);
const char *graph_tag_line(const Graph *g, uint32_t tag);   /* where it is first entered; "" */

/* Index of 'tag' in a tag set; -1: the set is outside every scope of it. */
int32_t graph_scope_index(const Graph *g, uint32_t scope, uint32_t tag);

/* flops (2 a multiply-add) and bytes moved of one part of an op on 'samples' samples. 'wrt' may be
 * KERNEL_WRT_ALL: the gradients that flow (after graph_cut), in one call. */
typedef struct OpCost { double flops, bytes; } OpCost;
OpCost graph_op_cost(const Graph *g, OpId op, KernelPart part, int wrt, int64_t samples,
                     size_t float_bytes);

#endif
