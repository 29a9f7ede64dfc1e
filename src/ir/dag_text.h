/* dag_text.h - the text form of a DAG, for --dump-after, tests and debugging. Printing and parsing
 * are inverse: text -> DAG -> text is the identity. The syntax is described in dag_text.c. */
#ifndef PIPER_IR_DAG_TEXT_H
#define PIPER_IR_DAG_TEXT_H

#include "ir/dag.h"

/* malloc'ed text in *out (the caller frees it). */
PiperStatus dag_print(const Dag *d, char **out, PiperErr *err);
/* Hostile input gives an error with line and column, never worse. 'graph' gives the chunks. */
PiperStatus dag_parse(const Graph *graph, const char *text, Dag **out, PiperErr *err);

/* One tensor in that form: "v7", "grad(v7,2)". */
enum { DAG_TENSOR_TEXT = 48 };
void dag_tensor_text(const Dag *d, TensorId t, char *buf, size_t n);

#endif
