/* The table, and how a row is read.
 *
 * 'axes' is one term an operand, then the output's, then that of the auxiliary output if there is one:
 *
 *     i          a letter is one axis; the same letter means the same length
 *     *          any number of leading axes, the same ones wherever it stands
 *     ?          like *, or none at all
 *     ~          any number of axes, broadcast against each other as in NumPy
 *     c!         positions along this axis mix: the op needs it whole
 *     2          (auxiliary output) an axis of this length
 *     A, B       (output) an axis of length attrs.d[0], attrs.d[1]
 *
 * From it follows what the op does along each axis: one that the output has too is independent, one
 * that only operands have is contracted (its sum taken), one with a ! is mixing. The batch axis has
 * to be independent and stay outermost; contracted it may be only by an op with a scalar output:
 * that is the sum or mean over samples on the way to a loss, and its result a partial sum for each
 * piece of the batch. Layouts over devices ask the same of other axes.
 *
 * 'products' writes the op as a sum of products of operands: "01+2" is a linear layer, input times
 * weight plus bias. A partial sum may stand where the op is linear in it: in each product at most
 * one, and an operand outside all products takes none. Products without one, when others have one,
 * do not depend on the batch and enter only once (OP_ONCE), or each piece of the batch would add
 * them again. */
#include "ir/op_rules.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct OpRule {
  const char *operand[3]; /* as messages call them, with the verb */
  const char *types; /* one letter an operand: f float, i i32, a any; in capitals: may be absent */
  const char *axes;
  const char *products;
  bool mean; /* divides by the number of elements (CROSS_ENTROPY: of targets; BALANCE: of samples) */
  OpFlops flops;
  bool integer; /* the output is i32 */
} OpRule;

