// Integers of 128 bits: sizes of 40 bits, summed over up to 2^31 rows or times as many slots.
#pragma once

struct U128 {
  u64 low, high;
};

DEV U128 wide(u64 low) { return {low, 0}; }
DEV bool operator<(U128 a, U128 b) { return a.high != b.high ? a.high < b.high : a.low < b.low; }
DEV bool is_zero(U128 a) { return (a.low | a.high) == 0; }

DEV U128 operator+(U128 a, U128 b) {
  u64 low = a.low + b.low;
  return {low, a.high + b.high + (low < a.low)};
}

DEV U128 operator-(U128 a, U128 b) { return {a.low - b.low, a.high - b.high - (a.low < b.low)}; }
DEV U128 product(u64 a, u64 b) { return {a * b, __umul64hi(a, b)}; }
DEV U128 twice(U128 a) { return {a.low << 1, a.high << 1 | a.low >> 63}; }

DEV u32 leading_zeros(U128 a) { return a.high ? (u32)__clzll((long long)a.high) : 64 + (u32)__clzll((long long)a.low); }

DEV U128 shift_left(U128 a, u32 by) {
  if (by == 0) return a;
  if (by >= 64) return {0, a.low << (by - 64)};
  return {a.low << by, a.high << by | a.low >> (64 - by)};
}

// Modulo `sum`, which is above both and below 2^127.
DEV U128 add_around(U128 a, U128 b, U128 sum) {
  U128 both = a + b;
  return both < sum ? both : both - sum;
}

DEV U128 shuffle_up(U128 a, u32 apart) { return {__shfl_up_sync(FULL_WARP, a.low, apart), __shfl_up_sync(FULL_WARP, a.high, apart)}; }

// a / b rounded once, for a > b > 0. Their leading bits are put together, so the quotient is in 1/2..2 before it is put back.
DEV f32 ratio(U128 a, U128 b) {
  const u32 bits = 27;
  u32 shift = leading_zeros(b) - leading_zeros(a);
  U128 by = shift_left(b, shift), rest = a;
  u32 quotient = 0;
  for (u32 i = 0; i <= bits; i++) {
    quotient <<= 1;
    if (!(rest < by)) {
      rest = rest - by;
      quotient |= 1;
    }
    rest = twice(rest);
  }
  // A last bit that tells of a rest keeps halves apart from what is just above them.
  f32 rounded = (f32)(quotient | !is_zero(rest));
  return rounded * bits_f32((127 + shift - bits) << 23);
}
