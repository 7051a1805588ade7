// Marks the rows that are retained for their key, and lists those of the last key where not all of them are. One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_plan.h"
#include "lib_digits.h"
#include "lib_ties.h"

// `priority` is given in the first of two stages: rows that it retains are out of the second.
KERNEL(SEGMENT_THREADS)
select_mark(const u32* key, const u32* offsets, const u32* quotas, u32* plans, const u32* digits, const u32* states, u32* chosen, u32* ties,
            u32* priority, u32 rows, u32 experts, u32 stage, u32 fresh, u32 rule, f32 certain) {
  DYN_SHARED(DigitsShared, shared);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  Plan* plan = (Plan*)plans + s.expert;
  Goal goal = goal_of(*plan, quotas[s.expert], rule, certain);
  // Rows above the last key are retained, and of those with this key so many as are left of so many.
  u32 last = goal.all ? 0 : 0xffffffffu, left = 0, held = 0;
  State state = {0, stage == 0 ? goal.sure : goal.drawn};
  if (state.left > 0) {
    state = next_state(((const State*)states)[state_at(LEVELS - 1, s.expert, experts)],
                       digits + digits_at(LEVELS - 1, s.expert, experts), LEVELS - 1, shared);
    last = state.prefix >> 1;
    left = state.left;
    held = shared->held;
  } else if (!fresh) {
    return;
  }
  bool splits = left < held;
  if (s.first && threadIdx.x == 0 && splits) {
    plan->ties_kept[stage] = left;
    if (stage == 1) atomicMax(&plan->tau, last);
  }
  u32 mark = stage == 0 || goal.all ? SURE : DRAWN, next = 0;
  for (u32 base = s.begin + 32 * warp_id(); base < s.end; base += SEGMENT_THREADS) {
    u32 r = base + lane_id(), bits = r < s.end ? key[r] : 0;
    bool eligible = is_eligible(bits), retained = eligible && (bits > last || (bits == last && !splits));
    if (r < s.end && (fresh || retained)) chosen[r] = retained ? mark : DROPPED;
    if (retained && priority) priority[r] = 0;
    if (eligible && bits < last) next = max(next, bits);
    append(ties + rows_begin(offsets, s.expert, rows), &plan->ties[stage], eligible && bits == last && splits, r);
  }
  if (stage == 1 && !goal.all) {
    next = __reduce_max_sync(FULL_WARP, next);
    if (lane_id() == 0 && next > 0) atomicMax(&plan->tau, next);
  }
}
