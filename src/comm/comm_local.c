/* Ranks as threads of one process. Nothing is handed through a buffer of ours: a transfer is one copy
 * from where the sender has it to where the receiver wants it; an all_reduce reads and writes the
 * members' buffers in place. The side that arrives last starts the copy or the sum, in pieces that
 * any thread without work may take.
 *
 * What meets (a Meeting) is known when the step is captured: it counts arrivals, and after every
 * n-th one all members are there, step after step, since nobody arrives again before all were
 * served.
 *
 * Sums are taken elementwise in the order of the group's list, whoever computes which piece: so all
 * members get the same bits, in every run. */
#include "comm/comm.h"

#include "base/vec.h"
#include "device/dev_cpu.h"

#include <stdlib.h>
#include <string.h>

#define COPY_PIECE_BYTES ((uint64_t)256 << 10)
#define SUM_PIECE_BYTES ((uint64_t)64 << 10) /* of each member's buffer */
#define SUM_BLOCK_BYTES 2048                 /* of a sum over three and more buffers: stays in L1 */

typedef struct Meeting Meeting;
typedef struct LocalGroup LocalGroup;

typedef enum MeetingKind { MEET_TRANSFER, MEET_ALL_REDUCE } MeetingKind;

typedef struct Member {
  CpuOp op;
  Meeting *meeting;
  unsigned char *buf;
} Member;

struct Meeting {
  CpuWork work;
  MeetingKind kind;
  DType dtype;
  uint32_t n; /* members; TRANSFER: 0 sends, 1 receives */
  uint64_t bytes;
  atomic_ullong arrivals;
  Member member[];
};

struct LocalGroup {
  char *name;
  int32_t *ranks;
  uint32_t n, n_joined;
  bool *joined;                /* by position in 'ranks' */
  VEC(Meeting *) transfers;    /* { source, destination } */
  VEC(Meeting *) all_reduces;
};

struct CommHub {
  VEC(LocalGroup *) groups;
  uint32_t n_open, n_connected; /* ranks */
};

typedef struct LocalHandle {
  CommGroup base;
  LocalGroup *group;
  uint32_t me; /* position */
  uint32_t n_transfers, n_all_reduces; /* enqueued so far */
} LocalHandle;

typedef struct LocalComm {
  Comm base;
  CommHub *hub;
  VEC(LocalHandle *) handles;
  bool connected;
} LocalComm;

/* ---- in a step ---------------------------------------------------------------------------------- */

static void copy_piece(CpuWork *w, uint32_t i) {
  Meeting *m = (Meeting *)w;
  const uint64_t lo = i * COPY_PIECE_BYTES;
  const uint64_t left = m->bytes - lo;
  if (m->bytes == 0) return;
  memcpy(m->member[1].buf + lo, m->member[0].buf + lo,
         left < COPY_PIECE_BYTES ? left : COPY_PIECE_BYTES);
}

/* Sums of n arrays of T, elements [lo, hi), left in all of them. Loops over a whole block have a
 * constant count, so that a compiler vectorises them at any level. */
