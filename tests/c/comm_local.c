/* Point to point and collectives between ranks that are threads, in all orders of arrival. */
#include "lib/ranks.h"

static PiperErr err;

static const int32_t FORTH[] = {0, 1}, BACK[] = {1, 0};

#define RUN(s, c, label) ranks_need(DEVICE_CPU.run((s), &(c)->run, (label), &err), &err)
#define RECORD(s, e) ranks_need(DEVICE_CPU.record((s), (e), &err), &err)
#define WAIT(s, e) ranks_need(DEVICE_CPU.wait((s), (e), &err), &err)
#define SEND(g, s, x, n, label)                                                                    \
  ranks_need(COMM_LOCAL.send((g), (s), (x), (n) * sizeof *(x), (label), &err), &err)
#define RECV(g, s, x, n, label)                                                                    \
  ranks_need(COMM_LOCAL.recv((g), (s), (x), (n) * sizeof *(x), (label), &err), &err)
#define REDUCE(g, s, x, n, type, label)                                                            \
  ranks_need(                                                                                      \
      COMM_LOCAL.all_reduce((g), (s), &(CommSum){(x), (x), false, (n), (type)}, (label), &err),    \
      &err)

static float *floats(size_t n) {
  float *x = calloc(n + 1, sizeof *x);
  if (x == NULL) bail("no memory");
  return x;
}

/* Rank 0 counts up and sends; rank 1 adds what it receives to its own and sends that back. With
 * 'single' all is in one compute stream a rank. */
static void round_trip(size_t n, bool single, unsigned jitter_us, int steps) {
  Ranks t;
  Copy count, sum;
  DeviceStream *c[2], *out[2], *in[2];
  DeviceEvent *made[2], *got[2];
  float *one = floats(n), *x = floats(n), *y = floats(n), *z = floats(n), *w = floats(n);
  double want = 0;
  bool right = true;
  ranks_open(&t, 2);
  t.jitter_us = jitter_us;
  for (int r = 0; r < 2; r++) {
    c[r] = ranks_stream(&t, r, "default_stream", DEVICE_STREAM_COMPUTE);
    out[r] = single ? c[r] : ranks_stream(&t, r, "out", DEVICE_STREAM_COMM);
    in[r] = single ? c[r] : ranks_stream(&t, r, "in", DEVICE_STREAM_COMM);
    made[r] = ranks_event(&t, r);
    got[r] = ranks_event(&t, r);
  }
  for (size_t i = 0; i < n; i++) one[i] = 1;
  copy_make(&count, one, x, (int64_t)n, true);
  copy_make(&sum, y, z, (int64_t)n, true);
  CommGroup *f0 = ranks_group(&t, 0, "pp", FORTH, 2), *f1 = ranks_group(&t, 1, "pp", FORTH, 2);
  CommGroup *b0 = ranks_group(&t, 0, "pp", BACK, 2), *b1 = ranks_group(&t, 1, "pp", BACK, 2);
  ranks_connect(&t);
  ranks_capture(&t);
  RUN(c[0], &count, 0);
  RECORD(c[0], made[0]);
  WAIT(out[0], made[0]);
  SEND(f0, out[0], x, n, 1);
  RECV(b0, in[0], w, n, 2);
  RECORD(in[0], got[0]);
  RECV(f1, in[1], y, n, 0);
  RECORD(in[1], got[1]);
  WAIT(c[1], got[1]);
  RUN(c[1], &sum, 1);
  RECORD(c[1], made[1]);
  WAIT(out[1], made[1]);
  SEND(b1, out[1], z, n, 2);
  ranks_captured(&t);
  for (int i = 1; i <= steps; i++) {
    want += i;
    right = right && ranks_step(&t) && w[0] == want && w[n / 2] == want && w[n - 1] == want;
  }
  ok(right, "%zu floats forth and back, %d steps, %s, sleeps up to %u us", n, steps,
     single ? "one stream" : "five streams", jitter_us);
  ranks_close(&t);
  free(one);
  free(x);
  free(y);
  free(z);
  free(w);
}

