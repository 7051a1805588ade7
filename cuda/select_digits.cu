// Counts rows by one byte of their key, among those that have the bytes above of the last row that is retained. One block per segment.
// Every block works out for itself where the level before ended; the first of an expert writes it down for the level after.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_plan.h"
#include "lib_digits.h"

KERNEL(SEGMENT_THREADS)
select_digits(const u32* key, const u32* offsets, const u32* quotas, const u32* plans, u32* digits, u32* states, u32 rows, u32 experts,
              u32 level, u32 stage, u32 rule, f32 certain) {
  DYN_SHARED(DigitsShared, shared);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  Goal goal = goal_of(((const Plan*)plans)[s.expert], quotas[s.expert], rule, certain);
  State state = {0, stage == 0 ? goal.sure : goal.drawn};
  if (state.left == 0) return;
  if (level > 0) {
    if (level > 1) state = ((const State*)states)[state_at(level - 1, s.expert, experts)];
    state = next_state(state, digits + digits_at(level - 1, s.expert, experts), level - 1, shared);
    if (s.first && threadIdx.x == 0) ((State*)states)[state_at(level, s.expert, experts)] = state;
  }
  shared->bins[threadIdx.x] = 0;
  __syncthreads();
  for (u32 base = s.begin + 32 * warp_id(); base < s.end; base += SEGMENT_THREADS) {
    u32 r = base + lane_id(), bits = r < s.end ? key[r] : 0;
    count_digit(shared->bins, is_eligible(bits) && has_prefix(bits, state.prefix, level), digit_of(bits, level));
  }
  __syncthreads();
  u32 count = shared->bins[threadIdx.x];
  if (count) atomicAdd(&digits[digits_at(level, s.expert, experts) + threadIdx.x], count);
}
