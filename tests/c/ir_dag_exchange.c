/* Experts that are spread: the DAG's text, and each invariant about them broken in it. */
#include "ir/dag_text.h"
#include "ir/dag_verify.h"
#include "lib/models.h"

enum { ALL = DAG_BUILT | DAG_PLACED | DAG_BUCKETED };

/* y = x + moe(x), four experts, and the sum of its squares: the blocks v12 of chunk 1 go to the
 * experts, chunk 2, and their v16 to chunk 3. On devices 0 and 1, and 2 and 3. */
static const char WHOLE[] =
    "dag batch=8 dims=0\n"
    "bucket 1 [moe.gate.weight] chunk=1 trained holders=0-3 replicated\n"
    "bucket 2 [moe.experts.0.weight moe.experts.1.weight] chunk=2 trained holders=0,2\n"
    "bucket 3 [moe.experts.2.weight moe.experts.3.weight] chunk=2 trained holders=1,3\n"
    "1 compute F chunk=1 samples=0:8 devs=0-3\n"
    "2 compute F chunk=2 samples=0:8 devs=0-3 parts=2 <- 7:v12/e\n"
    "3 compute F chunk=3 samples=0:8 devs=0-3 <- 1:v10, 1:v11, 8:v16\n"
    "4 compute B chunk=3 samples=0:8 devs=0-3 <- 3:saved(3)\n"
    "5 compute B chunk=2 samples=0:8 devs=0-3 parts=2 <- 2:saved(2), 9:grad(v16,3)/e\n"
    "6 compute B chunk=1 samples=0:8 devs=0-3 <- 1:saved(1), 4:grad(v11,3)\n"
    "7 all_to_all F chunk=2 tensor=v12 samples=0:8 devs=0-3 parts=2 <- 1:v12\n"
    "8 all_to_all F chunk=2 tensor=v16/e samples=0:8 devs=0-3 parts=2 <- 2:v16/e\n"
    "9 all_to_all B chunk=2 tensor=grad(v16,3) samples=0:8 devs=0-3 parts=2 <- 4:grad(v16,3)\n"
    "10 all_reduce tensor=metrics devs=0-3 <- 3:metrics, 12:metrics, 15:metrics, 18:metrics\n"
    "11 all_reduce bucket=1 tensor=bucket(1) devs=0-3 <- 6:bucket(1)\n"
    "12 norm bucket=1 devs=0 <- 11:bucket(1)\n"
    "13 update bucket=1 devs=0-3 <- 11:bucket(1)\n"
    "14 all_reduce bucket=2 tensor=bucket(2) devs=0,2 <- 5:bucket(2)\n"
    "15 norm bucket=2 devs=0 <- 14:bucket(2)\n"
    "16 update bucket=2 devs=0,2 <- 14:bucket(2)\n"
    "17 all_reduce bucket=3 tensor=bucket(3) devs=1,3 <- 5:bucket(3)\n"
    "18 norm bucket=3 devs=1 <- 17:bucket(3)\n"
    "19 update bucket=3 devs=1,3 <- 17:bucket(3)\n";

static Dag *parsed(const Graph *g, const char *text) {
  PiperErr err = {0};
  Dag *d;
  if (dag_parse(g, text, &d, &err) != PIPER_OK) bail(err.text);
  return d;
}

/* WHOLE with 'find', which is there, replaced everywhere: what dag_verify says. */
static void breaks(const Graph *g, const char *find, const char *replace, const char *want) {
  char text[2 * sizeof WHOLE], *to = text;
  const char *from = WHOLE;
  PiperErr err = {0};
  if (strstr(WHOLE, find) == NULL) bail(find);
  for (const char *at; (at = strstr(from, find)) != NULL; from = at + strlen(find))
    to += sprintf(to, "%.*s%s", (int)(at - from), from, replace);
  strcpy(to, from);
  Dag *d = parsed(g, text);
  const PiperStatus st = dag_verify(d, ALL, &err);
  is_str(err.text, want, "%s", want[0] != '\0' ? want : "holds");
  if (st != (want[0] != '\0' ? PIPER_EBUG : PIPER_OK)) ok(false, "status %d", st);
  dag_free(d);
}

static void shares(const Graph *g) {
  Dag *d = parsed(g, WHOLE);
  NodeShare s = dag_share(d, (NodeId){1}, 2);
  ok(s.lo == 4 && s.hi == 6 && s.parts <= 1, "a device has its samples");
  s = dag_share(d, (NodeId){2}, 2);
  ok(s.lo == 4 && s.hi == 8 && s.part == 0 && s.parts == 2,
     "where experts are spread, those of its group, and its part of the experts");
  s = dag_share(d, (NodeId){5}, 1);
  ok(s.lo == 0 && s.hi == 4 && s.part == 1 && s.parts == 2, "the second of a group the second");
  char label[128];
  dag_label(d, (NodeId){7}, label, sizeof label);
  is_str(label, "all_to_all blocks to experts 0F0 0-3", "the label of an exchange");
  dag_label(d, (NodeId){9}, label, sizeof label);
  is_str(label, "all_to_all grad made to experts 0B0 0-3", "of gradients");
  PiperErr err = {0};
  char *text = NULL;
  if (dag_print(d, &text, &err) != PIPER_OK) bail(err.text);
  is_str(text, WHOLE, "printed, the text is the same");
  free(text);
  dag_free(d);
}

