// Where the rows that each segment retains begin, from how many they are, and so the offsets of the retained rows. By one block.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"

KERNEL(1024) select_offsets(const u32* offsets, u32* counts, u32* kept_offsets, u32 segments, u32 rows, u32 experts) {
  DYN_SHARED(u32, parts);
  u32 at = 0;
  for (u64 base = 0; base < segments; base += blockDim.x) {
    u64 segment = base + threadIdx.x;
    u32 own = segment < segments ? counts[segment] : 0, through = block_scan(own, parts);
    if (segment < segments) counts[segment] = at + through - own;
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) parts[32] = through;
    __syncthreads();
    at += parts[32];
  }
  __syncthreads();
  for (u32 e = threadIdx.x; e <= experts; e += blockDim.x) kept_offsets[e] = counts[min(first_block(offsets, e, rows), segments - 1)];
}
