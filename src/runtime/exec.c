/* Instruction by instruction, in the rank's order: waits, the instruction, its signal. Everything
 * that an instruction needs to know about addresses is settled here, once. */
#include "runtime/exec.h"

#include <stdlib.h>
#include <string.h>

/* A stream's name and an ordered list of ranks. */
typedef struct ExecGroup {
  const char *name;
  const int32_t *list; /* NULL: 'pair' */
  int32_t pair[2];
  uint32_t n;
  CommGroup *handle;
} ExecGroup;

static const int32_t *group_ranks(const ExecGroup *g) { return g->list != NULL ? g->list : g->pair; }

static int group_compare(const void *pa, const void *pb) {
  const ExecGroup *a = pa, *b = pb;
  const int by_name = strcmp(a->name, b->name);
  if (by_name != 0) return by_name;
  if (a->n != b->n) return a->n < b->n ? -1 : 1;
  for (uint32_t i = 0; i < a->n; i++) {
    const int32_t ra = group_ranks(a)[i], rb = group_ranks(b)[i];
    if (ra != rb) return ra < rb ? -1 : 1;
  }
  return 0;
}

static ExecGroup group_of(const RankExec *x, const Instr *i) {
  const DevSets *sets = x->plan->dag->devsets;
  ExecGroup g = {.name = x->rank->streams.at[i->stream].name, .n = 2};
  if (instr_is_collective(i->kind)) {
    g.list = devsets_ranks(sets, i->group);
    g.n = devsets_size(sets, i->group);
  } else {
    g.pair[i->kind == INSTR_SEND ? 0 : 1] = x->rank->rank;
    g.pair[i->kind == INSTR_SEND ? 1 : 0] = i->peer;
  }
  return g;
}

static CommGroup *group_handle(const RankExec *x, const Instr *i) {
  const ExecGroup key = group_of(x, i);
  const ExecGroup *g = bsearch(&key, x->groups, x->n_groups, sizeof key, group_compare);
  return g->handle; /* it is there: open_groups went through the same instructions */
}

/* In the order of names and ranks: the same on all ranks, as comm.h asks. */
static PiperStatus open_groups(RankExec *x, PiperErr *err) {
  const RankPlan *r = x->rank;
  uint32_t n = 0;
  x->groups = calloc(r->instrs.n + 1, sizeof *x->groups);
  if (x->groups == NULL) return err_nomem(err, "groups");
  for (size_t i = 0; i < r->instrs.n; i++) {
    if (r->instrs.at[i].kind != INSTR_RUN) x->groups[n++] = group_of(x, &r->instrs.at[i]);
  }
  qsort(x->groups, n, sizeof *x->groups, group_compare);
  for (uint32_t i = 0; i < n; i++) {
    if (x->n_groups != 0 && group_compare(&x->groups[x->n_groups - 1], &x->groups[i]) == 0) continue;
    x->groups[x->n_groups++] = x->groups[i];
  }
  for (uint32_t i = 0; i < x->n_groups; i++) {
    ExecGroup *g = &x->groups[i];
    TRY(x->comm->ops->group(x->comm, g->name, group_ranks(g), g->n, &g->handle, err));
  }
  return PIPER_OK;
}

static PiperStatus make_streams(RankExec *x, PiperErr *err) {
  const RankPlan *r = x->rank;
  const DeviceOps *dev = x->device->ops;
  x->streams = calloc(r->streams.n + 1, sizeof *x->streams);
  x->events = calloc(r->instrs.n + 1, sizeof *x->events);
  if (x->streams == NULL || x->events == NULL) return err_nomem(err, "streams");
  for (size_t i = 0; i < r->streams.n; i++) {
    const PlanStream *s = &r->streams.at[i];
    TRY(dev->stream_new(x->device, s->name,
                        s->kind == STREAM_COMPUTE ? DEVICE_STREAM_COMPUTE : DEVICE_STREAM_COMM,
                        &x->streams[i], err));
  }
  for (size_t i = 0; i < r->instrs.n; i++) {
    if (r->instrs.at[i].signals) TRY(dev->event_new(x->device, &x->events[i], err));
  }
  return PIPER_OK;
}

static PiperStatus find_buckets(RankExec *x, PiperErr *err) {
  const RankPlan *r = x->rank;
  const size_t n = x->plan->dag->buckets.n;
  x->params = calloc(n + 1, sizeof *x->params);
  x->grads = calloc(n + 1, sizeof *x->grads);
  if (x->params == NULL || x->grads == NULL) return err_nomem(err, "rank");
  for (size_t i = 0; i < r->buffers.n; i++) {
    const Buffer *b = &r->buffers.at[i];
    if (b->role == BUFFER_PARAMS) x->params[b->id] = b;
    if (b->role == BUFFER_GRADS) x->grads[b->id] = b;
  }
  return PIPER_OK;
}

