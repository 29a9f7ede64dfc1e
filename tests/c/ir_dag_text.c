#include "ir/dag_text.h"

#include "lib/stages.h"
#include "tap.h"

/* Two stages: x = v1, w0 = v2, layer0 = v3, its relu = v4; w1 = v5, layer1 = v6, v7, the loss v8. */
static const char EVERYTHING[] =
    "dag batch=24 dims=1\n"
    "bucket 1 [w0] chunk=1 trained holders=0-1 replicated reduce_stream=dp_stream "
    "line=\"a.lua:3\"\n"
    "bucket 2 [w1] holders=0-2 group=0-1 group=2 zero=3 per_microbatch prefetch=2 keep=64 "
    "gather_stream=ag\n"
    "1 compute F chunk=1 samples=0:12 devs=0-1 stream=default_stream tags={MB=0,PP=0} "
    "line=\"a.lua:4\"\n"
    "2 compute F chunk=2 samples=12:24 devs=2 tags={\"M B\"=0} mb=1 order=1 group=2 member=3 <- "
    "3:v4\n"
    "3 transfer F tensor=v4 src_samples=0:12 src_devs=1,0 samples=0:12 devs=2 stream=pp <- 1:v4\n"
    "4 compute B chunk=2 devs=0-2,8 <- 2:saved(2), 1~\"a.lua:9\", 8:-\n"
    "5 compute BI chunk=1 <- 4:grad(v4,2)\n"
    "6 compute BW chunk=1 <- 5:kept(1), 8~\"\"\n"
    "7 all_reduce bucket=1 tensor=bucket(1) devs=0-1 <- 6:bucket(1)\n"
    "8 join devs=2 stream=\"quo\\\"te\\\\ \\x0a\"\n"
    "9 norm bucket=1 devs=0 <- 7:bucket(1)\n"
    "10 update bucket=1 devs=0-1 <- 7:bucket(1), 11:metrics\n"
    "11 all_reduce tensor=metrics devs=0-2 <- 9:metrics\n"
    "12 count chunk=2 samples=0:12 devs=2\n"
    "13 all_reduce tensor=counts(2) devs=2 <- 12:counts(2)\n"
    "14 reduce_scatter B chunk=2 bucket=2 tensor=bucket(2) devs=0-1 mb=1 <- 4:bucket(2)\n"
    "15 all_gather bucket=2 tensor=params(2) devs=0-1 <- 10:params(2)\n"
    "16 all_to_all B chunk=1 tensor=grad(v4,2)/e samples=0:12 devs=0-1 parts=2 <- 4:v4/e\n";

static void prints(const Graph *g, const char *text, const char *want, const char *name) {
  PiperErr err = {0};
  Dag *d;
  char *got = NULL;
  if (dag_parse(g, text, &d, &err) == PIPER_OK) {
    if (dag_print(d, &got, &err) != PIPER_OK) bail(err.text);
    dag_free(d);
  }
  is_str(got != NULL ? got : err.text, want, "%s", name);
  free(got);
}

