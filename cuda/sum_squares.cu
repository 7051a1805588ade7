// Scaled sums of squares of blocks of 4,096 elements: the largest magnitude, and the sum of squares of elements over it.
#include "lib_pack.h"
#include "lib_team.h"

#define N 4
#define ELEMENTS 4096
#define PACKS (ELEMENTS / N / TEAM_BLOCK)

KERNEL(256) sum_squares(const f32* x, f32* partial, u64 len) {
  DYN_SHARED(f64, sums);
  u32* maxima = reinterpret_cast<u32*>(sums + TEAM_BLOCK / 32);
  Team team = team_of(TEAM_BLOCK);
  bool aligned = begins_packs<N>(x);
  u64 blocks = (len + ELEMENTS - 1) / ELEMENTS;
  for (u64 block = team.first; block < blocks; block += team.step) {
    const f32* from = x + block * ELEMENTS;
    u32 left = left_of(len, block * ELEMENTS, ELEMENTS);
    Vec16 v[PACKS];
    if (aligned && left == ELEMENTS) {
      for (u32 p = 0; p < PACKS; p++) v[p] = load_once(as_pack<N>(from + (p * TEAM_BLOCK + team.lane) * N));
    } else {
      for (u32 p = 0; p < PACKS; p++) v[p] = read_pack<false, N>(from, (p * TEAM_BLOCK + team.lane) * N, left);
    }
    // Bits of magnitudes have the order of the numbers, with NaN above infinity.
    u32 largest = 0;
    f64 sum = 0.0;
    for (u32 p = 0; p < PACKS; p++)
      for (u32 i = 0; i < N; i++) {
        f64 value = (f64)bits_f32(v[p].word[i]);
        largest = max(largest, v[p].word[i] & 0x7fffffffu);
        sum = fma(value, value, sum);
      }
    for (u32 apart = 16; apart > 0; apart /= 2) largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, apart));
    if (team.lane % 32 == 0) maxima[team.lane / 32] = largest;
    sum = team_sum(team, sum, sums);
    if (team.lane == 0) {
      for (u32 warp = 1; warp < TEAM_BLOCK / 32; warp++) largest = max(largest, maxima[warp]);
      f64 unit = (f64)bits_f32(largest);
      bool scaled = largest > 0 && largest < 0x7f800000u;
      partial[2 * block] = bits_f32(largest);
      partial[2 * block + 1] = scaled ? (f32)(sum / unit / unit) : 1.0f;
    }
    // Maxima are read before those of the next block are written.
    __syncthreads();
  }
}
