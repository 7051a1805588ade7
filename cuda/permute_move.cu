// A pair's row: its expert's first row, and the pairs of the same expert in earlier segments, in earlier steps and in earlier lanes.
#include "lib_permute.h"

// Steps of 32 pairs whose ids a warp reads at once.
#define STEPS 8

KERNEL(128) permute_move(const u32* ids, u32* table, const u32* offsets, u32* pair_of_row, u32* row_of_pair, u64 pairs,
                         u32 experts, u32 length, u32 segments) {
  u32 lane = threadIdx.x % 32;
  u32 bits = bits_below(experts);
  u64 warps = gridDim.x * (u64)(blockDim.x / 32);
  for (u64 segment = blockIdx.x * (u64)(blockDim.x / 32) + threadIdx.x / 32; segment < segments; segment += warps) {
    Segment s = segment_at(segment, length, pairs);
    for (u64 first = s.first; first < s.last; first += STEPS * 32) {
      u32 id[STEPS];
      u32 start[STEPS];
      for (u32 step = 0; step < STEPS; step++) {
        u64 pair = first + step * 32 + lane;
        id[step] = pair < s.last ? ids[pair] : NONE;
      }
      for (u32 step = 0; step < STEPS; step++) start[step] = id[step] < experts ? offsets[id[step]] : 0;
      for (u32 step = 0; step < STEPS; step++) {
        u64 pair = first + step * 32 + lane;
        bool sorted = id[step] < experts;
        u32 same = same_lanes(id[step], sorted, bits);
        u32 leader = sorted ? lowest(same) : lane;
        u32 earlier = 0;
        if (sorted && lane == leader) earlier = atomicAdd(table + at(id[step], segments, segment), (u32)__popc(same));
        // The next step adds to what this one has found, since it waits for it here.
        earlier = __shfl_sync(FULL_WARP, earlier, leader);
        u32 row = NONE;
        if (sorted) {
          row = start[step] + earlier + (u32)__popc(same & ((1u << lane) - 1));
          pair_of_row[row] = (u32)pair;
        }
        if (pair < s.last) row_of_pair[pair] = row;
      }
    }
  }
}