static PiperStatus open_memory(RankExec *x, const RankExec *beside, PiperErr *err) {
  const RankPlan *rank = x->rank;
  if ((x->plan->trains != NULL) != (beside != NULL) ||
      (beside != NULL && rank->shared_bytes > beside->rank->arena_bytes))
    return err_set(err, PIPER_EBUG, "rank %d: the plan whose parameters it uses is not at work",
                   (int)rank->rank);
  if (beside != NULL) {
    x->shared = beside->arena;
    if (rank->arena_bytes <= beside->rank->arena_bytes - rank->shared_bytes) {
      x->arena = beside->arena + rank->shared_bytes;
      return PIPER_OK;
    }
  }
  x->arena = x->device->ops->alloc(x->device, rank->arena_bytes);
  if (x->arena != NULL) return PIPER_OK;
  return err_set(err, PIPER_ENOMEM, "rank %d: no memory for its %llu bytes", (int)rank->rank,
                 (unsigned long long)rank->arena_bytes);
}

PiperStatus exec_open(RankExec *x, const Plan *plan, const RankPlan *rank, const DeviceOps *device,
                      const DeviceConfig *cfg, CommHub *comm_hub, const CommOps *comm,
                      const RankExec *beside, PiperErr *err) {
  x->plan = plan;
  x->rank = rank;
  x->n_programs = programs_count(plan->programs);
  x->runs = calloc(rank->instrs.n + 1, sizeof *x->runs);
  x->bases = calloc(rank->bind_offset.n + 1, sizeof *x->bases);
  x->checked = calloc((size_t)x->n_programs + 1, sizeof *x->checked);
  if (x->runs == NULL || x->bases == NULL || x->checked == NULL) return err_nomem(err, "rank");
  TRY(device->open(cfg, &x->device, err));
  TRY(comm->open(comm_hub, x->device, &x->comm, err));
  TRY(open_memory(x, beside, err));
  TRY(find_buckets(x, err));
  TRY(make_streams(x, err));
  return open_groups(x, err);
}

/* Plans are also loaded from files: what is wrong with one must not become a wild access. */
static PiperStatus in_arena(const RankExec *x, uint64_t offset, uint64_t bytes, PiperErr *err) {
  const uint64_t size = x->rank->arena_bytes, all = size + x->rank->shared_bytes;
  if (offset <= size && bytes <= size - offset) return PIPER_OK;
  if (offset >= size && offset <= all && bytes <= all - offset) return PIPER_OK;
  return err_set(err, PIPER_EBUG, "bytes %llu + %llu lie outside the arena of %llu",
                 (unsigned long long)offset, (unsigned long long)bytes, (unsigned long long)size);
}

static PiperStatus check_program(RankExec *x, uint32_t id, PiperErr *err) {
  const Program *p = programs_at(x->plan->programs, id);
  uint64_t *bytes;
  PiperStatus st;
  if (x->checked[id]) return PIPER_OK;
  bytes = calloc((size_t)p->n_bindings + 1, sizeof *bytes);
  if (bytes == NULL) return err_nomem(err, "program");
  for (uint32_t i = 0; i < p->n_bindings; i++) bytes[i] = p->bindings[i].bytes;
  st = x->device->ops->check(x->device, p->calls, p->n_calls, bytes, p->n_bindings, err);
  free(bytes);
  x->checked[id] = st == PIPER_OK;
  return st;
}

static PiperStatus enqueue_run(RankExec *x, uint32_t index, PiperErr *err) {
  const RankPlan *r = x->rank;
  const Instr *i = &r->instrs.at[index];
  const Program *p = programs_at(x->plan->programs, i->program);
  TRY(check_program(x, i->program, err));
  for (uint32_t b = 0; b < p->n_bindings; b++) {
    const uint64_t offset = r->bind_offset.at[i->bind_first + b];
    TRY(in_arena(x, offset, p->bindings[b].bytes, err));
    x->bases[i->bind_first + b] = exec_at(x, offset);
  }
  if (p->scratch) TRY(in_arena(x, r->scratch_offset, r->scratch_bytes, err));
  x->runs[index] = (KernelRun){
      .calls = p->calls,
      .n_calls = p->n_calls,
      .bases = x->bases + i->bind_first,
      .first = r->bind_first_write.at + i->bind_first,
      .sample_lo = i->sample_lo,
      .step = (const StepBlock *)(x->arena + r->step_offset),
      .scratch = p->scratch ? x->arena + r->scratch_offset : NULL,
  };
  return x->device->ops->run(x->streams[i->stream], &x->runs[index], index, err);
}

