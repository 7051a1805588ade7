// How many pairs of each segment go to each expert.
#include "lib_permute.h"

// Steps of 32 pairs whose ids a warp reads at once.
#define STEPS 8

KERNEL(128) permute_count(const u32* ids, u32* table, u64 pairs, u32 experts, u32 length, u32 segments) {
  u32 lane = threadIdx.x % 32;
  u32 bits = bits_below(experts);
  u64 warps = gridDim.x * (u64)(blockDim.x / 32);
  for (u64 segment = blockIdx.x * (u64)(blockDim.x / 32) + threadIdx.x / 32; segment < segments; segment += warps) {
    Segment s = segment_at(segment, length, pairs);
    for (u64 first = s.first; first < s.last; first += STEPS * 32) {
      u32 id[STEPS];
      for (u32 step = 0; step < STEPS; step++) {
        u64 pair = first + step * 32 + lane;
        id[step] = pair < s.last ? ids[pair] : NONE;
      }
      for (u32 step = 0; step < STEPS; step++) {
        // NONE is above every expert.
        u32 same = same_lanes(id[step], id[step] < experts, bits);
        if (same && lane == lowest(same)) atomicAdd(table + at(id[step], segments, segment), (u32)__popc(same));
      }
    }
  }
}