static void fields(const Graph *g) {
  PiperErr err = {0};
  Dag *d;
  if (dag_parse(g, EVERYTHING, &d, &err) != PIPER_OK) bail(err.text);
  is_int(d->n, 17, "nodes");
  is_int(d->batch, 24, "batch");
  is_int(d->n_dims, 1, "splits");
  ok(d->kind[2] == NODE_COMPUTE && d->pass[2] == PASS_F && d->chunk[2] == 2, "kind, pass, chunk");
  ok(d->lo[2] == 12 && d->hi[2] == 24 && d->mb[2] == 1, "samples and microbatch");
  ok(d->order_of[2] == 1 && d->group[2] == 2 && d->member[2] == 3, "place in an order");
  ok(d->src_lo[3] == 0 && d->src_hi[3] == 12, "samples of the sending side");
  is_int(devsets_position(d->devsets, d->src_devs[3], 0), 1, "a device list keeps its order");
  is_int(dag_tags_index(d, d->tags[1], intern_find(d->names, "PP")), 0, "tags");
  is_str(intern_text(d->names, d->stream[8]), "quo\"te\\ \n", "a quoted name");
  is_str(dag_line(d, d->line[1]), "a.lua:4", "script line");
  ok(d->parts[16] == 2 && d->tensors.at[d->tensor[16]].spread &&
         d->tensor[16] != d->tensor[5] && !d->tensors.at[d->tensor[3]].spread,
     "experts that are spread");
  const Bucket *b = &d->buckets.at[1];
  ok(b->trained && b->replicated && b->chunk.i == 1 && b->elements == 16 && b->n_params == 1,
     "a bucket and its elements");
  b = &d->buckets.at[2];
  ok(b->zero == ZERO_PARAMS && b->per_microbatch && b->prefetch == 2 && b->keep_bytes == 64,
     "what is divided, and when it is reduced and gathered");
  ok(b->n_groups == 2 && devsets_size(d->devsets, d->bucket_groups.at[b->group_first]) == 2,
     "groups of its holders");
  const ParamId w1 = graph_find_param(g, "w1");
  ok(d->home[w1.i].bucket.i == 2 && d->home[w1.i].offset == 0, "parameters know their bucket");
  is_int(d->edges.n, 18, "edges");
  const Edge *e = &d->edges.at[3];
  ok(e->src == 2 && e->dst == 4 && d->tensors.at[e->tensor].kind == TENSOR_SAVED, "a data edge");
  e = &d->edges.at[4];
  ok(e->src == 1 && e->dst == 4 && e->kind == EDGE_TEMPORAL &&
         strcmp(dag_line(d, e->line), "a.lua:9") == 0,
     "a temporal edge");
  dag_remove_edge(d, (EdgeId){1});
  char *got;
  if (dag_print(d, &got, &err) != PIPER_OK) bail(err.text);
  ok(strstr(got, "member=3\n") != NULL, "a removed edge is not printed");
  free(got);
  dag_free(d);
}

