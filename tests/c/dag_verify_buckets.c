/* Every invariant of divided buckets, broken in the text of a DAG that holds. */
#include "ir/dag_text.h"
#include "ir/dag_verify.h"
#include "lib/passes.h"

enum { ALL = DAG_BUILT | DAG_PLACED | DAG_BUCKETED | DAG_ORDERED | DAG_COUNTED | DAG_GATHERED };

typedef struct Case {
  const char *find, *replace, *want;
} Case;

static char *copied(const char *s) {
  char *copy = malloc(strlen(s) + 1);
  if (copy == NULL) bail("no memory");
  return strcpy(copy, s);
}

/* 'text' with the first 'find' replaced. */
static char *edited(const char *text, const char *find, const char *replace) {
  const char *at = strstr(text, find);
  if (at == NULL) bail(find);
  char *out = malloc(strlen(text) + strlen(replace) + 1);
  if (out == NULL) bail("no memory");
  sprintf(out, "%.*s%s%s", (int)(at - text), text, replace, at + strlen(find));
  return out;
}

static void finds(const Graph *g, const char *text, const char *want) {
  PiperErr err = {0};
  Dag *d;
  if (dag_parse(g, text, &d, &err) != PIPER_OK) bail(err.text);
  dag_verify(d, ALL, &err);
  is_str(err.text, want, "%s", want[0] != '\0' ? want : "it holds");
  dag_free(d);
}

static void breaks(const Graph *g, const char *text, const Case *cases, size_t n) {
  finds(g, text, "");
  for (size_t i = 0; i < n; i++) {
    char *changed = edited(text, cases[i].find, cases[i].replace);
    finds(g, changed, cases[i].want);
    free(changed);
  }
}
#define BREAKS(g, text, cases) breaks((g), (text), (cases), sizeof(cases) / sizeof *(cases))

/* Two microbatches of one stage on devices 0 and 1. */
static char *one_stage(const Graph *g, uint8_t zero, bool per_microbatch) {
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "", "0,1");
  Directive *x = strategy_replicate(&t, "", "0,1");
  x->zero = zero;
  x->per_microbatch = per_microbatch;
  char *text = copied(passes_text(g, 4, &t, "zero", false));
  strategy_clear(&t);
  return text;
}

static void levels(void) {
  Graph *g = model_chain(1);
  static const Case divided[] = {
      {"9 all_gather bucket=1 tensor=params(1) devs=0-1", "9 join devs=0-1",
       "join 0-1 (node 9) does not take what it gets from update l0.weight 0-1 (node 8): "
       "parameters "
       "of a bucket"},
      {"6 reduce_scatter bucket=1", "6 all_reduce bucket=1",
       "all_reduce l0.weight 0-1 (node 6) should divide the gradients of bucket 1"},
      {" zero=1", "",
       "reduce_scatter l0.weight 0-1 (node 6) should keep whole the gradients of bucket 1"},
      {"7 norm bucket=1 devs=0-1", "7 norm bucket=1 devs=0",
       "norm l0.weight 0 (node 7) is not where each element of bucket 1 is updated once"},
      {"9 all_gather bucket=1 tensor=params(1) devs=0-1",
       "9 all_gather bucket=1 tensor=params(1) devs=0",
       "all_gather l0.weight 0 (node 9) gathers what was not divided"},
      {" <- 8:params(1)", "",
       "all_gather l0.weight 0-1 (node 9) gathers parameters that are not divided"},
      {"9 all_gather bucket=1 tensor=params(1) devs=0-1 stream=ag_stream",
       "9 all_gather bucket=1 tensor=bucket(1) devs=0-1 stream=ag_stream",
       "all_gather l0.weight 0-1 (node 9) does not take what it gets from update l0.weight 0-1 "
       "(node "
       "8): parameters of a bucket"},
      {"holders=0-1 replicated", "holders=0-1 group=0-1 replicated",
       "the groups of bucket 1 are not all of its holders"},
      {"holders=0-1 replicated", "holders=0-1 group=0 group=0 replicated",
       "groups 0 and 1 of bucket 1 have a rank in common"},
      {"holders=0-1 replicated", "holders=0-1 group=0 group=2 replicated",
       "group 1 of bucket 1 is not of its holders"},
      {"holders=0-1 replicated", "holders=0 replicated",
       "bucket 1 is held by one device, but divided or reduced"},
  };
  char *text = one_stage(g, ZERO_OPTIMIZER, false);
  BREAKS(g, text, divided);
  char *more = edited(text, "9 all_gather", "9 join devs=0\n10 all_gather");
  finds(g, more, "");
  free(more);
  free(text);

  static const Case each[] = {
      {"<- 4:bucket(1)\n", "<- 4:bucket(1), 2:bucket(1)\n", /* counted twice */
       "reduce_scatter l0.weight 0B1 0-1 (node 7) gets gradients of 0B0 (node 2) that are not reduced"},
      {" per_microbatch", "",
       "reduce_scatter l0.weight 0B1 0-1 (node 7) does what reduce_scatter l0.weight 0B0 0-1 (node "
       "6) does already"},
      {"6:bucket(1), 7:bucket(1)\n", "6:bucket(1)\n",
       "norm l0.weight 0-1 (node 8) does not get the reduced gradients"},
      {"7 reduce_scatter B chunk=1 bucket=1 tensor=bucket(1) devs=0-1",
       "7 reduce_scatter B chunk=1 bucket=1 tensor=bucket(1) devs=0",
       "reduce_scatter l0.weight 0B1 0 (node 7) is not on the devices that hold bucket 1"},
  };
  text = one_stage(g, ZERO_GRADS, true);
  BREAKS(g, text, each);
  free(text);

  static const Case gathered[] = {
      {"<- 9:params(1)", "", "0F0 (node 1) gets the parameters of bucket 1 0 times"},
      {"10:params(1)", "10:params(1), 9:params(1)",
       "0F1 (node 3) gets the parameters of bucket 1 2 times"},
      {"10:params(1)", "9:params(1)", "all_gather l0.weight 0F1 0-1 (node 10) serves nobody"},
      {"9 all_gather F chunk=1 bucket=1 tensor=params(1) devs=0-1",
       "9 all_gather F chunk=1 bucket=1 tensor=params(1) devs=0",
       "all_gather l0.weight 0F0 0 (node 9) gathers parameters that are not divided"},
  };
  text = one_stage(g, ZERO_PARAMS, false);
  BREAKS(g, text, gathered);
  free(text);
  graph_free(g);
}

