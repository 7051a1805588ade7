// Sums over the chunks of router_loss: a lane a column, and every 32nd chunk a warp.
#include "dev.h"
#include "lib_warp.h"

KERNEL(1024) router_loss_total(const f64* partial, f32* sums, u64 chunks, u64 columns) {
  DYN_SHARED(f64, parts);  // 32 x 32: warps, lanes
  u64 column = blockIdx.x * 32ull + lane_id();
  f64 sum = 0.0;
  if (column < columns) {
#pragma unroll 4
    for (u64 chunk = warp_id(); chunk < chunks; chunk += 32) sum += partial[at(chunk, columns, column)];
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || column >= columns) return;
  for (u32 warp = 1; warp < 32; warp++) sum += parts[warp * 32 + threadIdx.x];
  sums[column] = (f32)sum;
}
