/* The table of programs, and the tools to build one.
 *
 * Workspace: temporaries get offsets in the order in which they are first written, each in the
 * smallest gap between those that still live (a temporary lives from its first writer to its last
 * reader, both included, so no call writes over what it reads). That is not the least memory there
 * can be, but passes of a chunk keep few temporaries at a time, and its order is a stack's. */
#include "ir/program_build.h"

#include "base/hash.h"
#include "ir/grad_flow.h"

#include <stdlib.h>
#include <string.h>

typedef enum ProgramKind {
  PROGRAM_CHUNK,
  PROGRAM_TARGETS,
  PROGRAM_NORM,
  PROGRAM_UPDATE,
  PROGRAM_ZERO_GRAD
} ProgramKind;

typedef struct ProgramKey {
  uint32_t kind, pass, mode;
  uint32_t id; /* chunk or bucket */
  uint32_t part, parts;
  int64_t samples;
  Share share; /* of a bucket */
} ProgramKey;

struct Programs {
  ProgramSpec spec;
  Arena *arena;
  VEC(Program *) programs; /* element 0 unused; in the arena, so that pointers stay good */
  VEC(ProgramKey) keys;    /* parallel */
  uint32_t *slots;         /* by hash of the key: id, 0 is free */
  uint32_t n_slots;        /* a power of two, at most half of it taken */
  /* By ValueId: the chunks that contribute to a value's gradient, and the loss that it is. */
  uint32_t *reader_first, *readers, *loss;
  uint32_t *local;    /* by ValueId: its index into the values of a build, */
  uint32_t *local_of; /* which has this number */
  uint32_t build;
};

/* ---- building -------------------------------------------------------------------------------- */

void build_fail(ProgramBuild *b, PiperStatus code, const char *why) {
  if (b->failed != PIPER_OK) return;
  b->failed = code;
  b->why = why;
}

uint32_t build_find(const ProgramBuild *b, ValueId v) {
  return b->p->local_of[v.i] == b->p->build ? b->p->local[v.i] : 0;
}

bool build_add(ProgramBuild *b, ValueId v, uint32_t root, bool computed) {
  const uint32_t i = (uint32_t)b->values.n;
  if (!vec_push(&b->values,
                ((ChunkValue){.value = v, .root = root != 0 ? root : i, .computed = computed}))) {
    build_fail(b, PIPER_ENOMEM, NULL);
    return false;
  }
  b->p->local_of[v.i] = b->p->build;
  b->p->local[v.i] = i;
  return true;
}

const uint32_t *build_grad_readers(const ProgramBuild *b, ValueId v, uint32_t *n) {
  *n = b->p->reader_first[v.i + 1] - b->p->reader_first[v.i];
  return b->p->readers + b->p->reader_first[v.i];
}

uint32_t build_loss(const ProgramBuild *b, ValueId v) { return b->p->loss[v.i]; }

Shape build_shape(const ProgramBuild *b, ValueId v) {
  Shape s = graph_value(b->graph, v)->shape;
  if (b->parts < 2) return s;
  const Chunk *c = graph_chunk(b->graph, b->chunk);
  const int64_t room = c->n_experts / b->parts * c->capacity;
  for (int i = 0; i < s.rank; i++) {
    if (s.axis[i] == AXIS_EXPERT) s.dim[i] /= b->parts;
    if (s.axis[i] == AXIS_PACKED && s.dim[i] > room) s.dim[i] = room;
  }
  return s;
}

uint64_t build_bytes(ProgramBuild *b, ValueId v) {
  const Value *value = graph_value(b->graph, v);
  const Shape shape = build_shape(b, v);
  const int64_t n = shape_elements(&shape, b->samples);
  if (n < 0 || n > (int64_t)1 << 56) {
    build_fail(b, PIPER_EUSER, "a tensor is too large for this batch");
    return 0;
  }
  return (uint64_t)n * dtype_bytes(dtype_concrete(value->dtype, b->dtype));
}

