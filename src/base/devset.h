/* devset.h - interned, ordered lists of ranks: the device lists of directives. {0, 1} and {1, 0} are
 * different sets: the j-th device takes the j-th part of a microbatch. Id 0 is the empty list. */
#ifndef PIPER_BASE_DEVSET_H
#define PIPER_BASE_DEVSET_H

#include "base/vec.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct DevSets DevSets;

DevSets *devsets_new(void);       /* NULL: out of memory */
void devsets_free(DevSets *t);    /* NULL is fine */
/* The id of a list of distinct ranks (>= 0); 0: empty list, or out of memory when n > 0. */
uint32_t devsets_id(DevSets *t, const int32_t *ranks, uint32_t n);
uint32_t devsets_size(const DevSets *t, uint32_t id);
const int32_t *devsets_ranks(const DevSets *t, uint32_t id); /* good until the next devsets_id */
int32_t devsets_position(const DevSets *t, uint32_t id, int32_t rank); /* -1: not a member */
/* The sorted union of two sets. When one contains the other that one is returned as it is (its
 * order stays); 0: out of memory. */
uint32_t devsets_union(DevSets *t, uint32_t a, uint32_t b);
uint32_t devsets_count(const DevSets *t); /* ids run from 0 to count - 1 */
/* "0", "0-3,8" for ascending lists, "1,0" otherwise. */
void devsets_text(const DevSets *t, uint32_t id, char *buf, uint32_t n);

#endif
