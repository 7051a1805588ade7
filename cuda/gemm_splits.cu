// out (+)= the sum of the parts of each group's matrix in order. A group without rows gets zeros, or stays when accumulating.
#include "dev.h"

KERNEL(256) gemm_splits(const f32* parts, const u32* offsets, f32* out, u64 each, u32 groups, u32 splits, u32 accumulate) {
  const u64 all = groups * each;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < all; i += (u64)gridDim.x * blockDim.x) {
    f32 sum = parts[i];
    for (u32 split = 1; split < splits; split++) sum += parts[at(split, all, i)];
    if (accumulate) {
      const u64 group = i / each;
      if (offsets[group + 1] <= offsets[group]) continue;
      sum += out[i];
    }
    out[i] = sum;
  }
}
