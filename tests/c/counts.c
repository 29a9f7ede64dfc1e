/* Counts of targets, from the graph to the plan: which losses ask for them, the nodes that the pass adds,
 * and what the proofs of DAG and plan notice. What they are good for: tests/lua/ignore_index.lua. */
#include "ir/dag_text.h"
#include "ir/dag_verify.h"
#include "lib/passes.h"
#include "lib/plans.h"

static ValueId ids(Graph *g, const char *name) {
  PiperErr err = {0};
  ValueId v;
  const Shape shape = {.rank = 1, .batched = true, .dim = {1}};
  model_must(graph_add_input(g, name, &shape, DT_I32, model_line(g, g->ops.n), &v, &err), &err);
  return v;
}

static void loss(Graph *g, ValueId logits, ValueId targets, double ignore) {
  PiperErr err = {0};
  ValueId v;
  const OpSpec spec = {
      .kind = OP_CROSS_ENTROPY, .in = {logits, targets}, .attrs = {{0, ignore, 1}}};
  model_must(graph_add_op(g, &spec, model_line(g, g->ops.n), &v, &err), &err);
  model_loss(g, v);
}

/* Two stages, the second ends in the loss; ops are at m.lua:1, 2, 3. */
static Graph *two_stages(void) {
  Graph *g = model_new();
  const ValueId x = model_input(g, "x"), y = ids(g, "y");
  model_enter(g, "PP");
  ValueId h = model_linear(g, "l0", x);
  model_leave(g, "PP");
  model_enter(g, "PP");
  h = model_linear(g, "l1", h);
  loss(g, h, y, -100);
  model_leave(g, "PP");
  return model_cut(g);
}

static uint32_t count_of(const Graph *g, uint32_t n) { /* of the n-th loss, from 1 */
  const Value *v = graph_value(g, g->losses.at[n].value);
  return graph_op(g, v->op)->count;
}

static void who_counts(void) {
  Graph *g = two_stages();
  is_int(count_of(g, 1), 1, "a value that the data may hold besides the classes is counted");
  is_int(graph_chunk(g, (ChunkId){2})->n_counts, 1, "by the chunk of the loss");
  is_int(graph_chunk(g, (ChunkId){1})->n_counts, 0, "and no other");
  graph_free(g);

  g = model_new();
  ValueId x = model_input(g, "x"), y = ids(g, "y");
  loss(g, model_linear(g, "l", x), y, -100);
  loss(g, model_linear(g, "l", x), y, 3);
  loss(g, model_linear(g, "l", x), y, 4);
  model_cut(g);
  ok(count_of(g, 1) == 0 && count_of(g, 3) == 0,
     "losses that ignore different values: the data holds classes only");
  is_int(count_of(g, 2), 1, "a class may occur, so it is counted");
  graph_free(g);
}

#define COUNT_LINES                                                                                \
  "19 all_reduce tensor=counts(2) devs=1-2 stream=dp_stream line=\"m.lua:3\" "                     \
  "<- 20:counts(2), 21:counts(2)\n"                                                                \
  "20 count chunk=2 samples=0:4 devs=1-2 stream=default_stream tags={MB=0,PP=1} "                  \
  "line=\"m.lua:3\"\n"                                                                             \
  "21 count chunk=2 samples=4:8 devs=1-2 stream=default_stream tags={MB=1,PP=1} mb=1 "             \
  "line=\"m.lua:3\"\n"

static void stages_on(TestStrategy *t, bool replicas) {
  strategy_split(t, "", "MB", 2);
  strategy_place(t, "PP=0", "0");
  strategy_place(t, "PP=1", replicas ? "1,2" : "1");
  if (replicas) strategy_replicate(t, "PP=1", "1,2");
}

static void nodes(const Graph *g) {
  TestStrategy t = {0};
  stages_on(&t, true);
  const char *text = passes_text(g, 8, &t, "count", false), *at = strstr(text, "19 all_reduce");
  is_str(at != NULL ? at : text, COUNT_LINES,
         "a COUNT for each F, on its devices and samples, and one sum of all");
  ok(strstr(text, "2 compute F chunk=2 samples=0:4 devs=1-2 stream=default_stream "
                  "tags={MB=0,PP=1} line=\"m.lua:2\" <- 9:v4, 19:counts(2)\n") != NULL,
     "every F waits for the sum");
  strategy_clear(&t);
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "PP=0", "0");
  strategy_place(&t, "PP=1 MB=0", "1");
  strategy_place(&t, "PP=1 MB=1", "2");
  ok(strstr(passes_text(g, 8, &t, "count", false), "all_reduce tensor=counts(2) devs=1-2 ") != NULL,
     "it joins the device sets of all microbatches");
  strategy_clear(&t);
}

static void breaks(const Graph *g, const char *find, const char *replace, const char *want) {
  TestStrategy t = {0};
  stages_on(&t, true);
  char *text = strdup(passes_text(g, 8, &t, "count", false)), *edited = NULL;
  char *at = text != NULL ? strstr(text, find) : NULL;
  PiperErr err = {0};
  Dag *d = NULL;
  if (at == NULL || (edited = malloc(strlen(text) + strlen(replace) + 1)) == NULL) bail(find);
  memcpy(edited, text, (size_t)(at - text));
  strcpy(edited + (at - text), replace);
  strcat(edited, at + strlen(find));
  if (dag_parse(g, edited, &d, &err) != PIPER_OK) bail(err.text);
  dag_verify(d, DAG_BUILT | DAG_PLACED | DAG_BUCKETED | DAG_COUNTED, &err);
  is_str(err.text, want, "%s", want[0] != '\0' ? want : "the text is read as it was printed");
  dag_free(d);
  free(text), free(edited);
  strategy_clear(&t);
}

