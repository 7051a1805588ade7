// out[r] = dy[index[r] / div] W[e] on tensor cores, in small tiles.
#include "dev.h"
#include "lib_gemm_rows.h"

GEMM_USUAL(GEMM_ROWS, grouped_dgrad_small, false, SmallShape)
