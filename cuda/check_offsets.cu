// Finds offsets that fall, and a last one beyond the rows.
#include "dev.h"
#include "lib_warp.h"
#include "lib_faults.h"

KERNEL(256) check_offsets(const u32* offsets, u32* faults, u32 groups, u32 rows) {
  u64 threads = (u64)gridDim.x * blockDim.x;
  bool falls = false, ends_beyond = false;
  u32 largest = 0, last = 0;
  for (u64 e = blockIdx.x * (u64)blockDim.x + threadIdx.x; e <= groups; e += threads) {
    u32 value = offsets[e];
    if (e < groups && value > offsets[e + 1]) {
      falls = true;
      largest = max(largest, value);
    }
    if (e == groups && value > rows) {
      ends_beyond = true;
      last = value;
    }
  }
  report(faults, 1u, falls, 1, largest);
  report(faults, 2u, ends_beyond, 2, last);
}
