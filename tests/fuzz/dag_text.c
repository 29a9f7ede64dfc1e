/* The parser of DAG texts on any bytes: it gives an error with a place, or a DAG whose text is the
 * same when parsed and printed again, and which can be labelled, ordered and verified.
 * make fuzz && tests/fuzz/dag_text; tests/c/ir_dag_text_mutation.c runs it on damaged texts. */
#include "ir/dag_text.h"
#include "ir/dag_verify.h"
#include "ir/topo.h"

#include "lib/stages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void insist(bool held, const char *what) {
  if (held) return;
  fprintf(stderr, "dag_text: %s\n", what);
  abort();
}

static void look_at(const Dag *d) {
  char label[64];
  PiperErr err = {0};
  for (uint32_t i = 1; i < d->n; i++) dag_label(d, (NodeId){i}, label, sizeof label);
  Adjacency a;
  uint32_t *order = malloc(d->n * sizeof *order), n;
  insist(order != NULL && adjacency_new(d, &a, &err) == PIPER_OK, "no memory");
  if (topo_order(d, &a, order, &n, &err) != PIPER_OK) insist(err.text[0] != '\0', "no message");
  adjacency_free(&a);
  free(order);
  for (unsigned stages = 0; stages < 16; stages++) {
    PiperErr found = {0};
    if (dag_verify(d, stages, &found) != PIPER_OK) insist(found.text[0] != '\0', "no sentence");
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static Graph *g;
  if (g == NULL) g = stages_graph(3, true);
  char *text = malloc(size + 1), *printed, *again;
  insist(text != NULL, "no memory");
  if (size > 0) memcpy(text, data, size);
  text[size] = '\0';

  Dag *d, *twin;
  PiperErr err = {0};
  if (dag_parse(g, text, &d, &err) == PIPER_OK) {
    insist(dag_print(d, &printed, &err) == PIPER_OK, err.text);
    insist(dag_parse(g, printed, &twin, &err) == PIPER_OK, err.text);
    insist(dag_print(twin, &again, &err) == PIPER_OK, err.text);
    insist(strcmp(printed, again) == 0, "parsing and printing changed the text");
    look_at(twin);
    free(printed);
    free(again);
    dag_free(d);
    dag_free(twin);
  } else {
    insist(strncmp(err.text, "DAG text, line ", 15) == 0, err.text);
  }
  free(text);
  return 0;
}
