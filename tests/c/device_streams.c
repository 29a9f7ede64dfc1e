/* Streams and events of the CPU device: order within a stream, between streams, over many steps. */
#include "lib/ranks.h"

enum { N = 64, STEPS = 300 };

static PiperErr err;

#define RUN(s, c, label) ranks_need(DEVICE_CPU.run((s), &(c)->run, (label), &err), &err)
#define RECORD(s, e) ranks_need(DEVICE_CPU.record((s), (e), &err), &err)
#define WAIT(s, e) ranks_need(DEVICE_CPU.wait((s), (e), &err), &err)

static void fill(float *x, float v) {
  for (int i = 0; i < N; i++) x[i] = v;
}

static bool all(const float *x, float v) {
  for (int i = 0; i < N; i++) {
    if (x[i] != v) return false;
  }
  return true;
}

/* a += one; b = a on another stream; c += b back on the first: any missed wait gives a wrong sum. */
static void ping_pong(unsigned jitter_us, int steps) {
  static float one[N], a[N], b[N], c[N];
  Ranks t;
  Copy add, move, sum;
  double want = 0;
  bool right = true;
  ranks_open(&t, 1);
  t.jitter_us = jitter_us;
  DeviceStream *s = ranks_stream(&t, 0, "one", DEVICE_STREAM_COMPUTE);
  DeviceStream *u = ranks_stream(&t, 0, "two", DEVICE_STREAM_COMPUTE);
  DeviceEvent *there = ranks_event(&t, 0), *back = ranks_event(&t, 0);
  fill(one, 1);
  fill(a, 0);
  fill(b, -1);
  fill(c, 0);
  copy_make(&add, one, a, N, true);
  copy_make(&move, a, b, N, false);
  copy_make(&sum, b, c, N, true);
  ranks_connect(&t);
  ranks_capture(&t);
  RUN(s, &add, 0);
  RECORD(s, there);
  WAIT(u, there);
  RUN(u, &move, 1);
  RECORD(u, back);
  WAIT(s, back);
  RUN(s, &sum, 2);
  ranks_captured(&t);
  for (int i = 1; i <= steps; i++) {
    want += i;
    right = right && ranks_step(&t) && all(a, (float)i) && all(b, (float)i) && all(c, (float)want);
  }
  ok(right, "two streams hand over in each of %d steps (sleeps up to %u us)", steps, jitter_us);
  ranks_close(&t);
}

static void misuse(void) {
  Ranks t;
  Copy c;
  static float x[N], y[N];
  bool done = true;
  ranks_open(&t, 1);
  DeviceStream *s = ranks_stream(&t, 0, "s", DEVICE_STREAM_COMPUTE);
  DeviceStream *q = ranks_stream(&t, 0, "q", DEVICE_STREAM_COMM);
  DeviceEvent *e = ranks_event(&t, 0);
  copy_make(&c, x, y, N, false);
  ok(DEVICE_CPU.launch(t.dev[0], NULL) != PIPER_OK, "no launch without a capture");
  ok(DEVICE_CPU.run(s, &c.run, 0, NULL) != PIPER_OK, "no run outside a capture");
  ranks_connect(&t);
  ranks_capture(&t);
  ok(DEVICE_CPU.wait(s, e, NULL) != PIPER_OK, "no wait for an event that nobody recorded");
  ok(DEVICE_CPU.run(q, &c.run, 0, NULL) != PIPER_OK, "no computation on a communication stream");
  RECORD(s, e);
  ok(DEVICE_CPU.record(q, e, NULL) != PIPER_OK, "an event is recorded once");
  ranks_captured(&t);
  ranks_need(DEVICE_CPU.sync(t.dev[0], 0, &done, &err), &err);
  ok(done, "with no step under way sync is done at once");
  ok(ranks_step(&t), "a step that only records an event ends");
  ranks_close(&t);
}

static void memory(void) {
  Ranks t;
  ranks_open(&t, 1);
  Device *d = t.dev[0];
  void *a = DEVICE_CPU.alloc(d, 1000), *b = DEVICE_CPU.alloc(d, 0), *c = DEVICE_CPU.alloc(d, 24);
  ok(a != NULL && b != NULL && c != NULL, "memory, also none of it");
  ok((uintptr_t)a % 64 == 0 && (uintptr_t)c % 64 == 0, "aligned to 64 bytes");
  is_int(DEVICE_CPU.allocated(d), 1024, "counted as asked for");
  DEVICE_CPU.free(d, a);
  DEVICE_CPU.free(d, NULL);
  is_int(DEVICE_CPU.allocated(d), 24, "and given back");
  ok(DEVICE_CPU.alloc(d, UINT64_MAX) == NULL, "what does not fit is refused");
  ranks_close(&t);
}

/* Where a stream is, while another holds it up. */
static void position(void) {
  static float x[N], y[N];
  Ranks t;
  Copy c;
  bool begun, done = false;
  ranks_open(&t, 1);
  DeviceStream *s = ranks_stream(&t, 0, "s", DEVICE_STREAM_COMPUTE);
  DeviceStream *u = ranks_stream(&t, 0, "u", DEVICE_STREAM_COMPUTE);
  DeviceEvent *e = ranks_event(&t, 0);
  copy_make(&c, x, y, N, false);
  ranks_connect(&t);
  ranks_capture(&t);
  t.jitter_us = 0;
  RUN(s, &c, 7);
  RECORD(s, e);
  WAIT(u, e);
  RUN(u, &c, 8);
  ranks_captured(&t);
  pthread_mutex_lock(&t.lock); /* rank 0 fails at 7, and then blocks in ranks_fail */
  t.fault_rank = 0;
  t.fault_label = 7;
  t.fault_step = 1;
  atomic_store(&t.step, 1);
  ranks_need(DEVICE_CPU.launch(t.dev[0], &err), &err);
  for (begun = false; !begun;) DEVICE_CPU.position(s, &begun);
  is_int(DEVICE_CPU.position(s, &begun), 7, "a stream is at the instruction it has begun");
  is_int(DEVICE_CPU.position(u, &begun), 8, "another at the one that has to wait");
  ok(!begun, "which has not begun");
  ranks_need(DEVICE_CPU.sync(t.dev[0], 10, &done, &err), &err);
  ok(!done, "sync gives up after its time");
  pthread_mutex_unlock(&t.lock);
  while (atomic_load(&t.stop) == 0) continue;
  ranks_close(&t);
  is_int(t.failed_label, 7, "the failure carries the label");
}

static void no_streams(void) {
  Ranks t;
  ranks_open(&t, 2);
  ranks_stream(&t, 1, "q", DEVICE_STREAM_COMM);
  ranks_connect(&t);
  ranks_capture(&t);
  ranks_captured(&t);
  ok(ranks_step(&t) && ranks_step(&t), "devices with nothing to do, with and without a stream");
  ranks_close(&t);
}

int main(void) {
  ping_pong(0, STEPS * 10);
  ping_pong(300, STEPS);
  misuse();
  memory();
  position();
  no_streams();
  return done_testing();
}
