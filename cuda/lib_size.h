// Sizes of scores for systematic sampling. Needs lib_wide.
#pragma once

#define SIZE_BITS 40u

DEV u32 exponent_of(u32 bits) { return max(bits >> 23, 1u); }
DEV u64 mantissa_of(u32 bits) { return (bits & 0x007fffffu) | (bits >> 23 ? 0x00800000u : 0u); }

// max(1, round(2^40 score / largest)), halves up, of the bits of two positive finite scores, score <= largest.
DEV u64 size_of(u32 score, u32 largest) {
  u32 shift = exponent_of(largest) - exponent_of(score);
  u64 above = mantissa_of(score), below = mantissa_of(largest);
  if (shift <= SIZE_BITS)
    above <<= SIZE_BITS - shift;
  else
    // From 2^80 on the quotient is 0.
    below <<= min(shift - SIZE_BITS, SIZE_BITS);
  u64 quotient = above / below, rest = above - quotient * below;
  return max(quotient + (rest >= below - rest), (u64)1);
}