Place build_place(ProgramBuild *b, Binding what, uint64_t offset) {
  /* Mostly one of the last few: programs bind what they work on. */
  for (size_t i = b->bindings.n; i-- > 0;) {
    const Binding *o = &b->bindings.at[i];
    if (o->kind == what.kind && o->slot == what.slot && o->value.i == what.value.i &&
        o->chunk.i == what.chunk.i && o->bucket.i == what.bucket.i)
      return (Place){(uint16_t)i, offset};
  }
  if (b->bindings.n >= KERNEL_NO_BASE)
    build_fail(b, PIPER_EUSER, "a chunk has too many buffers; cut it with annotations");
  else if (!vec_push(&b->bindings, what)) build_fail(b, PIPER_ENOMEM, NULL);
  else return (Place){(uint16_t)(b->bindings.n - 1), offset};
  return (Place){KERNEL_NO_BASE, 0};
}

Place build_temp(ProgramBuild *b, uint32_t *temp, ValueId v) {
  if (*temp == 0) {
    const uint32_t now = (uint32_t)b->calls.n; /* the call that is about to be appended writes it */
    if (!vec_push(&b->temps, ((Temp){.bytes = build_bytes(b, v), .first = now, .last = now})))
      build_fail(b, PIPER_ENOMEM, NULL);
    else *temp = (uint32_t)b->temps.n;
  }
  return build_place(b, (Binding){.kind = BIND_WORKSPACE}, *temp - 1);
}

KernelCall *build_call(ProgramBuild *b, OpKind op, KernelPart part, uint32_t n_args) {
  KernelCall call = {.op = (uint8_t)op,
                     .part = (uint8_t)part,
                     .first_base = KERNEL_NO_BASE,
                     .n_args = (uint16_t)n_args};
  for (int i = 0; i < KERNEL_MAX_ARGS; i++) call.args[i].base = KERNEL_NO_BASE;
  if (b->failed != PIPER_OK) return NULL;
  if (!vec_push(&b->calls, call)) {
    build_fail(b, PIPER_ENOMEM, NULL);
    return NULL;
  }
  return &b->calls.at[b->calls.n - 1];
}

static KernelArg *set_arg(ProgramBuild *b, uint32_t i, Place at, int access) {
  KernelCall *call = &b->calls.at[b->calls.n - 1];
  KernelArg *arg = &call->args[i];
  arg->base = at.base;
  arg->offset = at.offset;
  Binding *binding = &b->bindings.at[at.base];
  binding->access |= (uint8_t)access;
  if (binding->kind == BIND_WORKSPACE) b->temps.at[at.offset].last = (uint32_t)b->calls.n - 1;
  return arg;
}

static void set_shape(const ProgramBuild *b, KernelArg *arg, ValueId v) {
  const Value *value = graph_value(b->graph, v);
  arg->dtype = (uint8_t)dtype_concrete(value->dtype, b->dtype);
  const Shape shape = build_shape(b, v);
  arg->rank = shape.rank;
  for (int i = 0; i < shape.rank; i++) arg->dim[i] = shape.dim[i];
  if (shape.batched) arg->dim[0] *= b->samples;
}

void build_arg(ProgramBuild *b, uint32_t i, Place at, ValueId v, int access) {
  if (b->failed != PIPER_OK) return;
  if (build_bytes(b, v) == 0) return; /* too large: its dims may not fit either */
  set_shape(b, set_arg(b, i, at, access), v);
}

void build_arg_shape(ProgramBuild *b, uint32_t i, ValueId v) {
  if (b->failed != PIPER_OK || v.i == 0 || build_bytes(b, v) == 0) return;
  set_shape(b, &b->calls.at[b->calls.n - 1].args[i], v);
}

