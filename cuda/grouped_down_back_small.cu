// u = dy W for rows of experts, and the backward of SwiGLU from u, in small tiles.
#include "dev.h"
#include "lib_gemm_swiglu.h"

GEMM_USUAL(GEMM_DOWN_BACK, grouped_down_back_small, false, SmallShape)
