/* Adding is in two halves: everything that can fail (checks, room in the arrays, interned names),
 * then the change itself, so that an error leaves the graph as it was. */
#include "ir/graph.h"

#include "ir/op_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the graph ------------------------------------------------------------------------------- */

static bool push_unused_elements(Graph *g) {
  return vec_push(&g->values, (Value){0}) && vec_push(&g->ops, (Op){0}) &&
         vec_push(&g->params, (Param){0}) && vec_push(&g->inputs, (Input){0}) &&
         vec_push(&g->losses, (Loss){0}) && vec_push(&g->stacks, (Stack){0}) && vec_push(&g->chunks, (Chunk){0}) &&
         vec_push(&g->scope_first, 0) && vec_push(&g->scope_first, 0);
}

Graph *graph_new(const char *name) {
  Graph *g = calloc(1, sizeof *g);
  if (g == NULL) return NULL;
  g->arena = arena_new();
  g->names = intern_new();
  if (g->arena == NULL || g->names == NULL || !push_unused_elements(g) ||
      (g->name = intern_id(g->names, name)) == 0) {
    graph_free(g);
    return NULL;
  }
  return g;
}

void graph_free(Graph *g) {
  if (g == NULL) return;
  arena_free(g->arena);
  intern_free(g->names);
  vec_free(&g->values);
  vec_free(&g->ops);
  vec_free(&g->params);
  vec_free(&g->inputs);
  vec_free(&g->losses);
  vec_free(&g->stacks);
  vec_free(&g->stack_params);
  vec_free(&g->chunks);
  vec_free(&g->chunk_values);
  vec_free(&g->chunk_params);
  vec_free(&g->chunk_experts);
  vec_free(&g->scope_first);
  vec_free(&g->scope_tags);
  vec_free(&g->open_tags);
  vec_free(&g->open_lines);
  vec_free(&g->open_scopes);
  vec_free(&g->tag_entries);
  vec_free(&g->tag_lines);
  vec_free(&g->name_params);
  vec_free(&g->name_inputs);
  free(g);
}

static PiperStatus no_memory(PiperErr *err) { return err_nomem(err, "model"); }

static PiperStatus check_open(const Graph *g, PiperErr *err) {
  if (!g->cut) return PIPER_OK;
  return err_set(err, PIPER_EUSER, "model \"%s\" is complete: nothing can be added to it",
                 graph_name(g, g->name));
}

/* ---- names of inputs and parameters ---------------------------------------------------------- */

static bool cover(U32Vec *v, uint32_t id) {
  while (v->n <= id)
    if (!vec_push(v, 0)) return false;
  return true;
}

static uint32_t name_lookup(const U32Vec *v, uint32_t id) { return id < v->n ? v->at[id] : 0; }

ParamId graph_find_param(const Graph *g, const char *name) {
  return (ParamId){name_lookup(&g->name_params, intern_find(g->names, name))};
}

uint32_t graph_find_input(const Graph *g, const char *name) {
  return name_lookup(&g->name_inputs, intern_find(g->names, name));
}