void build_arg_flat(ProgramBuild *b, uint32_t i, Place at, DType dtype, int64_t elements,
                    int access) {
  if (b->failed != PIPER_OK) return;
  KernelArg *arg = set_arg(b, i, at, access);
  arg->dtype = (uint8_t)dtype;
  arg->rank = 1;
  arg->dim[0] = elements;
}

void build_cost(ProgramBuild *b, OpCost c) {
  const double share = b->parts > 1 ? b->parts : 1;
  b->cost.flops += c.flops / share;
  b->cost.bytes += c.bytes / share;
}

/* ---- the finished program -------------------------------------------------------------------- */

static uint64_t aligned(uint64_t at) {
  return (at + PROGRAM_ALIGN - 1) / PROGRAM_ALIGN * PROGRAM_ALIGN;
}

/* 'live': indices of temporaries in order of offset; they are in order of 'first' already. */
static void place_temps(ProgramBuild *b, uint32_t *live) {
  uint32_t n = 0;
  for (uint32_t t = 0; t < b->temps.n; t++) {
    Temp *temp = &b->temps.at[t];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
      if (b->temps.at[live[i]].last >= temp->first) live[kept++] = live[i];
    n = kept;
    uint64_t end = 0, best = UINT64_MAX;
    uint32_t at = n;
    for (uint32_t i = 0; i < n; i++) { /* gaps before each; else behind the last */
      const Temp *other = &b->temps.at[live[i]];
      const uint64_t gap = other->offset - end;
      if (gap >= temp->bytes && gap < best) {
        best = gap;
        at = i;
        temp->offset = end;
      }
      end = aligned(other->offset + other->bytes);
    }
    if (best == UINT64_MAX) temp->offset = end;
    memmove(live + at + 1, live + at, (n - at) * sizeof *live);
    live[at] = t;
    n++;
  }
}

static void resolve_args(ProgramBuild *b) {
  for (size_t c = 0; c < b->calls.n; c++) {
    for (int i = 0; i < KERNEL_MAX_ARGS; i++) {
      KernelArg *arg = &b->calls.at[c].args[i];
      if (arg->base == KERNEL_NO_BASE) continue;
      Binding *binding = &b->bindings.at[arg->base];
      if (binding->kind == BIND_WORKSPACE) arg->offset = b->temps.at[arg->offset].offset;
      uint64_t bytes = dtype_bytes((DType)arg->dtype);
      for (int d = 0; d < arg->rank; d++) bytes *= (uint64_t)arg->dim[d];
      if (arg->offset + bytes > binding->bytes) binding->bytes = arg->offset + bytes;
    }
  }
}

static bool needs_scratch(const ProgramBuild *b) {
  for (size_t i = 0; i < b->calls.n; i++)
    if (OP_INFO[b->calls.at[i].op].flags & OPF_SCRATCH) return true;
  return false;
}

static bool copy_out(ProgramBuild *b, Program *out) {
  Arena *arena = b->p->arena;
  *out = (Program){.n_calls = (uint32_t)b->calls.n,
                   .n_bindings = (uint32_t)b->bindings.n,
                   .scratch = needs_scratch(b),
                   .flops = b->cost.flops,
                   .bytes = b->cost.bytes};
  out->calls = arena_alloc(arena, b->calls.n, sizeof *out->calls);
  out->bindings = arena_alloc(arena, b->bindings.n, sizeof *out->bindings);
  if (out->calls == NULL || out->bindings == NULL) return false;
  if (b->calls.n > 0) memcpy(out->calls, b->calls.at, b->calls.n * sizeof *out->calls);
  if (b->bindings.n > 0)
    memcpy(out->bindings, b->bindings.at, b->bindings.n * sizeof *out->bindings);
  return true;
}

static void build_finish(ProgramBuild *b, Program *out) {
  if (b->failed != PIPER_OK) return;
  uint32_t *live = malloc((b->temps.n + 1) * sizeof *live);
  if (live == NULL) {
    build_fail(b, PIPER_ENOMEM, NULL);
    return;
  }
  place_temps(b, live);
  free(live);
  resolve_args(b);
  if (!copy_out(b, out)) build_fail(b, PIPER_ENOMEM, NULL);
}

