// out[e] (+)= dy^T x over the rows of each group, on tensor cores, of f32 and bf16.
#include "dev.h"
#include "lib_gemm_wgrad.h"

GEMM_WGRAD(grouped_wgrad, false, bf16, bf16, bf16, 1, 1)
GEMM_WGRAD(grouped_wgrad, false, f32, bf16, bf16, 3, 1)
GEMM_WGRAD(grouped_wgrad, false, bf16, f32, bf16, 1, 3)
GEMM_WGRAD(grouped_wgrad, false, f32, f32, bf16, 3, 3)