/* Numbers whose sum depends on the order, different in each step. */
static double number(int rank, size_t i, int step) {
  Hash h = HASH_START;
  hash_u32(&h, (uint32_t)rank);
  hash_u64(&h, i);
  hash_u32(&h, (uint32_t)step);
  const uint64_t v = hash_end(&h);
  const double x = (double)(v % 2000001) - 1e6;
  return v >> 60 < 8 ? x : x * 1e-9;
}

/* 'k' all_reduces over the ranks of 'list', one after the other: the same bits for every member, the
 * sum in the order of the list. */
static void sums(const int32_t *list, uint32_t n, size_t count, DType type, unsigned jitter_us,
                 int steps, bool single) {
  enum { K = 3 };
  const size_t size = dtype_bytes(type);
  Ranks t;
  unsigned char *buf[RANKS_MAX][K];
  CommGroup *g[RANKS_MAX];
  DeviceStream *s[RANKS_MAX];
  bool right = true;
  ranks_open(&t, (int)n);
  t.jitter_us = jitter_us;
  for (uint32_t r = 0; r < n; r++) {
    DeviceStream *c = ranks_stream(&t, (int)r, "default_stream", DEVICE_STREAM_COMPUTE);
    s[r] = single ? c : ranks_stream(&t, (int)r, "dp", DEVICE_STREAM_COMM);
    g[r] = ranks_group(&t, (int)r, "dp", list, n);
    for (int k = 0; k < K; k++) buf[r][k] = malloc(count * size + 1);
  }
  ranks_connect(&t);
  ranks_capture(&t);
  for (uint32_t r = 0; r < n; r++) {
    for (uint32_t k = 0; k < K; k++) REDUCE(g[r], s[r], buf[r][k], count, type, k);
  }
  ranks_captured(&t);
  for (int step = 0; step < steps && right; step++) {
    for (uint32_t r = 0; r < n; r++) {
      for (int k = 0; k < K; k++) {
        for (size_t i = 0; i < count; i++) {
          if (type == DT_F32) ((float *)buf[r][k])[i] = (float)number((int)r, i, step + k);
          else ((double *)buf[r][k])[i] = number((int)r, i, step + k);
        }
      }
    }
    right = ranks_step(&t);
    for (int k = 0; k < K && right; k++) {
      for (size_t i = 0; i < count && right; i++) {
        float f = (float)number(list[0], i, step + k);
        double d = number(list[0], i, step + k);
        for (uint32_t j = 1; j < n; j++) {
          f += (float)number(list[j], i, step + k);
          d += number(list[j], i, step + k);
        }
        const void *want = type == DT_F32 ? (const void *)&f : (const void *)&d;
        for (uint32_t r = 0; r < n; r++) {
          if (memcmp(buf[r][k] + i * size, want, size) != 0) right = false;
        }
      }
    }
  }
  ok(right, "sum of %zu %s over %u ranks, first %d, %d steps, %s, sleeps up to %u us", count,
     dtype_name(type), n, (int)list[0], steps, single ? "one stream" : "own stream", jitter_us);
  for (uint32_t r = 0; r < n; r++) {
    for (int k = 0; k < K; k++) free(buf[r][k]);
  }
  ranks_close(&t);
}

/* A ring of 8: each rank passes on what it got, so a step is a chain of 8 hops through all ranks;
 * then a sum over all. More ranks than cores on most machines that run this. */