static void build_any(ProgramBuild *b, const ProgramKey *key) {
  switch ((ProgramKind)key->kind) {
  case PROGRAM_NORM:
    build_norm(b, (BucketId){key->id}, key->share);
    return;
  case PROGRAM_UPDATE:
    build_update(b, (BucketId){key->id}, key->share);
    return;
  case PROGRAM_ZERO_GRAD:
    build_zero_grad(b, (BucketId){key->id}, share_size(key->share));
    return;
  case PROGRAM_TARGETS:
    build_targets(b);
    return;
  case PROGRAM_CHUNK:
    break;
  }
  build_layout(b);
  if (b->failed != PIPER_OK) return;
  switch ((Pass)key->pass) {
  case PASS_F:
    build_forward(b);
    return;
  case PASS_B:
    build_backward(b, CLASS_BI | CLASS_BW);
    return;
  case PASS_BI:
    build_backward(b, CLASS_BI);
    return;
  case PASS_BW:
    build_backward(b, CLASS_BW);
    return;
  case PASS_R:
    build_again(b);
    return;
  case PASS_NONE:
  case PASS_COUNT:
    break;
  }
  build_fail(b, PIPER_EBUG, "no such pass");
}

/* ---- the table ------------------------------------------------------------------------------- */

static uint32_t *slot_of(const Programs *p, const ProgramKey *key) {
  uint32_t i = (uint32_t)hash_of(key, sizeof *key) & (p->n_slots - 1);
  while (p->slots[i] != 0 && memcmp(&p->keys.at[p->slots[i]], key, sizeof *key) != 0)
    i = (i + 1) & (p->n_slots - 1);
  return &p->slots[i];
}

static bool grow_slots(Programs *p) {
  if (p->programs.n * 2 < p->n_slots) return true;
  uint32_t *old = p->slots;
  const uint32_t n = p->n_slots == 0 ? 64 : p->n_slots * 2;
  uint32_t *slots = calloc(n, sizeof *slots);
  if (slots == NULL) return false;
  p->slots = slots;
  p->n_slots = n;
  for (uint32_t id = 1; id < p->programs.n; id++) *slot_of(p, &p->keys.at[id]) = id;
  free(old);
  return true;
}

static PiperStatus report(const ProgramBuild *b, PiperErr *err) {
  if (b->failed == PIPER_ENOMEM) return err_nomem(err, "programs");
  if (b->chunk.i == 0) return err_set(err, b->failed, "%s", b->why);
  const uint32_t line = graph_chunk(b->graph, b->chunk)->line;
  return err_set(err, b->failed, "%s%s%s (%lld samples of chunk %u)", graph_name(b->graph, line),
                 line != 0 ? ": " : "", b->why, (long long)b->samples, b->chunk.i);
}

static PiperStatus intern_program(Programs *p, ProgramKey key, uint32_t *id, PiperErr *err) {
  *id = *slot_of(p, &key);
  if (*id != 0) return PIPER_OK;
  ProgramBuild b = {.p = p,
                    .graph = p->spec.dag->graph,
                    .dag = p->spec.dag,
                    .dtype = p->spec.dtype,
                    .float_bytes = dtype_bytes(p->spec.dtype),
                    .chunk = {key.kind <= PROGRAM_TARGETS ? key.id : 0},
                    .mode = (ProgramMode)key.mode,
                    .part = key.part,
                    .parts = key.parts,
                    .samples = key.samples};
  Program *program = arena_alloc(p->arena, 1, sizeof *program);
  if (program == NULL) return err_nomem(err, "programs");
  p->build++;
  build_any(&b, &key);
  build_finish(&b, program);
  vec_free(&b.values);
  vec_free(&b.incoming);
  vec_free(&b.calls);
  vec_free(&b.bindings);
  vec_free(&b.temps);
  if (b.failed != PIPER_OK) return report(&b, err);
  if (!vec_reserve(&p->programs, 1) || !vec_reserve(&p->keys, 1) || !grow_slots(p))
    return err_nomem(err, "programs");
  *id = (uint32_t)p->programs.n;
  *slot_of(p, &key) = *id;
  (void)vec_push(&p->keys, key);
  (void)vec_push(&p->programs, program);
  return PIPER_OK;
}

