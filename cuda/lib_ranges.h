// Which sizes are certain under systematic sampling: by ranges of scores, as documented at `SelectRule`, a byte of the score a round.
// Needs lib_warp, lib_wide and lib_size.
#pragma once

#define RANGES 256u
#define ROUNDS 4u
// A size in two parts, so that sums over a segment fit 32 bits and those over all rows 64.
#define LOW_BITS 20u

struct RangeCounts {
  u64 pairs[RANGES];
  u64 low[RANGES];
  u64 high[RANGES];
};
static_assert(sizeof(RangeCounts) == 6144, "as much as workspace is made for");

struct RangeState {
  // Sizes and slots that are left by what is certain so far, and the upper bytes of the range that is split.
  U128 sum;
  u32 slots, prefix;
  u64 unused;
};
static_assert(sizeof(RangeState) == 32, "as much as workspace is made for");

struct Range {
  u32 pairs;
  U128 sizes;
};

struct RangesShared {
  Range parts[8];
  RangeState found;
  u32 firsts[8];
  u32 pairs[RANGES], low[RANGES], high[RANGES];
};
static_assert(sizeof(RangesShared) <= 3328, "as much as launches ask for");

// Ranges from the top down, this one and all above. All 256 threads of the block.
DEV Range scan_ranges(Range own, RangesShared* shared, U128* all) {
  for (u32 apart = 1; apart < 32; apart <<= 1) {
    u32 pairs = __shfl_up_sync(FULL_WARP, own.pairs, apart);
    U128 sizes = shuffle_up(own.sizes, apart);
    if (lane_id() >= apart) own = {own.pairs + pairs, own.sizes + sizes};
  }
  if (lane_id() == 31) shared->parts[warp_id()] = own;
  __syncthreads();
  *all = wide(0);
  for (u32 warp = 0; warp < 8; warp++) {
    Range part = shared->parts[warp];
    if (warp < warp_id()) own = {own.pairs + part.pairs, own.sizes + part.sizes};
    *all = *all + part.sizes;
  }
  return own;
}

// The state behind a round from that before it and what was counted. In round 0 the state before has slots only.
DEV RangeState next_range(RangeState before, const RangeCounts* counts, u32 round, u32 largest, RangesShared* shared) {
  u32 shift = 24 - 8 * round, bin = RANGES - 1 - threadIdx.x;
  U128 sizes = shift_left(wide(counts->high[bin]), LOW_BITS) + wide(counts->low[bin]);
  Range own = {(u32)counts->pairs[bin], sizes};
  U128 all;
  Range through = scan_ranges(own, shared, &all);
  U128 sum = round == 0 ? all : before.sum;
  // The least score of the range decides, and its size where the range's own pairs have taken theirs. More pairs than slots are never
  // all certain, also where nothing is left below them.
  u32 least = min(before.prefix | bin << shift, largest);
  U128 rest = sum - through.sizes;
  bool fails = bin == 0 || through.pairs > before.slots || product(size_of(least, largest), before.slots - through.pairs) < rest;
  u32 failing = __ballot_sync(FULL_WARP, fails);
  if (lane_id() == 0) shared->firsts[warp_id()] = failing ? 32 * warp_id() + (u32)__ffs((int)failing) - 1 : NONE;
  __syncthreads();
  u32 first = NONE;
  for (u32 warp = 0; warp < 8; warp++) first = min(first, shared->firsts[warp]);
  if (threadIdx.x == first)
    shared->found = {rest + own.sizes, before.slots - (through.pairs - own.pairs), before.prefix | bin << shift, 0};
  __syncthreads();
  return shared->found;
}

DEV u64 range_counts_at(u32 round, u32 expert, u32 experts) { return at(round, experts, expert); }
// That before round 0 is not stored.
DEV u64 range_state_at(u32 round, u32 expert, u32 experts) { return at(round - 1, experts, expert); }

// Adds scores of a warp to shared ranges; what many lanes share takes one addition.
DEV void count_range(RangesShared* shared, bool counted, u32 bin, u64 size) {
  u32 active = __ballot_sync(FULL_WARP, counted);
  if (active == 0) return;
  u32 first = (u32)__ffs((int)active) - 1, low = (u32)size & ((1u << LOW_BITS) - 1), high = (u32)(size >> LOW_BITS);
  u32 common = __shfl_sync(FULL_WARP, bin, (int)first);
  bool shares = counted && bin == common;
  u32 pairs = (u32)__popc(__ballot_sync(FULL_WARP, shares));
  u32 lows = __reduce_add_sync(FULL_WARP, shares ? low : 0), highs = __reduce_add_sync(FULL_WARP, shares ? high : 0);
  if (lane_id() == first || (counted && !shares)) {
    bool alone = !shares;
    atomicAdd(&shared->pairs[bin], alone ? 1 : pairs);
    atomicAdd(&shared->low[bin], alone ? low : lows);
    atomicAdd(&shared->high[bin], alone ? high : highs);
  }
}
