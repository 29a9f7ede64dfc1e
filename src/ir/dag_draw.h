/* dag_draw.h - a DAG for human readers: a list in words, and a picture for Graphviz. Unlike the text form
 * (dag_text.h) neither can be read back. Nodes are called by dag_name. */
#ifndef PIPER_IR_DAG_DRAW_H
#define PIPER_IR_DAG_DRAW_H

#include "ir/filter.h"

/* A node a line, in the given order (of 'n' NodeIds; NULL: a topological one, smallest ids first):
 *
 *   0F0                   0-1
 *   transfer relu.5 0F0   0-1>2  pp_stream  <- 0F0
 *   1F0                   2                 <- transfer relu.5 0F0, ~1B0
 *
 * its name, devices, stream unless that is default_stream, and after "<-" the nodes that it waits for:
 * a temporal edge has "~", and several edges from one node are one, of data if one is. The last line has no newline.
 * *out is malloc'ed, the caller's. */
PiperStatus dag_list(const Dag *d, const uint32_t *order, uint32_t n, char **out, PiperErr *err);

/* In Graphviz's language. A cluster for each device set that computes, in it one for each stage where
 * it has several; computing nodes coloured by pass, communication by kind; temporal edges dashed; the
 * script line of each node as tooltip; below, a legend of the colours.
 *
 * filter: NULL, or only the computing nodes that match, what they communicate and what else is beside
 * them; computing nodes beside these small in grey. One that matches nothing is PIPER_EUSER, as by
 * filter_nodes. */
PiperStatus dag_dot(const Dag *d, const Filter *filter, char **out, PiperErr *err);

#endif
