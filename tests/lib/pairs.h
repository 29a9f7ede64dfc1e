/* pairs.h - overlapped pairs around experts: a V of two stages on one device set, each "x + l(x), then
 * experts", so that every pass is three chunks of compute with an exchange between them. */
#ifndef PIPER_TESTS_PAIRS_H
#define PIPER_TESTS_PAIRS_H

#include "lib/plans.h"

static inline Graph *pairs_model(void) {
  Graph *g = model_new();
  ValueId h = model_input(g, "x");
  for (int stage = 0; stage < 2; stage++) {
    char name[16];
    snprintf(name, sizeof name, "l%d", stage);
    model_enter(g, "PP");
    h = model_linear(g, name, h);
    snprintf(name, sizeof name, "moe%d", stage);
    h = model_op(g, OP_ADD, "sum", h, model_moe(g, name, h, 4));
    if (stage == 1) model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, h, MODEL_NONE));
    model_leave(g, "PP");
  }
  return model_cut(g);
}

/* Forward of each stage together with backward of the other; or the members one after the other. The
 * directives: split, place, replicate, shard over 'devices', order. */
static inline void pairs_strategy(TestStrategy *t, const char *devices, uint32_t n_devices, int n_mb,
                                  bool overlapped) {
  char text[4096], *to = text;
  to += sprintf(to, "PP=0 MB=0 PASS=F;PP=1 MB=0 PASS=F");
  const char *and = overlapped ? "|" : ";";
  for (int i = 0; i < n_mb; i++) {
    to += sprintf(to, ";");
    if (i + 1 < n_mb) to += sprintf(to, "PP=0 MB=%d PASS=F%s", i + 1, and);
    to += sprintf(to, "PP=1 MB=%d PASS=B;", i);
    if (i + 1 < n_mb) to += sprintf(to, "PP=1 MB=%d PASS=F%s", i + 1, and);
    to += sprintf(to, "PP=0 MB=%d PASS=B", i);
  }
  strategy_split(t, "", "MB", n_mb);
  strategy_place(t, "", devices);
  strategy_replicate(t, "", devices)->zero = ZERO_GRADS;
  strategy_shard(t, "EP=*", devices, n_devices);
  strategy_order(t, text);
}

#endif
