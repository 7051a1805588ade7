// dot[i] = <a[i / a_div], b[b_index[i]]>, 0 where there is no such row of b.
#include "lib_pack.h"
#include "lib_team.h"

// Packs of each row that a thread has under way.
#define PACKS 2

template <class A, class B, bool aligned>
DEV f64 dot_of(const A* a, const B* b, u64 cols, const Team& team) {
  constexpr u32 N = Together<A, B>::count;
  u32 batch = team.size * PACKS * N;
  f64 sum = 0.0;
  for (u64 first = 0; first < cols; first += batch) {
    u32 left = left_of(cols, first, batch);
    Pack<A, N> v[PACKS];
    Pack<B, N> w[PACKS];
    for (u32 p = 0; p < PACKS; p++) {
      u32 c = (p * team.size + team.lane) * N;
      v[p] = read_pack<aligned, N>(a + first, c, left);
      w[p] = read_pack<aligned, N>(b + first, c, left);
    }
    for (u32 p = 0; p < PACKS; p++) {
      f32 x[N], y[N];
      unpack<A>(v[p], x);
      unpack<B>(w[p], y);
      for (u32 i = 0; i < N; i++) sum = fma((f64)x[i], (f64)y[i], sum);
    }
  }
  return sum;
}

template <class A, class B>
DEV void row_dots(const A* a, const B* b, const u32* b_index, f32* dot, u64 rows, u64 cols, u64 stored, u64 a_div, u32 size) {
  constexpr u32 N = Together<A, B>::count;
  DYN_SHARED(f64, shared);
  Team team = team_of(size);
  bool aligned = in_packs<N>(a, cols) && in_packs<N>(b, cols);
  for (u64 i = team.first; i < rows; i += team.step) {
    u64 row = i;
    if (b_index) row = b_index[i];
    f64 sum = 0.0;
    if (!(b_index && row == NONE) && row < stored) {
      const A* x = a + at(a_div == 1 ? i : i / a_div, cols, 0);
      const B* y = b + at(row, cols, 0);
      sum = aligned ? dot_of<A, B, true>(x, y, cols, team) : dot_of<A, B, false>(x, y, cols, team);
    }
    sum = team_sum(team, sum, shared);
    if (team.lane == 0) dot[i] = (f32)sum;
  }
}

#define INSTANCE(A, B)                                                                                                     \
  KERNEL(256) row_dots_##A##_##B(const A* a, const B* b, const u32* b_index, f32* dot, u64 rows, u64 cols, u64 stored,     \
                                 u64 a_div, u32 size) {                                                                    \
    row_dots<A, B>(a, b, b_index, dot, rows, cols, stored, a_div, size);                                                   \
  }
FOR_FLOAT_PAIRS(INSTANCE)