ProgramMode dag_program_mode(const Dag *d, NodeId n) {
  if (d->forward_only) return PROGRAM_LEAN;
  if (!d->recompute[n.i]) return PROGRAM_KEEP;
  return d->pass[n.i] == PASS_F ? PROGRAM_LEAN : PROGRAM_AGAIN;
}

PiperStatus programs_chunk(Programs *p, ChunkId chunk, Pass pass, ProgramMode mode, int64_t samples,
                           uint32_t *id, PiperErr *err) {
  return intern_program(p,
                        (ProgramKey){.kind = PROGRAM_CHUNK,
                                     .pass = pass,
                                     .mode = mode,
                                     .id = chunk.i,
                                     .samples = samples},
                        id, err);
}

PiperStatus programs_targets(Programs *p, ChunkId chunk, int64_t samples, uint32_t *id,
                             PiperErr *err) {
  return intern_program(
      p, (ProgramKey){.kind = PROGRAM_TARGETS, .id = chunk.i, .samples = samples}, id, err);
}

PiperStatus programs_node(Programs *p, NodeId n, uint32_t pos, uint32_t *id, PiperErr *err) {
  const Dag *d = p->spec.dag;
  const NodeShare s = dag_share(d, n, pos);
  return intern_program(p,
                        (ProgramKey){.kind = PROGRAM_CHUNK,
                                     .pass = d->pass[n.i],
                                     .mode = dag_program_mode(d, n),
                                     .id = d->chunk[n.i],
                                     .part = s.part,
                                     .parts = s.parts,
                                     .samples = s.hi - s.lo},
                        id, err);
}

PiperStatus programs_norm(Programs *p, BucketId bucket, Share share, uint32_t *id, PiperErr *err) {
  return intern_program(p, (ProgramKey){.kind = PROGRAM_NORM, .id = bucket.i, .share = share}, id,
                        err);
}

PiperStatus programs_update(Programs *p, BucketId bucket, Share share, uint32_t *id,
                            PiperErr *err) {
  return intern_program(p, (ProgramKey){.kind = PROGRAM_UPDATE, .id = bucket.i, .share = share}, id,
                        err);
}

PiperStatus programs_zero_grad(Programs *p, BucketId bucket, int64_t elements, uint32_t *id,
                               PiperErr *err) {
  const Share all = {0, elements};
  return intern_program(p, (ProgramKey){.kind = PROGRAM_ZERO_GRAD, .id = bucket.i, .share = all},
                        id, err);
}

const ProgramSpec *programs_spec(const Programs *p) { return &p->spec; }
const Program *programs_at(const Programs *p, uint32_t id) { return p->programs.at[id]; }
uint32_t programs_count(const Programs *p) { return (uint32_t)p->programs.n - 1; }

OpCost programs_cost(Programs *p, ChunkId chunk, Pass pass, ProgramMode mode, int64_t samples) {
  uint32_t id;
  if (programs_chunk(p, chunk, pass, mode, samples, &id, NULL) != PIPER_OK) return (OpCost){0};
  return (OpCost){.flops = p->programs.at[id]->flops, .bytes = p->programs.at[id]->bytes};
}

/* ---- what all chunks need -------------------------------------------------------------------- */

/* Calls 'found' for each (value of another chunk, chunk) with a gradient, chunks ascending; each
 * pair once ('last': by value, the last chunk found). */
typedef void FoundReader(Programs *p, ValueId v, uint32_t chunk);

