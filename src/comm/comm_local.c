/* Ranks as threads of one process. Nothing is handed through a buffer of ours: a transfer is one copy
 * from where the sender has it to where the receiver wants it; a collective reads and writes the
 * members' buffers where they are. Whoever arrives last starts the copy or the sum, in pieces that
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

typedef enum MeetingKind {
  MEET_TRANSFER,
  MEET_ALL_REDUCE,
  MEET_REDUCE_SCATTER,
  MEET_ALL_GATHER,
  MEET_ALL_TO_ALL
} MeetingKind;
static const char *const MEETING_NAME[] = {"transfer", "all_reduce", "reduce_scatter", "all_gather",
                                           "all_to_all"};

typedef struct Member {
  CpuOp op;
  Meeting *meeting;
  unsigned char *buf;
  unsigned char *part; /* collectives: where the sum goes, where the share comes from, where the
                          blocks go */
} Member;

struct Meeting {
  CpuWork work;
  MeetingKind kind;
  DType dtype;
  bool add;   /* sums */
  uint32_t n; /* members; TRANSFER: 0 sends, 1 receives */
  uint64_t bytes;
  const Share *shares; /* REDUCE_SCATTER, ALL_GATHER */
  const Exchange *exchange; /* ALL_TO_ALL */
  atomic_ullong arrivals;
  Member member[];
};

struct LocalGroup {
  char *name;
  int32_t *ranks;
  uint32_t n, n_joined;
  bool *joined;                /* by position in 'ranks' */
  VEC(Meeting *) transfers;    /* { source, destination } */
  VEC(Meeting *) collectives;
};

struct CommHub {
  VEC(LocalGroup *) groups;
  uint32_t n_open, n_connected; /* ranks */
};

