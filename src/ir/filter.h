/* filter.h - which nodes a directive selects (design 3.2). */
#ifndef PIPER_IR_FILTER_H
#define PIPER_IR_FILTER_H

#include "ir/dag.h"

typedef enum TermKind {
  TERM_INDEX, /* tag has one of the listed indices */
  TERM_ANY,   /* "*": inside some scope of the tag */
  TERM_NONE,  /* false: outside every scope of the tag */
} TermKind;

typedef struct FilterTerm {
  const char *tag;
  TermKind kind;
  const int32_t *indices; /* TERM_INDEX, ascending */
  uint32_t n_indices;
} FilterTerm;

/* All terms must hold; no terms matches everything. Terms sorted by tag name. */
typedef struct Filter {
  const FilterTerm *terms;
  uint32_t n_terms;
  uint32_t passes; /* bit (1 << Pass) set for those selected; 0: PASS was not given, all */
} Filter;

/* Tables for answering filters on the DAG as it is now: (tag, index) -> COMPUTE nodes. Build again
 * after nodes were added or their tags changed. */
typedef struct FilterIndex FilterIndex;
PiperStatus filter_index_new(const Dag *d, FilterIndex **out, PiperErr *err);
void filter_index_free(FilterIndex *x);

/* Appends the matching COMPUTE nodes to 'out', ascending. Time: that of its rarest term.
 * A tag or index that occurs nowhere is an error that says which values there are, as in
 * "filter { PP = 5 } matches nothing; PP runs from 0 to 3" (the caller adds line and directive). */
PiperStatus filter_nodes(const FilterIndex *x, const Filter *f, U32Vec *out, PiperErr *err);
void filter_text(const Filter *f, char *buf, size_t n); /* "{ MB = 1, PASS = \"F\", PP = 0 }" */

#endif
