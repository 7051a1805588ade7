// Radix selection from the highest key down: a byte a level. Needs lib_warp and lib_plan.
#pragma once

#define DIGITS 256u
#define LEVELS 4u

// A key is 31 bits, positive as a float: without the sign all of the first byte tells scores apart.
DEV u32 digit_of(u32 key, u32 level) { return (key << 1 >> (24 - 8 * level)) & 0xffu; }
// Whether the bytes above the level are those of `prefix`, which is shifted likewise.
DEV bool has_prefix(u32 key, u32 prefix, u32 level) { return level == 0 || ((key << 1) ^ prefix) >> (32 - 8 * level) == 0; }

struct State {
  // Upper bytes of the key of the last row that is retained, and which of the rows with these bytes it is, from 1.
  u32 prefix, left;
};
static_assert(sizeof(State) == 8, "as much as workspace is made for");

struct DigitsShared {
  u32 bins[DIGITS];
  u32 parts[8];
  State found;
  u32 held;
};
static_assert(sizeof(DigitsShared) <= 1072, "as much as launches ask for");

// Adds the digits of a warp to shared bins; one that many lanes have takes one addition.
DEV void count_digit(u32* bins, bool counted, u32 digit) {
  u32 active = __ballot_sync(FULL_WARP, counted);
  if (active == 0) return;
  u32 first = (u32)__ffs((int)active) - 1;
  u32 common = __shfl_sync(FULL_WARP, digit, (int)first);
  u32 same = __ballot_sync(FULL_WARP, counted && digit == common);
  if (lane_id() == first) atomicAdd(&bins[common], (u32)__popc(same));
  if (counted && digit != common) atomicAdd(&bins[digit], 1u);
}

// The state behind a level from that before it and the rows counted by digit. All 256 threads of the block; `held` gets the number of
// rows with the bytes found.
DEV State next_state(State before, const u32* counts, u32 level, DigitsShared* shared) {
  u32 digit = DIGITS - 1 - threadIdx.x, own = counts[digit];
  u32 through = block_scan(own, shared->parts);
  if (through - own < before.left && before.left <= through) {
    shared->found = {before.prefix | digit << (24 - 8 * level), before.left - (through - own)};
    shared->held = own;
  }
  __syncthreads();
  return shared->found;
}

// Where digits, counted by expert, and states of a level and expert lie; of the states, that before level 0 is not stored.
DEV u64 digits_at(u32 level, u32 expert, u32 experts) { return at(at(level, experts, expert), DIGITS, 0); }
DEV u64 state_at(u32 level, u32 expert, u32 experts) { return at(level - 1, experts, expert); }
