// Sums, counts and the histogram of the scores of a segment, relative to the mean of its expert. One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_math.h"
#include "lib_demand.h"

// Bin of a score in units of the mean; only comparisons, so that every backend agrees.
DEV u32 bin_of(f32 ratio) {
  u32 bits = f32_bits(ratio);
  f32 mantissa = bits_f32((bits & 0x007fffffu) | 0x3f800000u);
  i32 steps = (mantissa >= 1.0905077f) + (mantissa >= 1.1892071f) + (mantissa >= 1.2968396f) + (mantissa >= 1.4142135f) +
              (mantissa >= 1.5422108f) + (mantissa >= 1.6817929f) + (mantissa >= 1.834008f);
  i32 bin = 8 * ((i32)(bits >> 23) - 127) + steps + 16;
  return (u32)max(0, min(bin, DEMAND_BINS - 1));
}

KERNEL(SEGMENT_THREADS)
demand(const f32* score, const f32* mean, const u32* offsets, u32* counts, f64* sums, u32 rows, u32 experts) {
  DYN_SHARED(DemandShared, shared);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  for (u32 i = threadIdx.x; i < DEMAND_WORDS; i += SEGMENT_THREADS) shared->counts[i] = 0;
  __syncthreads();
  f32 average = mean[s.expert];
  u32 eligible = 0, infinite = 0;
  f64 sum = 0.0, squares = 0.0, top = 0.0;
  for (u32 r = s.begin + threadIdx.x; r < s.end; r += SEGMENT_THREADS) {
    f32 value = score[r];
    if (!(value > 0.0f)) continue;
    eligible += 1;
    if (value > F32_MAX) {
      infinite += 1;
      continue;
    }
    f32 ratio = value / average;
    u32 bin = bin_of(ratio);
    atomicAdd(&shared->counts[bin], 1u);
    sum += ratio;
    squares += (f64)ratio * ratio;
    if (bin == DEMAND_BINS - 1) top += ratio;
  }
  atomicAdd(&shared->counts[DEMAND_BINS], eligible);
  atomicAdd(&shared->counts[DEMAND_BINS + 1], infinite);
  sum = block_sum(sum, shared->parts[0]);
  squares = block_sum(squares, shared->parts[1]);
  top = block_sum(top, shared->parts[2]);
  counts += at(s.expert, DEMAND_WORDS, 0);
  for (u32 i = threadIdx.x; i < DEMAND_WORDS; i += SEGMENT_THREADS) {
    if (shared->counts[i]) atomicAdd(&counts[i], shared->counts[i]);
  }
  if (threadIdx.x == 0) {
    sums += at(blockIdx.x, DEMAND_SUMS, 0);
    sums[0] = sum;
    sums[1] = squares;
    sums[2] = top;
  }
}
