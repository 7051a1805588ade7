// out[r] = x[index[r] / div] W[e]^T on tensor cores, of rounded operands, in small tiles.
#include "dev.h"
#include "lib_gemm_rows.h"

GEMM_ROUNDED(GEMM_ROWS, grouped_forward_rounded_small, true, SmallShape)
