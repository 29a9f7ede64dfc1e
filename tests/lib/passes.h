/* passes.h - runs the passes on a model and a strategy, and compares the DAG's text or the
 * message. */
#ifndef PIPER_TESTS_PASSES_H
#define PIPER_TESTS_PASSES_H

#include "lib/models.h"
#include "lib/strategies.h"
#include "tap.h"

/* The DAG's text after a pass, or the message; good until the next call. */
static inline const char *passes_text(const Graph *g, int64_t batch, const TestStrategy *t,
                                      const char *pass, bool clip) {
  static char *text;
  static PiperErr err;
  free(text);
  text = NULL;
  err = (PiperErr){0};
  const PassOptions opt = {
      .float_bytes = 4, .clip = clip, .verify = true, .dump_after = pass, .dump = &text};
  const Strategy s = strategy_of(t);
  Dag *d;
  if (passes_run(g, batch, &s, &opt, &d, &err) != PIPER_OK) return err.text;
  dag_free(d);
  return text;
}

#define passes_give(g, batch, t, pass, want, ...)                                                  \
  is_str(passes_text((g), (batch), (t), (pass), false), (want), __VA_ARGS__)

/* The message, which is the name of the point as well; clears the strategy. */
#define passes_fail(g, batch, t, want)                                                             \
  (is_str(passes_text((g), (batch), (t), NULL, false), (want), "%s", (want)), strategy_clear(t))

#endif