/* clang-format off */
#define LEFT_RIGHT {"left is", "right is"}
static const OpRule RULES[OP_KIND_COUNT] = {
  /* op               operands                                types  axes              products  mean    flops */
  [OP_LINEAR]        = {{"input is", "weight is", "bias is"}, "ffF", "*i, oi, o -> *o", "01+2",  false, {SPACE_OUT_BY_LAST, 2, {2, 2, 0}}},
  [OP_MATMUL]        = {LEFT_RIGHT,                           "ff",  "*mk, ?kn -> *mn", "01",    false, {SPACE_OUT_BY_LAST, 2, {2, 2}}},
  [OP_EMBEDDING]     = {{"ids are", "weight is"},             "if",  "*, vw -> *w",     "1",     false, {SPACE_OUT, 0, {0, 1}}},
  [OP_RELU]          = {{"input is"},                         "f",   "* -> *",          "",      false, {SPACE_OUT, 1, {1}}},
  [OP_GELU]          = {{"input is"},                         "f",   "* -> *",          "",      false, {SPACE_OUT, 40, {45}}},
  [OP_SILU]          = {{"input is"},                         "f",   "* -> *",          "",      false, {SPACE_OUT, 20, {25}}},
  [OP_SWIGLU]        = {{"gate is", "up is"},                 "ff",  "*, * -> *",       "",      false, {SPACE_OUT, 21, {20, 10}}},
  [OP_SOFTMAX]       = {{"input is"},                         "f",   "*c! -> *c",       "",      false, {SPACE_OUT, 20, {5}}},
  [OP_RMSNORM]       = {{"input is", "weight is"},            "ff",  "*f!, f -> *f, *", "",      false, {SPACE_OUT, 4, {10, 4}}},
  [OP_LAYERNORM]     = {{"input is", "weight is", "bias is"}, "ffF", "*f!, f, f -> *f, *2", "",  false, {SPACE_OUT, 8, {14, 5, 1}}},
  [OP_ROPE]          = {{"input is"},                         "f",   "*t!hw! -> *thw",  "0",     false, {SPACE_OUT, 3, {3}}},
  [OP_ATTENTION]     = {{"queries are", "keys are", "values are"}, "fff", "*t!hw!, *s!gw!, *s!gw! -> *thw, *ht", "", false, {SPACE_OUT_BY_KEYS, 4, {4, 4, 2}}},
  [OP_DROPOUT]       = {{"input is"},                         "f",   "* -> *",          "0",     false, {SPACE_OUT, 2, {2}}},
  [OP_ADD]           = {LEFT_RIGHT,                           "ff",  "~, ~ -> ~",       "0+1",   false, {SPACE_OUT, 1, {1, 1}}},
  [OP_SUB]           = {LEFT_RIGHT,                           "ff",  "~, ~ -> ~",       "0+1",   false, {SPACE_OUT, 1, {1, 1}}},
  [OP_MUL]           = {LEFT_RIGHT,                           "ff",  "~, ~ -> ~",       "01",    false, {SPACE_OUT, 1, {1, 1}}},
  [OP_DIV]           = {LEFT_RIGHT,                           "ff",  "~, ~ -> ~",       "0",     false, {SPACE_OUT, 1, {1, 4}}},
  [OP_SCALE]         = {{"input is"},                         "f",   "* -> *",          "0",     false, {SPACE_OUT, 1, {1}}},
  [OP_RESHAPE]       = {{"input is"},                         "a",   "* -> *",          "0",     false, {SPACE_OUT, 0, {0}}},
  [OP_TRANSPOSE]     = {{"input is"},                         "a",   "* -> *",          "0",     false, {SPACE_OUT, 0, {0}}},
  [OP_SLICE]         = {{"input is"},                         "a",   "* -> *",          "0",     false, {SPACE_OUT, 0, {0}}},
  [OP_SUM]           = {{"input is"},                         "f",   "* ->",            "0",     false, {SPACE_IN, 1, {0}}},
  [OP_MEAN]          = {{"input is"},                         "f",   "* ->",            "0",     true,  {SPACE_IN, 1, {0}}},
  [OP_SUM_SQUARES]   = {{"input is"},                         "f",   "* ->",            "",      false, {SPACE_IN, 2, {2}}},
  [OP_MSE]           = {LEFT_RIGHT,                           "ff",  "*, * ->",         "",      true,  {SPACE_IN, 3, {3, 3}}},
  [OP_CROSS_ENTROPY] = {{"logits are", "targets are"},        "fi",  "*c!, * ->",       "",      true,  {SPACE_IN, 5, {5}}},
  [OP_ROUTE]         = {{"logits are"},                       "f",   "bs!e! -> bsA",    "",      false, {SPACE_IN, 2, {0}}, true},
  [OP_GATE]          = {{"logits are", "slots are"},          "fi",  "bse!, bsk! -> bsk", "",    false, {SPACE_IN, 20, {20}}},
  [OP_BALANCE]       = {{"logits are", "slots are"},          "fi",  "bs!e!, bs!k! ->", "",      true,  {SPACE_IN, 20, {25}}},
  [OP_DISPATCH]      = {{"tokens are", "slots are"},          "fi",  "bs!c, bs!k! -> bABc", "",  false, {SPACE_OUT, 0, {1}}},
  [OP_COMBINE]       = {{"blocks are", "weights are", "slots are"}, "ffi", "be!t!c, bsk!, bsk! -> bsc", "", false, {SPACE_OUT, 2, {1, 2}}},
  [OP_EXPERT_ENDS]   = {{"blocks are"},                       "f",   "bet!c! -> be",    "",      false, {SPACE_OUT, 1, {0}}, true},
  [OP_PACK]          = {{"blocks are", "ends are"},           "fi",  "be!t!c, be! -> bAc", "",   false, {SPACE_OUT, 0, {0}}},
  [OP_UNPACK]        = {{"rows are", "ends are"},             "fi",  "br!c, be -> beAc", "",     false, {SPACE_IN, 0, {0}}},
  [OP_EXPERT_LINEAR] = {{"rows are", "weights are", "ends are"}, "ffi", "bri, eoi, be! -> bro", "", false, {SPACE_OUT_BY_LAST, 2, {2, 2}}},
  [OP_EXPERT_SWIGLU] = {{"gate is", "up is", "ends are"},     "ffi", "brf, brf, be! -> brf", "", false, {SPACE_OUT, 21, {20, 10}}},
  [OP_ONCE]          = {{"input is"},                         "f",   "* -> *",          "",      false, {SPACE_OUT, 0, {0}}},
  [OP_FILL]          = {{NULL},                               "",    "->",              "",      false, {SPACE_OUT, 0, {0}}},
};
/* clang-format on */

