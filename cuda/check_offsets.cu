// Finds offsets that fall, and a last one beyond the rows.
#include "dev.h"

KERNEL(256) check_offsets(const u32* offsets, u32* faults, u32 groups, u32 rows) {
  u64 threads = (u64)gridDim.x * blockDim.x;
  for (u64 e = blockIdx.x * (u64)blockDim.x + threadIdx.x; e <= groups; e += threads) {
    u32 value = offsets[e];
    if (e < groups && value > offsets[e + 1]) {
      atomicOr(faults, 1u);
      atomicMax(faults + 1, value);
    }
    if (e == groups && value > rows) {
      atomicOr(faults, 2u);
      atomicMax(faults + 2, value);
    }
  }
}
