/* Pass zero: gathers of divided parameters, where they are needed and no more often. */
#include "ir/dag_text.h"
#include "lib/passes.h"

/* "F0 gathers 1 for F0 B0, after F1": the gathers of the DAG's text, one a line: the bucket, the compute
 * nodes it serves and the one it follows, each as stage, pass and microbatch. */
static const char *gathers(const Graph *g, int64_t batch, const TestStrategy *t) {
  static char out[4096];
  const char *text = passes_text(g, batch, t, "zero", false);
  PiperErr err = {0};
  Dag *d;
  size_t n = 0;
  if (dag_parse(g, text, &d, &err) != PIPER_OK) bail(err.text);
  out[0] = '\0';
  for (uint32_t i = 1; i < d->n; i++) {
    if (d->kind[i] != NODE_ALL_GATHER) continue;
    n += (size_t)snprintf(out + n, sizeof out - n, "bucket %u for", d->bucket[i]);
    for (size_t e = 1; e < d->edges.n; e++) {
      char label[64];
      if (d->edges.at[e].src != i) continue;
      dag_label(d, (NodeId){d->edges.at[e].dst}, label, sizeof label);
      n += (size_t)snprintf(out + n, sizeof out - n, " %s", label);
    }
    for (size_t e = 1; e < d->edges.n; e++) {
      char label[64];
      if (d->edges.at[e].dst != i) continue;
      dag_label(d, (NodeId){d->edges.at[e].src}, label, sizeof label);
      n += (size_t)snprintf(out + n, sizeof out - n, "%s %s",
                            d->edges.at[e].kind == EDGE_TEMPORAL ? ", after" : ", from", label);
    }
    n += (size_t)snprintf(out + n, sizeof out - n, "\n");
  }
  dag_free(d);
  return out;
}

static Directive *divided(TestStrategy *t, const char *filter, const char *devices) {
  strategy_place(t, filter, devices);
  Directive *x = strategy_replicate(t, filter, devices);
  x->zero = ZERO_PARAMS;
  return x;
}

int main(void) {
  TestStrategy t = {0};
  Graph *g = model_chain(1);
  strategy_split(&t, "", "MB", 2);
  divided(&t, "", "0,1");
  is_str(gathers(g, 4, &t), "bucket 1 for 0F0\nbucket 1 for 0F1, after 0B0\n",
         "a backward pass that reads no parameters has no gather, and no room to keep them");
  strategy_clear(&t);
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "", "0");
  strategy_replicate(&t, "", "0")->zero = ZERO_PARAMS;
  is_str(gathers(g, 4, &t), "", "one device has all of it");
  strategy_clear(&t);
  graph_free(g);

  g = model_chain(4);
  static const struct {
    uint32_t prefetch;
    int64_t keep;
    const char *want;
  } cases[] = {
      {0, 0,
       "bucket 1 for 0F0\n"
       "bucket 2 for 1F0, after 0F0\n"
       "bucket 3 for 2F0, after 1F0\n"
       "bucket 4 for 3F0 3B0, after 2F0\n"
       "bucket 3 for 2B0, after 3B0\n"
       "bucket 2 for 1B0, after 2B0\n"},
      {1, 0,
       "bucket 1 for 0F0\n"
       "bucket 2 for 1F0\n"
       "bucket 3 for 2F0 2B0, after 0F0\n"
       "bucket 4 for 3F0 3B0, after 1F0\n"
       "bucket 2 for 1B0, after 3B0\n"},
      {0, 64,
       "bucket 1 for 0F0\n"
       "bucket 2 for 1F0, after 0F0\n"
       "bucket 3 for 2F0 2B0, after 1F0\n"
       "bucket 4 for 3F0 3B0, after 2F0\n"
       "bucket 2 for 1B0, after 2B0\n"},
      {0, 1 << 20,
       "bucket 1 for 0F0\n"
       "bucket 2 for 1F0 1B0, after 0F0\n"
       "bucket 3 for 2F0 2B0, after 1F0\n"
       "bucket 4 for 3F0 3B0, after 2F0\n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Directive *x = divided(&t, "", "0,1");
    x->prefetch = cases[i].prefetch;
    x->keep_bytes = cases[i].keep;
    is_str(gathers(g, 4, &t), cases[i].want, "%u ahead, %d bytes more", (unsigned)x->prefetch,
           (int)x->keep_bytes);
    strategy_clear(&t);
  }

  /* Microbatches on two sets of devices: each gathers for itself. */
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "MB=0", "0,1");
  strategy_place(&t, "MB=1", "2,3");
  Directive *x = strategy_replicate(&t, "", "0,1,2,3");
  x->zero = ZERO_PARAMS;
  x->keep_bytes = 1 << 20;
  is_str(gathers(g, 8, &t),
         "bucket 1 for, from update l0.weight 0-3\n"
         "bucket 2 for, from update l1.weight 0-3\n"
         "bucket 3 for, from update l2.weight 0-3\n"
         "bucket 4 for, from update l3.weight 0-3\n"
         "bucket 1 for 0F0\n"
         "bucket 2 for 1F0 1B0, after 0F0\n"
         "bucket 3 for 2F0 2B0, after 1F0\n"
         "bucket 4 for 3F0 3B0, after 2F0\n"
         "bucket 1 for 0F1\n"
         "bucket 2 for 1F1 1B1, after 0F1\n"
         "bucket 3 for 2F1 2B1, after 1F1\n"
         "bucket 4 for 3F1 3B1, after 2F1\n",
         "each of two sets gathers for itself; what one of them updated goes to the other");
  strategy_clear(&t);

  /* Parameters that are not trained are divided as well. */
  graph_param(g, graph_find_param(g, "l3.weight"))->frozen = true;
  x = divided(&t, "", "0,1");
  x->keep_bytes = 1 << 20;
  is_str(gathers(g, 4, &t),
         "bucket 1 for 0F0\n"
         "bucket 2 for 1F0 1B0, after 0F0\n"
         "bucket 3 for 2F0 2B0, after 1F0\n"
         "bucket 4 for 3F0 3B0, after 2F0\n",
         "frozen parameters are gathered, too");
  strategy_clear(&t);
  graph_free(g);
  return done_testing();
}
