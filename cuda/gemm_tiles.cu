// The row tiles of all groups in order: their number, three zeros, and for each its group, first row, rows, and a word unused. There
// are `most` at most, unless offsets do not ascend.
#include "dev.h"

KERNEL(256) gemm_tiles(const u32* offsets, u32* tiles, u32 rows, u32 groups, u32 tile_rows, u32 most) {
  DYN_SHARED(u32, sums);  // 8: tiles of each warp
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 before = 0;
  for (u32 base = 0; base < groups; base += 256) {
    const u32 group = base + threadIdx.x;
    u32 first = 0, end = 0;
    if (group < groups) {
      first = min(offsets[group], rows);
      end = min(offsets[group + 1], rows);
    }
    const u32 mine = end > first ? (u32)(((u64)(end - first) + tile_rows - 1) / tile_rows) : 0;
    u32 sum = mine;
#pragma unroll
    for (u32 d = 1; d < 32; d *= 2) {
      const u32 left = __shfl_up_sync(FULL_WARP, sum, d);
      if (lane >= d) sum += left;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u32 start = before + sum - mine;
#pragma unroll
    for (u32 w = 0; w < 8; w++) {
      if (w < warp) start += sums[w];
      before += sums[w];
    }
    __syncthreads();
    // Each group that has tiles in turn, by all lanes.
    for (u32 left = __ballot_sync(FULL_WARP, mine > 0); left != 0; left &= left - 1) {
      const u32 source = __ffs(left) - 1;
      const u32 count = __shfl_sync(FULL_WARP, mine, source), at = __shfl_sync(FULL_WARP, start, source);
      const u32 from = __shfl_sync(FULL_WARP, first, source), to = __shfl_sync(FULL_WARP, end, source);
      for (u32 i = lane; i < count; i += 32) {
        if (at + i >= most) break;
        const u32 row = from + i * tile_rows;
        u32* entry = tiles + 4 * (u64)(1 + at + i);
        entry[0] = base + warp * 32 + source;
        entry[1] = row;
        entry[2] = min(tile_rows, to - row);
      }
    }
  }
  if (threadIdx.x < 4) tiles[threadIdx.x] = threadIdx.x == 0 ? min(before, most) : 0;
}
