// out[r] = dy[index[r] / div] W[e] on tensor cores.
#include "dev.h"
#include "lib_gemm_rows.h"

GEMM_USUAL(GEMM_ROWS, grouped_dgrad, false, LargeShape)