static void ring(unsigned jitter_us, int steps) {
  enum { P = 8, N = 1000 };
  static float x[P][N], sum[P][N], one[N];
  static const int32_t everyone[P] = {0, 1, 2, 3, 4, 5, 6, 7};
  Ranks t;
  Copy add[P], move[P];
  bool right = true;
  ranks_open(&t, P);
  t.jitter_us = jitter_us;
  for (int i = 0; i < N; i++) one[i] = 1;
  memset(x, 0, sizeof x);
  DeviceStream *c[P], *in[P], *out[P], *dp[P];
  DeviceEvent *got[P], *made[P], *copied[P], *summed[P];
  CommGroup *from[P], *to[P], *all[P];
  for (int r = 0; r < P; r++) {
    const int32_t pair[] = {r, (r + 1) % P};
    c[r] = ranks_stream(&t, r, "default_stream", DEVICE_STREAM_COMPUTE);
    in[r] = ranks_stream(&t, r, "in", DEVICE_STREAM_COMM);
    out[r] = ranks_stream(&t, r, "out", DEVICE_STREAM_COMM);
    dp[r] = ranks_stream(&t, r, "dp", DEVICE_STREAM_COMM);
    got[r] = ranks_event(&t, r);
    made[r] = ranks_event(&t, r);
    copied[r] = ranks_event(&t, r);
    summed[r] = ranks_event(&t, r);
    to[r] = ranks_group(&t, r, "ring", pair, 2);
    from[pair[1]] = ranks_group(&t, pair[1], "ring", pair, 2);
    all[r] = ranks_group(&t, r, "dp", everyone, P);
    copy_make(&add[r], one, x[r], N, true);
    copy_make(&move[r], x[r], sum[r], N, false);
  }
  ranks_connect(&t);
  ranks_capture(&t);
  for (int r = 0; r < P; r++) {
    if (r != 0) {
      RECV(from[r], in[r], x[r], N, 0);
      RECORD(in[r], got[r]);
      WAIT(c[r], got[r]);
    }
    RUN(c[r], &add[r], 1);
    RECORD(c[r], made[r]);
    WAIT(out[r], made[r]);
    SEND(to[r], out[r], x[r], N, 2);
    RUN(c[r], &move[r], 3);
    RECORD(c[r], copied[r]);
    WAIT(dp[r], copied[r]);
    REDUCE(all[r], dp[r], sum[r], N, DT_F32, 4);
    RECORD(dp[r], summed[r]);
    WAIT(c[r], summed[r]);
    if (r == 0) {
      WAIT(in[r], copied[r]); /* before its x is overwritten */
      RECV(from[r], in[r], x[r], N, 5);
    }
  }
  ranks_captured(&t);
  for (int i = 1; i <= steps && right; i++) {
    /* rank 0 starts from what came round: 8 a step more, and rank r has r + 1 on top of that */
    const float base = (float)(8 * (i - 1));
    right = ranks_step(&t) && x[0][0] == base + 8 && x[7][N - 1] == base + 8 &&
            sum[3][7] == 8 * base + 36 && sum[0][0] == 8 * base + 36;
  }
  ok(right, "8 ranks in a ring and a sum over them, %d steps, sleeps up to %u us", steps, jitter_us);
  ranks_close(&t);
}

