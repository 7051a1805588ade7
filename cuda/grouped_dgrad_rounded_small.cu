// out[r] = dy[index[r] / div] W[e] on tensor cores, of rounded operands, in small tiles.
#include "dev.h"
#include "lib_gemm_rows.h"

GEMM_ROUNDED(GEMM_ROWS, grouped_dgrad_rounded_small, false, SmallShape)
