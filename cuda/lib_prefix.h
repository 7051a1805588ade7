// Sums over the threads of a block in front of one, and what they need to know of each other in a warp.
#pragma once
#include "dev.h"

// Sum of the values of the block's threads in front of this one; `all` of all. `shared` has a word for each warp.
DEV u32 block_prefix(u32 value, u32* shared, u32& all) {
  u32 lane = threadIdx.x % 32;
  u32 warp = threadIdx.x / 32;
  u32 through = value;
  for (u32 apart = 1; apart < 32; apart *= 2) {
    u32 other = __shfl_up_sync(FULL_WARP, through, apart);
    if (lane >= apart) through += other;
  }
  if (lane == 31) shared[warp] = through;
  __syncthreads();
  u32 before = 0;
  all = 0;
  for (u32 w = 0; w < blockDim.x / 32; w++) {
    if (w == warp) before = all;
    all += shared[w];
  }
  // What is read here is written by the next call.
  __syncthreads();
  return before + through - value;
}
