/* A DAG that holds, and then each invariant broken in its text. */
#include "ir/dag_verify.h"

#include "ir/dag_text.h"

#include <time.h>

#include "lib/stages.h"
#include "tap.h"

enum { ALL = DAG_BUILT | DAG_PLACED | DAG_BUCKETED | DAG_ORDERED };

/* Two stages, y = v4 between them; two microbatches, of which the second splits its backward pass;
 * stage 0 on devices 0 and 1, stage 1 on device 2. */
static const char WHOLE[] =
    "dag batch=8 dims=1\n"
    "bucket 1 [w0] chunk=1 trained holders=0-1\n"
    "bucket 2 [w1] chunk=2 trained holders=2\n"
    "1 compute F chunk=1 samples=0:4 devs=0-1\n"
    "2 compute F chunk=1 samples=4:8 devs=0-1 mb=1\n"
    "3 compute F chunk=2 samples=0:4 devs=2 <- 10:v4\n"
    "4 compute F chunk=2 samples=4:8 devs=2 mb=1 <- 11:v4\n"
    "5 compute B chunk=2 samples=0:4 devs=2 <- 3:saved(2)\n"
    "6 compute BI chunk=2 samples=4:8 devs=2 mb=1 <- 4:saved(2), 5~\"t.lua:9\"\n"
    "7 compute BW chunk=2 samples=4:8 devs=2 mb=1 <- 4:saved(2), 6:kept(2)\n"
    "8 compute B chunk=1 samples=0:4 devs=0-1 <- 1:saved(1), 12:grad(v4,2)\n"
    "9 compute B chunk=1 samples=4:8 devs=0-1 mb=1 <- 2:saved(1), 13:grad(v4,2)\n"
    "10 transfer F tensor=v4 src_samples=0:4 src_devs=0-1 samples=0:4 devs=2 <- 1:v4\n"
    "11 transfer F tensor=v4 src_samples=4:8 src_devs=0-1 samples=4:8 devs=2 mb=1 <- 2:v4\n"
    "12 transfer B tensor=grad(v4,2) src_samples=0:4 src_devs=2 samples=0:4 devs=0-1 "
    "<- 5:grad(v4,2)\n"
    "13 transfer B tensor=grad(v4,2) src_samples=4:8 src_devs=2 samples=4:8 devs=0-1 mb=1 "
    "<- 6:grad(v4,2)\n"
    "14 all_reduce tensor=metrics devs=0-2 <- 3:metrics, 4:metrics, 16:metrics, 18:metrics\n"
    "15 all_reduce bucket=1 tensor=bucket(1) devs=0-1 <- 8:bucket(1), 9:bucket(1)\n"
    "16 norm bucket=1 devs=0 <- 15:bucket(1)\n"
    "17 update bucket=1 devs=0-1 <- 15:bucket(1)\n"
    "18 norm bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)\n"
    "19 update bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)\n";

/* The text with 'find', which is there, replaced; NULL: as it is. */
static char *edited(const char *text, const char *find, const char *replace) {
  char *out = malloc(strlen(text) + (find != NULL ? strlen(replace) : 0) + 1);
  const char *at = find != NULL ? strstr(text, find) : text + strlen(text);
  if (out == NULL || at == NULL) bail(find);
  memcpy(out, text, (size_t)(at - text));
  strcpy(out + (at - text), find != NULL ? replace : "");
  if (find != NULL) strcat(out, at + strlen(find));
  return out;
}

static Dag *parsed(const Graph *g, const char *text) {
  PiperErr err = {0};
  Dag *d;
  if (dag_parse(g, text, &d, &err) != PIPER_OK) bail(err.text);
  return d;
}

/* Verifies and frees it. */
static void finds(Dag *d, unsigned stages, const char *want) {
  PiperErr err = {0};
  const PiperStatus st = dag_verify(d, stages, &err);
  is_str(err.text, want, "%s", want[0] != '\0' ? want : "holds");
  if (st != (want[0] != '\0' ? PIPER_EBUG : PIPER_OK)) ok(false, "status %d", st);
  dag_free(d);
}

static void breaks(const Graph *g, const char *base, const char *find, const char *replace,
                   unsigned stages, const char *want) {
  char *text = edited(base, find, replace);
  finds(parsed(g, text), stages, want);
  free(text);
}

