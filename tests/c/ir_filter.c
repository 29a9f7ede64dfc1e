#include "ir/filter.h"

#include <time.h>

#include "lib/stages.h"
#include "tap.h"

#define LIST(...)                                                                                  \
  .indices = (int32_t[]){__VA_ARGS__},                                                             \
  .n_indices = sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define INDEX(name, ...)                                                                           \
  { .tag = name, .kind = TERM_INDEX, LIST(__VA_ARGS__) }
#define ANY(name)                                                                                  \
  { .tag = name, .kind = TERM_ANY }
#define NONE(name)                                                                                 \
  { .tag = name, .kind = TERM_NONE }
#define BIT(pass) (1u << PASS_##pass)
/* FILTER(passes, terms sorted by tag ...) */
#define FILTER(pass_bits, ...)                                                                     \
  &(Filter) {                                                                                      \
    .terms = (FilterTerm[]){__VA_ARGS__},                                                          \
    .n_terms = sizeof((FilterTerm[]){__VA_ARGS__}) / sizeof(FilterTerm), .passes = pass_bits       \
  }

static void matches(const FilterIndex *x, const Filter *f, const char *want) {
  char got[512] = "", text[256];
  size_t at = 0;
  PiperErr err = {0};
  U32Vec out = {0};
  filter_text(f, text, sizeof text);
  if (filter_nodes(x, f, &out, &err) != PIPER_OK) {
    is_str(err.text, want, "%s", text);
    return;
  }
  for (size_t i = 0; i < out.n && at < sizeof got; i++)
    at += (size_t)snprintf(got + at, sizeof got - at, "%s%u", i > 0 ? " " : "", out.at[i]);
  is_str(got, want, "%s", text);
  vec_free(&out);
}

static void fails(const FilterIndex *x, const Filter *f, const char *want) {
  PiperErr err = {0};
  U32Vec out = {0};
  is_int(filter_nodes(x, f, &out, &err), PIPER_EUSER, "an error that the user made");
  is_str(err.text, want, "%s", want);
  is_int(out.n, 0, "nothing is appended");
  vec_free(&out);
}

static FilterIndex *index_of(const Dag *d) {
  PiperErr err = {0};
  FilterIndex *x;
  if (filter_index_new(d, &x, &err) != PIPER_OK) bail(err.text);
  return x;
}

/* Ids 1 .. 12: stage 0, 1 and the loss outside, each F of MB 0, 1 and B of MB 0, 1. */
static Dag *small_dag(const Graph *g) {
  Dag *d = dag_new(g, 8);
  if (d == NULL) bail("no memory");
  for (uint32_t c = 1; c <= 3; c++)
    for (uint32_t i = 0; i < 4; i++)
      stages_compute(d, (ChunkId){c}, i < 2 ? PASS_F : PASS_B, i % 2, 2);
  return d;
}

static void selection(const Graph *g) {
  Dag *d = small_dag(g);
  dag_add_node(d, NODE_UPDATE, 0); /* 13: filters never see it */
  intern_id(d->names, "dp_stream");
  FilterIndex *x = index_of(d);
  matches(x, &(Filter){0}, "1 2 3 4 5 6 7 8 9 10 11 12");
  matches(x, FILTER(0, INDEX("PP", 1)), "5 6 7 8");
  matches(x, FILTER(0, INDEX("MB", 1), INDEX("PP", 1)), "6 8");
  matches(x, FILTER(BIT(F), INDEX("MB", 1), INDEX("PP", 1)), "6");
  matches(x, FILTER(BIT(F) | BIT(B), INDEX("MB", 0)), "1 3 5 7 9 11");
  matches(x, FILTER(BIT(B), INDEX("MB", 0, 1), INDEX("PP", 0, 1)), "3 4 7 8");
  matches(x, FILTER(0, INDEX("PP", 0, 1)), "1 2 3 4 5 6 7 8");
  matches(x, FILTER(0, INDEX("PP", 1, 1)), "5 6 7 8");
  matches(x, FILTER(0, ANY("PP")), "1 2 3 4 5 6 7 8");
  matches(x, FILTER(BIT(F), INDEX("MB", 1), ANY("PP")), "2 6");
  matches(x, FILTER(0, NONE("PP")), "9 10 11 12");
  matches(x, FILTER(BIT(B), INDEX("MB", 0), NONE("PP")), "11");
  matches(x, FILTER(0, NONE("EP"), INDEX("PP", 0)), "1 2 3 4");
  matches(x, &(Filter){.passes = BIT(B)}, "3 4 7 8 11 12");

  PiperErr err = {0};
  U32Vec out = {0};
  if (filter_nodes(x, FILTER(0, INDEX("PP", 1)), &out, &err) != PIPER_OK ||
      filter_nodes(x, FILTER(0, INDEX("PP", 0)), &out, &err) != PIPER_OK)
    bail(err.text);
  ok(out.n == 8 && out.at[0] == 5 && out.at[4] == 1, "results are appended to what is there");
  vec_free(&out);

  fails(x, FILTER(0, INDEX("PP", 5)), "filter { PP = 5 } matches nothing; PP runs from 0 to 1");
  fails(x, FILTER(0, INDEX("PP", -1)), "filter { PP = -1 } matches nothing; PP runs from 0 to 1");
  fails(x, FILTER(0, INDEX("PP", 0, 7)),
        "filter { PP = { 0, 7 } }: PP = 7 matches nothing; PP runs from 0 to 1");
  fails(x, FILTER(0, INDEX("mb", 0)),
        "filter { mb = 0 } matches nothing; there is no tag \"mb\" (did "
        "you mean \"MB\"?); the tags are MB, PP");
  fails(x, FILTER(0, ANY("EXPERT")),
        "filter { EXPERT = \"*\" } matches nothing; there is no tag "
        "\"EXPERT\"; the tags are MB, PP");
  fails(x, FILTER(0, INDEX("dp_stream", 0)),
        "filter { dp_stream = 0 } matches nothing; there is no "
        "tag \"dp_stream\"; the tags are MB, PP");
  fails(x, FILTER(BIT(BI), INDEX("MB", 0), INDEX("PP", 1)),
        "filter { MB = 0, PASS = \"BI\", PP = 1 } "
        "matches nothing; 2 nodes have MB = 0 and PP = 1, but none of them PASS = "
        "\"BI\" (an order that names BI and BW makes them)");
  fails(x, &(Filter){.passes = BIT(BI) | BIT(BW)},
        "filter { PASS = { \"BI\", \"BW\" } } matches "
        "nothing; no node has PASS = { \"BI\", \"BW\" } (an order that names BI and BW makes them)");
  fails(x, FILTER(0, NONE("MB")), "filter { MB = false } matches nothing; no node has MB = false");
  filter_index_free(x);

  for (uint32_t i = 1; i <= 12; i++) /* stage 1 works on MB 0 alone */
    if (d->chunk[i] == 2 && d->mb[i] == 1) d->tags[i] = dag_tags(d, NULL, 0);
  x = index_of(d);
  fails(x, FILTER(0, INDEX("MB", 1), INDEX("PP", 1)),
        "filter { MB = 1, PP = 1 } matches nothing; 4 "
        "nodes have MB = 1, but none of them PP = 1");
  filter_index_free(x);
  dag_free(d);
}