/* A parameter of two stages, on devices 0 and 1, and 2 and 3 (or 2 to 4). */
static void groups(void) {
  Graph *g = model_new();
  model_enter(g, "PP");
  const ValueId w = model_param(g, "w", 4);
  const ValueId a = model_op(g, OP_LINEAR, NULL, model_input(g, "x"), w);
  model_leave(g, "PP");
  model_enter(g, "PP");
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, model_op(g, OP_LINEAR, NULL, a, w), MODEL_NONE));
  model_leave(g, "PP");
  model_cut(g);
  static const Case cases[] = {
      {"10 reduce_scatter bucket=1 tensor=bucket(1) devs=0-3",
       "10 reduce_scatter bucket=1 tensor=bucket(1) devs=0-1",
       "bucket 1 is held by several devices, but nothing reduces its gradients"},
      {"10 reduce_scatter", "10 all_reduce",
       "all_reduce w 0-3 (node 10) should divide the gradients of bucket 1"},
      {"11 norm bucket=1 devs=0-3", "11 norm bucket=1 devs=0-1",
       "norm w 0-1 (node 11) is not where each element of bucket 1 is updated once"},
      {"<- 4:bucket(1)", "",
       "reduce_scatter w 0B0 0-1 (node 8) reduces no backward pass"},
      {"<- 4:bucket(1)", "<- 3:bucket(1)",
       "gradients of 0B0 (node 4) do not reach reduce_scatter w 0B0 0-1 (node 8)"},
      {"8:bucket(1), 9:bucket(1)", "9:bucket(1)",
       "reduce_scatter w 0-3 (node 10) does not get the reduced gradients"},
      {"<- 12:params(1)", "", "all_gather w 0-3 (node 13) gathers parameters that are not divided"},
  };
  TestStrategy t = {0};
  strategy_place(&t, "PP=0", "0,1");
  strategy_place(&t, "PP=1", "2,3");
  for (int i = 0; i < 2; i++) {
    Directive *x = strategy_replicate(&t, i == 0 ? "PP=0" : "PP=1", i == 0 ? "0,1" : "2,3");
    x->zero = ZERO_GRADS;
    x->per_microbatch = true;
  }
  char *text = copied(passes_text(g, 4, &t, "zero", false));
  BREAKS(g, text, cases);
  free(text);
  strategy_clear(&t);
  graph_free(g);
}

int main(void) {
  levels();
  groups();
  return done_testing();
}