OpFlops op_flops(OpKind kind) { return RULES[kind].flops; }

/* ---- axes ------------------------------------------------------------------------------------ */

static AxesTerm parse_term(const char **at) {
  AxesTerm t = {0};
  const char *p = *at;
  for (; *p != '\0' && *p != ',' && *p != '-'; p++) {
    if (*p == '*' || *p == '~' || *p == '?') t.lead = *p;
    else if (*p == '!') t.mixing[t.n - 1] = true;
    else if (*p != ' ') t.letter[t.n++] = *p;
  }
  *at = p;
  return t;
}

AxesPattern op_axes(OpKind kind) {
  AxesPattern a = {0};
  const char *p = RULES[kind].axes;
  for (int i = 0; *p != '-'; i++) {
    a.in[i] = parse_term(&p);
    if (*p == ',') p++;
  }
  p += strlen("->");
  a.out = parse_term(&p);
  if (*p == ',') {
    p++;
    a.aux = parse_term(&p);
  }
  return a;
}

bool op_may_lack(OpKind kind, int operand) {
  const char *types = RULES[kind].types;
  return (size_t)operand < strlen(types) && types[operand] == 'F';
}

static int letter_at(const AxesTerm *t, char letter) {
  for (int i = 0; i < t->n; i++)
    if (t->letter[i] == letter) return i;
  return -1;
}

AxisRole op_axis_role(const AxesPattern *p, int operand, int rank, int axis) {
  const AxesTerm *t = &p->in[operand];
  const int i = axis - (rank - t->n);
  if (i < 0) return p->out.lead != 0 ? ROLE_INDEPENDENT : ROLE_CONTRACTED;
  if (t->mixing[i]) return ROLE_MIXING;
  return letter_at(&p->out, t->letter[i]) >= 0 ? ROLE_INDEPENDENT : ROLE_CONTRACTED;
}

/* ---- one inference --------------------------------------------------------------------------- */

#define TEXT 160 /* of a shape */

typedef struct Infer {
  const OpRule *rule;
  AxesPattern axes;
  const Value *const *in;
  const OpAttrs *attrs;
  char label[96];     /* linear "head" */
  char text[3][TEXT]; /* shapes of the operands */
  PiperErr *err;
} Infer;

static PiperStatus fail(Infer *x, const char *fmt, ...) PIPER_PRINTF(2, 3);
static PiperStatus fail(Infer *x, const char *fmt, ...) {
  char why[PIPER_ERR_TEXT];
  va_list args;
  va_start(args, fmt);
  vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  return err_set(x->err, PIPER_EUSER, "%s: %s", x->label, why);
}

static PiperStatus mismatch(Infer *x, int a, int b, const char *why) {
  return fail(x, "%s %s, %s %s: %s", x->rule->operand[a], x->text[a], x->rule->operand[b],
              x->text[b], why);
}

static PiperStatus dims_differ(Infer *x, int a, int axis_a, int b, int axis_b) {
  char da[32], db[32], why[80];
  shape_dim_text(&x->in[a]->shape, axis_a, da, sizeof da);
  shape_dim_text(&x->in[b]->shape, axis_b, db, sizeof db);
  snprintf(why, sizeof why, "%s is not %s", da, db);
  return mismatch(x, a, b, why);
}

static bool same_dim(const Shape *a, int i, const Shape *b, int j) {
  return a->dim[i] == b->dim[j] && (a->batched && i == 0) == (b->batched && j == 0);
}

static PiperStatus check_types(Infer *x) {
  for (int i = 0; x->rule->types[i] != '\0'; i++) {
    const char want = x->rule->types[i];
    if (x->in[i] == NULL) {
      assert(want == 'F');
      continue;
    }
    const bool is_float = x->in[i]->dtype == DT_FLOAT;
    if ((want == 'f' || want == 'F') && !is_float)
      return fail(x, "%s i32; it must be floating point", x->rule->operand[i]);
    if (want == 'i' && is_float)
      return fail(x, "%s floating point; they must be i32", x->rule->operand[i]);
  }
  return PIPER_OK;
}