static const char *at_line(const Graph *g, uint32_t line) {
  return line != 0 ? graph_name(g, line) : "an earlier line";
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void name_input_axes(Shape *s, DType dtype) {
  s->axis[0] = AXIS_BATCH;
  if (s->rank < 2) return;
  if (dtype == DT_I32) s->axis[1] = AXIS_SEQUENCE;
  else s->axis[s->rank - 1] = AXIS_FEATURE;
}

static PiperStatus check_input(const Graph *g, const char *name, const Shape *shape, DType dtype,
                               PiperErr *err) {
  char what[160];
  snprintf(what, sizeof what, "input \"%.128s\"", name);
  TRY(check_open(g, err));
  TRY(shape_check(shape, what, err));
  const uint32_t same = graph_find_input(g, name), param = graph_find_param(g, name).i;
  if (same != 0)
    return err_set(err, PIPER_EUSER, "%s: there is one already (%s)", what,
                   at_line(g, g->inputs.at[same].line));
  if (param != 0)
    return err_set(err, PIPER_EUSER, "%s: a parameter is called so (%s)", what,
                   at_line(g, g->params.at[param].line));
  if (!shape->batched)
    return err_set(err, PIPER_EUSER,
                   "%s: the first axis must be \"batch\" or { \"batch\", k }: an input is data for "
                   "each sample",
                   what);
  if (dtype != DT_FLOAT && dtype != DT_I32)
    return err_set(err, PIPER_EUSER, "%s: %s is no type of inputs", what, dtype_name(dtype));
  return PIPER_OK;
}

PiperStatus graph_add_input(Graph *g, const char *name, const Shape *shape, DType dtype,
                            uint32_t line, ValueId *out, PiperErr *err) {
  TRY(check_input(g, name, shape, dtype, err));
  const uint32_t id = intern_id(g->names, name);
  if (id == 0 || !cover(&g->name_inputs, id) || !vec_reserve(&g->values, 1) ||
      !vec_reserve(&g->inputs, 1))
    return no_memory(err);
  *out = (ValueId){(uint32_t)g->values.n};
  Value v = {.kind = VALUE_INPUT,
             .batch = BATCH_SPLIT,
             .dtype = dtype,
             .shape = *shape,
             .input = (uint32_t)g->inputs.n};
  name_input_axes(&v.shape, dtype);
  g->name_inputs.at[id] = v.input;
  g->inputs.at[g->inputs.n++] = (Input){.name = id, .value = *out, .line = line};
  g->values.at[g->values.n++] = v;
  return PIPER_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static PiperStatus check_tied(const Graph *g, ParamId old, const ParamSpec *spec, PiperErr *err) {
  const Param *p = graph_param(g, old);
  if (shape_equal(&p->shape, &spec->shape)) return PIPER_OK;
  char there[160], here[160];
  shape_text(&p->shape, there, sizeof there);
  shape_text(&spec->shape, here, sizeof here);
  return err_set(err, PIPER_EUSER,
                 "parameter \"%s\" is %s here, but %s at %s: one name is one parameter", spec->name,
                 here, there, at_line(g, p->line));
}

static PiperStatus check_param(const Graph *g, const ParamSpec *spec, PiperErr *err) {
  char what[160];
  snprintf(what, sizeof what, "parameter \"%.128s\"", spec->name);
  TRY(check_open(g, err));
  TRY(shape_check(&spec->shape, what, err));
  if (spec->shape.batched)
    return err_set(err, PIPER_EUSER, "%s: a parameter has no batch axis", what);
  const uint32_t input = graph_find_input(g, spec->name);
  if (input != 0)
    return err_set(err, PIPER_EUSER, "%s: an input is called so (%s)", what,
                   at_line(g, g->inputs.at[input].line));
  return PIPER_OK;
}

static PiperStatus copy_values(Graph *g, const ParamSpec *spec, const double **out, PiperErr *err) {
  *out = NULL;
  if (spec->init != INIT_VALUES) return PIPER_OK;
  const size_t n = (size_t)shape_elements_per_sample(&spec->shape);
  double *values = arena_alloc(g->arena, n, sizeof *values);
  if (values == NULL) return no_memory(err);
  memcpy(values, spec->values, n * sizeof *values);
  *out = values;
  return PIPER_OK;
}

PiperStatus graph_add_param(Graph *g, const ParamSpec *spec, uint32_t line, ValueId *out,
                            PiperErr *err) {
  TRY(check_param(g, spec, err));
  const ParamId old = graph_find_param(g, spec->name);
  if (old.i != 0) {
    TRY(check_tied(g, old, spec, err));
    *out = graph_param(g, old)->value;
    return PIPER_OK;
  }
  const uint32_t id = intern_id(g->names, spec->name);
  const double *values;
  if (id == 0 || !cover(&g->name_params, id) || !vec_reserve(&g->values, 1) ||
      !vec_reserve(&g->params, 1))
    return no_memory(err);
  TRY(copy_values(g, spec, &values, err));
  *out = (ValueId){(uint32_t)g->values.n};
  const ParamId param = {(uint32_t)g->params.n};
  g->name_params.at[id] = param.i;
  g->params.at[g->params.n++] = (Param){.name = id,
                                        .shape = spec->shape,
                                        .init = spec->init,
                                        .init_arg = spec->init_arg,
                                        .values = values,
                                        .value = *out,
                                        .line = line};
  g->values.at[g->values.n++] = (Value){.kind = VALUE_PARAM,
                                        .batch = BATCH_INDEPENDENT,
                                        .dtype = DT_FLOAT,
                                        .shape = spec->shape,
                                        .param = param};
  return PIPER_OK;
}

static PiperStatus check_stack(const Graph *g, const ValueId *params, uint32_t n, PiperErr *err) {
  TRY(check_open(g, err));
  if (n == 0) return err_set(err, PIPER_EBUG, "stack: of no parameters");
  for (uint32_t i = 0; i < n; i++) {
    if (params[i].i == 0 || params[i].i >= g->values.n ||
        graph_value(g, params[i])->kind != VALUE_PARAM)
      return err_set(err, PIPER_EBUG, "stack: value %u is no parameter", params[i].i);
    if (!shape_equal(&graph_value(g, params[i])->shape, &graph_value(g, params[0])->shape))
      return err_set(err, PIPER_EBUG, "stack: of parameters of different shapes");
  }
  return PIPER_OK;
}

PiperStatus graph_add_stack(Graph *g, const ValueId *params, uint32_t n, ValueId *out,
                            PiperErr *err) {
  TRY(check_stack(g, params, n, err));
  const Shape *one = &graph_value(g, params[0])->shape;
  Value v = {.kind = VALUE_STACK,
             .batch = BATCH_INDEPENDENT,
             .dtype = DT_FLOAT,
             .shape = {.rank = (uint8_t)(one->rank + 1), .axis = {AXIS_EXPERT}, .dim = {n}},
             .stack = (uint32_t)g->stacks.n};
  if (v.shape.rank > SHAPE_MAX_RANK) return err_set(err, PIPER_EBUG, "stack: too many axes");
  for (int i = 0; i < one->rank; i++) v.shape.dim[i + 1] = one->dim[i];
  TRY(shape_check(&v.shape, "stack", err));
  if (!vec_reserve(&g->values, 1) || !vec_reserve(&g->stacks, 1) ||
      !vec_reserve(&g->stack_params, n))
    return no_memory(err);
  *out = (ValueId){(uint32_t)g->values.n};
  g->stacks.at[g->stacks.n++] = (Stack){(uint32_t)g->stack_params.n, n};
  for (uint32_t i = 0; i < n; i++)
    g->stack_params.at[g->stack_params.n++] = graph_value(g, params[i])->param.i;
  g->values.at[g->values.n++] = v;
  return PIPER_OK;
}

const uint32_t *graph_value_params(const Graph *g, ValueId v, uint32_t *n) {
  const Value *value = graph_value(g, v);
  *n = 0;
  if (v.i == 0) return NULL;
  if (value->kind == VALUE_PARAM) {
    *n = 1;
    return &value->param.i;
  }
  if (value->kind != VALUE_STACK) return NULL;
  *n = g->stacks.at[value->stack].n;
  return g->stack_params.at + g->stacks.at[value->stack].first;
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* There is room for one more op and its values. */
static ValueId push_op(Graph *g, Op op, const OpResult *r) {
  op.out = (ValueId){(uint32_t)g->values.n};
  op.scope = g->open_scopes.n > 0 ? g->open_scopes.at[g->open_scopes.n - 1] : 0;
  op.per_element_mean = r->per_element_mean;
  op.divisor_per_sample = r->divisor_per_sample;
  g->values.at[g->values.n++] = (Value){.kind = VALUE_OP,
                                        .batch = r->batch,
                                        .dtype = r->dtype,
                                        .shape = r->shape,
                                        .op = {(uint32_t)g->ops.n}};
  if (OP_INFO[op.kind].flags & OPF_AUX) {
    op.aux = (ValueId){(uint32_t)g->values.n};
    g->values.at[g->values.n++] = (Value){.kind = VALUE_OP,
                                          .batch = r->batch,
                                          .dtype = DT_FLOAT,
                                          .shape = r->aux,
                                          .op = {(uint32_t)g->ops.n}};
  }
  g->ops.at[g->ops.n++] = op;
  return op.out;
}

static ValueId push_once(Graph *g, ValueId v, uint32_t line) {
  const Value *x = graph_value(g, v);
  const OpResult r = {
      .shape = x->shape, .batch = BATCH_PARTIAL, .dtype = x->dtype, .divisor_per_sample = 1};
  return push_op(g, (Op){.kind = OP_ONCE, .in = {v}, .line = line}, &r);
}

static ValueId push_copy(Graph *g, ValueId v, uint32_t line) {
  const Value *x = graph_value(g, v);
  const OpResult r = {.shape = x->shape, .batch = x->batch, .dtype = x->dtype, .divisor_per_sample = 1};
  return push_op(g, (Op){.kind = OP_SCALE, .in = {v}, .attrs = {{1}}, .line = line}, &r);
}

/* The value whose storage v shares. */
static ValueId behind_views(const Graph *g, ValueId v) {
  while (graph_value(g, v)->kind == VALUE_OP) {
    const Op *op = graph_op(g, graph_value(g, v)->op);
    if (!(OP_INFO[op->kind].flags & OPF_VIEW)) break;
    v = op->in[0];
  }
  return v;
}

/* Operand i of a joint op, as the op is to have it. */
static ValueId joint_operand(Graph *g, const OpSpec *spec, int i, uint32_t line) {
  const ValueId v = spec->in[i], source = behind_views(g, v);
  bool copy = graph_value(g, source)->kind == VALUE_PARAM;
  for (int j = 0; j < i; j++)
    if (spec->in[j].i != 0) copy |= behind_views(g, spec->in[j]).i == source.i;
  return v.i != 0 && copy ? push_copy(g, v, line) : v;
}

static PiperStatus check_operands(const Graph *g, const OpSpec *spec, const Value *in[3],
                                  PiperErr *err) {
  const int n = OP_INFO[spec->kind].n_operands;
  TRY(check_open(g, err));
  if (!(OP_INFO[spec->kind].flags & OPF_MODEL) && spec->kind != OP_FILL)
    return err_set(err, PIPER_EBUG, "%s is no op of a model", OP_INFO[spec->kind].name);
  for (int i = 0; i < 3; i++) {
    const uint32_t v = spec->in[i].i;
    const bool may_lack = i >= n || op_may_lack(spec->kind, i);
    if (v >= g->values.n || (v == 0 && !may_lack) || (v != 0 && i >= n))
      return err_set(err, PIPER_EBUG, "%s: operand %d is no value", OP_INFO[spec->kind].name, i);
    in[i] = v != 0 ? &g->values.at[v] : NULL;
  }
  return PIPER_OK;
}

/* nn.moe's experts are inside a scope of this name. */
static PiperStatus check_dropout(const Graph *g, PiperErr *err) {
  for (size_t i = 0; i < g->open_tags.n; i++)
    if (strcmp(graph_name(g, g->open_tags.at[i]), "EP") == 0)
      return err_set(err, PIPER_EUSER,
                     "dropout: inside \"EP\", where experts see the tokens of all samples "
                     "mixed: which sample one belongs to is not known there");
  return PIPER_OK;
}

/* What the mask is made by, besides seed and step: which dropout of the model it is, and which element
 * of the whole batch. */
static void set_mask(const Graph *g, Op *op) {
  const Shape *s = &graph_value(g, op->in[0])->shape;
  op->attrs.d[1] = (double)g->ops.n;
  op->attrs.d[2] = s->batched ? (double)shape_elements_per_sample(s) : 0;
}

PiperStatus graph_add_op(Graph *g, const OpSpec *spec, uint32_t line, ValueId *out, PiperErr *err) {
  const Value *in[3];
  OpResult r;
  Op op = {.kind = spec->kind, .attrs = spec->attrs, .line = line};
  TRY(check_operands(g, spec, in, err));
  if (spec->kind == OP_DROPOUT) TRY(check_dropout(g, err));
  TRY(op_infer(spec, in, &r, err));
  if (spec->name != NULL && (op.name = intern_id(g->names, spec->name)) == 0) return no_memory(err);
  if (!vec_reserve(&g->ops, 4) || !vec_reserve(&g->values, 5)) return no_memory(err);
  const bool joint = OP_INFO[spec->kind].flags & OPF_JOINT; /* takes no sums over samples, so no ONCE */
  for (int i = 0; i < 3; i++)
    op.in[i] = joint                 ? joint_operand(g, spec, i, line)
               : r.once & 1u << i ? push_once(g, spec->in[i], line)
                                     : spec->in[i];
  if (spec->kind == OP_DROPOUT) set_mask(g, &op);
  *out = push_op(g, op, &r);
  return PIPER_OK;
}

/* ---- losses ---------------------------------------------------------------------------------- */

static bool is_loss(const Graph *g, ValueId v) {
  for (size_t i = 1; i < g->losses.n; i++)
    if (g->losses.at[i].value.i == v.i) return true;
  return false;
}

static PiperStatus check_loss(const Graph *g, ValueId v, PiperErr *err) {
  TRY(check_open(g, err));
  if (v.i == 0 || v.i >= g->values.n) return err_set(err, PIPER_EBUG, "loss: no value");
  const Value *x = graph_value(g, v);
  char text[160];
  shape_text(&x->shape, text, sizeof text);
  if (x->shape.rank != 0)
    return err_set(err, PIPER_EUSER,
                   "loss: value is %s, and a loss is a scalar: reduce it with sum, mean or another "
                   "loss",
                   text);
  if (x->dtype != DT_FLOAT)
    return err_set(err, PIPER_EUSER, "loss: value is %s; it must be floating point",
                   dtype_name(x->dtype));
  return PIPER_OK;
}

PiperStatus graph_add_loss(Graph *g, ValueId value, uint32_t line, PiperErr *err) {
  TRY(check_loss(g, value, err));
  if (!vec_reserve(&g->losses, 1) || !vec_reserve(&g->ops, 1) || !vec_reserve(&g->values, 1))
    return no_memory(err);
  if (graph_value(g, value)->batch == BATCH_INDEPENDENT) {
    value = push_once(g, value, line);
  } else if (is_loss(g, value)) {
    const OpSpec copy = {.kind = OP_SCALE, .in = {value}, .attrs = {{1}}};
    TRY(graph_add_op(g, &copy, line, &value, err));
  }
  g->losses.at[g->losses.n++] = (Loss){.value = value, .line = line};
  return PIPER_OK;
}