static void values(const Graph *g) {
  Dag *d = dag_new(g, 8);
  if (d == NULL) bail("no memory");
  const uint32_t mb = intern_id(d->names, "MB"), one = intern_id(d->names, "ONE");
  static const int32_t indices[] = {0, 1, 2, 8, 11, 12};
  for (size_t i = 0; i < 6; i++)
    d->tags[dag_add_node(d, NODE_COMPUTE, 0).i] =
        dag_tags(d, (Tag[]){{mb, indices[i]}, {one, 3}}, 2);
  FilterIndex *x = index_of(d);
  fails(x, FILTER(0, INDEX("MB", 5)),
        "filter { MB = 5 } matches nothing; MB has the values 0-2, 8, 11-12");
  fails(x, FILTER(0, INDEX("ONE", 5)), "filter { ONE = 5 } matches nothing; ONE is always 3");
  filter_index_free(x);
  dag_free(d);

  d = dag_new(g, 8);
  x = index_of(d);
  fails(x, &(Filter){0}, "filter {} matches nothing; there are no nodes");
  filter_index_free(x);
  dag_add_node(d, NODE_COMPUTE, 0);
  x = index_of(d);
  fails(x, FILTER(0, INDEX("PP", 0)),
        "filter { PP = 0 } matches nothing; there is no tag \"PP\", "
        "nothing is annotated or split");
  filter_index_free(x);
  filter_index_free(NULL);
  dag_free(d);
}

static void texts(void) {
  char text[64];
  filter_text(FILTER(BIT(F), INDEX("MB", 1), NONE("OUT"), ANY("PP")), text, sizeof text);
  is_str(text, "{ MB = 1, OUT = false, PASS = \"F\", PP = \"*\" }", "terms and PASS by name");
  filter_text(FILTER(BIT(F), INDEX("MB", 1)), text, sizeof text);
  is_str(text, "{ MB = 1, PASS = \"F\" }", "PASS last");
  filter_text(FILTER(0, INDEX("A", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)), text, sizeof text);
  is_str(text, "{ A = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... } }", "long lists are cut");
  char small[12];
  filter_text(FILTER(0, INDEX("MB", 1)), small, sizeof small);
  is_str(small, "{ MB = 1 }", "a text that just fits");
  filter_text(FILTER(0, INDEX("MB", 12345)), small, sizeof small);
  is_str(small, "{ MB = 1234", "a text that does not fit is cut off");
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One filter for each node of 32 stages and 512 microbatches, as a schedule's orders have them. */
static void large(void) {
  Graph *g = stages_graph(32, false);
  Dag *d = dag_new(g, 512);
  if (d == NULL) bail("no memory");
  for (uint32_t c = 1; c <= 32; c++)
    for (uint32_t mb = 0; mb < 512; mb++)
      for (unsigned pass = 0; pass < 3; pass++)
        stages_compute(d, (ChunkId){c}, (Pass[]){PASS_F, PASS_BI, PASS_BW}[pass], mb, 512);
  const double start = seconds();
  FilterIndex *x = index_of(d);
  PiperErr err = {0};
  U32Vec out = {0};
  uint32_t want = 1;
  bool right = true;
  for (int32_t stage = 0; stage < 32; stage++)
    for (int32_t mb = 0; mb < 512; mb++)
      for (unsigned pass = 0; pass < 3; pass++) {
        out.n = 0;
        const uint32_t bits = 1u << (Pass[]){PASS_F, PASS_BI, PASS_BW}[pass];
        right = right &&
                filter_nodes(x, FILTER(bits, INDEX("MB", mb), INDEX("PP", stage)), &out, &err) ==
                    PIPER_OK &&
                out.n == 1 && out.at[0] == want++;
      }
  diag("index and 49152 filters: %.1f ms", (seconds() - start) * 1e3);
  ok(right, "each of 49152 filters finds its node");
  vec_free(&out);
  filter_index_free(x);
  dag_free(d);
  graph_free(g);
}

int main(void) {
  Graph *g = stages_graph(2, true);
  selection(g);
  values(g);
  texts();
  large();
  graph_free(g);
  return done_testing();
}