/* The members' shares of what a collective is about. */
static PiperStatus find_shares(const RankExec *x, const Instr *i, const Share **out,
                               PiperErr *err) {
  const uint32_t n = devsets_size(x->plan->dag->devsets, i->group);
  if (i->share_first > x->plan->shares.n || n > x->plan->shares.n - i->share_first)
    return err_set(err, PIPER_EBUG, "it has no shares");
  *out = x->plan->shares.at + i->share_first;
  return PIPER_OK;
}

static PiperStatus enqueue_collective(RankExec *x, uint32_t index, PiperErr *err) {
  const Instr *i = &x->rank->instrs.at[index];
  const CommOps *comm = x->comm->ops;
  const uint64_t element = dtype_bytes(i->dtype);
  CommGroup *g = group_handle(x, i);
  DeviceStream *s = x->streams[i->stream];
  unsigned char *at = exec_at(x, i->offset), *part = exec_at(x, i->part);
  const Share *shares = NULL;
  if (element == 0) return err_set(err, PIPER_EBUG, "a sum of no type");
  const CommSum sum = {
      .buf = at, .into = part, .add = i->adds, .count = i->bytes / element, .dtype = i->dtype};
  if (i->kind == INSTR_ALL_REDUCE) {
    TRY(in_arena(x, i->part, i->bytes, err));
    return comm->all_reduce(g, s, &sum, index, err);
  }
  TRY(find_shares(x, i, &shares, err));
  const int32_t me = devsets_position(x->plan->dag->devsets, i->group, x->rank->rank);
  TRY(in_arena(x, i->part, (uint64_t)share_size(shares[me]) * element, err));
  if (i->kind == INSTR_REDUCE_SCATTER) return comm->reduce_scatter(g, s, &sum, shares, index, err);
  const CommGather gather = {.from = part, .buf = at, .count = sum.count, .dtype = sum.dtype};
  return comm->all_gather(g, s, &gather, shares, index, err);
}

static PiperStatus enqueue(RankExec *x, uint32_t index, PiperErr *err) {
  const RankPlan *r = x->rank;
  const Instr *i = &r->instrs.at[index];
  const DeviceOps *dev = x->device->ops;
  const CommOps *comm = x->comm->ops;
  DeviceStream *s = x->streams[i->stream];
  if (i->kind != INSTR_RUN) TRY(in_arena(x, i->offset, i->bytes, err));
  unsigned char *at = exec_at(x, i->offset);
  for (uint32_t w = 0; w < i->n_waits; w++) {
    DeviceEvent *e = x->events[r->waits.at[i->wait_first + w]];
    if (e == NULL) return err_set(err, PIPER_EBUG, "waits for an instruction that does not signal");
    TRY(dev->wait(s, e, err));
  }
  switch ((InstrKind)i->kind) {
  case INSTR_RUN:
    TRY(enqueue_run(x, index, err));
    break;
  case INSTR_SEND:
    TRY(comm->send(group_handle(x, i), s, at, i->bytes, index, err));
    break;
  case INSTR_RECV:
    TRY(comm->recv(group_handle(x, i), s, at, i->bytes, index, err));
    break;
  case INSTR_ALL_REDUCE:
  case INSTR_REDUCE_SCATTER:
  case INSTR_ALL_GATHER:
    TRY(enqueue_collective(x, index, err));
    break;
  case INSTR_ALL_TO_ALL:
    TRY(in_arena(x, i->part, i->bytes, err));
    if (i->share_first >= x->plan->exchanges.n)
      return err_set(err, PIPER_EBUG, "it exchanges nothing known");
    TRY(comm->all_to_all(group_handle(x, i), s, at, x->arena + i->part,
                         &x->plan->exchanges.at[i->share_first], index, err));
    break;
  case INSTR_KIND_COUNT:
    break;
  }
  return i->signals ? dev->record(s, x->events[index], err) : PIPER_OK;
}

PiperStatus exec_capture(RankExec *x, PiperErr *err) {
  const RankPlan *r = x->rank;
  const DeviceOps *dev = x->device->ops;
  TRY(in_arena(x, r->step_offset, sizeof(StepBlock), err));
  TRY(in_arena(x, r->metrics_offset, graph_n_metrics(x->plan->graph) * sizeof(double), err));
  TRY(dev->capture_begin(x->device, err));
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    PiperErr own = {PIPER_OK, ""};
    char label[256];
    if (enqueue(x, i, &own) == PIPER_OK) continue;
    plan_instr_label(x->plan, r, i, label, sizeof label);
    return err_set(err, own.code, "%s: %s", label, own.text);
  }
  return dev->capture_end(x->device, err);
}

void exec_close(RankExec *x) {
  if (x->comm != NULL) x->comm->ops->close(x->comm);
  if (x->device != NULL) x->device->ops->close(x->device);
  free(x->params);
  free(x->grads);
  free(x->groups);
  free(x->streams);
  free(x->events);
  free(x->runs);
  free(x->bases);
  free(x->checked);
  *x = (RankExec){0};
}
