// Writes the retained rows in forward order, with their weights, and what each segment adds to the statistics. One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_size.h"
#include "lib_plan.h"
#include "lib_place.h"
#include "lib_stats.h"

#define WARPS 8u
#define ROUNDS (SEGMENT / SEGMENT_THREADS)

struct WriteShared {
  f64 sums[STATS][WARPS];
  u32 parts[WARPS];
};
static_assert(sizeof(WriteShared) <= 352, "as much as launches ask for");

DEV f32 weight_of(const Plan& plan, u32 mark, u32 score, u32 rule) {
  if (mark == SURE || score == INFINITE) return 1.0f;
  if (rule == SYSTEMATIC) return ratio(plan.sum, product(size_of(score, plan.largest), plan.slots));
  f32 weight = bits_f32(plan.tau) / bits_f32(score);
  return weight > 1.0f ? weight : 1.0f;
}

KERNEL(SEGMENT_THREADS)
select_write(const u32* score, const f32* mean, const u32* pair_of_row, const u32* offsets, const f32* weights, const u32* plans,
             const u32* chosen, const u32* starts, u32* row, u32* pair, f32* weight, f32* scale, u32* kept_of_pair, f64* stats, u64 capacity,
             u32 rows, u32 experts, u32 pairs, u32 rule, f32 cap) {
  DYN_SHARED(WriteShared, shared);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  const Plan& plan = ((const Plan*)plans)[s.expert];
  u32 first = s.begin + warp_id() * (SEGMENT / WARPS), lane = lane_id(), count = 0;
  u32 marks[ROUNDS];
#pragma unroll
  for (u32 i = 0; i < ROUNDS; i++) {
    u64 r = (u64)first + 32 * i + lane;
    marks[i] = r < s.end ? chosen[r] : DROPPED;
    count += (u32)__popc(__ballot_sync(FULL_WARP, marks[i] != DROPPED));
  }
  if (lane == 0) shared->parts[warp_id()] = count;
  __syncthreads();
  u32 next = starts[blockIdx.x];
  for (u32 warp = 0; warp < warp_id(); warp++) next += shared->parts[warp];
  f32 average = mean[s.expert];
  f64 sums[STATS] = {0.0, 0.0, 0.0, 0.0, 0.0};
#pragma unroll
  for (u32 i = 0; i < ROUNDS; i++) {
    u32 kept = __ballot_sync(FULL_WARP, marks[i] != DROPPED);
    u32 to = next + (u32)__popc(kept & ((1u << lane) - 1));
    next += (u32)__popc(kept);
    if (marks[i] == DROPPED) continue;
    u32 r = first + 32 * i + lane, bits = score[r], own = min(pair_of_row[r], pairs - 1);
    f32 before = weight_of(plan, marks[i], bits, rule), w = fminf(before, cap), relative = bits_f32(bits) / average;
    if (bits != INFINITE) sums[0] += relative;
    sums[1] += w;
    sums[2] += (f64)w * w;
    sums[HEAVIEST] = fmax(sums[HEAVIEST], (f64)w);
    if (w < before) sums[4] += (f64)(before - w) * relative;
    if (to >= capacity) continue;
    f32 g = weights[own];
    row[to] = r;
    pair[to] = own;
    weight[to] = w;
    // The bits of g where the weight is 1, also of a NaN.
    scale[to] = w == 1.0f ? g : w * g;
    if (pair_of_row[r] == own) kept_of_pair[own] = to;
  }
#pragma unroll
  for (u32 i = 0; i < STATS; i++) {
    f64 own = sums[i];
#pragma unroll
    for (int apart = 16; apart > 0; apart >>= 1) {
      f64 other = __shfl_xor_sync(FULL_WARP, own, apart);
      own = i == HEAVIEST ? fmax(own, other) : own + other;
    }
    if (lane == 0) shared->sums[i][warp_id()] = own;
  }
  __syncthreads();
  if (threadIdx.x < STATS) {
    f64 all = 0.0;
    for (u32 warp = 0; warp < WARPS; warp++) {
      f64 own = shared->sums[threadIdx.x][warp];
      all = threadIdx.x == HEAVIEST ? fmax(all, own) : all + own;
    }
    stats[at(blockIdx.x, STATS, threadIdx.x)] = all;
  }
}
