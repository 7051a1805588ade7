// out[r] = dy[index[r] / div] W[e] on tensor cores, of types that seldom meet.
#include "dev.h"
#include "lib_gemm_rows.h"

GEMM_MIXED(GEMM_ROWS, grouped_dgrad_mixed, false, SmallShape)
