/* wide.h - four REALs as doubles, for sums. No include guard. */
typedef double FN(Wide) __attribute__((vector_size(32)));
typedef REAL FN(Narrow) __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

/* A macro: where vectors are shorter than 32 bytes, a function would have to say how it returns one. */
#undef WIDE
#define WIDE(x) __builtin_convertvector(*(const FN(Narrow) *)(x), FN(Wide))
