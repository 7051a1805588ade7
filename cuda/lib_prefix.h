// Sums over the threads of a block in front of one.
#pragma once
#include "dev.h"
#include "lib_warp.h"

// Sum of the values of the block's threads in front of this one; `all` of all. `parts` holds one number for each warp.
DEV u32 block_prefix(u32 value, u32* parts, u32& all) {
  u32 through = block_scan(value, parts);
  all = 0;
  for (u32 warp = 0; warp < blockDim.x / 32; warp++) all += parts[warp];
  // What is read here is written by the next call.
  __syncthreads();
  return through - value;
}