static void invariants(const Graph *g) {
  breaks(g, "dag", "dag", "");
  breaks(g, "20 count chunk=2", "20 count chunk=1",
         "count 0F0 (node 20) counts for a chunk that asks for no count");
  breaks(g, "20 count chunk=2 samples=0:4", "20 count chunk=2 samples=0:2",
         "count 1F0 (node 20) is not of the samples and devices of 1F0 (node 2)");
  breaks(g, "20:counts(2), ", "", "count 1F0 (node 20) does not reach all_reduce counts 1F 1-2 (node 19)");
  breaks(g, "9:v4, 19:counts(2)", "9:v4", "1F0 (node 2) does not get the counts of its chunk");
  breaks(g, "19 all_reduce tensor=counts(2) devs=1-2", "19 all_reduce tensor=counts(2) devs=1",
         "1F0 (node 2) is on devices that do not add up its counts");
  breaks(g, "20:counts(2)", "2:counts(2)",
         "1F0 (node 2) does not make what it gives to all_reduce counts 1F 1-2 (node 19): counts of "
         "targets");
}

static Instr *instr(Plan *p, int32_t rank, NodeKind kind, uint32_t k) {
  RankPlan *r = &p->ranks[plan_rank(p, rank) - p->ranks];
  for (uint32_t i = 0; i < r->instrs.n; i++)
    if (p->dag->kind[r->instrs.at[i].node] == kind && k-- == 0) return &r->instrs.at[i];
  bail("no such instruction");
  return NULL;
}

/* Instruction 'x' comes right after 'y', which it came before. */
static void put_off(Instr *x, Instr *y) {
  const Instr t = *x;
  for (; x < y; x++) x[0] = x[1];
  *y = t;
}

/* One that nobody waits for. */
static void drop(Plan *p, int32_t rank, const Instr *x) {
  RankPlan *r = &p->ranks[plan_rank(p, rank) - p->ranks];
  for (uint32_t i = (uint32_t)(x - r->instrs.at); i + 1 < r->instrs.n; i++)
    r->instrs.at[i] = r->instrs.at[i + 1];
  r->instrs.n--;
}

/* One queue a rank, so that instructions change places without more ado. */
static Plan *planned(const Graph *g, bool replicas) {
  TestStrategy t = {0};
  stages_on(&t, replicas);
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 8, .scheduled = true, .options.single_stream = true});
  strategy_clear(&t);
  return p;
}

/* The sentence is the name of the point as well. */
static void faulty(Plan *p, const char *want) {
  PiperErr err = {0};
  plan_verify(p, NULL, &err);
  is_str(err.text, want, "%s", want[0] != '\0' ? want : "the plan is proved");
  plan_free(p);
}

static void plans(const Graph *g) {
  Plan *p = planned(g, true);
  const RankPlan *r = plan_rank(p, 1);
  is_int(p->dag->kind[r->instrs.at[0].node], NODE_COUNT, "counting comes before everything else");
  is_int(p->dag->kind[r->instrs.at[1].node], NODE_COUNT, "of all microbatches");
  is_int(instr(p, 1, NODE_ALL_REDUCE, 0)->dtype, DT_F64, "counts are doubles");
  char label[128];
  plan_instr_label(p, r, 0, label, sizeof label);
  is_str(label, "rank 1, count 1F0 (m.lua:3)", "instructions are called by what they count for");
  faulty(p, "");
  p = planned(g, false);
  is_int(plan_rank(p, 1)->instrs.at[2].kind != INSTR_ALL_REDUCE, 1, "one rank has nothing to join");
  faulty(p, "");

  p = planned(g, false);
  put_off(instr(p, 1, NODE_COUNT, 1), instr(p, 1, NODE_COMPUTE, 0));
  faulty(p, "plan: rank 1, count 1F1 (m.lua:3) comes after rank 1, 1F0 (m.lua:2), which has summed or "
            "read the counts already");
  p = planned(g, true);
  drop(p, 1, instr(p, 1, NODE_ALL_REDUCE, 0));
  drop(p, 2, instr(p, 2, NODE_ALL_REDUCE, 0));
  faulty(p, "plan: rank 1 divides by a count that is not that of all ranks");
  p = planned(g, false);
  drop(p, 1, instr(p, 1, NODE_COUNT, 0));
  faulty(p, "plan: nothing counts the targets of sample 0 for the chunk at m.lua:2");
  p = planned(g, false);
  drop(p, 1, instr(p, 1, NODE_COUNT, 0));
  drop(p, 1, instr(p, 1, NODE_COUNT, 0));
  faulty(p, "plan: rank 1, 1F0 (m.lua:2) reads counts of targets that nothing has counted");
  p = planned(g, false);
  Instr *again = instr(p, 1, NODE_COUNT, 1);
  const Instr *first = instr(p, 1, NODE_COUNT, 0);
  RankPlan *one = &p->ranks[1];
  again->node = first->node;
  again->sample_lo = first->sample_lo;
  for (uint32_t k = 0; k < first->n_accesses; k++) {
    one->accesses.at[again->access_first + k] = one->accesses.at[first->access_first + k];
    one->bind_offset.at[again->bind_first + k] = one->bind_offset.at[first->bind_first + k];
  }
  faulty(p, "plan: rank 1, count 1F0 (m.lua:3) counts targets of samples [0, 4) again");
}

int main(void) {
  Graph *g = two_stages();
  who_counts();
  nodes(g);
  invariants(g);
  plans(g);
  graph_free(g);
  return done_testing();
}
