/* All passes, with each allocation in turn failing. */
#include "lib/models.h"
#include "lib/strategies.h"
#include "nomem.h"
#include "tap.h"

/* A stage of four chunks and one that adds their results up, a tied parameter, transfers between
 * sets of different size, reductions, backward passes in two, groups wide enough for a join, a
 * member of two chunks that only a walk finds convex, experts that are spread. */
static Graph *model(void) {
  Graph *g = model_new();
  const ValueId x = model_input(g, "x");
  ValueId h = x, sum = MODEL_NONE;
  model_enter(g, "PP");
  for (int i = 0; i < 4; i++) {
    char name[16];
    snprintf(name, sizeof name, "l%d", i % 3);
    model_enter(g, "LAYER");
    h = model_linear(g, name, i == 3 ? x : h);
    model_leave(g, "LAYER");
    if (i == 2) sum = h;
  }
  model_leave(g, "PP");
  model_enter(g, "PP");
  sum = model_op(g, OP_ADD, NULL, sum, model_linear(g, "last", h));
  sum = model_moe(g, "moe", sum, 2);
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, sum, MODEL_NONE));
  model_leave(g, "PP");
  return model_cut(g);
}

static void strategy(TestStrategy *t) {
  Directive *x = strategy_split(t, "", "MB", 4);
  x->schedule = 1;
  strategy_split(t, "PP=1", "PART", 2);
  strategy_place(t, "PP=0", "0,1");
  strategy_place(t, "PP=1", "2,3");
  strategy_shard(t, "EP=*", "2,3", 2);
  strategy_replicate(t, "PP=1 EP=false", "2,3");
  x = strategy_replicate(t, "PP=0", "0,1");
  x->zero = ZERO_PARAMS;
  x->per_microbatch = true;
  x->keep_bytes = 1 << 20; /* gathers that serve several passes */
  x = strategy_order(t, "LAYER=0,1 PASS=F;LAYER=2,3 PASS=F;PP=0 PASS=BI MB=0;"
                        "PP=0 PASS=BW MB=0|PP=0 PASS=B MB=1;PP=0 PASS=B MB=2,3");
  x->schedule = 1;
  strategy_order(t, "PP=1 PASS=F MB=0;PP=1 PASS=B MB=0");
}

/* A pass of the user's behind each built-in one, that uses every primitive there is for it. A
 * primitive that refuses is as good as one that works. */
static uint32_t n_split, n_gathered;
static PiperStatus use_primitives(void *context, uint32_t i, DagEdit *edit, PiperErr *err) {
  (void)context, (void)i;
  Dag *d = dag_edit_dag(edit);
  const Filter all = {0};
  U32Vec nodes = {0}, made = {0};
  PiperStatus st = PIPER_OK;
#define USE(call)                                                                                  \
  do {                                                                                             \
    PiperErr found = {0};                                                                          \
    if (st == PIPER_OK && (call) == PIPER_ENOMEM)                                                  \
      st = err_set(err, PIPER_ENOMEM, "%s", found.text);                                           \
  } while (0)
  USE(dag_edit_nodes(edit, &all, 1u << NODE_COMPUTE, &nodes, &found));
  for (size_t k = 0; k + 1 < nodes.n && k < 6; k++) {
    bool reaches;
    USE(dag_edit_tag(edit, (NodeId){nodes.at[k]}, "OWN", (int32_t)i, &found));
    USE(dag_edit_before(edit, (NodeId){nodes.at[k]}, (NodeId){nodes.at[k + 1]}, 0, &found));
    USE(dag_edit_reaches(edit, (NodeId){nodes.at[k]}, (NodeId){nodes.at[k + 1]}, &reaches, &found));
  }
  nodes.n = 0;
  USE(dag_edit_nodes(edit, &all,
                     1u << NODE_ALL_REDUCE | 1u << NODE_REDUCE_SCATTER | 1u << NODE_ALL_GATHER,
                     &nodes, &found));
  for (size_t k = 0; st == PIPER_OK && k < nodes.n; k++) {
    const NodeId n = {nodes.at[k]};
    const EdgeId last = dag_edit_next_out(edit, n, (EdgeId){0});
    uint32_t sources[64], n_sources = 0;
    for (EdgeId e = dag_edit_next_in(edit, n, (EdgeId){0}); e.i != 0;
         e = dag_edit_next_in(edit, n, e))
      if (d->edges.at[e.i].kind == EDGE_DATA && n_sources < 64)
        sources[n_sources++] = d->edges.at[e.i].src;
    USE(dag_edit_stream(edit, n, "own_stream", &found));
    made.n = 0;
    if (n_sources > 1)
      USE(dag_edit_split_reduction(edit, n, sources, (uint32_t[]){1, n_sources}, 2, &made, &found));
    n_split += made.n > 1;
    NodeId again = {0};
    if (last.i != 0)
      USE(dag_edit_gather_again(edit, n, (NodeId){d->edges.at[last.i].dst}, &again, &found));
    n_gathered += again.i != 0;
  }
  vec_free(&nodes);
  vec_free(&made);
  return st;
}

static void each_fails(const Graph *g, const Strategy *s, bool forward_only) {
  static const UserPass user[] = {{"early", "u.lua:1", "build"},
                                  {"middle", "u.lua:2", "replicate"},
                                  {"late", "u.lua:3", "zero"}};
  bool clean = true, struck = true;
  long n = 0;
  for (; struck; n++) {
    PiperErr err = {0};
    char *text = NULL;
    Dag *d = NULL;
    const PassOptions opt = {.float_bytes = 4,
                             .forward_only = forward_only,
                             .verify = true,
                             .user = {user, 3, use_primitives, NULL},
                             .dump_after = "order",
                             .dump = &text};
    nomem_at(n);
    const PiperStatus st = passes_run(g, 16, s, &opt, &d, &err);
    struck = nomem_struck();
    nomem_at(-1);
    if (st != (struck ? PIPER_ENOMEM : PIPER_OK)) {
      diag("allocation %ld: status %d, %s", n, (int)st, err.text);
      clean = false;
    }
    dag_free(d);
    free(text);
  }
  ok(clean, "each of %ld failures gives PIPER_ENOMEM%s", n - 1,
     forward_only ? ", forward only" : "");
  ok(n > 50, "there were failures");
}

int main(void) {
  Graph *g = model();
  TestStrategy t = {0};
  strategy(&t);
  const Strategy s = strategy_of(&t);
  each_fails(g, &s, false);
  each_fails(g, &s, true);
  ok(n_split > 0 && n_gathered > 0, "reductions were split, and gathers made");
  strategy_clear(&t);
  graph_free(g);
  return done_testing();
}