/* ---- samples --------------------------------------------------------------------------------- */

#define LINEAR_ONLY "only linear ops may follow it, or splitting the batch would change the result"

static bool is_kind(const Infer *x, int i, BatchKind kind) {
  return x->in[i] != NULL && x->in[i]->batch == kind;
}

static int first_of_kind(const Infer *x, BatchKind kind) {
  for (int i = 0; i < 3; i++)
    if (is_kind(x, i, kind)) return i;
  return -1;
}

/* Some operand is a sum over samples, the others do not depend on them: fine where the op is linear
 * in it. Sets the operands that enter once. */
static PiperStatus check_linear(Infer *x, unsigned *once) {
  const char *products = x->rule->products;
  for (int i = 0; i < 3; i++)
    if (is_kind(x, i, BATCH_PARTIAL) && strchr(products, '0' + i) == NULL)
      return fail(x, "%s a sum over the batch; " LINEAR_ONLY, x->rule->operand[i]);
  for (const char *p = products; *p != '\0';) {
    const int first = *p - '0';
    int partial = 0;
    for (; *p != '\0' && *p != '+'; p++) partial += is_kind(x, *p - '0', BATCH_PARTIAL);
    if (partial > 1)
      return fail(x, "both operands are sums over the batch, and a product of them mixes "
                     "samples; " LINEAR_ONLY);
    if (partial == 0 && x->in[first] != NULL) *once |= 1u << first;
    if (*p == '+') p++;
  }
  return PIPER_OK;
}

/* The batch axis of operand i: where does it go? */
static PiperStatus check_batch_axis(Infer *x, int i) {
  const AxesPattern *axes = &x->axes;
  const Shape *s = &x->in[i]->shape;
  const AxisRole role = op_axis_role(axes, i, s->rank, 0);
  const bool scalar_out = axes->out.lead == 0 && axes->out.n == 0;
  if (role == ROLE_MIXING || (role == ROLE_CONTRACTED && !scalar_out))
    return fail(x,
                "%s %s: this would mix samples; only sum, mean and losses may combine those of the "
                "batch",
                x->rule->operand[i], x->text[i]);
  if (role == ROLE_CONTRACTED || s->rank > axes->in[i].n) return PIPER_OK;
  /* a letter that the output has: it must be its first axis */
  if (axes->out.letter[0] != axes->in[i].letter[0] || axes->in[0].n < x->in[0]->shape.rank)
    return fail(x, "%s %s: the batch would not stay the outermost axis", x->rule->operand[i],
                x->text[i]);
  return PIPER_OK;
}