#define SUM(T)                                                                                     \
  enum { BLOCK_##T = SUM_BLOCK_BYTES / sizeof(T) };                                                \
  static void add_block_##T(T *restrict sum, const T *restrict x) {                                \
    for (size_t i = 0; i < BLOCK_##T; i++) sum[i] += x[i];                                         \
  }                                                                                                \
  static void add_two_block_##T(T *restrict a, T *restrict b) {                                    \
    for (size_t i = 0; i < BLOCK_##T; i++) a[i] = b[i] = a[i] + b[i];                              \
  }                                                                                                \
  static void sum_block_##T(const Meeting *m, size_t at) {                                         \
    T sum[BLOCK_##T];                                                                              \
    if (m->n == 2) {                                                                               \
      add_two_block_##T((T *)m->member[0].buf + at, (T *)m->member[1].buf + at);                   \
      return;                                                                                      \
    }                                                                                              \
    memcpy(sum, (T *)m->member[0].buf + at, sizeof sum);                                           \
    for (uint32_t j = 1; j < m->n; j++) add_block_##T(sum, (T *)m->member[j].buf + at);            \
    for (uint32_t j = 0; j < m->n; j++) memcpy((T *)m->member[j].buf + at, sum, sizeof sum);       \
  }                                                                                                \
  static void sum_##T(const Meeting *m, size_t lo, size_t hi) {                                    \
    for (; hi - lo >= BLOCK_##T; lo += BLOCK_##T) sum_block_##T(m, lo);                            \
    for (; lo < hi; lo++) {                                                                        \
      T sum = ((T *)m->member[0].buf)[lo];                                                         \
      for (uint32_t j = 1; j < m->n; j++) sum += ((T *)m->member[j].buf)[lo];                      \
      for (uint32_t j = 0; j < m->n; j++) ((T *)m->member[j].buf)[lo] = sum;                       \
    }                                                                                              \
  }
SUM(float)
SUM(double)

static void sum_piece(CpuWork *w, uint32_t i) {
  Meeting *m = (Meeting *)w;
  const uint64_t lo = i * SUM_PIECE_BYTES;
  const uint64_t hi = m->bytes - lo < SUM_PIECE_BYTES ? m->bytes : lo + SUM_PIECE_BYTES;
  if (m->n == 1) return;
  if (m->dtype == DT_F32) sum_float(m, lo / sizeof(float), hi / sizeof(float));
  else sum_double(m, lo / sizeof(double), hi / sizeof(double));
}

static void finish(CpuWork *w, CpuDrain *d) {
  Meeting *m = (Meeting *)w;
  for (uint32_t i = 0; i < m->n; i++) cpu_op_done(&m->member[i].op, d);
}

static void arrive(CpuOp *op, CpuDrain *d) {
  Meeting *m = ((Member *)op)->meeting;
  if (atomic_fetch_add(&m->arrivals, 1) % m->n == m->n - 1) cpu_work_start(&m->work, d);
}

/* ---- while capturing ------------------------------------------------------------------------------ */

static Meeting *meeting_new(MeetingKind kind, uint32_t n, uint64_t bytes, DType dtype) {
  const uint64_t size = kind == MEET_TRANSFER ? COPY_PIECE_BYTES : SUM_PIECE_BYTES;
  const uint64_t pieces = bytes == 0 || n == 1 ? 1 : (bytes + size - 1) / size;
  Meeting *m = calloc(1, sizeof *m + n * sizeof *m->member);
  if (m == NULL) return NULL;
  cpu_work_init(&m->work, kind == MEET_TRANSFER ? copy_piece : sum_piece, finish, (uint32_t)pieces);
  m->kind = kind;
  m->dtype = dtype;
  m->n = n;
  m->bytes = bytes;
  for (uint32_t i = 0; i < n; i++) {
    m->member[i].meeting = m;
    m->member[i].op.arrive = arrive;
  }
  return m;
}

typedef struct Call {
  LocalHandle *handle;
  DeviceStream *stream;
  void *buf;
  uint64_t bytes;
  DType dtype;
  uint32_t label;
} Call;

static PiperStatus enqueue(const Call *c, Meeting *m, PiperErr *err) {
  Member *member = &m->member[c->handle->me];
  member->buf = c->buf;
  return cpu_op_enqueue(c->stream, &member->op, c->label, err);
}

static PiperStatus transfer(const Call *c, PiperErr *err) {
  LocalGroup *g = c->handle->group;
  const uint32_t k = c->handle->n_transfers;
  Meeting *m;
  if (k == g->transfers.n) {
    if (!vec_reserve(&g->transfers, 1)) return err_nomem(err, "transfer");
    m = meeting_new(MEET_TRANSFER, 2, c->bytes, DT_NONE);
    if (m == NULL) return err_nomem(err, "transfer");
    g->transfers.at[g->transfers.n++] = m;
  }
  m = g->transfers.at[k];
  if (m->bytes != c->bytes) {
    return err_set(err, PIPER_EBUG,
                   "%s, message %u from rank %d to rank %d: this side has %llu bytes, the other %llu",
                   g->name, (unsigned)k + 1, (int)g->ranks[0], (int)g->ranks[1],
                   (unsigned long long)c->bytes, (unsigned long long)m->bytes);
  }
  c->handle->n_transfers++;
  return enqueue(c, m, err);
}

static PiperStatus pair_check(const LocalHandle *h, uint32_t side, const char *what,
                              PiperErr *err) {
  const LocalGroup *g = h->group;
  if (g->n == 2 && h->me == side) return PIPER_OK;
  return err_set(err, PIPER_EBUG, "%s: rank %d cannot %s here", g->name, (int)g->ranks[h->me],
                 what);
}

static PiperStatus local_send(CommGroup *g, DeviceStream *s, const void *buf, uint64_t bytes,
                              uint32_t label, PiperErr *err) {
  const Call c = {(LocalHandle *)g, s, (void *)buf, bytes, DT_NONE, label};
  TRY(pair_check(c.handle, 0, "send", err));
  return transfer(&c, err);
}

static PiperStatus local_recv(CommGroup *g, DeviceStream *s, void *buf, uint64_t bytes,
                              uint32_t label, PiperErr *err) {
  const Call c = {(LocalHandle *)g, s, buf, bytes, DT_NONE, label};
  TRY(pair_check(c.handle, 1, "receive", err));
  return transfer(&c, err);
}

static PiperStatus local_all_reduce(CommGroup *base, DeviceStream *s, void *buf, uint64_t count,
                                    DType dtype, uint32_t label, PiperErr *err) {
  const Call c = {(LocalHandle *)base, s, buf, count * dtype_bytes(dtype), dtype, label};
  LocalGroup *g = c.handle->group;
  const uint32_t k = c.handle->n_all_reduces;
  Meeting *m;
  if (dtype != DT_F32 && dtype != DT_F64) {
    return err_set(err, PIPER_EBUG, "%s: all_reduce of %s", g->name, dtype_name(dtype));
  }
  if (k == g->all_reduces.n) {
    if (!vec_reserve(&g->all_reduces, 1)) return err_nomem(err, "all_reduce");
    m = meeting_new(MEET_ALL_REDUCE, g->n, c.bytes, dtype);
    if (m == NULL) return err_nomem(err, "all_reduce");
    g->all_reduces.at[g->all_reduces.n++] = m;
  }
  m = g->all_reduces.at[k];
  if (m->bytes != c.bytes || m->dtype != dtype) {
    return err_set(err, PIPER_EBUG,
                   "%s, all_reduce %u: rank %d has %llu bytes of %s, another rank %llu of %s",
                   g->name, (unsigned)k + 1, (int)g->ranks[c.handle->me],
                   (unsigned long long)c.bytes, dtype_name(dtype), (unsigned long long)m->bytes,
                   dtype_name(m->dtype));
  }
  c.handle->n_all_reduces++;
  return enqueue(&c, m, err);
}

/* ---- groups ------------------------------------------------------------------------------------- */

static void group_free(LocalGroup *g) {
  for (size_t i = 0; i < g->transfers.n; i++) free(g->transfers.at[i]);
  for (size_t i = 0; i < g->all_reduces.n; i++) free(g->all_reduces.at[i]);
  vec_free(&g->transfers);
  vec_free(&g->all_reduces);
  free(g->joined);
  free(g->ranks);
  free(g->name);
  free(g);
}

static LocalGroup *group_new(const char *name, const int32_t *ranks, uint32_t n) {
  const size_t len = strlen(name) + 1;
  LocalGroup *g = calloc(1, sizeof *g);
  if (g == NULL) return NULL;
  g->n = n;
  g->name = malloc(len);
  g->ranks = malloc(n * sizeof *ranks);
  g->joined = calloc(n, sizeof *g->joined);
  if (g->name == NULL || g->ranks == NULL || g->joined == NULL) {
    group_free(g);
    return NULL;
  }
  memcpy(g->name, name, len);
  memcpy(g->ranks, ranks, n * sizeof *ranks);
  return g;
}

static LocalGroup *group_find(const CommHub *hub, const char *name, const int32_t *ranks,
                              uint32_t n) {
  for (size_t i = 0; i < hub->groups.n; i++) {
    LocalGroup *g = hub->groups.at[i];
    if (g->n == n && strcmp(g->name, name) == 0 && memcmp(g->ranks, ranks, n * sizeof *ranks) == 0) {
      return g;
    }
  }
  return NULL;
}

static PiperStatus local_group(Comm *base, const char *name, const int32_t *ranks, uint32_t n,
                               CommGroup **out, PiperErr *err) {
  LocalComm *c = (LocalComm *)base;
  CommHub *hub = c->hub;
  LocalGroup *g = n != 0 ? group_find(hub, name, ranks, n) : NULL;
  LocalHandle *h;
  uint32_t me = 0;
  while (me < n && ranks[me] != base->rank) me++;
  if (me == n) {
    return err_set(err, PIPER_EBUG, "%s: rank %d is no member", name, (int)base->rank);
  }
  if (g == NULL) {
    if (!vec_reserve(&hub->groups, 1) || (g = group_new(name, ranks, n)) == NULL) {
      return err_nomem(err, "group");
    }
    hub->groups.at[hub->groups.n++] = g;
  }
  if (g->joined[me]) {
    return err_set(err, PIPER_EBUG, "%s: rank %d joined twice", name, (int)base->rank);
  }
  if (!vec_reserve(&c->handles, 1) || (h = calloc(1, sizeof *h)) == NULL) {
    return err_nomem(err, "group");
  }
  h->base.comm = base;
  h->group = g;
  h->me = me;
  g->joined[me] = true;
  g->n_joined++;
  c->handles.at[c->handles.n++] = h;
  *out = &h->base;
  return PIPER_OK;
}

static PiperStatus local_connect(Comm *base, PiperErr *err) {
  LocalComm *c = (LocalComm *)base;
  CommHub *hub = c->hub;
  if (c->connected) return err_set(err, PIPER_EBUG, "rank %d connected twice", (int)base->rank);
  c->connected = true;
  if (++hub->n_connected < hub->n_open) return PIPER_OK;
  for (size_t i = 0; i < hub->groups.n; i++) {
    const LocalGroup *g = hub->groups.at[i];
    for (uint32_t j = 0; j < g->n; j++) {
      if (g->joined[j]) continue;
      return err_set(err, PIPER_EBUG, "%s: rank %d never joined", g->name, (int)g->ranks[j]);
    }
  }
  return PIPER_OK;
}

/* ---- life ----------------------------------------------------------------------------------------- */

static PiperStatus local_hub_open(CommHub **out, PiperErr *err) {
  *out = calloc(1, sizeof **out);
  return *out != NULL ? PIPER_OK : err_nomem(err, "communicator");
}

static void local_hub_close(CommHub *hub) {
  if (hub == NULL) return;
  for (size_t i = 0; i < hub->groups.n; i++) group_free(hub->groups.at[i]);
  vec_free(&hub->groups);
  free(hub);
}

static PiperStatus local_open(CommHub *hub, Device *device, Comm **out, PiperErr *err) {
  LocalComm *c;
  if (device->ops != &DEVICE_CPU) {
    return err_set(err, PIPER_EBUG, "no communication in memory between %s devices",
                   device->ops->name);
  }
  c = calloc(1, sizeof *c);
  if (c == NULL) return err_nomem(err, "communicator");
  c->base.ops = &COMM_LOCAL;
  c->base.rank = device->rank;
  c->hub = hub;
  hub->n_open++;
  *out = &c->base;
  return PIPER_OK;
}

static void local_close(Comm *base) {
  LocalComm *c = (LocalComm *)base;
  if (c == NULL) return;
  for (size_t i = 0; i < c->handles.n; i++) free(c->handles.at[i]);
  vec_free(&c->handles);
  free(c);
}

/* Nobody waits inside the communicator: streams do, and they see the device's stop flag. */
static void local_abort(Comm *base) { (void)base; }

const CommOps COMM_LOCAL = {
    .name = "local",
    .hub_open = local_hub_open,
    .hub_close = local_hub_close,
    .open = local_open,
    .close = local_close,
    .group = local_group,
    .connect = local_connect,
    .send = local_send,
    .recv = local_recv,
    .all_reduce = local_all_reduce,
    .abort = local_abort,
};
