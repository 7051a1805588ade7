// out[r] = x[index[r] / div] W[e]^T on tensor cores, in small tiles.
#include "dev.h"
#include "lib_gemm_rows.h"

GEMM_USUAL(GEMM_ROWS, grouped_forward_small, true, SmallShape)