typedef struct LocalHandle {
  CommGroup base;
  LocalGroup *group;
  uint32_t me; /* position */
  uint32_t n_transfers, n_collectives; /* enqueued so far */
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

/* Sums of n arrays of T, elements [lo, hi). all_T leaves them in all members' parts, one_T in one,
 * which begins at element lo. Loops over a whole block have a constant count, so that a compiler
 * vectorises them at any level. */
#define SUM(T)                                                                                     \
  enum { BLOCK_##T = SUM_BLOCK_BYTES / sizeof(T) };                                                \
  static void add_block_##T(T *restrict sum, const T *restrict x) {                                \
    for (size_t i = 0; i < BLOCK_##T; i++) sum[i] += x[i];                                         \
  }                                                                                                \
  static void add_two_block_##T(T *restrict a, T *restrict b) {                                    \
    for (size_t i = 0; i < BLOCK_##T; i++) a[i] = b[i] = a[i] + b[i];                              \
  }                                                                                                \
  static void sum_block_##T(const Meeting *m, size_t at, T *sum) {                                 \
    memcpy(sum, (T *)m->member[0].buf + at, SUM_BLOCK_BYTES);                                      \
    for (uint32_t j = 1; j < m->n; j++) add_block_##T(sum, (T *)m->member[j].buf + at);            \
  }                                                                                                \
  static T sum_one_##T(const Meeting *m, size_t at) {                                              \
    T sum = ((T *)m->member[0].buf)[at];                                                           \
    for (uint32_t j = 1; j < m->n; j++) sum += ((T *)m->member[j].buf)[at];                        \
    return sum;                                                                                    \
  }                                                                                                \
  static void put_block_##T(const Meeting *m, const T *restrict sum, T *restrict to) {             \
    if (m->add) add_block_##T(to, sum);                                                            \
    else memcpy(to, sum, SUM_BLOCK_BYTES);                                                         \
  }                                                                                                \
  static void all_block_##T(const Meeting *m, size_t at) {                                         \
    T sum[BLOCK_##T];                                                                              \
    if (m->n == 2 && !m->add && m->member[0].part == m->member[0].buf &&                           \
        m->member[1].part == m->member[1].buf) {                                                   \
      add_two_block_##T((T *)m->member[0].buf + at, (T *)m->member[1].buf + at);                   \
      return;                                                                                      \
    }                                                                                              \
    sum_block_##T(m, at, sum);                                                                     \
    for (uint32_t j = 0; j < m->n; j++) put_block_##T(m, sum, (T *)m->member[j].part + at);        \
  }                                                                                                \
  static void all_##T(const Meeting *m, size_t lo, size_t hi) {                                    \
    for (; hi - lo >= BLOCK_##T; lo += BLOCK_##T) all_block_##T(m, lo);                            \
    for (; lo < hi; lo++) {                                                                        \
      const T sum = sum_one_##T(m, lo);                                                            \
      for (uint32_t j = 0; j < m->n; j++) {                                                        \
        T *to = (T *)m->member[j].part + lo;                                                       \
        *to = m->add ? *to + sum : sum;                                                            \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
  static void one_##T(const Meeting *m, size_t lo, size_t hi, T *to) {                             \
    for (; hi - lo >= BLOCK_##T; lo += BLOCK_##T, to += BLOCK_##T) {                               \
      T sum[BLOCK_##T];                                                                            \
      sum_block_##T(m, lo, sum);                                                                   \
      put_block_##T(m, sum, to);                                                                   \
    }                                                                                              \
    for (; lo < hi; lo++, to++) *to = m->add ? *to + sum_one_##T(m, lo) : sum_one_##T(m, lo);      \
  }
SUM(float)
SUM(double)

static Share piece_elements(const Meeting *m, uint32_t i, uint64_t piece_bytes) {
  const uint64_t lo = i * piece_bytes, size = dtype_bytes(m->dtype);
  const uint64_t hi = m->bytes - lo < piece_bytes ? m->bytes : lo + piece_bytes;
  return (Share){(int64_t)(lo / size), (int64_t)(hi / size)};
}

static void all_reduce_piece(CpuWork *w, uint32_t i) {
  const Meeting *m = (const Meeting *)w;
  const Share s = piece_elements(m, i, SUM_PIECE_BYTES);
  if (m->dtype == DT_F32) all_float(m, (size_t)s.lo, (size_t)s.hi);
  else all_double(m, (size_t)s.lo, (size_t)s.hi);
}

static void reduce_scatter_piece(CpuWork *w, uint32_t i) {
  const Meeting *m = (const Meeting *)w;
  const Share piece = piece_elements(m, i, SUM_PIECE_BYTES);
  for (uint32_t j = 0; j < m->n; j++) {
    const Share s = share_common(piece, m->shares[j]);
    const int64_t skip = s.lo - m->shares[j].lo;
    if (s.lo == s.hi) continue;
    if (m->dtype == DT_F32)
      one_float(m, (size_t)s.lo, (size_t)s.hi, (float *)m->member[j].part + skip);
    else one_double(m, (size_t)s.lo, (size_t)s.hi, (double *)m->member[j].part + skip);
  }
}

static void all_gather_piece(CpuWork *w, uint32_t i) {
  Meeting *m = (Meeting *)w;
  const size_t size = dtype_bytes(m->dtype);
  const Share piece = piece_elements(m, i, COPY_PIECE_BYTES);
  for (uint32_t j = 0; j < m->n; j++) {
    const Share s = share_common(piece, m->shares[j]);
    if (s.lo == s.hi) continue;
    const unsigned char *from = m->member[j].part + (size_t)(s.lo - m->shares[j].lo) * size;
    for (uint32_t k = 0; k < m->n; k++) {
      unsigned char *to = m->member[k].buf + (size_t)s.lo * size;
      if (to != from) memcpy(to, from, (size_t)share_size(s) * size);
    }
  }
}

/* The count and the rows behind it. */
static void copy_block(const Exchange *x, const unsigned char *from, unsigned char *to) {
  const int64_t room = (int64_t)(x->block_bytes / x->row_bytes) - 1;
  int32_t n;
  memcpy(&n, from, sizeof n);
  memcpy(to, &n, sizeof n);
  if (n < 0 || n > room) return; /* who reads it finds out (OP_EXPERT_ENDS) */
  memcpy(to + x->row_bytes, from + x->row_bytes, (size_t)n * x->row_bytes);
}

/* What member i / n gets from member i % n. */
static void all_to_all_piece(CpuWork *w, uint32_t i) {
  const Meeting *m = (const Meeting *)w;
  const Exchange *x = m->exchange;
  const uint64_t n = m->n, to = i / m->n, from = i % m->n;
  const uint64_t samples = (uint64_t)x->samples, blocks = (uint64_t)x->blocks;
  for (uint64_t s = 0; s < samples; s++) {
    /* first blocks: of sample s of one member, the experts of the other */
    const uint64_t at_samples = (s * n + (x->to_experts ? to : from)) * blocks;
    const uint64_t at_experts = ((x->to_experts ? from : to) * samples + s) * blocks;
    const uint64_t src = x->to_experts ? at_samples : at_experts;
    const uint64_t dst = x->to_experts ? at_experts : at_samples;
    for (uint64_t b = 0; b < blocks; b++)
      copy_block(x, m->member[from].buf + (src + b) * x->block_bytes,
                 m->member[to].part + (dst + b) * x->block_bytes);
  }
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

typedef struct Call {
  LocalHandle *handle;
  DeviceStream *stream;
  MeetingKind kind;
  void *buf, *part;
  uint64_t bytes;
  DType dtype;
  bool add;
  const Share *shares;
  const Exchange *exchange;
  uint32_t label;
} Call;

static Meeting *meeting_new(const Call *c, uint32_t n) {
  static void (*const PIECE[])(CpuWork *, uint32_t) = {
      [MEET_TRANSFER] = copy_piece,
      [MEET_ALL_REDUCE] = all_reduce_piece,
      [MEET_REDUCE_SCATTER] = reduce_scatter_piece,
      [MEET_ALL_GATHER] = all_gather_piece,
      [MEET_ALL_TO_ALL] = all_to_all_piece,
  };
  const bool copies = c->kind == MEET_TRANSFER || c->kind == MEET_ALL_GATHER;
  const uint64_t size = copies ? COPY_PIECE_BYTES : SUM_PIECE_BYTES;
  uint64_t pieces = c->bytes == 0 ? 1 : (c->bytes + size - 1) / size;
  if (c->kind == MEET_ALL_TO_ALL) pieces = (uint64_t)n * n;
  Meeting *m = calloc(1, sizeof *m + n * sizeof *m->member);
  if (m == NULL) return NULL;
  cpu_work_init(&m->work, PIECE[c->kind], finish, (uint32_t)pieces);
  m->kind = c->kind;
  m->dtype = c->dtype;
  m->add = c->add;
  m->n = n;
  m->bytes = c->bytes;
  m->shares = c->shares;
  m->exchange = c->exchange;
  for (uint32_t i = 0; i < n; i++) {
    m->member[i].meeting = m;
    m->member[i].op.arrive = arrive;
  }
  return m;
}

static PiperStatus enqueue(const Call *c, Meeting *m, PiperErr *err) {
  Member *member = &m->member[c->handle->me];
  member->buf = c->buf;
  member->part = c->part;
  return cpu_op_enqueue(c->stream, &member->op, c->label, err);
}

static PiperStatus transfer(const Call *c, PiperErr *err) {
  LocalGroup *g = c->handle->group;
  const uint32_t k = c->handle->n_transfers;
  Meeting *m;
  if (k == g->transfers.n) {
    if (!vec_reserve(&g->transfers, 1)) return err_nomem(err, "transfer");
    m = meeting_new(c, 2);
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
  const Call c = {
      .handle = (LocalHandle *)g, .stream = s, .buf = (void *)buf, .bytes = bytes, .label = label};
  TRY(pair_check(c.handle, 0, "send", err));
  return transfer(&c, err);
}

static PiperStatus local_recv(CommGroup *g, DeviceStream *s, void *buf, uint64_t bytes,
                              uint32_t label, PiperErr *err) {
  const Call c = {
      .handle = (LocalHandle *)g, .stream = s, .buf = buf, .bytes = bytes, .label = label};
  TRY(pair_check(c.handle, 1, "receive", err));
  return transfer(&c, err);
}

/* The shares cover the buffer once: nothing is read or written twice, or outside. */
static bool shares_cover(const Share *shares, uint32_t n, int64_t count) {
  int64_t sum = 0;
  uint32_t in_order = 0; /* mostly all of them are */
  for (; in_order < n && shares[in_order].lo == sum && shares[in_order].hi >= sum; in_order++)
    sum = shares[in_order].hi;
  if (in_order == n) return sum == count;
  sum = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (shares[i].lo < 0 || shares[i].lo > shares[i].hi || shares[i].hi > count) return false;
    sum += share_size(shares[i]);
    for (uint32_t j = 0; j < i; j++)
      if (share_size(share_common(shares[i], shares[j])) > 0) return false;
  }
  return sum == count;
}

static bool same_exchange(const Exchange *a, const Exchange *b) {
  return a == b || (a->samples == b->samples && a->blocks == b->blocks &&
                    a->block_bytes == b->block_bytes && a->row_bytes == b->row_bytes &&
                    a->to_experts == b->to_experts);
}

static PiperStatus collective(const Call *c, PiperErr *err) {
  LocalGroup *g = c->handle->group;
  const uint32_t k = c->handle->n_collectives;
  const char *name = MEETING_NAME[c->kind];
  Meeting *m;
  if (c->dtype != DT_F32 && c->dtype != DT_F64 && c->kind != MEET_ALL_TO_ALL)
    return err_set(err, PIPER_EBUG, "%s: %s of %s", g->name, name, dtype_name(c->dtype));
  if (k == g->collectives.n) {
    if (c->shares != NULL) { /* otherwise there may be no dtype */
      const int64_t count = (int64_t)(c->bytes / dtype_bytes(c->dtype));
      if (!shares_cover(c->shares, g->n, count))
        return err_set(err, PIPER_EBUG, "%s, %s %u: the shares do not cover its %lld elements once",
                       g->name, name, (unsigned)k + 1, (long long)count);
    }
    if (!vec_reserve(&g->collectives, 1)) return err_nomem(err, name);
    m = meeting_new(c, g->n);
    if (m == NULL) return err_nomem(err, name);
    g->collectives.at[g->collectives.n++] = m;
  }
  m = g->collectives.at[k];
  if (m->kind != c->kind)
    return err_set(err, PIPER_EBUG, "%s, collective %u: rank %d makes it %s, another rank %s",
                   g->name, (unsigned)k + 1, (int)g->ranks[c->handle->me], name,
                   MEETING_NAME[m->kind]);
  if (m->bytes != c->bytes || m->dtype != c->dtype || m->add != c->add)
    return err_set(err, PIPER_EBUG,
                   "%s, %s %u: rank %d has %llu bytes of %s%s, another rank %llu of %s%s", g->name,
                   name, (unsigned)k + 1, (int)g->ranks[c->handle->me],
                   (unsigned long long)c->bytes, dtype_name(c->dtype), c->add ? " to add" : "",
                   (unsigned long long)m->bytes, dtype_name(m->dtype), m->add ? " to add" : "");
  if (c->shares != m->shares && memcmp(c->shares, m->shares, g->n * sizeof *c->shares) != 0)
    return err_set(err, PIPER_EBUG, "%s, %s %u: rank %d divides it differently from another rank",
                   g->name, name, (unsigned)k + 1, (int)g->ranks[c->handle->me]);
  if (c->kind == MEET_ALL_TO_ALL && !same_exchange(c->exchange, m->exchange))
    return err_set(err, PIPER_EBUG, "%s, %s %u: rank %d exchanges differently from another rank",
                   g->name, name, (unsigned)k + 1, (int)g->ranks[c->handle->me]);
  c->handle->n_collectives++;
  return enqueue(c, m, err);
}

static Call sum_call(CommGroup *g, DeviceStream *s, MeetingKind kind, const CommSum *x,
                     uint32_t label) {
  return (Call){.handle = (LocalHandle *)g,
                .stream = s,
                .kind = kind,
                .buf = x->buf,
                .part = x->into,
                .bytes = x->count * dtype_bytes(x->dtype),
                .dtype = x->dtype,
                .add = x->add,
                .label = label};
}

static PiperStatus local_all_reduce(CommGroup *g, DeviceStream *s, const CommSum *x, uint32_t label,
                                    PiperErr *err) {
  const Call c = sum_call(g, s, MEET_ALL_REDUCE, x, label);
  return collective(&c, err);
}

static PiperStatus local_reduce_scatter(CommGroup *g, DeviceStream *s, const CommSum *x,
                                        const Share *shares, uint32_t label, PiperErr *err) {
  Call c = sum_call(g, s, MEET_REDUCE_SCATTER, x, label);
  c.shares = shares;
  return collective(&c, err);
}

static PiperStatus local_all_gather(CommGroup *g, DeviceStream *s, const CommGather *x,
                                    const Share *shares, uint32_t label, PiperErr *err) {
  const Call c = {.handle = (LocalHandle *)g,
                  .stream = s,
                  .kind = MEET_ALL_GATHER,
                  .buf = x->buf,
                  .part = (void *)x->from,
                  .bytes = x->count * dtype_bytes(x->dtype),
                  .dtype = x->dtype,
                  .shares = shares,
                  .label = label};
  return collective(&c, err);
}

static PiperStatus local_all_to_all(CommGroup *g, DeviceStream *s, const void *from, void *to,
                                    const Exchange *x, uint32_t label, PiperErr *err) {
  LocalHandle *h = (LocalHandle *)g;
  const Call c = {.handle = h,
                  .stream = s,
                  .kind = MEET_ALL_TO_ALL,
                  .buf = (void *)from,
                  .part = to,
                  .bytes = exchange_bytes(x, h->group->n),
                  .exchange = x,
                  .label = label};
  if (x->samples < 0 || x->blocks < 0 || x->row_bytes < sizeof(int32_t) ||
      x->block_bytes < x->row_bytes || x->block_bytes % x->row_bytes != 0)
    return err_set(err, PIPER_EBUG, "%s: all_to_all of no blocks", h->group->name);
  return collective(&c, err);
}

/* ---- groups ------------------------------------------------------------------------------------- */

static void group_free(LocalGroup *g) {
  for (size_t i = 0; i < g->transfers.n; i++) free(g->transfers.at[i]);
  for (size_t i = 0; i < g->collectives.n; i++) free(g->collectives.at[i]);
  vec_free(&g->transfers);
  vec_free(&g->collectives);
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
    .reduce_scatter = local_reduce_scatter,
    .all_gather = local_all_gather,
    .all_to_all = local_all_to_all,
    .abort = local_abort,
};
