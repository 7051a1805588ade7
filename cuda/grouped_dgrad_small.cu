// out[r] = dy[index[r] / div] W[e] on tensor cores, in small tiles.
#include "dev.h"
#include "lib_gemm_rows.h"

GEMM_ROWS_USUAL(grouped_dgrad_small, false, SmallShape)