/* Rank 1 fails at an instruction; the others must stop, wherever they are. */
static void failure(uint32_t label, const char *where) {
  enum { N = 1000 };
  static float x[3][N], one[N], got[N];
  static const int32_t everyone[3] = {0, 1, 2};
  Ranks t;
  Copy c[3];
  double begin;
  ranks_open(&t, 3);
  DeviceStream *s[3], *q[3], *p[3];
  DeviceEvent *e[3], *f[3];
  CommGroup *g[3], *forth[2];
  for (int r = 0; r < 3; r++) {
    s[r] = ranks_stream(&t, r, "default_stream", DEVICE_STREAM_COMPUTE);
    q[r] = ranks_stream(&t, r, "dp", DEVICE_STREAM_COMM);
    p[r] = ranks_stream(&t, r, "pp", DEVICE_STREAM_COMM);
    e[r] = ranks_event(&t, r);
    f[r] = ranks_event(&t, r);
    g[r] = ranks_group(&t, r, "dp", everyone, 3);
    copy_make(&c[r], one, x[r], N, true);
    if (r < 2) forth[r] = ranks_group(&t, r, "pp", FORTH, 2);
  }
  ranks_connect(&t);
  ranks_capture(&t);
  for (int r = 0; r < 3; r++) {
    RUN(s[r], &c[r], 0);
    RECORD(s[r], e[r]);
    WAIT(q[r], e[r]);
    REDUCE(g[r], q[r], x[r], N, DT_F32, 1);
    RECORD(q[r], f[r]);
    WAIT(s[r], f[r]);
    RUN(s[r], &c[r], 2);
    if (r == 0) SEND(forth[0], p[0], one, N, 3);
    if (r == 1) RECV(forth[1], p[1], got, N, 3);
  }
  ranks_captured(&t);
  ok(ranks_step(&t) && ranks_step(&t), "two steps go well");
  t.fault_rank = 1;
  t.fault_label = label;
  t.fault_step = 3;
  begin = ranks_seconds();
  ok(!ranks_step(&t), "%s fails in the third", where);
  ranks_close(&t);
  ok(ranks_seconds() - begin < 0.1, "all ranks have stopped soon");
  is_int(t.failed_rank, 1, "rank 1 is blamed");
  is_int(t.failed_label, label, "with its instruction");
}

