// out[r] = x[index[r] / div] W[e]^T on tensor cores, of types that seldom meet.
#include "dev.h"
#include "lib_gemm_rows.h"

GEMM_MIXED(GEMM_ROWS, grouped_forward_mixed, true, SmallShape)
