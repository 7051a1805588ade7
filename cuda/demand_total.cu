// Sums over the segments of every expert, one warp each, in the order of the segments.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_math.h"
#include "lib_demand.h"

KERNEL(128)
demand_total(const u32* offsets, const u32* scratch_counts, const f64* scratch_sums, u32* histogram, f32* sums, u32* counts, u32 rows,
             u32 experts) {
  u32 expert = (u32)blockIdx.x * 4 + warp_id(), lane = lane_id();
  if (expert >= experts) return;
  scratch_counts += at(expert, DEMAND_WORDS, 0);
  for (u32 i = lane; i < DEMAND_BINS; i += 32) histogram[at(expert, DEMAND_BINS, i)] = scratch_counts[i];
  if (lane < DEMAND_COUNTS) counts[at(expert, DEMAND_COUNTS, lane)] = scratch_counts[DEMAND_BINS + lane];
  u32 held = rows_end(offsets, expert, rows) - rows_begin(offsets, expert, rows);
  u64 first = first_block(offsets, expert, rows), segments = ((u64)held + SEGMENT - 1) / SEGMENT;
  for (u32 column = 0; column < DEMAND_SUMS; column++) {
    f64 sum = 0.0;
    for (u64 segment = lane; segment < segments; segment += 32) sum += scratch_sums[at(first + segment, DEMAND_SUMS, column)];
    sum = warp_sum(sum);
    if (lane == 0) sums[at(expert, DEMAND_SUMS, column)] = fminf((f32)sum, F32_MAX);
  }
}
