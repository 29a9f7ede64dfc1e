/* vec.h - typed growing arrays.
 *
 *   typedef VEC(uint32_t) U32Vec;
 *   U32Vec v = {0};
 *   if (!vec_push(&v, 7)) ...out of memory, v unchanged...
 *   for (size_t i = 0; i < v.n; i++) use(v.at[i]);
 *   vec_free(&v);
 *
 * A pointer into 'at' is good only until the next push. */
#ifndef PIPER_BASE_VEC_H
#define PIPER_BASE_VEC_H

#include <stdbool.h>
#include <stddef.h>

#define VEC(T)                                                                                     \
  struct {                                                                                         \
    T *at;                                                                                         \
    size_t n, cap;                                                                                 \
  }

/* Make room for 'extra' more elements; false: out of memory, nothing changed. */
#define vec_reserve(v, extra)                                                                      \
  ((v)->cap - (v)->n >= (size_t)(extra) ||                                                         \
   vec_grow_((void **)&(v)->at, &(v)->cap, (v)->n, (size_t)(extra), sizeof *(v)->at))
#define vec_push(v, x) (vec_reserve(v, 1) && ((v)->at[(v)->n++] = (x), true))
#define vec_free(v) (vec_free_((void **)&(v)->at), (v)->n = (v)->cap = 0)

bool vec_grow_(void **at, size_t *cap, size_t n, size_t extra, size_t size);
void vec_free_(void **at);

#endif
