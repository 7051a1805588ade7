// Sums over the lanes of a warp and the threads of a block, in a fixed order.
#pragma once

DEV u32 lane_id() { return threadIdx.x & 31u; }
DEV u32 warp_id() { return threadIdx.x >> 5; }

// Every lane gets the same bits: both sides of an exchange add the same two numbers.
template <class T>
DEV T warp_sum(T x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1) x += __shfl_xor_sync(FULL_WARP, x, apart);
  return x;
}

// Sum of this lane's and all lower ones.
DEV u32 warp_scan(u32 x) {
#pragma unroll
  for (u32 apart = 1; apart < 32; apart <<= 1) {
    u32 other = __shfl_up_sync(FULL_WARP, x, apart);
    if (lane_id() >= apart) x += other;
  }
  return x;
}

// The sum over a block, for every thread. `parts` holds one number for each warp; it is free again behind the next barrier.
template <class T>
DEV T block_sum(T x, T* parts) {
  x = warp_sum(x);
  if (lane_id() == 0) parts[warp_id()] = x;
  __syncthreads();
  T sum = parts[0];
  for (u32 warp = 1; warp < blockDim.x / 32; warp++) sum += parts[warp];
  return sum;
}

// Sum of this thread's and all lower ones; `parts` as in block_sum.
DEV u32 block_scan(u32 x, u32* parts) {
  x = warp_scan(x);
  if (lane_id() == 31) parts[warp_id()] = x;
  __syncthreads();
  for (u32 warp = 0; warp < warp_id(); warp++) x += parts[warp];
  return x;
}
