// Sums of the scores of every expert. Where all of them vanished, scores fall back to |g| ||d|| first. One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_math.h"
#include "lib_tally.h"

KERNEL(SEGMENT_THREADS)
score_sum(const f32* weights, const f32* d_norm, const u32* pair_of_row, const u32* offsets, f32* score, u64* tallies, u32 rows,
          u32 experts, u32 top_k, u32 pairs) {
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  Tally* t = (Tally*)tallies + s.expert;
  if (t->count == 0) return;
  f64 unit = unit_of(*t);
  bool back = falls_back(*t);
  u64 sum = 0;
  for (u32 r = s.begin + threadIdx.x; r < s.end; r += SEGMENT_THREADS) {
    f32 value = score[r];
    u32 pair = pair_of_row[r];
    if (!is_counted(value) || pair >= pairs) continue;
    if (back) {
      value = fallback_of(weights[pair], d_norm[pair / top_k]);
      score[r] = value;
    }
    sum += units_of(value, unit);
  }
  sum = warp_sum(sum);
  if (lane_id() == 0) atomicAdd(&t->sum, sum);
}
