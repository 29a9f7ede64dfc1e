/* vec.h - one register of REALs. No include guard. */
#undef LANES
#undef VEC
#undef VEC_U
#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))
#define VEC FN(Vec)
#define VEC_U FN(VecUnaligned)
typedef REAL VEC __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL VEC_U __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
