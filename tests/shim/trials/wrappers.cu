// One kernel for each wrapper and builtin: they store what they get, and tests/fake_cuda says what that should be.
#include "dev.h"

template <class T>
DEV void multiply(const u32* a, const u32* b, f32* d) {
  u32 x[4], y[2];
  f32 z[4];
  for (u32 i = 0; i < 4; i++) x[i] = a[threadIdx.x * 4 + i], z[i] = d[threadIdx.x * 4 + i];
  for (u32 i = 0; i < 2; i++) y[i] = b[threadIdx.x * 2 + i];
  mma(z, x, y, T{});
  for (u32 i = 0; i < 4; i++) d[threadIdx.x * 4 + i] = z[i];
}

KERNEL(32) trial_mma_bf16(const u32* a, const u32* b, f32* d) { multiply<bf16>(a, b, d); }
KERNEL(32) trial_mma_f16(const u32* a, const u32* b, f32* d) { multiply<f16>(a, b, d); }

// Rows of the matrices lie `pitch` elements apart.
KERNEL(32) trial_ldmatrix(const u16* tile, u32* out, u32 pitch, u32 transposed) {
  DYN_SHARED(u16, sm);
  for (u32 i = threadIdx.x; i < 32 * pitch; i += 32) sm[i] = tile[i];
  __syncthreads();
  u32 r[4];
  if (transposed)
    ldmatrix_x4_trans(r, sm + threadIdx.x * pitch);
  else
    ldmatrix_x4(r, sm + threadIdx.x * pitch);
  for (u32 i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = r[i];
}

// Three groups; after each wait the words of the groups that have to be there.
KERNEL(32) trial_copies(const u32* from, u32* out) {
  DYN_SHARED(u32, sm);
  cp_async16(sm + threadIdx.x * 4, from + threadIdx.x * 4, threadIdx.x % 4 != 3);
  cp_async_commit();
  cp_async4(sm + 128 + threadIdx.x, from + 128 + threadIdx.x, threadIdx.x % 4 != 2);
  cp_async_commit();
  cp_async4(sm + 160 + threadIdx.x, from + 160 + threadIdx.x, true);
  cp_async_commit();
  cp_async_wait<2>();
  for (u32 i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = sm[threadIdx.x * 4 + i];
  cp_async_wait<1>();
  out[128 + threadIdx.x] = sm[128 + threadIdx.x];
  out[192 + threadIdx.x] = sm[160 + threadIdx.x];  // may be there or not
  cp_async_wait<0>();
  out[160 + threadIdx.x] = sm[160 + threadIdx.x];
}

// Eight words of each lane.
KERNEL(32) trial_shuffles(const u32* in, u32* out) {
  const u32 lane = threadIdx.x, v = in[lane];
  u32* o = out + lane * 8;
  o[0] = __shfl_sync(FULL_WARP, v, (int)(lane * 7 + 3));
  o[1] = __shfl_sync(FULL_WARP, v, 5, 8);
  o[2] = __shfl_up_sync(FULL_WARP, v, 3);
  o[3] = __shfl_up_sync(FULL_WARP, v, 3, 16);
  o[4] = __shfl_down_sync(FULL_WARP, v, 5);
  o[5] = __shfl_down_sync(FULL_WARP, v, 5, 8);
  o[6] = __shfl_xor_sync(FULL_WARP, v, 17);
  const u64 wide = __shfl_xor_sync(FULL_WARP, (u64)v << 32 | lane, 1);
  o[7] = (u32)(wide >> 32) ^ (u32)wide;
}

// Half a warp leaves; the others vote and shuffle with each other, and with a mask that still names those who left.
KERNEL(32) trial_votes(const u32* in, u32* out) {
  const u32 lane = threadIdx.x, v = in[lane];
  u32* o = out + lane * 8;
  o[0] = __ballot_sync(FULL_WARP, v & 1);
  o[1] = __any_sync(FULL_WARP, v == 3) | __any_sync(FULL_WARP, 0) << 1;
  o[2] = __all_sync(FULL_WARP, v < 100) | __all_sync(FULL_WARP, v & 1) << 1;
  o[3] = __match_any_sync(FULL_WARP, v % 4);
  o[4] = __reduce_add_sync(FULL_WARP, v) ^ __reduce_max_sync(FULL_WARP, v) << 16;
  if (lane & 1) return;
  o[5] = __ballot_sync(0x55555555u, v & 2);
  o[6] = __ballot_sync(FULL_WARP, v & 2);
  o[7] = __shfl_xor_sync(FULL_WARP, v, 2);
}

KERNEL(1) trial_bits(const u64* in, u64* out, u64 len) {
  for (u64 i = 0; i < len; i++) {
    const u64 x = in[i], y = in[(i + 1) % len];
    u64* o = out + i * 10;
    o[0] = (u64)__popc((u32)x);
    o[1] = (u64)__popcll(x);
    o[2] = (u64)__ffs((int)(u32)x);
    o[3] = (u64)__clz((int)(u32)x);
    o[4] = (u64)__clzll((long long)x);
    o[5] = __umulhi((u32)x, (u32)y);
    o[6] = __umul64hi(x, y);
    o[7] = __brev((u32)x);
    o[8] = min((u32)x, (u32)y) + (u64)max((i32)x, (i32)y);
    o[9] = (u64)__double_as_longlong(fma(1.5, __longlong_as_double((long long)(x >> 12 | 0x3ff0000000000000ull)), 0.25));
  }
}

KERNEL(256) trial_halves(const f32* in, u16* halves, f32* widened, u64 len) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x) halves[i] = to_f16(in[i]).bits;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < 65536; i += (u64)gridDim.x * blockDim.x) widened[i] = to_f32(f16{(u16)i});
}

// Integer atomics of all blocks, and a last block that adds up what the others have written.
KERNEL(64) trial_atomics(u32* counts, u64* sum, u32* partial, u32* total) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&counts[0], 1);
  atomicMax(&counts[1], i);
  atomicMin(&counts[2], i);
  atomicOr(&counts[3], 1u << i % 32);
  atomicAdd(sum, (u64)i << 20);
  DYN_SHARED(u32, last);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = blockIdx.x + 1;
    __threadfence();
    last[0] = atomicAdd(&counts[4], 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last[0] && threadIdx.x == 0) {
    u32 all = 0;
    for (u32 b = 0; b < gridDim.x; b++) all += partial[b];
    total[0] = all;
  }
}

// A sum over a block in a tree, of any number of threads and blocks.
KERNEL(512) trial_sum(const u32* in, u32* out, u64 len) {
  DYN_SHARED(u32, sm);
  u32 s = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x) s += in[i];
  sm[threadIdx.x] = s;
  for (u32 width = blockDim.x / 2; width; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) sm[threadIdx.x] += sm[threadIdx.x + width];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sm[0];
}

// Who came when: the order in which the threads of a block and the blocks start.
KERNEL(64) trial_order(u32* next, u32* out) { out[atomicAdd(next, 1)] = blockIdx.x * blockDim.x + threadIdx.x; }

KERNEL(64) trial_poison(u32* out) {
  DYN_SHARED(u32, sm);
  out[threadIdx.x] = sm[threadIdx.x];
}

KERNEL(32) trial_moves(const Vec16* from, Vec16* to) { store_once(to + threadIdx.x, load_once(from + threadIdx.x)); }