static double get(const void *x, DType type, int64_t i) {
  return type == DT_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static void set(void *x, DType type, int64_t i, double v) {
  if (type == DT_F32) ((float *)x)[i] = (float)v;
  else ((double *)x)[i] = v;
}

/* The sum of element i of buffer k over the list, in its order and type. */
static double sum_of(const int32_t *list, uint32_t n, DType type, int64_t i, int key) {
  float f = (float)number(list[0], (size_t)i, key);
  double d = number(list[0], (size_t)i, key);
  for (uint32_t j = 1; j < n; j++) {
    f += (float)number(list[j], (size_t)i, key);
    d += number(list[j], (size_t)i, key);
  }
  return type == DT_F32 ? (double)f : d;
}

/* One step of every collective that works on shares. 'falling': the first member has the last share;
 * otherwise all is the third member's, or nearly. */
static void shares(const int32_t *list, uint32_t n, int64_t count, DType type, bool falling,
                   unsigned jitter_us, int steps) {
  enum { SCATTER, SCATTER_ADD, IN_PLACE, REDUCE_ADD, GATHER, GATHER_IN_PLACE, K };
  const size_t size = dtype_bytes(type);
  Share cut[RANKS_MAX];
  Ranks t;
  unsigned char *buf[RANKS_MAX][K], *part[RANKS_MAX];
  bool right = true;
  for (uint32_t j = 0; j < n; j++) {
    cut[j] = share_of(count, falling ? n - 1 - j : j, n);
    if (!falling && n > 2) cut[j] = (Share){j <= 2 ? 0 : count, j < 2 ? 0 : count};
  }
  ranks_open(&t, (int)n);
  t.jitter_us = jitter_us;
  CommGroup *g[RANKS_MAX];
  DeviceStream *s[RANKS_MAX];
  for (uint32_t r = 0; r < n; r++) {
    ranks_stream(&t, (int)r, "default_stream", DEVICE_STREAM_COMPUTE);
    s[r] = ranks_stream(&t, (int)r, "dp", DEVICE_STREAM_COMM);
    g[r] = ranks_group(&t, (int)r, "dp", list, n);
    for (int k = 0; k < K; k++) buf[r][k] = calloc((size_t)count + 1, size);
    part[r] = calloc(3 * ((size_t)count + 1), size);
  }
  ranks_connect(&t);
  ranks_capture(&t);
  for (uint32_t r = 0; r < n; r++) {
    uint32_t me = 0;
    while (list[me] != (int32_t)r) me++;
    const size_t lo = (size_t)cut[me].lo * size, whole = ((size_t)count + 1) * size;
    unsigned char *const into = part[r], *const all = part[r] + whole, *const from = all + whole;
    const uint64_t c = (uint64_t)count;
    const CommSum scatter = {buf[r][SCATTER], into, false, c, type},
                  add = {buf[r][SCATTER_ADD], into, true, c, type},
                  in_place = {buf[r][IN_PLACE], buf[r][IN_PLACE] + lo, false, c, type},
                  reduce = {buf[r][REDUCE_ADD], all, true, c, type};
    const CommGather gather = {from, buf[r][GATHER], c, type},
                     gather_in_place = {buf[r][GATHER_IN_PLACE] + lo, buf[r][GATHER_IN_PLACE], c,
                                        type};
    ranks_need(COMM_LOCAL.reduce_scatter(g[r], s[r], &scatter, cut, 0, &err), &err);
    ranks_need(COMM_LOCAL.all_reduce(g[r], s[r], &reduce, 1, &err), &err);
    ranks_need(COMM_LOCAL.reduce_scatter(g[r], s[r], &add, cut, 2, &err), &err);
    ranks_need(COMM_LOCAL.all_gather(g[r], s[r], &gather, cut, 3, &err), &err);
    ranks_need(COMM_LOCAL.reduce_scatter(g[r], s[r], &in_place, cut, 4, &err), &err);
    ranks_need(COMM_LOCAL.all_gather(g[r], s[r], &gather_in_place, cut, 5, &err), &err);
  }
  ranks_captured(&t);
  for (int step = 0; step < steps && right; step++) {
    for (uint32_t r = 0; r < n; r++)
      for (int64_t i = 0; i < count; i++) {
        for (int k = 0; k < K; k++) set(buf[r][k], type, i, number((int)r, (size_t)i, step + k));
        set(part[r] + ((size_t)count + 1) * size, type, i, (int)r);
        set(part[r] + 2 * ((size_t)count + 1) * size, type, i, number((int)r, (size_t)i, step - 1));
      }
    right = ranks_step(&t);
    for (uint32_t j = 0; j < n && right; j++) {
      const uint32_t r = (uint32_t)list[j];
      const unsigned char *all = part[r] + ((size_t)count + 1) * size;
      for (int64_t i = cut[j].lo; i < cut[j].hi; i++) {
        const double first = sum_of(list, n, type, i, step + SCATTER);
        const double second = sum_of(list, n, type, i, step + SCATTER_ADD);
        const double both =
            type == DT_F32 ? (double)((float)first + (float)second) : first + second;
        right = right && get(part[r], type, i - cut[j].lo) == both &&
                get(buf[r][IN_PLACE], type, i) == sum_of(list, n, type, i, step + IN_PLACE);
      }
      for (uint32_t m = 0; m < n; m++)
        for (int64_t i = cut[m].lo; i < cut[m].hi; i++) {
          float f = (float)number(list[m], (size_t)(i - cut[m].lo), step - 1);
          double d = number(list[m], (size_t)(i - cut[m].lo), step - 1);
          right = right && get(buf[r][GATHER], type, i) == (type == DT_F32 ? (double)f : d);
          f = (float)number(list[m], (size_t)i, step + GATHER_IN_PLACE);
          d = number(list[m], (size_t)i, step + GATHER_IN_PLACE);
          right =
              right && get(buf[r][GATHER_IN_PLACE], type, i) == (type == DT_F32 ? (double)f : d);
        }
      for (int64_t i = 0; i < count; i++) {
        const double sum = sum_of(list, n, type, i, step + REDUCE_ADD);
        const double want = type == DT_F32 ? (double)((float)r + (float)sum) : (double)r + sum;
        right = right && get(all, type, i) == want;
      }
    }
  }
  ok(right,
     "%u ranks, %lld elements of %s in %s shares: scattered, added, gathered, in place and not",
     (unsigned)n, (long long)count, dtype_name(type), falling ? "falling" : "odd");
  ranks_close(&t);
  for (uint32_t r = 0; r < n; r++) {
    for (int k = 0; k < K; k++) free(buf[r][k]);
    free(part[r]);
  }
}

/* One step of an all_to_all to the experts, and one back from there into other memory. Blocks have
 * 'rows' rows of 3 floats behind the one with the count, and as many tokens as it pleases. */
static void exchanges(const int32_t *list, uint32_t n, int64_t samples, int64_t blocks, int64_t rows,
                      unsigned jitter_us, int steps) {
  enum { FROM, THERE, BACK_AGAIN, K };
  const size_t width = 3, block = (size_t)(rows + 1) * width;
  const size_t all = n * (size_t)(samples * blocks) * block;
  const Exchange to = {samples, blocks, block * sizeof(float), width * sizeof(float), true};
  Exchange back = to;
  back.to_experts = false;
  Ranks t;
  float *buf[RANKS_MAX][K];
  bool right = exchange_bytes(&to, n) == all * sizeof(float);
  CommGroup *g[RANKS_MAX];
  DeviceStream *s[RANKS_MAX];
  ranks_open(&t, (int)n);
  t.jitter_us = jitter_us;
  for (uint32_t r = 0; r < n; r++) {
    ranks_stream(&t, (int)r, "default_stream", DEVICE_STREAM_COMPUTE);
    s[r] = ranks_stream(&t, (int)r, "ep", DEVICE_STREAM_COMM);
    g[r] = ranks_group(&t, (int)r, "ep", list, n);
    for (int k = 0; k < K; k++) buf[r][k] = floats(all);
  }
  ranks_connect(&t);
  ranks_capture(&t);
  for (uint32_t r = 0; r < n; r++) {
    ranks_need(COMM_LOCAL.all_to_all(g[r], s[r], buf[r][FROM], buf[r][THERE], &to, 0, &err), &err);
    ranks_need(COMM_LOCAL.all_to_all(g[r], s[r], buf[r][THERE], buf[r][BACK_AGAIN], &back, 1, &err),
               &err);
  }
  ranks_captured(&t);
  for (int step = 0; step < steps && right; step++) {
    for (uint32_t r = 0; r < n; r++) {
      for (size_t i = 0; i < all; i++) {
        buf[r][FROM][i] = number((int)r, i, step);
        buf[r][THERE][i] = buf[r][BACK_AGAIN][i] = -1;
      }
      for (size_t b = 0; b * block < all; b++) {
        const int32_t tokens = (int32_t)((r + 3 * b + (size_t)step) % (size_t)(rows + 1));
        memcpy(&buf[r][FROM][b * block], &tokens, sizeof tokens);
      }
    }
    right = ranks_step(&t);
    for (uint32_t j = 0; j < n; j++) /* the j-th sends its samples to the k-th's experts */
      for (uint32_t k = 0; k < n; k++)
        for (size_t i = 0; i < (size_t)(samples * blocks); i++) {
          const size_t sample = i / (size_t)blocks, b = i % (size_t)blocks;
          const float *from = buf[list[j]][FROM], *there = buf[list[k]][THERE],
                      *again = buf[list[j]][BACK_AGAIN];
          from += ((sample * n + k) * (size_t)blocks + b) * block;
          there += ((j * (size_t)samples + sample) * (size_t)blocks + b) * block;
          again += ((sample * n + k) * (size_t)blocks + b) * block;
          int32_t tokens;
          memcpy(&tokens, from, sizeof tokens);
          right = right && memcmp(from, there, sizeof tokens) == 0 &&
                  memcmp(from, again, sizeof tokens) == 0;
          for (size_t c = width; c < block; c++) {
            const bool moved = c < (size_t)(tokens + 1) * width;
            right = right && there[c] == (moved ? from[c] : -1) && again[c] == there[c];
          }
        }
  }
  ok(right, "%u ranks, %lld samples of %lld blocks of up to %lld rows: to the experts and back",
     (unsigned)n, (long long)samples, (long long)blocks, (long long)rows);
  ranks_close(&t);
  for (uint32_t r = 0; r < n; r++)
    for (int k = 0; k < K; k++) free(buf[r][k]);
}

static void mismatches(void) {
  static float x[2][64];
  Ranks t;
  ranks_open(&t, 2);
  DeviceStream *q[2];
  for (int r = 0; r < 2; r++) q[r] = ranks_stream(&t, r, "q", DEVICE_STREAM_COMM);
  CommGroup *a = ranks_group(&t, 0, "pp/F", FORTH, 2), *b = ranks_group(&t, 1, "pp/F", FORTH, 2);
  ok(COMM_LOCAL.group(t.comm[0], "pp/F", FORTH, 2, &a, NULL) != PIPER_OK, "a rank joins once");
  ok(COMM_LOCAL.group(t.comm[0], "x", (const int32_t[]){1, 2}, 2, &b, NULL) != PIPER_OK,
     "and only where it is a member");
  ranks_connect(&t);
  ranks_capture(&t);
  SEND(a, q[0], x[0], 64, 0);
  PiperErr e = {PIPER_OK, ""};
  ok(COMM_LOCAL.recv(b, q[1], x[1], 63 * sizeof(float), 0, &e) != PIPER_OK, "sizes differ");
  is_str(e.text, "pp/F, message 1 from rank 0 to rank 1: this side has 252 bytes, the other 256",
         "and the message says how");
  ok(COMM_LOCAL.recv(a, q[0], x[0], 64, 0, NULL) != PIPER_OK, "the source cannot receive");
  ok(COMM_LOCAL.send(b, q[1], x[0], 64, 0, NULL) != PIPER_OK, "the destination cannot send");
  REDUCE(a, q[0], x[0], 64, DT_F32, 1);
  ok(COMM_LOCAL.all_reduce(b, q[1], &(CommSum){x[1], x[1], false, 32, DT_F64}, 1, NULL) != PIPER_OK,
     "types differ");
  ok(COMM_LOCAL.all_reduce(b, q[1], &(CommSum){x[1], x[1], false, 32, DT_F32}, 1, NULL) != PIPER_OK,
     "counts differ");
  ok(COMM_LOCAL.all_reduce(b, q[1], &(CommSum){x[1], x[1], false, 64, DT_I32}, 1, NULL) != PIPER_OK,
     "no sum of integers");
  const CommSum sum = {x[1], x[1], false, 64, DT_F32};
  const Share halves[] = {{0, 32}, {32, 64}}, gap[] = {{0, 32}, {33, 64}},
              twice[] = {{0, 32}, {0, 32}};
  e = (PiperErr){PIPER_OK, ""};
  ok(COMM_LOCAL.reduce_scatter(b, q[1], &sum, halves, 1, &e) != PIPER_OK, "kinds differ");
  is_str(e.text, "pp/F, collective 1: rank 1 makes it reduce_scatter, another rank all_reduce",
         "and the message says so");
  REDUCE(b, q[1], x[1], 64, DT_F32, 1);
  e = (PiperErr){PIPER_OK, ""};
  ok(COMM_LOCAL.reduce_scatter(b, q[1], &sum, gap, 2, &e) != PIPER_OK, "shares with a gap");
  is_str(e.text, "pp/F, reduce_scatter 2: the shares do not cover its 64 elements once", "say so");
  ok(COMM_LOCAL.reduce_scatter(b, q[1], &sum, twice, 2, NULL) != PIPER_OK, "shares that overlap");
  ranks_need(COMM_LOCAL.reduce_scatter(b, q[1], &sum, halves, 2, &err), &err);
  const Share others[] = {{0, 31}, {31, 64}};
  const CommSum mine = {x[0], x[0], false, 64, DT_F32};
  ok(COMM_LOCAL.reduce_scatter(a, q[0], &mine, others, 2, NULL) != PIPER_OK, "shares that differ");
  ranks_need(COMM_LOCAL.reduce_scatter(a, q[0], &mine, halves, 2, &err), &err);
  const Exchange to = {1, 2, 32, 8, true}, back = {1, 2, 32, 8, false}, wide = {1, 2, 64, 8, true},
                 odd = {1, 2, 36, 8, true};
  ranks_need(COMM_LOCAL.all_to_all(a, q[0], x[0], x[0] + 32, &to, 3, &err), &err);
  ranks_need(COMM_LOCAL.all_reduce(a, q[0], &mine, 4, &err), &err);
  e = (PiperErr){PIPER_OK, ""};
  ok(COMM_LOCAL.all_to_all(b, q[1], x[1], x[1] + 32, &back, 3, &e) != PIPER_OK, "another direction");
  is_str(e.text, "pp/F, all_to_all 3: rank 1 exchanges differently from another rank", "say so");
  ok(COMM_LOCAL.all_to_all(b, q[1], x[1], x[1] + 32, &wide, 3, NULL) != PIPER_OK, "other blocks");
  ok(COMM_LOCAL.all_to_all(b, q[1], x[1], x[1] + 32, &odd, 3, NULL) != PIPER_OK, "no whole rows");
  ranks_need(COMM_LOCAL.all_to_all(b, q[1], x[1], x[1] + 32, &to, 3, &err), &err);
  ok(COMM_LOCAL.all_to_all(b, q[1], x[1], x[1] + 32, &to, 4, NULL) != PIPER_OK,
     "an all_reduce is no all_to_all");
  ranks_close(&t);

  ranks_open(&t, 2);
  ranks_group(&t, 0, "pp/F", FORTH, 2);
  ok(COMM_LOCAL.connect(t.comm[0], &err) == PIPER_OK, "the first rank connects");
  e = (PiperErr){PIPER_OK, ""};
  ok(COMM_LOCAL.connect(t.comm[1], &e) != PIPER_OK, "the last sees who is missing");
  is_str(e.text, "pp/F: rank 1 never joined", "and says so");
  ranks_close(&t);
}

int main(void) {
  static const int32_t two[] = {0, 1}, back[] = {1, 0}, three[] = {2, 0, 1}, alone[] = {0},
                       eight[] = {7, 0, 3, 1, 2, 6, 5, 4};
  for (int single = 0; single < 2; single++) {
    round_trip(1, single, 0, 2000);
    round_trip(100, single, 300, 200);
    round_trip(200000, single, 0, 100); /* several pieces */
    round_trip(200000, single, 500, 30);
    sums(two, 2, 1000, DT_F32, 0, 200, single);
    sums(back, 2, 30001, DT_F64, 200, 10, single);
    sums(three, 3, 40003, DT_F32, 200, 10, single);
    sums(three, 3, 1, DT_F32, 200, 100, single);
    sums(eight, 8, 20000, DT_F32, 100, 5, single);
    sums(alone, 1, 100, DT_F64, 0, 10, single);
    sums(two, 2, 0, DT_F32, 0, 10, single);
  }
  for (int falling = 0; falling < 2; falling++) {
    shares(two, 2, 1000, DT_F32, falling, 0, 100);
    shares(three, 3, 40003, DT_F64, falling, 200, 5);
    shares(eight, 8, 3, DT_F32, falling, 100, 20); /* fewer elements than ranks */
    shares(eight, 8, 20001, DT_F32, falling, 0, 5);
    shares(alone, 1, 100, DT_F64, falling, 0, 5);
    shares(two, 2, 0, DT_F32, falling, 0, 5);
  }
  exchanges(two, 2, 3, 2, 4, 0, 100);
  exchanges(back, 2, 1, 5, 1, 200, 20);
  exchanges(three, 3, 2, 1, 7, 200, 20);
  exchanges(eight, 8, 1, 2, 3, 100, 10);
  exchanges(alone, 1, 2, 2, 2, 0, 10);
  ring(0, 500);
  ring(300, 100);
  failure(0, "a computation");
  failure(1, "an all_reduce");
  failure(2, "the last computation");
  failure(3, "a recv");
  mismatches();
  return done_testing();
}
