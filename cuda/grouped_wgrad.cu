// out[e] (+)= dy^T x over the rows of each group, on tensor cores.
#include "dev.h"
#include "lib_gemm_wgrad.h"

typedef Shape<128, 128, 32, 4, 2> Narrow;
typedef Shape<128, 128, 32, 3, 2> Mixed;
typedef Shape<128, 128, 32, 2, 2> Wide;

#define INSTANCE(name, S, D, M, left_pieces, right_pieces, scaled, scale_left, shape)                                             \
  KERNEL(GEMM_THREADS)                                                                                                            \
  name(const S* dy, const u32* dy_index, const f32* scale, const D* x, const u32* x_index, const u32* offsets, f32* out,          \
       u64 dy_div, u64 x_div, u32 dy_stored, u32 x_stored, u32 rows, u32 groups, u32 n, u32 k, u32 flags) {                       \
    multiply_tiles<WgradOp<S, D, M, left_pieces, right_pieces, scaled, scale_left, shape>>(                                       \
        {dy, dy_index, scale, x, x_index, offsets, out, dy_div, x_div, dy_stored, x_stored, rows, groups, n, k, flags});          \
  }

INSTANCE(grouped_wgrad_bf16_bf16, bf16, bf16, bf16, 1, 1, false, false, Narrow)
INSTANCE(grouped_wgrad_scaled_bf16_bf16, bf16, bf16, bf16, 3, 1, true, true, Narrow)
INSTANCE(grouped_wgrad_f32_bf16, f32, bf16, bf16, 3, 1, false, false, Mixed)
INSTANCE(grouped_wgrad_f32_f32, f32, f32, bf16, 3, 3, false, false, Wide)
INSTANCE(grouped_wgrad_scaled_bf16_f32, bf16, f32, bf16, 1, 3, true, false, Mixed)
