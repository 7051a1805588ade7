// out[r] = x[index[r] / div] W[e]^T in f32, without tensor cores.
#include "dev.h"
#include "lib_gemm_simt.h"

GEMM_SIMT(grouped_forward_simt, true)
