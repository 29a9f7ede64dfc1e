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

/* Appends the matching COMPUTE nodes to 'out', ascending. Time: that of its rarest term. What the
 * user got wrong is PIPER_EUSER, nothing appended, and the caller adds line and directive:
 *   filter { PP = 5 } matches nothing; PP runs from 0 to 3
 *   filter { PQ = 5 } matches nothing; there is no tag "PQ" (did you mean "PP"?); the tags are MB, PP
 *   filter { MB = 0, PASS = "BI" } matches nothing; 8 nodes have MB = 0, but none of them PASS = "BI"
 * An index that occurs nowhere is an error also beside others that do. A tag that occurs nowhere is
 * none where it is asked for as false: every node is outside of it. */
PiperStatus filter_nodes(const FilterIndex *x, const Filter *f, U32Vec *out, PiperErr *err);
/* "{ MB = 1, PASS = \"F\", PP = 0 }"; cut off where it does not fit, long lists shortened. */
void filter_text(const Filter *f, char *buf, size_t n);

#endif
