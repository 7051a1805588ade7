// h = silu(a) b of ab = [a | b], and the norm of each row of h.
#include "lib_pack.h"
#include "lib_swiglu.h"
#include "lib_team.h"

// Packs of a and of b that a thread has under way.
#define PACKS 2

#define N 4

template <bool aligned>
DEV f64 swiglu_row(const f32* a, f32* h, u64 width, const Team& team) {
  const f32* b = a + width;
  u32 batch = team.size * PACKS * N;
  f64 squares = 0.0;
  for (u64 first = 0; first < width; first += batch) {
    u32 left = left_of(width, first, batch);
    Vec16 va[PACKS], vb[PACKS];
    for (u32 p = 0; p < PACKS; p++) {
      u32 c = (p * team.size + team.lane) * N;
      va[p] = read_pack<aligned, N>(a + first, c, left);
      vb[p] = read_pack<aligned, N>(b + first, c, left);
    }
    for (u32 p = 0; p < PACKS; p++) {
      f32 x[N], y[N];
      unpack<f32>(va[p], x);
      unpack<f32>(vb[p], y);
      for (u32 i = 0; i < N; i++) {
        x[i] = swiglu_of(x[i], y[i]);
        squares = fma((f64)x[i], (f64)x[i], squares);
      }
      write_values<aligned>(h + first, (p * team.size + team.lane) * N, left, x);
    }
  }
  return squares;
}

KERNEL(256) swiglu(const f32* ab, const u32* offsets, f32* h, f32* norm, u64 rows, u64 width, u32 groups, u32 size) {
  DYN_SHARED(f64, shared);
  Team team = team_of(size);
  bool aligned = in_packs<N>(ab, width) && in_packs<N>(h, width);
  u64 begin = offsets[0], end = min((u64)offsets[groups], rows);
  for (u64 row = team.first; row < end; row += team.step) {
    if (row < begin) continue;
    const f32* from = ab + at(row, 2 * width, 0);
    f32* to = h + at(row, width, 0);
    f64 squares = aligned ? swiglu_row<true>(from, to, width, team) : swiglu_row<false>(from, to, width, team);
    squares = team_sum(team, squares, shared);
    if (team.lane == 0) norm[row] = norm_of(squares);
  }
}
