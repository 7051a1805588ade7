// The statistics of every expert, one warp each, from those of its segments in their order.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_stats.h"

KERNEL(128) select_stats(const u32* offsets, const f64* of_segments, f32* stats, u32 rows, u32 experts) {
  u32 expert = (u32)blockIdx.x * 4 + warp_id(), lane = lane_id();
  if (expert >= experts) return;
  u32 held = rows_end(offsets, expert, rows) - rows_begin(offsets, expert, rows);
  u64 first = first_block(offsets, expert, rows), segments = ((u64)held + SEGMENT - 1) / SEGMENT;
  for (u32 column = 0; column < STATS; column++) {
    f64 all = 0.0;
    for (u64 segment = lane; segment < segments; segment += 32) {
      f64 own = of_segments[at(first + segment, STATS, column)];
      all = column == HEAVIEST ? fmax(all, own) : all + own;
    }
    for (int apart = 16; apart > 0; apart >>= 1) {
      f64 other = __shfl_xor_sync(FULL_WARP, all, apart);
      all = column == HEAVIEST ? fmax(all, other) : all + other;
    }
    if (lane == 0) stats[at(expert, STATS, column)] = (f32)all;
  }
}
