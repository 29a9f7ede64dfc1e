/* Planned and achieved overlap of pairs around experts, against the same members in sequence: chunks and
 * exchanges that take a known time each (they sleep), on two ranks, whatever the number of cores.
 *   make bench/overlap && bench/overlap [MILLISECONDS OF A CHUNK] [MICROBATCHES] */
#include "lib/pairs.h"
#include "lib/slow_ranks.h"

static double exchange; /* of a chunk's time */

static double seconds_of(const Dag *d, uint32_t n) {
  if (d->kind[n] == NODE_ALL_TO_ALL) return exchange;
  return d->kind[n] == NODE_COMPUTE;
}

typedef struct Measured {
  double step, predicted, hidden, planned; /* seconds; of the exchanges */
} Measured;

/* The fastest of five steps. */
static Measured measure(const Graph *g, int n_mb, double unit, bool overlapped) {
  TestStrategy t = {0};
  pairs_strategy(&t, "0,1", 2, n_mb, overlapped);
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 4 * n_mb, .scheduled = true, .seconds = seconds_of});
  Measured m = {.step = INFINITY, .predicted = p->predicted_seconds * unit, .planned = slow_planned(p)};
  SlowRanks s;
  slow_open(&s, p);
  s.unit = unit;
  for (int k = 0; k < 5; k++) {
    double all, hidden;
    const double step = slow_step(&s);
    slow_overlap(&s, INSTR_ALL_TO_ALL, &all, &hidden);
    if (step < m.step) m.step = step, m.hidden = hidden / all;
  }
  slow_close(&s);
  plan_free(p);
  strategy_clear(&t);
  return m;
}

int main(int argc, char **argv) {
  const double unit = (argc > 1 ? atof(argv[1]) : 10) * 1e-3;
  const int n_mb = argc > 2 ? atoi(argv[2]) : 8;
  static const double ratios[] = {0.25, 0.5, 1, 2};
  if (unit <= 0 || n_mb < 2) bail("usage: overlap [MILLISECONDS OF A CHUNK] [MICROBATCHES, at least 2]");
  Graph *g = pairs_model();
  printf("chunks of %g ms, %d microbatches, 2 ranks\n\n", unit * 1e3, n_mb);
  printf("%-10s%14s%14s%12s%12s%12s%12s\n", "exchange", "in sequence", "overlapped", "ratio", "predicted",
         "hidden", "planned");
  for (size_t k = 0; k < sizeof ratios / sizeof *ratios; k++) {
    exchange = ratios[k];
    const Measured apart = measure(g, n_mb, unit, false), pairs = measure(g, n_mb, unit, true);
    printf("%-10g%11.1f ms%11.1f ms%12.2f%12.2f%11.0f%%%11.0f%%\n", exchange, apart.step * 1e3, pairs.step * 1e3,
           pairs.step / apart.step, pairs.predicted / apart.predicted, 100 * pairs.hidden, 100 * pairs.planned);
  }
  graph_free(g);
  return 0;
}
