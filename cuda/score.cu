// The score of every row before the floor, rounded once, and the largest of every expert. One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_math.h"
#include "lib_tally.h"

// Metrics.
#define PRODUCT 0u
#define FULL 1u
#define GATE_GRAD 2u
#define GATE 3u

DEV bool is_finite(f64 x) { return x - x == 0.0; }

KERNEL(SEGMENT_THREADS)
score(const f32* weights, const f32* d_norm, const f32* h_norm, const f32* x_norm, const f32* kappa, const u32* pair_of_row,
      const u32* offsets, f32* score, u64* tallies, u32 rows, u32 experts, u32 top_k, u32 pairs, u32 metric) {
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  u32 count = 0, largest = 0, largest_fallback = 0;
  for (u32 r = s.begin + threadIdx.x; r < s.end; r += SEGMENT_THREADS) {
    u32 pair = pair_of_row[r];
    if (pair >= pairs) continue;
    u32 token = pair / top_k;
    f64 g = fabsf(weights[pair]), d = d_norm[token], h = h_norm[r], factor = 1.0;
    if (metric == PRODUCT) factor = h;
    if (metric == FULL) {
      f64 x = (f64)kappa[s.expert] * x_norm[token];
      // Neither square leaves the range of f64.
      factor = sqrt(h * h + x * x);
    }
    f32 value;
    if (!(is_finite(g) && is_finite(d) && is_finite(h) && is_finite(factor))) {
      value = bits_f32(INFINITE);
    } else if (g == 0.0 || d == 0.0) {
      value = NOT_ELIGIBLE;
    } else {
      value = fminf((f32)(metric <= GATE_GRAD ? g * d * factor : metric == GATE ? g : 1.0), F32_MAX);
      count += 1;
      largest = max(largest, f32_bits(fabsf(value)));
      if (value == 0.0f) largest_fallback = max(largest_fallback, f32_bits(fallback_of((f32)g, (f32)d)));
    }
    score[r] = value;
  }
  count = __reduce_add_sync(FULL_WARP, count);
  largest = __reduce_max_sync(FULL_WARP, largest);
  largest_fallback = __reduce_max_sync(FULL_WARP, largest_fallback);
  Tally* t = (Tally*)tallies + s.expert;
  if (lane_id() == 0 && count > 0) {
    atomicAdd(&t->count, count);
    atomicMax(&t->largest, largest);
    atomicMax(&t->largest_fallback, largest_fallback);
  }
}
