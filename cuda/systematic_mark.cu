// Marks the rows that are certain under systematic sampling, and lists infinite ones where they are more than the quota. One block per
// segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_size.h"
#include "lib_plan.h"
#include "lib_ranges.h"
#include "lib_ties.h"

KERNEL(SEGMENT_THREADS)
systematic_mark(const u32* score, const u32* offsets, const u32* quotas, u32* plans, const u64* counts, const u64* states, u32* chosen,
                u32* ties, u32 rows, u32 experts) {
  DYN_SHARED(RangesShared, shared);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  Plan* plan = (Plan*)plans + s.expert;
  Goal goal = goal_of(*plan, quotas[s.expert], SYSTEMATIC, 0.0f);
  bool splits = !goal.all && goal.sure < plan->infinite;
  // Bits of the least score that is certain.
  u32 from = goal.all ? 0 : splits ? NONE : INFINITE;
  if (goal.slots > 0) {
    RangeState state = next_range(((const RangeState*)states)[range_state_at(ROUNDS - 1, s.expert, experts)],
                                  (const RangeCounts*)counts + range_counts_at(ROUNDS - 1, s.expert, experts), ROUNDS - 1,
                                  plan->largest, shared);
    // Certain are the scores above the highest that is not. All infinite ones are, also where the highest range of all is not.
    from = min(state.prefix, LARGEST_FINITE) + 1;
    if (s.first && threadIdx.x == 0) {
      plan->sum = state.sum;
      plan->slots = state.slots;
      plan->from = from;
    }
  }
  if (s.first && threadIdx.x == 0) plan->ties_kept[0] = goal.sure;
  for (u32 base = s.begin + 32 * warp_id(); base < s.end; base += SEGMENT_THREADS) {
    u32 r = base + lane_id(), bits = r < s.end ? score[r] : 0;
    if (r < s.end) chosen[r] = is_eligible(bits) && bits >= from ? SURE : DROPPED;
    append(ties + rows_begin(offsets, s.expert, rows), &plan->ties[0], splits && goal.sure > 0 && bits == INFINITE, r);
  }
}
