// ab = x W^T for rows of experts, and h = silu(a) b of ab = [a | b], of rounded operands.
#include "dev.h"
#include "lib_gemm_swiglu.h"

GEMM_ROUNDED(GEMM_GATE_UP, grouped_gate_up_rounded, true, LargeShape)
