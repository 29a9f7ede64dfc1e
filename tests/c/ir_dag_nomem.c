/* Parsing, printing, verifying, ordering and filtering a DAG, with each allocation in turn failing. */
#include "ir/dag_text.h"
#include "ir/dag_verify.h"
#include "ir/filter.h"
#include "ir/topo.h"

#include "nomem.h"

#include "lib/random_dag.h"

static const int32_t LISTED[] = {0, 1};

static PiperStatus ask(const FilterIndex *x, const FilterTerm *term, U32Vec *nodes, PiperErr *err) {
  nodes->n = 0;
  return filter_nodes(x, &(Filter){.terms = term, .n_terms = 1}, nodes, err);
}

static PiperStatus filter(const Dag *d, PiperErr *err) {
  const FilterTerm known = {.tag = "MB", .indices = LISTED, .n_indices = 1};
  const FilterTerm unknown = {.tag = "MBB", .indices = LISTED, .n_indices = 1};
  FilterIndex *x;
  U32Vec nodes = {0};
  PiperErr message = {0};
  TRY(filter_index_new(d, &x, err));
  PiperStatus st = ask(x, &known, &nodes, err);
  if (st == PIPER_OK && ask(x, &unknown, &nodes, &message) != PIPER_EUSER)
    st = err_set(err, message.code, "%s", message.text);
  filter_index_free(x);
  vec_free(&nodes);
  return st;
}

/* 'cyclic': a temporal edge leads back from the last node to the first. */
static PiperStatus order(Dag *d, bool cyclic, PiperErr *err) {
  Adjacency a;
  uint32_t n, *at = malloc(d->n * sizeof *at);
  PiperErr cycle = {0};
  if (at == NULL) return err_nomem(err, "order");
  EdgeId back = {0};
  if (cyclic) back = dag_add_temporal(d, (NodeId){d->n - 1}, (NodeId){1}, 0);
  PiperStatus st = cyclic && back.i == 0 ? err_nomem(err, "edge") : adjacency_new(d, &a, err);
  if (st == PIPER_OK) {
    st = topo_order(d, &a, at, &n, &cycle);
    if (st == PIPER_EUSER && cyclic) st = PIPER_OK;
    if (st != PIPER_OK) err_set(err, st, "%s", cycle.text);
    adjacency_free(&a);
  }
  if (back.i != 0) dag_remove_edge(d, back);
  free(at);
  return st;
}

static PiperStatus use(const Graph *g, const char *text, PiperErr *err) {
  Dag *d;
  char *again = NULL;
  TRY(dag_parse(g, text, &d, err));
  PiperStatus st = dag_verify(d, DAG_BUILT | DAG_PLACED | DAG_BUCKETED, err);
  if (st == PIPER_OK) st = order(d, false, err);
  if (st == PIPER_OK) st = order(d, true, err);
  if (st == PIPER_OK) st = filter(d, err);
  if (st == PIPER_OK) st = dag_print(d, &again, err);
  free(again);
  dag_free(d);
  return st;
}

int main(void) {
  int n_ops;
  long n = 0;
  bool told = true;
  PiperErr err = {0};
  char *text;
  Graph *g = random_model(7, 0x1248, &n_ops);
  Dag *d = random_dag(g, 7);
  if (dag_print(d, &text, &err) != PIPER_OK) bail(err.text);
  dag_free(d);
  for (;; n++) {
    err = (PiperErr){0};
    nomem_at(n);
    const PiperStatus st = use(g, text, &err);
    const bool struck = nomem_struck();
    nomem_at(-1);
    if (!struck) {
      is_int(st, PIPER_OK, "all goes well when no allocation fails");
      if (st != PIPER_OK) diag("%s", err.text);
      break;
    }
    if (st != PIPER_ENOMEM || err.code != PIPER_ENOMEM) {
      told = false;
      diag("allocation %ld: status %d, \"%s\"", n, (int)st, err.text);
    }
  }
  diag("%ld allocations", n);
  ok(told, "whichever allocation fails, PIPER_ENOMEM comes back");
  free(text);
  graph_free(g);
  return done_testing();
}
