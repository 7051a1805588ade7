// Sums counts over experts, in one block.
#include "lib_prefix.h"

KERNEL(1024) permute_offsets(const u32* counts, u32* offsets, u32 experts) {
  DYN_SHARED(u32, shared);
  u32 before = 0;
  for (u64 first = 0; first < experts; first += blockDim.x) {
    u64 expert = first + threadIdx.x;
    u32 all;
    u32 own = before + block_prefix(expert < experts ? counts[expert] : 0, shared, all);
    if (expert < experts) offsets[expert] = own;
    before += all;
  }
  if (threadIdx.x == 0) offsets[experts] = before;
}