static void errors(const Graph *g) {
#define DAG "dag batch=24\n"
#define NODE "1 compute F "
  static const struct {
    const char *text, *want;
  } cases[] = {
      {"", "line 1, column 1: expected \"dag\""},
      {"graph", "line 1, column 6: the first line is: dag batch=N dims=N"},
      {"dag dims=2", "line 1, column 11: batch is at least 1"},
      {"dag size=2", "line 1, column 9: unknown field \"size\"; they are batch, dims and forward_only"},
      {"dag batch=9223372036854775808", "line 1, column 11: number above 9223372036854775807"},
      {"dag batch=24 dims=4294967296", "line 1, column 19: number above 4294967295"},
      {DAG "nonsense",
       "line 2, column 9: a line starts with \"bucket\" or with the number of a node"},
      {DAG "?", "line 2, column 1: expected a bucket or a node"},
      {DAG "# one\n\n 2 join", "line 4, column 3: the next node is 1"},
      {DAG "1 jump", "line 2, column 7: there is no kind of node \"jump\""},
      {DAG "1 compute X", "line 2, column 12: there is no pass \"X\""},
      {DAG NODE "chunk=3", "line 2, column 19: chunk 3 does not exist; they run from 1 to 2"},
      {DAG NODE "chunk=0", "line 2, column 19: chunk 0 does not exist; they run from 1 to 2"},
      {DAG NODE "chunk=", "line 2, column 19: expected a number"},
      {DAG NODE "bucket=1", "line 2, column 20: there is no bucket"},
      {DAG NODE "tensor=v9", "line 2, column 21: value 9 does not exist; they run from 1 to 8"},
      {DAG NODE "tensor=grad(v1)", "line 2, column 27: expected ','"},
      {DAG NODE "tensor=v1/f", "line 2, column 23: expected 'e'"},
      {DAG NODE "tensor=saved(1)/e", "line 2, column 28: a node has no field \"/e\""},
      {DAG NODE "parts=4294967296", "line 2, column 19: number above 4294967295"},
      {DAG NODE "tensor=w",
       "line 2, column 20: expected a tensor: v1, grad(v1,1), saved(1), kept(1), counts(1), "
       "bucket(1), params(1), metrics or -"},
      {DAG "bucket 1 [] zero=4", "line 2, column 18: number above 3"},
      {DAG NODE "color=1", "line 2, column 13: a node has no field \"color\""},
      {DAG NODE "samples=1", "line 2, column 22: expected ':'"},
      {DAG NODE "devs=0,1,0", "line 2, column 23: device 0 twice"},
      {DAG NODE "devs=3-1", "line 2, column 21: 1 comes before 3"},
      {DAG NODE "devs=65536", "line 2, column 18: number above 65535"},
      {DAG NODE "tags={A=1,A=2}", "line 2, column 24: tag A twice"},
      {DAG NODE "tags={\"\"=1}", "line 2, column 21: a tag without a name"},
      {DAG NODE "tags={A=2147483648}", "line 2, column 21: number above 2147483647"},
      {DAG NODE "line=\"a", "line 2, column 20: a name without its closing quote"},
      {DAG NODE "line=\"\\n\"", "line 2, column 20: expected \\\", \\\\ or \\xHH"},
      {DAG NODE "line=\"\\x00\"", "line 2, column 20: a name holds no NUL"},
      {DAG NODE "<- 1", "line 2, column 17: expected ':' and a tensor, or '~' and a script line"},
      {DAG NODE "<- 1:- mb=2", "line 2, column 20: expected ',' or the end of the line"},
      {DAG NODE "\n2 join <- 1:-, 3:-",
       "line 3, column 16: node 3 does not exist; they run from 1 to 2"},
      {DAG "1 join <- 0~\"\"", "line 2, column 11: node 0 does not exist; they run from 1 to 1"},
      {DAG NODE "\nbucket 1 []", "line 3, column 7: buckets stand before the nodes"},
      {DAG "bucket 2 []", "line 2, column 9: the next bucket is 1"},
      {DAG "bucket 1 [w9]", "line 2, column 11: the model has no parameter \"w9\""},
      {DAG "bucket 1 [x]", "line 2, column 11: the model has no parameter \"x\""},
      {DAG "bucket 1 [w0 w0]", "line 2, column 14: parameter w0 is in bucket 1 already"},
      {DAG "bucket 1 [w0", "line 2, column 13: expected a name"},
      {DAG "bucket 1 [] size=1", "line 2, column 17: a bucket has no field \"size\""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char want[256];
    PiperErr err = {0};
    Dag *d = NULL;
    snprintf(want, sizeof want, "DAG text, %s", cases[i].want);
    if (dag_parse(g, cases[i].text, &d, &err) == PIPER_OK) dag_free(d);
    is_str(err.text, want, "%s", cases[i].want);
  }
}

/* A short text that asks for many gigabytes of device lists. */
static void many_devices(const Graph *g) {
  static char text[200 * 32];
  size_t at = (size_t)snprintf(text, sizeof text, "dag batch=24 dims=0\n");
  for (int i = 0; i < 150; i++)
    at += (size_t)snprintf(text + at, sizeof text - at, "%d join devs=%d-65535\n", i + 1, i);
  PiperErr err = {0};
  Dag *d;
  is_int(dag_parse(g, text, &d, &err), PIPER_EUSER, "device lists are limited");
  is_str(err.text,
         "DAG text, line 66, column 22: the device lists have more than 4194304 devices in all",
         "and the limit is named");
  at = (size_t)snprintf(text, sizeof text, "dag batch=24 dims=0\n");
  for (int i = 0; i < 150; i++)
    at += (size_t)snprintf(text + at, sizeof text - at, "%d join devs=0-65535\n", i + 1);
  prints(g, text, text, "the same large list may come many times");
}

int main(void) {
  Graph *g = stages_graph(2, false);
  prints(g, EVERYTHING, EVERYTHING, "text to DAG to text is the identity");
  prints(g, "\n# a comment\n\tdag dims=0 batch=24 # more\r\n1 join devs=0,1,2 mb=0 samples=0:0\n",
         "dag batch=24 dims=0\n1 join devs=0-2\n", "other spellings print in the canonical one");
  prints(g, "dag batch=1 dims=0\n", "dag batch=1 dims=0\n", "a DAG of nothing");
  prints(g, "dag batch=1\n1 compute line=\"b\" tags={B=1,A=2} devs=1",
         "dag batch=1 dims=0\n"
         "1 compute devs=1 tags={A=2,B=1} line=\"b\"\n",
         "fields and tags are sorted");
  fields(g);
  errors(g);
  many_devices(g);
  graph_free(g);
  return done_testing();
}
