// What the scores of one expert add up to, in fixed point: the same in any order of rows. Needs lib_math.
#pragma once

#define INFINITE 0x7f800000u

struct Tally {
  u64 sum;
  // Finite scores of eligible rows.
  u32 count;
  // Bits of the largest of them, and of the largest value to fall back to where they all vanished.
  u32 largest, largest_fallback;
  u32 unused;
};
static_assert(sizeof(Tally) == 24, "as much as workspace is made for");

// A score before the floor stands for a row that is not eligible.
#define NOT_ELIGIBLE (-1.0f)

// Finite and eligible.
DEV bool is_counted(f32 score) { return score >= 0.0f && score <= F32_MAX; }

// |g| ||d||, or 1 where that vanishes.
DEV f32 fallback_of(f32 g, f32 d_norm) {
  f64 product = (f64)fabsf(g) * d_norm;
  f32 rounded = (f32)product;
  return rounded == 0.0f ? 1.0f : clamp_positive(rounded);
}

DEV bool falls_back(const Tally& t) { return t.largest == 0; }

// The unit of the sum: each value is at most 2^bits units, and count * 2^bits is below 2^64.
DEV f64 unit_of(const Tally& t) {
  u32 bits = min((u32)__clzll((long long)t.count), 40u);
  f64 scale = __longlong_as_double((long long)(1023 - bits) << 52);
  return bits_f32(falls_back(t) ? t.largest_fallback : t.largest) * scale;
}

// To the nearest number of units, halves up.
DEV u64 units_of(f32 score, f64 unit) {
  f64 units = score / unit;
  u64 whole = (u64)units;
  return whole + (units - (f64)whole >= 0.5);
}

DEV f32 mean_of(const Tally& t) {
  if (t.count == 0 || (falls_back(t) && t.largest_fallback == 0)) return 0.0f;
  return clamp_positive((f32)((f64)t.sum * unit_of(t) / t.count));
}
