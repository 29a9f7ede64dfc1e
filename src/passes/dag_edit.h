/* dag_edit.h - the primitives of passes that are written in a script: each checks what it is
 * asked, says what is wrong with it, and leaves a DAG that the passes after it can work on.
 *
 * Messages have neither position nor the primitive's name: the caller knows both. A primitive
 * that fails with PIPER_EUSER has changed nothing; after PIPER_ENOMEM the DAG may be half
 * rewritten: drop it. */
#ifndef PIPER_PASSES_DAG_EDIT_H
#define PIPER_PASSES_DAG_EDIT_H

#include "passes/directive.h"

typedef struct DagEdit DagEdit;

/* 'stages': DAG_* of dag_verify.h, passed so far; 's': the strategy, whose splits own their
 * tags. Both and the DAG outlive the editor; meanwhile nobody else changes the DAG. */
PiperStatus dag_edit_new(Dag *d, const Strategy *s, unsigned stages, DagEdit **out, PiperErr *err);
void dag_edit_free(DagEdit *x); /* NULL is fine */

Dag *dag_edit_dag(DagEdit *x);
unsigned dag_edit_stages(const DagEdit *x);

/* Appends the nodes of these kinds (bit 1 << NodeKind) that the filter matches, ascending: none
 * is no error here. A node without tags matches only what does not ask for any. */
PiperStatus dag_edit_nodes(DagEdit *x, const Filter *f, unsigned kinds, U32Vec *out, PiperErr *err);

/* Edges that enter or leave a node, in order of their making: from 0 to the first one; 0: no
 * more. */
EdgeId dag_edit_next_in(const DagEdit *x, NodeId n, EdgeId after);
EdgeId dag_edit_next_out(const DagEdit *x, NodeId n, EdgeId after);

/* There is a path of edges from a to b (or a is b). O(edges between them). */
PiperStatus dag_edit_reaches(DagEdit *x, NodeId a, NodeId b, bool *reaches, PiperErr *err);

/* A temporal edge; once more changes nothing. A cycle is found at once, in all calls together in at
 * most O(edges^1.5). */
PiperStatus dag_edit_before(DagEdit *x, NodeId a, NodeId b, uint32_t line, PiperErr *err);
PiperStatus dag_edit_remove(DagEdit *x, EdgeId e, PiperErr *err); /* a temporal one */

PiperStatus dag_edit_stream(DagEdit *x, NodeId n, const char *stream, PiperErr *err);
/* A tag that neither the model nor a split has; index -1 takes it away. */
PiperStatus dag_edit_tag(DagEdit *x, NodeId n, const char *tag, int32_t index, PiperErr *err);

/* Communication: a reduction of gradients becomes 'n_groups', of which number k adds up what
 * sources [ends[k - 1], ends[k]) make; all of its sources, each once. The first of them is the
 * node itself. Appends them to 'out'. */
PiperStatus dag_edit_split_reduction(DagEdit *x, NodeId reduction, const uint32_t *sources,
                                     const uint32_t *ends, uint32_t n_groups, U32Vec *out,
                                     PiperErr *err);
/* ... and a compute node gets parameters that 'gather' brings to others as well from one of its
 * own. */
PiperStatus dag_edit_gather_again(DagEdit *x, NodeId gather, NodeId compute, NodeId *out,
                                  PiperErr *err);

#endif
