// out[r] = dy[index[r] / div] W[e] in f32, without tensor cores.
#include "dev.h"
#include "lib_gemm_simt.h"

GEMM_SIMT(grouped_dgrad_simt, false)