static void whole(const Graph *g) {
  breaks(g, WHOLE, NULL, NULL, ALL, "");
  /* With clipping all updates wait for the metrics. */
  char *clipped = edited(WHOLE, "17 update bucket=1 devs=0-1 <- ",
                         "17 update bucket=1 devs=0-1 <- 14:metrics, ");
  breaks(g, clipped, "19 update bucket=2 devs=2 <- ", "19 update bucket=2 devs=2 <- 14:metrics, ",
         ALL, "");
  breaks(g, clipped, NULL, NULL, ALL, "1 of 2 updates wait for the metrics: all do, or none");
  free(clipped);
  /* A join of an order. */
  breaks(g, WHOLE, "19 update bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)\n",
         "19 update bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)\n20 join devs=2 <- 4~\"t.lua:9\"\n",
         ALL, "");
}

static void kinds(const Graph *g) {
  static const struct {
    const char *find, *replace, *want;
  } cases[] = {
      {"1 compute F chunk=1", "1 compute F", "-F0 (node 1) has no chunk"},
      {"1 compute F", "1 compute", "0?0 (node 1) has no pass"},
      {"samples=0:4 devs=0-1\n", "samples=0:0 devs=0-1\n",
       "0F0 (node 1) works on samples 0 to 0, which are not in the batch of 8"},
      {"samples=4:8", "samples=4:9",
       "0F1 (node 2) works on samples 4 to 9, which are not in the batch of 8"},
      {"10 transfer F tensor=v4", "10 transfer F tensor=saved(1)",
       "transfer ? 0-1>2 (node 10) "
       "moves what is neither a value nor a gradient of one"},
      {"src_samples=0:4", "src_samples=4:0",
       "transfer relu.4 0F0 0-1>2 (node 10), sending, works on "
       "samples 4 to 0, which are not in the batch of 8"},
      {"bucket=1 tensor=bucket(1)", "bucket=1 tensor=bucket(2)",
       "all_reduce w1 0-1 (node 15) reduces neither its bucket, nor the metrics, nor counts"},
      {"16 norm bucket=1", "16 norm", "norm bucket 0 0 (node 16) has no bucket"},
      {"17 update bucket=1", "17 update", "update bucket 0 0-1 (node 17) has no bucket"},
      {"<- 10:v4", "<- 5:v4", "1B0 (node 5) does not make what it gives to 1F0 (node 3): a value"},
      {"<- 10:v4", "<- 10:v3",
       "transfer relu.4 0F0 0-1>2 (node 10) does not make what it gives to 1F0 (node 3): a value"},
      {"5 compute B chunk=2 samples=0:4 devs=2 <- ",
       "5 compute B chunk=2 samples=0:4 devs=2 <- 10:v4, ",
       "1B0 (node 5) does not take what it gets from transfer relu.4 0F0 0-1>2 (node 10): a value"},
      {"10:v4", "10:v4, 10:grad(v4,2)",
       "transfer relu.4 0F0 0-1>2 (node 10) does not make what it gives "
       "to 1F0 (node 3): the gradient of a value"},
      {"12:grad(v4,2)", "7:grad(v4,2)",
       "1W1 (node 7) does not make what it gives to 0B0 (node 8): the "
       "gradient of a value"},
      {"3:saved(2)", "3:saved(2), 5:grad(v4,2)",
       "1B0 (node 5) does not take what it gets from 1B0 (node "
       "5): the gradient of a value"},
      {"1:saved(1)", "2:saved(2)",
       "0F1 (node 2) does not make what it gives to 0B0 (node 8): what a "
       "forward pass saves"},
      {"3:saved(2)", "1:saved(1)",
       "1B0 (node 5) does not take what it gets from 0F0 (node 1): what a "
       "forward pass saves"},
      {"6:kept(2)", "5:kept(2)",
       "1B0 (node 5) does not make what it gives to 1W1 (node 7): what a "
       "backward pass keeps"},
      {"10:v4", "10:v4, 6:kept(2)",
       "1F0 (node 3) does not take what it gets from 1I1 (node 6): what a "
       "backward pass keeps"},
      {"5:bucket(2), 7", "6:bucket(2), 7",
       "1I1 (node 6) does not make what it gives to norm w1 2 (node "
       "18): gradients of a bucket"},
      {"8:bucket(1), 9", "8:bucket(2), 9",
       "all_reduce w0 0-1 (node 15) does not take what it gets from "
       "0B0 (node 8): gradients of a bucket"},
      {"16 norm bucket=1 devs=0 <- 15", "16 norm bucket=2 devs=0 <- 15",
       "norm w1 0 (node 16) does not "
       "take what it gets from all_reduce w0 0-1 (node 15): gradients of a bucket"},
      {"3:metrics", "1:metrics",
       "0F0 (node 1) does not make what it gives to all_reduce metrics 0-2 "
       "(node 14): metrics"},
      {"16 norm bucket=1 devs=0 <- ", "16 norm bucket=1 devs=0 <- 14:metrics, ",
       "norm w0 0 (node 16) "
       "does not take what it gets from all_reduce metrics 0-2 (node 14): metrics"},
      {"5~\"t.lua:9\"", "7~\"t.lua:9\"",
       "there is a cycle: t.lua:9: order: 1W1 is ordered before 1I1, but has "
       "to wait for it: 1I1 -> 1W1 -> (order, t.lua:9) 1I1"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    breaks(g, WHOLE, cases[i].find, cases[i].replace, 0, cases[i].want);
}

/* These come with DAG_BUILT. */
static void built(const Graph *g) {
  static const struct {
    const char *find, *replace, *want;
  } cases[] = {
      {"3:saved(2)", "4:saved(2)",
       "what 1F1 (node 4) keeps for 1B0 (node 5) is of other samples, of "
       "another microbatch or on other devices"},
      {"8 compute B chunk=1 samples=0:4 devs=0-1", "8 compute B chunk=1 samples=0:4 devs=1,0",
       "what 0F0 "
       "(node 1) keeps for 0B0 (node 8) is of other samples, of another microbatch or on other "
       "devices"},
      {"7 compute BW chunk=2 samples=4:8 devs=2 mb=1", "7 compute BW chunk=2 samples=4:8 devs=2",
       "what 1F1 (node 4) keeps for 1W0 (node 7) is of other samples, of another microbatch or on "
       "other "
       "devices"},
      {"3 compute F chunk=2 samples=0:4 devs=2 <- 10:v4", "3 compute F chunk=2 samples=0:4 devs=2",
       "1F0 (node 3) does not get value 4 of sample 0"},
      {"<- 10:v4", "<- 1:v3, 10:v4",
       "1F0 (node 3) gets from 0F0 (node 1) what its chunk does not read"},
      {"10:v4", "10:v4, 1:v4", "1F0 (node 3) gets value 4 of sample 0 twice"},
      {"10:v4", "11:v4", "1F0 (node 3) gets from 0F1 (node 2) nothing of its own samples"},
      {"0:4 devs=2 <- 1:v4", "0:4 devs=2", "nothing enters transfer relu.4 0F0 0-1>2 (node 10)"},
      {"1:saved(1), 12:grad(v4,2)", "1:saved(1)",
       "0B0 (node 8) does not get the gradient of value 4 of sample 0"},
      {"<- 3:saved(2)", "", "1B0 (node 5) gets what its forward pass saved 0 times"},
      {"3:saved(2)", "3:saved(2), 3:saved(2)", "1F0 (node 3) gives the same to 1B0 (node 5) twice"},
      {"4:saved(2), 6:kept(2)", "4:saved(2)", "1W1 (node 7) gets what its BI kept 0 times"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    breaks(g, WHOLE, cases[i].find, cases[i].replace, ALL, cases[i].want);

  /* Microbatches that do not cover the batch. */
  static const char HALF[] =
      "dag batch=8\n1 compute F chunk=1 samples=0:4\n"
      "2 compute F chunk=1 samples=4:8 mb=1\n3 compute F chunk=2 samples=0:8\n";
  breaks(g, HALF, "4:8", "3:8", DAG_BUILT, "0F0 (node 1) and 0F1 (node 2) both work on sample 3");
  breaks(g, HALF, "4:8", "5:8", DAG_BUILT, "no F of chunk 1 works on sample 4");
  breaks(g, HALF, "4:8", "4:7", DAG_BUILT, "no F of chunk 1 works on sample 7");
  breaks(g, HALF, "chunk=2 samples=0:8", "chunk=2 samples=1:8", DAG_BUILT,
         "no F of chunk 2 works on sample 0");
  breaks(g, HALF, NULL, NULL, DAG_BUILT, "no B or BI of chunk 1 works on sample 0");
  breaks(g, HALF, NULL, NULL, 0, "");
  breaks(g, WHOLE, "7 compute BW", "7 compute BI", DAG_BUILT,
         "1I1 (node 7) does not take what it gets from 1I1 (node 6): what a backward pass keeps");
  char *two = edited(WHOLE, ", 6:kept(2)", "");
  breaks(g, two, "7 compute BW", "7 compute BI", DAG_BUILT,
         "1I1 (node 7) does not make what it gives to norm w1 2 (node 18): gradients of a bucket");
  free(two);
}

static void placed(const Graph *g) {
  static const struct {
    const char *find, *replace, *want;
  } cases[] = {
      {"14 all_reduce tensor=metrics devs=0-2", "14 all_reduce tensor=metrics",
       "all_reduce metrics (node 14) is on no device"},
      {"10 transfer F tensor=v4 src_samples=0:4 src_devs=0-1",
       "10 transfer F tensor=v4 src_samples=0:4",
       "transfer relu.4 0F0 ?>2 (node 10), sending, is on no device"},
      {"samples=0:4 devs=2 <- 1:v4", "samples=0:4 devs=1-3 <- 1:v4",
       "4 samples of transfer relu.4 0F0 "
       "0-1>1-3 (node 10), receiving, do not divide over 3 devices"},
      {"src_samples=0:4 src_devs=0-1", "src_samples=0:2 src_devs=0-1",
       "the sending side of transfer relu.4 0F0 0-1>2 (node 10) is not that of 0F0 (node 1)"},
      {"src_samples=0:4 src_devs=0-1", "src_samples=0:4 src_devs=1,0",
       "the sending side of transfer relu.4 0F0 1,0>2 (node 10) is not that of 0F0 (node 1)"},
      {"samples=0:4 devs=2 <- 1:v4", "samples=0:4 devs=3 <- 1:v4",
       "the receiving side of transfer relu.4 0F0 0-1>3 (node 10) is not that of 1F0 (node 3)"},
      {"samples=0:4 devs=2 <- 1:v4", "samples=0:4 devs=2 <- 1:v4, 1:v4",
       "0F0 (node 1) gives the same to transfer relu.4 0F0 0-1>2 (node 10) twice"},
      {"5~\"t.lua:9\"", "1~\"t.lua:9\"",
       "0F0 (node 1) is ordered before 1I1 (node 6), but they share no rank"},
      {"<- 10:v4", "<- 1:v4", "transfer relu.4 0F0 0-1>2 (node 10) moves what nobody takes"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    breaks(g, WHOLE, cases[i].find, cases[i].replace, ALL, cases[i].want);

  /* Values that stay on their ranks need no transfer, others do. Samples 0:4 of chunk 1 are on
   * device 0, 4:8 on device 1. */
  static const char LOCAL[] =
      "dag batch=8\n1 compute F chunk=1 samples=0:8 devs=0-1\n"
      "2 compute F chunk=2 samples=0:4 devs=0 <- 1:v4\n"
      "3 compute F chunk=2 samples=4:8 devs=1 mb=1 <- 1:v4\n"
      "4 compute B chunk=2 samples=0:4 devs=0 <- 2:saved(2)\n"
      "5 compute B chunk=2 samples=4:8 devs=1 mb=1 <- 3:saved(2)\n"
      "6 compute B chunk=1 samples=0:8 devs=0-1 <- 1:saved(1), 4:grad(v4,2), 5:grad(v4,2)\n";
  breaks(g, LOCAL, NULL, NULL, DAG_BUILT | DAG_PLACED, "");
  char *moved = edited(LOCAL, "samples=0:4 devs=0 <- 1:v4", "samples=0:4 devs=1 <- 1:v4");
  breaks(g, moved, "samples=0:4 devs=0 <- 2:saved(2)", "samples=0:4 devs=1 <- 2:saved(2)",
         DAG_BUILT | DAG_PLACED,
         "1F0 (node 2) gets from 0F0 (node 1), without a transfer, what is on other ranks");
  free(moved);
  breaks(g, LOCAL, "5:grad(v4,2)", "4:grad(v4,2)", DAG_BUILT | DAG_PLACED,
         "1B0 (node 4) gives the same to 0B0 (node 6) twice");
}

static void bucketed(const Graph *g) {
  static const struct {
    const char *find, *replace, *want;
  } cases[] = {
      {"bucket 1 [w0] ", "bucket 1 [] ", "parameter w0 is in no bucket"},
      {"bucket 1 [w0] chunk=1 trained", "bucket 1 [w0] chunk=1",
       "parameter w0 is trained, bucket 1 is not"},
      {"bucket 1 [w0] chunk=1", "bucket 1 [w0] chunk=2",
       "bucket 1 is of chunk 2, but its parameter w0 is read by another one"},
      {"trained holders=0-1", "trained", "bucket 1 is held by no device"},
      {"19 update bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)\n",
       "19 update bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)\n20 update bucket=2 devs=2\n",
       "update w1 2 (node 20) does what update w1 2 (node 19) does already"},
      {"19 update bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)\n", "", "bucket 2 has no UPDATE"},
      {"bucket 2 [w1] chunk=2 trained holders=2", "bucket 2 [w1] chunk=2 trained holders=2-3",
       "bucket 2 is held by several devices, but nothing reduces its gradients"},
      {"bucket 1 [w0] chunk=1 trained holders=0-1", "bucket 1 [w0] chunk=1 trained holders=0",
       "bucket 1 is held by one device, but reduced"},
      {"17 update bucket=1 devs=0-1", "17 update bucket=1 devs=0",
       "update w0 0 (node 17) is not on the devices that hold bucket 1"},
      {"15 all_reduce bucket=1 tensor=bucket(1) devs=0-1",
       "15 all_reduce bucket=1 tensor=bucket(1) devs=0-2",
       "all_reduce w0 0-2 (node 15) is not on the devices that hold bucket 1"},
      {"16 norm bucket=1 devs=0", "16 norm bucket=1 devs=1",
       "norm w0 1 (node 16) is not on the first holder of bucket 1"},
      {"16 norm bucket=1 devs=0 <- 15:bucket(1)", "16 norm bucket=1 devs=0",
       "norm w0 0 (node 16) does not get the reduced gradients"},
      {"17 update bucket=1 devs=0-1 <- 15:bucket(1)", "17 update bucket=1 devs=0-1",
       "update w0 0-1 (node 17) does not get the reduced gradients"},
      {"16 norm bucket=1 devs=0 <- 15:bucket(1)",
       "16 norm bucket=1 devs=0 <- 15:bucket(1), 8:bucket(1)",
       "norm w0 0 (node 16) gets gradients of 0B0 (node 8) that are not reduced"},
      {"8:bucket(1), 9:bucket(1)", "8:bucket(1)",
       "gradients of 0B1 (node 9) do not reach all_reduce w0 0-1 (node 15)"},
      {"8:bucket(1), 9:bucket(1)", "8:bucket(1), 9:bucket(1), 9:bucket(1)",
       "0B1 (node 9) gives the same to all_reduce w0 0-1 (node 15) twice"},
      {"8:bucket(1), 9:bucket(1)", "8:bucket(1), 9:bucket(1), 5:bucket(1)",
       "1B0 (node 5) gives gradients to all_reduce w0 0-1 (node 15), but its chunk has none for "
       "it"},
      {"19 update bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)",
       "19 update bucket=2 devs=2 <- 5:bucket(2)",
       "gradients of 1W1 (node 7) do not reach update w1 2 (node 19)"},
      {"18 norm bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)",
       "18 norm bucket=2 devs=2 <- 7:bucket(2)",
       "gradients of 1B0 (node 5) do not reach norm w1 2 (node 18)"},
      {"3:metrics, 4:metrics", "3:metrics",
       "1F1 (node 4) does not reach the reduction of the metrics"},
      {", 18:metrics", "", "norm w1 2 (node 18) does not reach the reduction of the metrics"},
      {"tensor=metrics devs=0-2", "tensor=metrics devs=0-1",
       "1F0 (node 3) is on devices that do not reduce the metrics"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    breaks(g, WHOLE, cases[i].find, cases[i].replace, ALL, cases[i].want);

  /* With its reduction another node may take its number. */
  char *text = edited(WHOLE,
                      "14 all_reduce tensor=metrics devs=0-2 <- 3:metrics, 4:metrics, "
                      "16:metrics, 18:metrics",
                      "14 join devs=0");
  breaks(g, text, NULL, NULL, ALL, "nothing reduces the metrics");
  free(text);
  text = edited(WHOLE, "18 norm bucket=2 devs=2 <- 5:bucket(2), 7:bucket(2)", "18 join devs=2");
  breaks(g, text, ", 18:metrics", "", ALL, "bucket 2 has no NORM");
  free(text);
  text = edited(WHOLE, "holders=2", "holders=3");
  char *moved = edited(text, "18 norm bucket=2 devs=2", "18 norm bucket=2 devs=3");
  char *metrics = edited(moved, "tensor=metrics devs=0-2", "tensor=metrics devs=0-3");
  breaks(g, metrics, "19 update bucket=2 devs=2", "19 update bucket=2 devs=3", ALL,
         "1F0 (node 3) uses bucket 2 on devices that do not hold it");
  free(text), free(moved), free(metrics);
}

/* What no text can say: ids out of range, and sums that do not fit. */
static void arrays(const Graph *g) {
  Dag *d;
#define BROKEN_BY(change, want)                                                                    \
  do {                                                                                             \
    d = parsed(g, WHOLE);                                                                          \
    change;                                                                                        \
    finds(d, ALL, want);                                                                           \
  } while (0)
  BROKEN_BY(d->kind[3] = NODE_KIND_COUNT, "node 3 has no kind");
  BROKEN_BY(d->pass[3] = 9, "node 3 names a pass that does not exist: 9");
  BROKEN_BY(d->chunk[3] = 3, "node 3 names a chunk that does not exist: 3");
  BROKEN_BY(d->bucket[3] = 3, "node 3 names a bucket that does not exist: 3");
  BROKEN_BY(d->tensor[3] = 99, "node 3 names a tensor that does not exist: 99");
  BROKEN_BY(d->devs[3] = 99, "node 3 names a device set that does not exist: 99");
  BROKEN_BY(d->src_devs[3] = 99, "node 3 names a device set that does not exist: 99");
  BROKEN_BY(d->stream[3] = 99, "node 3 names a stream that does not exist: 99");
  BROKEN_BY(d->tags[3] = 99, "node 3 names a tag set that does not exist: 99");
  BROKEN_BY(d->line[3] = 99, "node 3 names a script line that does not exist: 99");
  BROKEN_BY(d->edges.at[1].src = 99, "edge 1 joins nodes 99 and 3, of which one does not exist");
  BROKEN_BY(d->edges.at[1].dst = 0, "edge 1 joins nodes 10 and 0, of which one does not exist");
  BROKEN_BY(d->edges.at[1].tensor = 0, "edge 1 from node 10 to node 3 carries nothing");
  BROKEN_BY(d->edges.at[1].tensor = 99, "edge 1 names a tensor that does not exist: 99");
  BROKEN_BY(d->tensors.at[1].value.i = 99, "tensor 1 names a value that does not exist: 99");
  BROKEN_BY(d->tensors.at[1].chunk.i = 1, "the parts of tensor 1 do not fit its kind");
  BROKEN_BY(d->tensors.at[1].value.i = 1,
            "tensor 1 is an input or a parameter of the model: those never flow");
  BROKEN_BY(d->buckets.at[1].chunk.i = 7, "bucket 1 names a chunk that does not exist: 7");
  BROKEN_BY(d->buckets.at[1].n_params = 7, "the parameters of bucket 1 lie outside the list");
  BROKEN_BY(d->bucket_params.at[0] = 7,
            "the list of bucket parameters names one that does not exist: 7");
  BROKEN_BY(d->home[1].bucket.i = 7,
            "the home of parameter 1 names a bucket that does not exist: 7");
  BROKEN_BY(d->home[1].offset = 7,
            "bucket 1 holds parameter w0 at 0, but its home is bucket 1 at 7");
  BROKEN_BY(d->buckets.at[1].elements = 7, "bucket 1 has 7 elements, its parameters have 16");
}

/* w0 is read by both stages, but what the second makes of it reaches no loss; and the loss, which
 * has no batch axis, is scaled in a chunk of its own. */
static Graph *odd_graph(void) {
  PiperErr err = {0};
  Graph *g = graph_new("odd");
  ValueId x;
  const Shape shape = {.rank = 2, .batched = true, .dim = {1, 4}};
  if (g == NULL || graph_add_input(g, "x", &shape, DT_FLOAT, 0, &x, &err) != PIPER_OK) bail("odd");
  const ValueId w0 = stages_param(g, "w0", 4, 4), none = {0};
  graph_enter(g, "PP", &err);
  const ValueId h = stages_op(g, OP_LINEAR, NULL, x, w0); /* v3 */
  graph_leave(g, "PP", &err);
  graph_enter(g, "PP", &err);
  stages_op(g, OP_LINEAR, NULL, h, w0);                            /* v4 */
  const ValueId sum = stages_op(g, OP_SUM_SQUARES, NULL, h, none); /* v5 */
  graph_leave(g, "PP", &err);
  const OpSpec scale = {.kind = OP_SCALE, .in = {sum}, .attrs = {{0.5}}};
  ValueId loss; /* v6 */
  if (graph_add_op(g, &scale, 0, &loss, &err) != PIPER_OK ||
      graph_add_loss(g, loss, 0, &err) != PIPER_OK || graph_cut(g, &err) != PIPER_OK)
    bail(err.text);
  return g;
}

static void odd(void) {
  static const char TIED[] =
      "dag batch=8\nbucket 1 [w0] trained holders=0-1\n"
      "1 compute F chunk=1 samples=0:8 devs=0-1\n"
      "2 compute F chunk=2 samples=0:8 devs=0-1 <- 1:v3\n"
      "3 compute F chunk=3 samples=0:8 devs=0-1 <- 2:v5\n"
      "4 compute B chunk=3 samples=0:8 devs=0-1 <- 3:saved(3)\n"
      "5 compute B chunk=2 samples=0:8 devs=0-1 <- 2:saved(2), 4:grad(v5,3)\n"
      "6 compute B chunk=1 samples=0:8 devs=0-1 <- 1:saved(1), 5:grad(v3,2)\n"
      "7 all_reduce bucket=1 tensor=bucket(1) devs=0-1 <- 6:bucket(1)\n"
      "8 norm bucket=1 devs=0 <- 7:bucket(1)\n"
      "9 update bucket=1 devs=0-1 <- 7:bucket(1), 2~\"\"\n"
      "10 all_reduce tensor=metrics devs=0-1 <- 3:metrics, 8:metrics\n";
  Graph *g = odd_graph();
  breaks(g, TIED, NULL, NULL, ALL, "");
  breaks(g, TIED, ", 2~\"\"", "", ALL,
         "1F0 (node 2) reads bucket 1, but does not come before update w0 0-1 (node 9)");
  breaks(g, TIED, "bucket 1 [w0] trained", "bucket 1 [w0] chunk=1 trained", ALL,
         "bucket 1 is of chunk 1, but its parameter w0 is read by several chunks");
  breaks(
      g, TIED, "6:bucket(1)", "6:bucket(1), 5:bucket(1)", ALL,
      "1B0 (node 5) gives gradients to all_reduce w0 0-1 (node 7), but its chunk has none for it");

  /* The sum of the squares of the first half and of the second is not the sum over all. */
  static const char HALVES[] =
      "dag batch=8\n1 compute F chunk=1 samples=0:8\n"
      "2 compute F chunk=2 samples=0:4 <- 1:v3\n"
      "3 compute F chunk=2 samples=4:8 mb=1 <- 1:v3\n"
      "4 compute F chunk=3 samples=0:8 <- 2:v5, 3:v5\n"
      "5 compute B chunk=3 samples=0:8 <- 4:saved(3)\n"
      "6 compute B chunk=2 samples=0:4 <- 2:saved(2), 5:grad(v5,3)\n"
      "7 compute B chunk=2 samples=4:8 mb=1 <- 3:saved(2), 5:grad(v5,3)\n"
      "8 compute B chunk=1 samples=0:8 <- 1:saved(1), 6:grad(v3,2), 7:grad(v3,2)\n";
  breaks(g, HALVES, NULL, NULL, DAG_BUILT,
         "-F0 (node 4) gets a tensor without a batch axis from 1F0 "
         "(node 2), which works on other samples");

  /* Device j of one set gives all of it to device j of the other. */
  char *apart = edited(TIED, "3 compute F chunk=3 samples=0:8 devs=0-1 <- 2:v5",
                       "3 compute F chunk=3 samples=0:8 devs=0 <- 2:v5");
  char *both = edited(apart, "4 compute B chunk=3 samples=0:8 devs=0-1 <- 3:saved(3)",
                      "4 compute B chunk=3 samples=0:8 devs=0 <- 3:saved(3)");
  breaks(g, both, NULL, NULL, ALL,
         "-F0 (node 3) gets from 1F0 (node 2), without a transfer, what is on other ranks");
  char *sent = edited(both, "devs=0 <- 2:v5", "devs=0 <- 11:v5");
  breaks(g, sent, "10 all_reduce tensor=metrics devs=0-1 <- 3:metrics, 8:metrics\n",
         "10 all_reduce tensor=metrics devs=0-1 <- 3:metrics, 8:metrics\n11 transfer F tensor=v5 "
         "src_samples=0:8 src_devs=0-1 samples=0:8 devs=0 <- 2:v5\n",
         ALL,
         "transfer sum_squares.5 1F0 "
         "0-1>0 (node 11) moves a tensor without a batch axis between unequal numbers of devices");
  free(apart), free(both), free(sent);
  graph_free(g);
}

/* 32 stages of one device, 512 microbatches: 96,000 nodes. */
static void large(void) {
  enum { STAGES = 32, MBS = 512 };
  Graph *g = stages_graph(STAGES, false);
  Dag *d = dag_new(g, MBS);
  uint32_t devs[STAGES + 1];
  static uint32_t f[STAGES + 2][MBS], b[STAGES + 2][MBS];
  if (d == NULL) bail("no memory");
  for (int32_t s = 0; s < STAGES; s++) devs[s + 1] = devsets_id(d->devsets, &s, 1);
  for (uint32_t c = 1; c <= STAGES; c++)
    for (uint32_t mb = 0; mb < MBS; mb++) {
      f[c][mb] = stages_compute(d, (ChunkId){c}, PASS_F, mb, MBS).i;
      b[c][mb] = stages_compute(d, (ChunkId){c}, PASS_B, mb, MBS).i;
      d->devs[f[c][mb]] = d->devs[b[c][mb]] = devs[c];
      dag_add_edge(d, (NodeId){f[c][mb]}, (NodeId){b[c][mb]},
                   dag_tensor(d, (Tensor){.kind = TENSOR_SAVED, .chunk = {c}}));
    }
  for (uint32_t c = 1; c < STAGES; c++)
    for (uint32_t mb = 0; mb < MBS; mb++)
      for (int backward = 0; backward < 2; backward++) {
        const ValueId v = {g->chunk_values.at[graph_chunk(g, (ChunkId){c})->out_first]};
        const Tensor t = {.kind = backward ? TENSOR_GRAD : TENSOR_VALUE,
                          .value = v,
                          .chunk = {backward ? c + 1 : 0}};
        const TensorId id = dag_tensor(d, t);
        const NodeId from = {backward ? b[c + 1][mb] : f[c][mb]};
        const NodeId to = {backward ? b[c][mb] : f[c + 1][mb]};
        const NodeId x = dag_add_node(d, NODE_TRANSFER, 0);
        d->tensor[x.i] = id.i;
        d->devs[x.i] = d->devs[to.i], d->src_devs[x.i] = d->devs[from.i];
        d->lo[x.i] = d->src_lo[x.i] = d->lo[from.i];
        d->hi[x.i] = d->src_hi[x.i] = d->hi[from.i];
        dag_add_edge(d, from, x, id);
        dag_add_edge(d, x, to, id);
      }
  PiperErr err = {0};
  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  is_int(dag_verify(d, DAG_BUILT | DAG_PLACED, &err), PIPER_OK, "a DAG of %u nodes holds",
         d->n - 1);
  clock_gettime(CLOCK_MONOTONIC, &end);
  if (err.text[0] != '\0') diag("%s", err.text);
  diag("verified in %.1f ms",
       (double)(end.tv_sec - start.tv_sec) * 1e3 + (double)(end.tv_nsec - start.tv_nsec) * 1e-6);
  dag_free(d);
  graph_free(g);
}

int main(void) {
  Graph *g = stages_graph(2, false);
  whole(g);
  kinds(g);
  built(g);
  placed(g);
  bucketed(g);
  arrays(g);
  odd();
  large();
  graph_free(g);
  return done_testing();
}
