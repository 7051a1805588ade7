// ab = x W^T for rows of experts, and h = silu(a) b of ab = [a | b], in small tiles.
#include "dev.h"
#include "lib_gemm_swiglu.h"

GEMM_USUAL(GEMM_GATE_UP, grouped_gate_up_small, true, SmallShape)
