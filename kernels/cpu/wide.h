/* wide.h - four REALs as doubles, for sums. No include guard. */
typedef double FN(Wide) __attribute__((vector_size(32)));
typedef REAL FN(Narrow) __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

ALWAYS_INLINE FN(Wide) FN(wide)(const REAL *x) {
  return __builtin_convertvector(*(const FN(Narrow) *)x, FN(Wide));
}
