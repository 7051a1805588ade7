// Sums each expert's counts over the segments in front of each, a block an expert.
#include "lib_prefix.h"

#define COUNTS 4

KERNEL(256) permute_segments(u32* table, u32* counts, u32 experts, u32 segments) {
  DYN_SHARED(u32, shared);
  for (u64 expert = blockIdx.x; expert < experts; expert += gridDim.x) {
    u32* row = table + at(expert, segments, 0);
    u32 before = 0;
    for (u64 first = 0; first < segments; first += COUNTS * blockDim.x) {
      u64 own = first + threadIdx.x * COUNTS;
      u32 count[COUNTS];
      u32 sum = 0;
      for (u32 i = 0; i < COUNTS; i++) {
        count[i] = own + i < segments ? row[own + i] : 0;
        sum += count[i];
      }
      u32 all;
      u32 next = before + block_prefix(sum, shared, all);
      for (u32 i = 0; i < COUNTS; i++) {
        if (own + i < segments) row[own + i] = next;
        next += count[i];
      }
      before += all;
    }
    if (threadIdx.x == 0) counts[expert] = before;
  }
}
