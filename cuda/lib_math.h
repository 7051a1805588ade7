// Elementary functions as the CPU has them: nothing fuses a multiplication with an addition, so both give the same bits.
#pragma once

#define F32_MAX 3.4028234663852886e38f
#define F32_MIN_POSITIVE 1.1754943508222875e-38f

// e^x to about 1 unit in the last place: range reduction by log 2 and the degree-5 polynomial of Cephes `expf` (Moshier).
DEV f32 exponential(f32 x) {
  // 1.5 * 2^23: adding it rounds to an integer held in the low bits.
  const f32 round = 12582912.0f;
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  f32 shifted = x * 1.44269504088896341f + round;
  f32 whole = shifted - round;
  f32 r = x - whole * 0.693359375f - whole * -2.1219444e-4f;
  f32 p = 1.9875691e-4f;
  p = p * r + 1.3982e-3f;
  p = p * r + 8.333452e-3f;
  p = p * r + 4.1665796e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 0.5f;
  f32 e = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n reaches from -150 to 128, outside the exponents of a normal number.
  i32 n = (i32)(f32_bits(shifted) - f32_bits(round));
  i32 half = n >> 1;
  return e * bits_f32((u32)(half + 127) << 23) * bits_f32((u32)(n - half + 127) << 23);
}

DEV f32 sigmoid_of(f32 x) { return 1.0f / (1.0f + exponential(-x)); }

// Into the normal positive range: scores and priorities stay comparable where a device flushes subnormal numbers.
DEV f32 clamp_positive(f32 x) { return x < F32_MIN_POSITIVE ? F32_MIN_POSITIVE : x > F32_MAX ? F32_MAX : x; }
