/* The backward pass in two, where an order names BI and BW. */
#include "lib/passes.h"

static void split(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 2);
  strategy_order(&t, "PP=1 MB=0 PASS=F; PP=1 MB=0 PASS=BI; PP=1 MB=1 PASS=F; PP=1 MB=1 PASS=B;"
                     "PP=1 MB=0 PASS=BW");
  passes_give(
      g, 4, &t, "split_backward",
      "dag batch=4 dims=1\n"
      "1 compute F chunk=1 samples=0:2 stream=default_stream tags={MB=0,PP=0} line=\"m.lua:1\"\n"
      "2 compute F chunk=2 samples=0:2 stream=default_stream tags={MB=0,PP=1} line=\"m.lua:2\" <- "
      "1:v3\n"
      "3 compute BI chunk=2 samples=0:2 stream=default_stream tags={MB=0,PP=1} line=\"m.lua:2\" <- "
      "2:saved(2)\n"
      "4 compute B chunk=1 samples=0:2 stream=default_stream tags={MB=0,PP=0} line=\"m.lua:1\" <- "
      "1:saved(1), 3:grad(v3,2)\n"
      "5 compute F chunk=1 samples=2:4 stream=default_stream tags={MB=1,PP=0} mb=1 "
      "line=\"m.lua:1\"\n"
      "6 compute F chunk=2 samples=2:4 stream=default_stream tags={MB=1,PP=1} mb=1 "
      "line=\"m.lua:2\" <- 5:v3\n"
      "7 compute B chunk=2 samples=2:4 stream=default_stream tags={MB=1,PP=1} mb=1 "
      "line=\"m.lua:2\" <- 6:saved(2)\n"
      "8 compute B chunk=1 samples=2:4 stream=default_stream tags={MB=1,PP=0} mb=1 "
      "line=\"m.lua:1\" <- 5:saved(1), 7:grad(v3,2)\n"
      "9 compute BW chunk=2 samples=0:2 stream=default_stream tags={MB=0,PP=1} line=\"m.lua:2\" <- "
      "3:kept(2), 2:saved(2)\n",
      "upstream stages wait for BI, not BW; what no order names so stays one B");
  strategy_clear(&t);
  strategy_order(&t, "PP=1; PP=0 PASS=B");
  passes_give(
      g, 4, &t, "split_backward",
      "dag batch=4 dims=0\n"
      "1 compute F chunk=1 samples=0:4 stream=default_stream tags={PP=0} line=\"m.lua:1\"\n"
      "2 compute F chunk=2 samples=0:4 stream=default_stream tags={PP=1} line=\"m.lua:2\" <- 1:v3\n"
      "3 compute B chunk=2 samples=0:4 stream=default_stream tags={PP=1} line=\"m.lua:2\" <- "
      "2:saved(2)\n"
      "4 compute B chunk=1 samples=0:4 stream=default_stream tags={PP=0} line=\"m.lua:1\" <- "
      "1:saved(1), 3:grad(v3,2)\n",
      "no order names BI: nothing happens");
  strategy_clear(&t);
  graph_free(g);
}

static void errors(void) {
  Graph *g = model_chain(2);
  TestStrategy t = {0};
  strategy_order(&t, "PP=1 PASS=BI");
  passes_fail(g, 4, &t,
              "t.lua:1: order: group 1: BI without BW: 1B0 is named as BI, so the same order has "
              "to name it as BW too, anywhere after");
  strategy_order(&t, "PP=1 PASS=F;PASS=BW");
  passes_fail(g, 4, &t,
              "t.lua:1: order: group 2: BW without BI: 1B0 is named as BW, so the same order has "
              "to name it as BI too, anywhere before");
  strategy_order(&t, "PP=1 PASS=BI");
  strategy_order(&t, "PP=1 PASS=BW");
  passes_fail(g, 4, &t,
              "t.lua:1: order: group 1: BI without BW: 1B0 is named as BI, so the same order has "
              "to name it as BW too, anywhere after");
  strategy_order(&t, "PP=1 PASS=F;PP=1 PASS=BI;PP=1 PASS=BW");
  strategy_order(&t, "PP=1 PASS=B");
  passes_fail(g, 4, &t,
              "t.lua:2: order: group 1: 1B0 is named as B here, and as BI and BW in the order at "
              "t.lua:1 (group 2): its backward pass is either one or split");
  strategy_order(&t, "PP=1 PASS=F;PP=2 PASS=BI;PP=1 PASS=BW");
  passes_fail(g, 4, &t,
              "t.lua:1: order: group 2: filter { PASS = \"BI\", PP = 2 } matches nothing; PP "
              "runs from 0 to 1");
  strategy_split(&t, "", "MB", 2);
  Directive *x = strategy_order(&t, "PP=1 MB=0 PASS=F;PP=1 MB=0 PASS=BI;PP=1 MB=2 PASS=BW");
  x->schedule = 1;
  x->rank_in_schedule = 3;
  passes_fail(g, 4, &t,
              "t.lua:2: order: rank 3, column 3: filter { MB = 2, PASS = \"BW\", PP = 1 } "
              "matches nothing; MB runs from 0 to 1");
  graph_free(g);
}

int main(void) {
  split();
  errors();
  return done_testing();
}
