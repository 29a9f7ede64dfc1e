/* ahead.h - memory that is fetched while something else is computed: rows of bytes, line by line. */
#ifndef PIPER_KERNELS_CPU_AHEAD_H
#define PIPER_KERNELS_CPU_AHEAD_H

#define AHEAD_EVERY 8 /* steps of a tile between two fetches */
#define AHEAD_LINE 64

typedef struct Ahead {
  const char *at;
  int64_t left;    /* lines of this row */
  int64_t rows;    /* after this one */
  int64_t per_row; /* lines */
  int64_t skip;    /* bytes from the end of a row's lines to the next row */
  int64_t each;    /* lines a fetch */
} Ahead;

/* 'rows' rows of 'bytes' bytes, 'step' bytes apart, in at most n_fetches. */
static inline Ahead ahead_of(const void *at, int64_t rows, int64_t bytes, int64_t step,
                             int64_t n_fetches) {
  const int64_t per_row = parts_of(bytes, AHEAD_LINE);
  return (Ahead){.at = at,
                 .left = per_row,
                 .rows = rows - 1,
                 .per_row = per_row,
                 .skip = step - per_row * AHEAD_LINE,
                 .each = parts_of(rows * per_row, n_fetches)};
}

/* Zeros: there is nothing to fetch. */
static inline void ahead_fetch(Ahead *a) {
  for (int64_t i = 0; i < a->each; i++) {
    __builtin_prefetch(a->at, 0, 2);
    a->at += AHEAD_LINE;
    if (--a->left > 0) continue;
    a->at += a->skip;
    a->left = a->per_row;
    if (a->rows-- == 0) a->each = 0;
  }
}

#endif
