// The mean of every expert; finite scores are raised to the floor that follows from it, and rows that are not eligible get 0.
// One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_math.h"
#include "lib_tally.h"

KERNEL(SEGMENT_THREADS)
score_floor(const u32* offsets, const u64* tallies, f32* score, f32* mean, u32 rows, u32 experts, f32 fraction) {
  Segment s = find_segment(offsets, experts, rows);
  if (s.expert == NONE) return;
  Tally t = ((const Tally*)tallies)[s.expert];
  f32 average = mean_of(t);
  if (s.first && threadIdx.x == 0) mean[s.expert] = average;
  f32 floor = falls_back(t) ? 0.0f : clamp_positive((f32)((f64)fraction * average));
  for (u32 r = s.begin + threadIdx.x; r < s.end; r += SEGMENT_THREADS) {
    f32 value = score[r];
    if (value < 0.0f)
      score[r] = 0.0f;
    else if (value < floor)
      score[r] = floor;
  }
}
