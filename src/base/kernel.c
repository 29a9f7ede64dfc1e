#include "base/kernel.h"

const OpInfo OP_INFO[OP_KIND_COUNT] = {
    [OP_NONE] = {"none", 0, {"", "", ""}, 0},
#define OP(NAME, text, n, s0, s1, s2, flags) [OP_##NAME] = {text, n, {s0, s1, s2}, flags},
#include "base/ops.def"
#undef OP
};