static void each_reader(Programs *p, uint32_t *last, FoundReader *found) {
  const Graph *g = p->spec.dag->graph;
  for (uint32_t c = 1; c < g->chunks.n; c++) {
    const Chunk *chunk = &g->chunks.at[c];
    for (uint32_t o = chunk->first_op; o < chunk->end_op; o++) {
      const Op *op = graph_op(g, (OpId){o});
      for (int wrt = 0; wrt < 3; wrt++) {
        const ValueId v = op->in[wrt];
        if (v.i == 0 || last[v.i] == c || !op_grad_flows(g, op, wrt)) continue;
        const Value *value = graph_value(g, v);
        if (value->kind != VALUE_OP || graph_op(g, value->op)->chunk.i == c) continue;
        last[v.i] = c;
        found(p, v, c);
      }
    }
  }
}

static void count_reader(Programs *p, ValueId v, uint32_t chunk) {
  (void)chunk;
  p->reader_first[v.i + 1]++;
}

/* reader_first[v] is v's next free place while filling: it ends as the first of v + 1. */
static void put_reader(Programs *p, ValueId v, uint32_t chunk) {
  p->readers[p->reader_first[v.i]++] = chunk;
}

static PiperStatus find_readers(Programs *p, PiperErr *err) {
  const size_t n = p->spec.dag->graph->values.n;
  uint32_t *last = calloc(n + 1, sizeof *last);
  if (last == NULL) return err_nomem(err, "programs");
  each_reader(p, last, count_reader);
  for (size_t v = 0; v < n; v++) p->reader_first[v + 1] += p->reader_first[v];
  p->readers = arena_alloc(p->arena, p->reader_first[n] + 1, sizeof *p->readers);
  if (p->readers != NULL) {
    memset(last, 0, (n + 1) * sizeof *last);
    each_reader(p, last, put_reader);
    for (size_t v = n; v > 0; v--) p->reader_first[v] = p->reader_first[v - 1];
    p->reader_first[0] = 0;
  }
  free(last);
  return p->readers != NULL ? PIPER_OK : err_nomem(err, "programs");
}

static PiperStatus fill_tables(Programs *p, PiperErr *err) {
  const Graph *g = p->spec.dag->graph;
  const size_t n = g->values.n;
  p->reader_first = arena_alloc(p->arena, n + 2, sizeof *p->reader_first);
  p->loss = arena_alloc(p->arena, n, sizeof *p->loss);
  p->local = arena_alloc(p->arena, n, sizeof *p->local);
  p->local_of = arena_alloc(p->arena, n, sizeof *p->local_of);
  if (p->reader_first == NULL || p->loss == NULL || p->local == NULL || p->local_of == NULL ||
      !vec_push(&p->programs, NULL) || !vec_push(&p->keys, (ProgramKey){0}) || !grow_slots(p))
    return err_nomem(err, "programs");
  for (uint32_t l = 1; l < g->losses.n; l++) p->loss[g->losses.at[l].value.i] = l;
  return find_readers(p, err);
}

PiperStatus programs_new(const ProgramSpec *spec, Programs **out, PiperErr *err) {
  *out = NULL;
  if (spec->dtype != DT_F32 && spec->dtype != DT_F64)
    return err_set(err, PIPER_EBUG, "programs: %s is no type to compute in",
                   dtype_name(spec->dtype));
  Programs *p = calloc(1, sizeof *p);
  if (p == NULL) return err_nomem(err, "programs");
  p->spec = *spec;
  p->arena = arena_new();
  const PiperStatus st = p->arena == NULL ? err_nomem(err, "programs") : fill_tables(p, err);
  if (st != PIPER_OK) {
    programs_free(p);
    return st;
  }
  *out = p;
  return PIPER_OK;
}

void programs_free(Programs *p) {
  if (p == NULL) return;
  vec_free(&p->programs);
  vec_free(&p->keys);
  free(p->slots);
  arena_free(p->arena);
  free(p);
}