static PiperStatus infer_batch(Infer *x, OpResult *out) {
  const int split = first_of_kind(x, BATCH_SPLIT), partial = first_of_kind(x, BATCH_PARTIAL);
  out->batch = BATCH_INDEPENDENT;
  if (split >= 0 && partial >= 0)
    return fail(x, "%s a sum over the batch, %s a value for each sample: this mixes samples",
                x->rule->operand[partial], x->rule->operand[split]);
  if (partial >= 0) {
    out->batch = BATCH_PARTIAL;
    return check_linear(x, &out->once);
  }
  if (split < 0) return PIPER_OK;
  for (int i = 0; i < 3; i++)
    if (is_kind(x, i, BATCH_SPLIT)) TRY(check_batch_axis(x, i));
  out->batch = x->axes.out.lead == 0 && x->axes.out.n == 0 ? BATCH_PARTIAL : BATCH_SPLIT;
  return PIPER_OK;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static PiperStatus check_rank(Infer *x, int i) {
  const AxesTerm *t = &x->axes.in[i];
  const int rank = x->in[i]->shape.rank;
  if (t->lead != 0 ? rank >= t->n : rank == t->n) return PIPER_OK;
  return fail(x, "%s %s: %s%d %s needed", x->rule->operand[i], x->text[i],
              t->lead != 0 ? "at least " : "", t->n, t->n == 1 ? "axis is" : "axes are");
}

/* Axes written '*' must be those of operand 0, which has them in every row. */
static PiperStatus check_lead(Infer *x, int i) {
  const AxesTerm *t = &x->axes.in[i];
  const Shape *first = &x->in[0]->shape, *s = &x->in[i]->shape;
  const int n_first = first->rank - x->axes.in[0].n, n = s->rank - t->n;
  if (t->lead == '?' && n == 0) return PIPER_OK;
  if (n != n_first)
    return mismatch(x, 0, i,
                    t->n + x->axes.in[0].n > 0 ? "their leading axes differ"
                                               : "their numbers of axes differ");
  for (int a = 0; a < n; a++)
    if (!same_dim(first, a, s, a)) return dims_differ(x, 0, a, i, a);
  return PIPER_OK;
}

/* Where a letter stands first: operand and axis. */
static void find_letter(const Infer *x, char letter, int *operand, int *axis) {
  for (int i = 0; i < 3; i++) {
    const int at = letter_at(&x->axes.in[i], letter);
    if (at < 0 || x->in[i] == NULL) continue;
    *operand = i;
    *axis = x->in[i]->shape.rank - x->axes.in[i].n + at;
    return;
  }
  assert(!"every letter stands in an operand");
}

static PiperStatus check_letters(Infer *x, int i) {
  const AxesTerm *t = &x->axes.in[i];
  const Shape *s = &x->in[i]->shape;
  for (int l = 0; l < t->n; l++) {
    int first = i, axis = 0;
    const int here = s->rank - t->n + l;
    find_letter(x, t->letter[l], &first, &axis);
    if (!same_dim(&x->in[first]->shape, axis, s, here)) return dims_differ(x, first, axis, i, here);
  }
  return PIPER_OK;
}

static void copy_axis(Shape *to, const Shape *from, int axis) {
  if (axis == 0 && from->batched) to->batched = true;
  to->axis[to->rank] = from->axis[axis];
  to->dim[to->rank++] = from->dim[axis];
}

/* The shape that a term of the output's or of the auxiliary output's says. */
static PiperStatus build_shape(Infer *x, const AxesTerm *t, Shape *out) {
  *out = (Shape){0};
  if (t->lead != 0)
    for (int a = 0; a < x->in[0]->shape.rank - x->axes.in[0].n; a++)
      copy_axis(out, &x->in[0]->shape, a);
  if (out->rank + t->n > SHAPE_MAX_RANK)
    return fail(x, "%s %s: the result would have %d axes; there can be %d", x->rule->operand[0],
                x->text[0], out->rank + t->n, SHAPE_MAX_RANK);
  for (int l = 0; l < t->n; l++) {
    if (t->letter[l] >= '0' && t->letter[l] <= '9') {
      out->dim[out->rank++] = t->letter[l] - '0';
      continue;
    }
    if (t->letter[l] == 'A' || t->letter[l] == 'B') {
      const double d = x->attrs->d[t->letter[l] - 'A'];
      if (!(d >= 1 && d <= (double)SHAPE_MAX_ELEMENTS))
        return fail(x, "an axis of length %g is not between 1 and 2^48", d);
      out->dim[out->rank++] = (int64_t)d;
      continue;
    }
    int operand = 0, axis = 0;
    find_letter(x, t->letter[l], &operand, &axis);
    copy_axis(out, &x->in[operand]->shape, axis);
  }
  return PIPER_OK;
}

static PiperStatus infer_axes(Infer *x, Shape *out) {
  for (int i = 0; i < 3; i++) {
    if (x->in[i] == NULL) continue;
    TRY(check_rank(x, i));
    if (x->axes.in[i].lead != 0) TRY(check_lead(x, i));
    TRY(check_letters(x, i));
  }
  return build_shape(x, &x->axes.out, out);
}

/* Shapes aligned at the last axis; an axis of length 1 (never the batch) stretches. */
static PiperStatus infer_broadcast(Infer *x, Shape *out) {
  const Shape *s[2] = {&x->in[0]->shape, &x->in[1]->shape};
  const int rank = s[0]->rank > s[1]->rank ? s[0]->rank : s[1]->rank;
  *out = (Shape){0};
  for (int a = 0; a < rank; a++) {
    const int at[2] = {a - (rank - s[0]->rank), a - (rank - s[1]->rank)};
    int from = at[0] < 0 ? 1 : 0;
    if (at[0] >= 0 && at[1] >= 0 && !same_dim(s[0], at[0], s[1], at[1])) {
      const bool one0 = s[0]->dim[at[0]] == 1 && !(s[0]->batched && at[0] == 0);
      const bool one1 = s[1]->dim[at[1]] == 1 && !(s[1]->batched && at[1] == 0);
      if (!one0 && !one1) return dims_differ(x, 0, at[0], 1, at[1]);
      from = one0 ? 1 : 0;
    }
    if (a > 0 && at[from] == 0 && s[from]->batched)
      return mismatch(x, 0, 1, "the batch would not stay the outermost axis");
    copy_axis(out, s[from], at[from]);
  }
  return PIPER_OK;
}

/* A sample's elements lie together in memory, whatever multiple of the batch axis 0 is: any shape
 * with the same elements a sample keeps samples apart. */
static PiperStatus infer_reshape(Infer *x, const Shape *to, Shape *out) {
  const Shape *from = &x->in[0]->shape;
  char text[TEXT];
  TRY(shape_check(to, x->label, x->err));
  shape_text(to, text, sizeof text);
  if (from->batched && !to->batched)
    return fail(x, "input is %s, and %s has no batch: it must stay the outermost axis", x->text[0],
                text);
  if (!from->batched && to->batched)
    return fail(x, "input is %s, which has no batch, but %s has", x->text[0], text);
  const int64_t n_from = shape_elements_per_sample(from), n_to = shape_elements_per_sample(to);
  if (n_from != n_to)
    return fail(x, "%s has %" PRId64 " element%s%s, %s has %" PRId64, x->text[0], n_from,
                n_from == 1 ? "" : "s", from->batched ? " a sample" : "", text, n_to);
  *out = *to;
  /* axes that stay in place keep their names */
  for (int a = 0; a < to->rank && a < from->rank && same_dim(from, a, to, a); a++)
    out->axis[a] = from->axis[a];
  for (int a = 1; a <= to->rank && a <= from->rank; a++) {
    const int i = from->rank - a, j = to->rank - a;
    if (!same_dim(from, i, to, j)) break;
    out->axis[j] = from->axis[i];
  }
  return PIPER_OK;
}

/* attrs.d[i] as an axis that may move: it exists, and is not the batch. */
static PiperStatus read_axis(Infer *x, const OpSpec *spec, int i, int *axis) {
  const Shape *s = &x->in[0]->shape;
  const double d = spec->attrs.d[i];
  if (!(d >= 0 && d < s->rank) || d != (int)d)
    return fail(x, "input is %s, which has no axis %.17g (they count from 0)", x->text[0], d);
  *axis = (int)d;
  if (s->batched && *axis == 0)
    return fail(x, "input is %s: axis 0 is the batch, which has to stay as it is", x->text[0]);
  return PIPER_OK;
}

static PiperStatus infer_transpose(Infer *x, const OpSpec *spec, Shape *out) {
  int a, b;
  TRY(read_axis(x, spec, 0, &a));
  TRY(read_axis(x, spec, 1, &b));
  const Shape *s = &x->in[0]->shape;
  *out = *s;
  out->dim[a] = s->dim[b];
  out->dim[b] = s->dim[a];
  out->axis[a] = s->axis[b];
  out->axis[b] = s->axis[a];
  return PIPER_OK;
}

static PiperStatus infer_slice(Infer *x, const OpSpec *spec, Shape *out) {
  int axis;
  TRY(read_axis(x, spec, 0, &axis));
  const double from = spec->attrs.d[1], to = spec->attrs.d[2];
  *out = x->in[0]->shape;
  if (!(from >= 0 && from < to && to <= (double)out->dim[axis]))
    return fail(
        x,
        "input is %s: positions from %.17g up to, not including, %.17g of axis %d, which has "
        "%" PRId64 " from 0",
        x->text[0], from, to, axis, out->dim[axis]);
  out->dim[axis] = (int64_t)to - (int64_t)from;
  return PIPER_OK;
}

static PiperStatus check_rope(Infer *x, const OpSpec *spec, const Shape *s) {
  const double base = spec->attrs.d[0], position = spec->attrs.d[1];
  const int64_t width = s->dim[s->rank - 1];
  if (width % 2 != 0)
    return fail(x, "input is %s: pairs of the last axis are turned, and %" PRId64 " is odd", x->text[0],
                width);
  if (!(base > 0)) return fail(x, "base is %.17g, not a number above 0", base);
  if (!(position >= 0 && position + (double)s->dim[s->rank - 3] <= OP_MOST_POSITIONS))
    return fail(x, "input is %s: there can be %d positions", x->text[0], OP_MOST_POSITIONS);
  return PIPER_OK;
}

static PiperStatus check_attention(Infer *x) {
  const Shape *q = &x->in[0]->shape, *k = &x->in[1]->shape;
  const int64_t heads = q->dim[q->rank - 2], kv_heads = k->dim[k->rank - 2];
  if (heads % kv_heads == 0) return PIPER_OK;
  char why[120];
  snprintf(why, sizeof why, "%" PRId64 " heads of keys do not divide %" PRId64 " heads of queries",
           kv_heads, heads);
  return mismatch(x, 0, 1, why);
}

static PiperStatus infer_shape(Infer *x, const OpSpec *spec, Shape *out) {
  const OpKind kind = spec->kind;
  if (kind == OP_RESHAPE) return infer_reshape(x, spec->reshape_to, out);
  if (kind == OP_TRANSPOSE) return infer_transpose(x, spec, out);
  if (kind == OP_SLICE) return infer_slice(x, spec, out);
  if (x->axes.out.lead == '~') return infer_broadcast(x, out);
  TRY(infer_axes(x, out));
  if (kind == OP_ROPE) TRY(check_rope(x, spec, out));
  if (kind == OP_ATTENTION) TRY(check_attention(x));
  if (kind == OP_LINEAR || kind == OP_EMBEDDING) out->axis[out->rank - 1] = AXIS_FEATURE;
  if (kind == OP_DISPATCH) out->axis[1] = AXIS_EXPERT;
  if (kind == OP_PACK) out->axis[1] = AXIS_PACKED;
  return PIPER_OK;
}

PiperStatus op_infer(const OpSpec *spec, const Value *const in[3], OpResult *out, PiperErr *err) {
  const OpKind kind = spec->kind;
  const char *name = spec->name;
  Infer x = {
      .rule = &RULES[kind], .axes = op_axes(kind), .in = in, .attrs = &spec->attrs, .err = err};
  *out = (OpResult){.dtype = DT_FLOAT, .divisor_per_sample = 1};
  if (name != NULL) snprintf(x.label, sizeof x.label, "%s \"%.64s\"", OP_INFO[kind].name, name);
  else snprintf(x.label, sizeof x.label, "%s", OP_INFO[kind].name);
  for (int i = 0; i < 3; i++)
    if (in[i] != NULL) shape_text(&in[i]->shape, x.text[i], TEXT);
  TRY(check_types(&x));
  TRY(infer_batch(&x, out));
  TRY(infer_shape(&x, spec, &out->shape));
  TRY(shape_check(&out->shape, x.label, err));
  if (OP_INFO[kind].flags & OPF_AUX) {
    TRY(build_shape(&x, &x.axes.aux, &out->aux));
    TRY(shape_check(&out->aux, x.label, err));
  }
  if (x.rule->types[0] == 'a') out->dtype = in[0]->dtype;
  if (x.rule->integer) out->dtype = DT_I32;
  if (x.rule->mean) {
    const Value *counted = kind == OP_CROSS_ENTROPY ? in[1] : in[0];
    out->per_element_mean = true;
    if (kind != OP_BALANCE)
      out->divisor_per_sample = (double)shape_elements_per_sample(&counted->shape);
  }
  return PIPER_OK;
}
