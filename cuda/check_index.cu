// Finds indices out of range: a flag, and the largest of them.
#include "dev.h"
#include "lib_warp.h"
#include "lib_faults.h"

KERNEL(256) check_index(const u32* index, const u32* offsets, u32* faults, u32 groups, u32 rows, u32 limit, u32 none) {
  u32 first = 0;
  u32 last = rows;
  if (offsets) {
    first = offsets[0];
    last = min(offsets[groups], rows);
  }
  u64 threads = (u64)gridDim.x * blockDim.x;
  bool found = false;
  u32 largest = 0;
  for (u64 row = blockIdx.x * (u64)blockDim.x + threadIdx.x; row < last; row += threads) {
    if (row < first) continue;
    u32 value = index[row];
    if (value >= limit && !(none && value == NONE)) {
      found = true;
      largest = max(largest, value);
    }
  }
  report(faults, 1u, found, 1, largest);
}
