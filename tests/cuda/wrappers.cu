// One kernel for each wrapper of cuda/dev.h that is inline PTX on a GPU: what it does, written to memory.
#include "dev.h"

KERNEL(256) wrap_to_f16(const f32* in, u32* out, u32 len) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < len) out[i] = to_f16(in[i]).bits;
}

KERNEL(256) wrap_to_f32(const u32* in, f32* out, u32 len) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  f16 x;
  if (i < len) {
    x.bits = (u16)in[i];
    out[i] = to_f32(x);
  }
}

// Fragments of a (16 x 16, row-major) and b (16 x 8, row-major) as the PTX manual lays them out; d = c + a b is 16 x 8.
template <class T>
DEV void wrap_mma(const u16* a, const u16* b, const f32* c, f32* d) {
  u32 lane = threadIdx.x, row = lane >> 2, pair = 2 * (lane & 3);
  auto two = [](u16 low, u16 high) { return (u32)low | (u32)high << 16; };
  auto a_at = [&](u32 r, u32 k) { return two(a[r * 16 + k], a[r * 16 + k + 1]); };
  auto b_at = [&](u32 k) { return two(b[k * 8 + row], b[(k + 1) * 8 + row]); };
  u32 fa[4] = {a_at(row, pair), a_at(row + 8, pair), a_at(row, pair + 8), a_at(row + 8, pair + 8)};
  u32 fb[2] = {b_at(pair), b_at(pair + 8)};
  u32 at[4] = {row * 8 + pair, row * 8 + pair + 1, (row + 8) * 8 + pair, (row + 8) * 8 + pair + 1};
  f32 fd[4] = {c[at[0]], c[at[1]], c[at[2]], c[at[3]]};
  mma(fd, fa, fb, T{});
  for (u32 i = 0; i < 4; i++) d[at[i]] = fd[i];
}

KERNEL(32) wrap_mma_bf16(const bf16* a, const bf16* b, const f32* c, f32* d) {
  wrap_mma<bf16>((const u16*)a, (const u16*)b, c, d);
}

KERNEL(32) wrap_mma_f16(const f16* a, const f16* b, const f32* c, f32* d) {
  wrap_mma<f16>((const u16*)a, (const u16*)b, c, d);
}

// 32 rows of 8 elements, row l by lane l; then what each lane holds.
KERNEL(32) wrap_ldmatrix(const u32* in, u32* plain, u32* transposed) {
  DYN_SHARED(u32, rows);
  u32 lane = threadIdx.x, r[4];
  for (u32 i = 0; i < 4; i++) rows[4 * lane + i] = in[4 * lane + i];
  __syncthreads();
  ldmatrix_x4(r, rows + 4 * lane);
  for (u32 i = 0; i < 4; i++) plain[4 * lane + i] = r[i];
  ldmatrix_x4_trans(r, rows + 4 * lane);
  for (u32 i = 0; i < 4; i++) transposed[4 * lane + i] = r[i];
}

// Odd lanes copy nothing: zeros. The second group is waited for apart from the first.
KERNEL(32) wrap_cp_async(const u32* in, u32* by_16, u32* by_4) {
  DYN_SHARED(u32, words);
  u32 lane = threadIdx.x;
  for (u32 i = 0; i < 5; i++) words[i * 32 + lane] = 0xffffffffu;
  __syncthreads();
  bool real = lane % 2 == 0;
  cp_async16(words + 4 * lane, in + 4 * lane, real);
  cp_async_commit();
  cp_async4(words + 128 + lane, in + 128 + lane, real);
  cp_async_commit();
  cp_async_wait<1>();
  for (u32 i = 0; i < 4; i++) by_16[4 * lane + i] = words[4 * lane + i];
  cp_async_wait<0>();
  by_4[lane] = words[128 + lane];
}

KERNEL(32) wrap_once(const u32* in, u32* out) {
  store_once((Vec16*)out + threadIdx.x, load_once((const Vec16*)in + threadIdx.x));
}
