// Counts of every expert, and the priority score / u of every row where pairs are drawn by it: u in (0, 1] from the counter-based
// generator, 0 for rows that are not eligible. One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_math.h"
#include "lib_wide.h"
#include "lib_plan.h"
#include "lib_place.h"
#include "lib_philox.h"

DEV u32 priority_of(u32 score, u64 token, u32 expert, u32 key_0, u32 key_1) {
  if (!is_eligible(score)) return 0;
  if (score == INFINITE) return INFINITE;
  u32 word = philox((u32)token, (u32)(token >> 32), expert, 0, key_0, key_1).word[0];
  // At most 2^24: exact, and so is the product.
  f32 u = (f32)((word >> 8) + 1) * (1.0f / 16777216.0f);
  return f32_bits(clamp_positive(bits_f32(score) / u));
}

KERNEL(SEGMENT_THREADS)
select_tally(const u32* score, const u32* pair_of_row, const u32* token_ids, const u32* offsets, u32* plans, u32* priority, u64 first_token,
             u32 rows, u32 experts, u32 top_k, u32 pairs, u32 key_0, u32 key_1) {
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  Tokens tokens = {pair_of_row, token_ids, first_token, top_k, pairs};
  u32 eligible = 0, infinite = 0, largest = 0;
  for (u32 r = s.begin + threadIdx.x; r < s.end; r += SEGMENT_THREADS) {
    u32 bits = score[r];
    if (priority) priority[r] = priority_of(bits, token_id(tokens, pair_of(tokens, r) / top_k), s.expert, key_0, key_1);
    if (!is_eligible(bits)) continue;
    eligible += 1;
    if (bits == INFINITE)
      infinite += 1;
    else
      largest = max(largest, bits);
  }
  eligible = __reduce_add_sync(FULL_WARP, eligible);
  infinite = __reduce_add_sync(FULL_WARP, infinite);
  largest = __reduce_max_sync(FULL_WARP, largest);
  Plan* plan = (Plan*)plans + s.expert;
  if (lane_id() == 0 && eligible > 0) {
    atomicAdd(&plan->eligible, eligible);
    atomicAdd(&plan->infinite, infinite);
    atomicMax(&plan->largest, largest);
  }
}
