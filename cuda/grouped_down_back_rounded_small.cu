// u = dy W for rows of experts, and the backward of SwiGLU from u, of rounded operands, in small tiles.
#include "dev.h"
#include "lib_gemm_swiglu.h"

GEMM_ROUNDED(GEMM_DOWN_BACK, grouped_down_back_rounded_small, false, SmallShape)
