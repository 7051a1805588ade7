// Counts pairs and sizes by one byte of the score, within the range that the rounds before could not tell apart. One block per segment,
// as in select_digits.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_size.h"
#include "lib_plan.h"
#include "lib_ranges.h"

KERNEL(SEGMENT_THREADS)
systematic_ranges(const u32* score, const u32* offsets, const u32* quotas, const u32* plans, u64* counts, u64* states, u32 rows,
                  u32 experts, u32 round) {
  DYN_SHARED(RangesShared, shared);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  const Plan* plan = (const Plan*)plans + s.expert;
  Goal goal = goal_of(*plan, quotas[s.expert], SYSTEMATIC, 0.0f);
  if (goal.slots == 0) return;
  u32 largest = plan->largest;
  RangeState state = {wide(0), goal.slots, 0, 0};
  RangeCounts* by_round = (RangeCounts*)counts;
  if (round > 0) {
    if (round > 1) state = ((const RangeState*)states)[range_state_at(round - 1, s.expert, experts)];
    state = next_range(state, by_round + range_counts_at(round - 1, s.expert, experts), round - 1, largest, shared);
    if (s.first && threadIdx.x == 0) ((RangeState*)states)[range_state_at(round, s.expert, experts)] = state;
  }
  shared->pairs[threadIdx.x] = shared->low[threadIdx.x] = shared->high[threadIdx.x] = 0;
  __syncthreads();
  u32 shift = 24 - 8 * round;
  for (u32 base = s.begin + 32 * warp_id(); base < s.end; base += SEGMENT_THREADS) {
    u32 r = base + lane_id(), bits = r < s.end ? score[r] : 0;
    bool counted = is_eligible(bits) && bits != INFINITE && (round == 0 || (bits ^ state.prefix) >> (shift + 8) == 0);
    count_range(shared, counted, bits >> shift & 0xff, counted ? size_of(bits, largest) : 0);
  }
  __syncthreads();
  u32 bin = threadIdx.x, pairs = shared->pairs[bin];
  RangeCounts* own = by_round + range_counts_at(round, s.expert, experts);
  if (pairs) {
    atomicAdd(&own->pairs[bin], (u64)pairs);
    atomicAdd(&own->low[bin], (u64)shared->low[bin]);
    atomicAdd(&own->high[bin], (u64)shared->high[bin]);
  }
}
