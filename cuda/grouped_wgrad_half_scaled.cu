// out[e] (+)= dy^T x over the rows of each group, on tensor cores, with f16, rows scaled.
#include "dev.h"
#include "lib_gemm_wgrad.h"

GEMM_WGRAD(grouped_wgrad_half_scaled, true, f16, f16, bf16, 3, 2)
GEMM_WGRAD(grouped_wgrad_half_scaled, true, f32, f16, bf16, 3, 2)
GEMM_WGRAD(grouped_wgrad_half_scaled, true, f16, f32, bf16, 2, 3)
GEMM_WGRAD(grouped_wgrad_half_scaled, true, bf16, f16, bf16, 3, 2)
GEMM_WGRAD(grouped_wgrad_half_scaled, true, f16, bf16, bf16, 3, 1)
