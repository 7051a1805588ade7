// Sums over rows of what fused products have left in parts: norms of h, or <u, h>.
#include "lib_team.h"

// Parts that a thread has under way.
#define PARTS 16

// Parts of a row in the order of columns.
DEV f64 sum_of_parts(const f64* parts, u64 rows, u64 row, u32 blocks) {
  f64 sum = 0;
  const f64* from = parts + row;
  u32 block = 0;
  for (; blocks - block >= PARTS; block += PARTS, from += PARTS * rows) {
    f64 part[PARTS];
#pragma unroll
    for (u32 i = 0; i < PARTS; i++) part[i] = from[i * rows];
#pragma unroll
    for (u32 i = 0; i < PARTS; i++) sum += part[i];
  }
  for (; block < blocks; block++, from += rows) sum += *from;
  return sum;
}

KERNEL(256) gemm_norms(const f64* parts, const u32* offsets, f32* norm, u64 rows, u32 groups, u32 blocks) {
  const u64 begin = offsets[0], end = min((u64)offsets[groups], rows);
  for (u64 row = blockIdx.x * (u64)blockDim.x + threadIdx.x; row < end; row += (u64)gridDim.x * blockDim.x)
    if (row >= begin) norm[row] = norm_of(sum_of_parts(parts, rows, row, blocks));
}

KERNEL(256) gemm_dots(const f64* parts, const u32* offsets, f32* dot, u64 rows, u32 groups, u32 blocks) {
  const u64 begin = offsets[0], end = min((u64)offsets[groups], rows);
  for (u64 row = blockIdx.x * (u64)blockDim.x + threadIdx.x; row < end; row += (u64)gridDim.x * blockDim.x)
    if (row >= begin) dot[row] = (f32)sum_of_parts(parts, rows, row, blocks);
}
