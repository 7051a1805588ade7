// Kernels with a fault each. `fault` names it; where it is another one, the kernel is sound.
#include "dev.h"

KERNEL(64) fault_deadlock(u32* out, u32 fault) {
  if (fault && threadIdx.x % 32 < 16)
    out[threadIdx.x] = __shfl_sync(FULL_WARP, threadIdx.x, 3);
  else
    __syncthreads();
}

KERNEL(64) fault_sites(u32* out, u32 fault) {
  if (fault && threadIdx.x < 32)
    __syncthreads();
  else if (fault)
    __syncthreads();
  out[threadIdx.x] = 1;
}

KERNEL(32) fault_masks(u32* out, u32 fault) {
  out[threadIdx.x] = __ballot_sync(fault && threadIdx.x < 16 ? 0x0001ffffu : FULL_WARP, 1);
}

KERNEL(32) fault_ldmatrix(u32* out, u32 fault) {
  DYN_SHARED(u16, sm);
  u32 r[4];
  ldmatrix_x4(r, sm + threadIdx.x * 8 + (fault ? 4 : 0));
  for (u32 i = 0; i < 4; i++) out[threadIdx.x] = r[i];
}

KERNEL(32) fault_copy(u32* out, u32 fault) {
  DYN_SHARED(u32, sm);
  cp_async16(sm + threadIdx.x * 4 + (fault ? 1 : 0), out + threadIdx.x * 4, true);
  cp_async_commit();
  cp_async_wait<0>();
}

KERNEL(32) fault_copy_outside(u32* out, u32 fault) {
  DYN_SHARED(u32, sm);
  cp_async16(sm + threadIdx.x * 4 + (fault ? 128 : 0), out + threadIdx.x * 4, true);
  cp_async_commit();
  cp_async_wait<0>();
}

KERNEL(32) fault_vector(u32* out, u32 fault) {
  Vec16* p = reinterpret_cast<Vec16*>(out + (fault ? 1 : 0));
  store_once(p, load_once(p));
}

KERNEL(32) fault_wide(u32* out, u32 fault) { *reinterpret_cast<u64*>(out + (fault ? 1 : 0)) = 1; }

KERNEL(32) fault_shared(u32* out, u32 fault) {
  DYN_SHARED(u32, sm);
  sm[threadIdx.x + (fault ? 1 : 0)] = 1;
  out[threadIdx.x] = 1;
}

KERNEL(32) fault_address(u32* out, u32 fault) { out[fault ? (u64)1 << 40 : 0] = 1; }

// A part of what a thread reads was written by another one.
KERNEL(64) fault_no_barrier(u32* out, u32 fault) {
  DYN_SHARED(u32, sm);
  sm[threadIdx.x] = threadIdx.x;
  if (!fault) __syncthreads();
  out[threadIdx.x] = sm[63 - threadIdx.x];
}

// The values are right in every schedule: nobody reads what the next round overwrites, but by luck.
KERNEL(64) fault_no_second_barrier(u32* out, u32 fault) {
  DYN_SHARED(u32, sm);
  for (u32 round = 0; round < 2; round++) {
    sm[threadIdx.x] = threadIdx.x + round;
    __syncthreads();
    out[threadIdx.x] = sm[63 - threadIdx.x];
    if (!fault) __syncthreads();
  }
}

// Copies are seen by others only behind a barrier.
KERNEL(64) fault_copy_no_barrier(u32* out, u32 fault) {
  DYN_SHARED(u32, sm);
  cp_async4(sm + threadIdx.x, out + threadIdx.x, true);
  cp_async_commit();
  cp_async_wait<0>();
  if (!fault) __syncthreads();
  out[64 + threadIdx.x] = sm[63 - threadIdx.x];
}

// A shuffle orders no memory.
KERNEL(32) fault_shuffle_no_order(u32* out, u32 fault) {
  DYN_SHARED(u32, sm);
  sm[threadIdx.x] = threadIdx.x;
  u32 other = __shfl_xor_sync(FULL_WARP, threadIdx.x, 1);
  if (!fault) __syncwarp();
  out[threadIdx.x] = sm[other];
}

// Every block writes the same word.
KERNEL(32) fault_blocks(u32* out, u32 fault) {
  if (threadIdx.x == 0) out[fault ? 0 : blockIdx.x] = 7;
}

// Without a fence in between, what another block has written need not be there.
KERNEL(32) fault_no_fence(u32* out, u32 fault) {
  if (threadIdx.x) return;
  out[1 + blockIdx.x] = 1;
  if (!fault) __threadfence();
  const u32 before = atomicAdd(out, 1);
  if (!fault) __threadfence();
  if (before == gridDim.x - 1)
    for (u32 b = 0; b < gridDim.x; b++) out[100] += out[1 + b];
}

KERNEL(32) fault_bounds(u32* out, u32 fault) { out[threadIdx.x + (fault ? 1 : 0)] = 1; }