int main(void) {
  Graph *g = model_new();
  model_enter(g, "PP");
  const ValueId x = model_input(g, "x");
  const ValueId y = model_op(g, OP_ADD, NULL, x, model_moe(g, "moe", x, 4));
  model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, y, MODEL_NONE));
  model_leave(g, "PP");
  model_cut(g);
  breaks(g, "dag", "dag", "");
  shares(g);
  static const struct {
    const char *find, *replace, *want;
  } cases[] = {
      {"2 compute F chunk=2 samples=0:8 devs=0-3 parts=2",
       "2 compute F chunk=2 samples=0:8 devs=0-3 parts=3",
       "0F0 (node 2) divides 4 experts into 3 parts"},
      {"1 compute F chunk=1 samples=0:8 devs=0-3",
       "1 compute F chunk=1 samples=0:8 devs=0-3 parts=2",
       "0F0 (node 1) divides 0 experts into 2 parts"},
      {"7 all_to_all F chunk=2 tensor=v12", "7 all_to_all F chunk=2 tensor=saved(2)",
       "all_to_all ? to experts 0F0 0-3 (node 7) moves what is neither a value nor a gradient of "
       "one"},
      {"7 all_to_all F chunk=2 tensor=v12", "7 all_to_all F tensor=v12",
       "all_to_all blocks to experts -F0 0-3 (node 7) has no chunk"},
      {"7 all_to_all F chunk=2 tensor=v12 samples=0:8 devs=0-3 parts=2",
       "7 all_to_all F chunk=2 tensor=v12 samples=0:8 devs=0-3",
       "all_to_all blocks to experts 0F0 0-3 (node 7) divides 4 experts into 0 parts"},
      {"7 all_to_all F chunk=2 tensor=v12", "7 all_to_all F chunk=2 tensor=v12/e",
       "all_to_all blocks from experts 0F0 0-3 (node 7) does not make what it gives to 0F0 (node "
       "2): a value"},
      {"<- 7:v12/e", "<- 7:v12",
       "all_to_all blocks to experts 0F0 0-3 (node 7) does not make what it gives to 0F0 (node 2): "
       "a value"},
      {"<- 7:v12/e", "<- 1:v12",
       "0F0 (node 2) does not take what it gets from 0F0 (node 1): a value"},
      {"<- 1:v12\n", "<- 1:v12/e\n",
       "0F0 (node 1) does not make what it gives to all_to_all blocks to experts 0F0 0-3 (node 7): "
       "a value"},
      {"<- 7:v12/e", "", "0F0 (node 2) does not get value 12 of sample 0"},
      {"<- 1:v12\n", "\n", "0F0 (node 2) does not get value 12 of sample 0"},
      {"8:v16\n", "2:v16/e\n",
       "0F0 (node 3) does not take what it gets from 0F0 (node 2): a value"},
      {"8:v16\n", "8:v16/e\n",
       "all_to_all made from experts 0F0 0-3 (node 8) does not make what it gives to 0F0 (node 3): "
       "a value"},
      {"7 all_to_all F chunk=2 tensor=v12 samples=0:8 devs=0-3 parts=2",
       "7 all_to_all F chunk=2 tensor=v12 samples=0:8 devs=0-3 parts=4",
       "all_to_all blocks to experts 0F0 0-3 (node 7) exchanges for other experts than those of "
       "0F0 (node 2)"},
      {"7 all_to_all F chunk=2 tensor=v12 samples=0:8",
       "7 all_to_all F chunk=2 tensor=v12 samples=0:4",
       "all_to_all blocks to experts 0F0 0-3 (node 7) exchanges for other experts than those of "
       "0F0 (node 2)"},
      {"7 all_to_all F chunk=2 tensor=v12 samples=0:8 devs=0-3",
       "7 all_to_all F chunk=2 tensor=v12 samples=0:8 devs=0,2,1,3",
       "all_to_all blocks to experts 0F0 0,2,1,3 (node 7) exchanges for other experts than those "
       "of 0F0 (node 2)"},
      {"devs=0-3 parts", "devs=0,2,1,3 parts",
       "0F0 (node 3) gets from all_to_all made from experts 0F0 0,2,1,3 (node 8), without a "
       "transfer, what is on other ranks"},
      {"devs=0-3 parts", "devs=0 parts", "the devices of 0F0 (node 2) are not groups of 2"},
      {"holders=0,2", "holders=0", "bucket 2 is held by one device, but reduced"},
      {"bucket 2 [moe.experts.0.weight moe.experts.1.weight]", "bucket 2 [moe.experts.0.weight]",
       "parameter moe.experts.1.weight is in no bucket"},
      {"[moe.experts.2.weight moe.experts.3.weight] chunk=2 trained holders=1,3",
       "[moe.experts.2.weight moe.experts.3.weight] chunk=2 trained holders=0,2",
       "update moe.experts.2.weight.. 1,3 (node 19) is not on the devices that hold bucket 3"},
      {"moe.experts.1.weight] chunk=2 trained holders=0,2\nbucket 3 [moe.experts.2.weight",
       "moe.experts.2.weight] chunk=2 trained holders=0,2\nbucket 3 [moe.experts.1.weight",
       "bucket 2 is not of one part of the experts of 0F0 (node 2)"},
      {"17 all_reduce bucket=3 tensor=bucket(3) devs=1,3 <- 5:bucket(3)",
       "17 all_reduce bucket=3 tensor=bucket(3) devs=1,3",
       "gradients of 0B0 (node 5) do not reach all_reduce moe.experts.2.weight.. 1,3 (node 17)"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    breaks(g, cases[i].find, cases[i].replace, cases[i].want);
  graph_free(g);
  return done_testing();
}
