// out[e] (+)= dy^T x over the rows of each group, on tensor cores, of rounded operands, rows scaled first.
#include "dev.h"
#include "lib_gemm_wgrad.h"

GEMM_WGRAD(grouped_wgrad_rounded_scaled, true, bf16, bf16, bf16, 1, 1)
GEMM_WGRAD(grouped_wgrad_rounded_scaled, true, f32, bf16, bf16, 1, 1)
GEMM_WGRAD(grouped_wgrad_rounded_scaled, true, bf16, f32, bf16, 1, 1)
GEMM_WGRAD(grouped_wgrad_rounded_scaled, true, f32, f32, bf16, 1, 1)
GEMM_WGRAD(grouped_wgrad_rounded_scaled, true, f16, f16, f16, 1, 1)
GEMM_WGRAD(grouped_wgrad_rounded_scaled, true, f32, f16, f16, 1, 1)
GEMM_WGRAD(grouped_wgrad_rounded_scaled, true, f16, f32, f16, 1, 1)
