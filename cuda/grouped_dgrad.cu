// out[r] = dy[index[r] / div] W[e] on tensor cores.
#include "dev.h"
#include "lib_gemm_rows.h"

typedef Shape<128, 128, 32, 4, 2> Large;
typedef Shape<128, 128, 32, 3, 2> LargeWide;
typedef Shape<32, 128, 32, 4, 1> Small;

#define INSTANCE(name, S, D, M, left_pieces, right_pieces, shape)                                                              \
  KERNEL(GEMM_THREADS)                                                                                                            \
  name(const S* x, const u32* index, const D* w, const u32* tiles, f32* out, u64 div, u32 stored, u32 n, u32 k, u32 flags) {      \
    multiply_tiles<RowsOp<S, D, M, left_pieces, right_pieces, false, shape>>({x, index, w, tiles, out, div, stored, n, k, flags}); \
  }

INSTANCE(grouped_dgrad_bf16_bf16, bf16, bf16, bf16, 1, 1, Large)
INSTANCE(grouped_dgrad_f32_bf16, f32, bf16, bf16, 3, 1, LargeWide)
