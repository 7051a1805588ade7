// Euclidean norms of rows.
#include "lib_pack.h"
#include "lib_team.h"

// Packs that a thread has under way.
#define PACKS 4

template <class T, bool aligned>
DEV f64 squares_of(const T* row, u64 cols, const Team& team) {
  constexpr u32 N = Together<T>::count;
  u32 batch = team.size * PACKS * N;
  f64 sum = 0.0;
  for (u64 first = 0; first < cols; first += batch) {
    u32 left = left_of(cols, first, batch);
    Pack<T, N> v[PACKS];
    for (u32 p = 0; p < PACKS; p++) v[p] = read_pack<aligned, N>(row + first, (p * team.size + team.lane) * N, left);
    for (u32 p = 0; p < PACKS; p++) {
      f32 x[N];
      unpack<T>(v[p], x);
      for (u32 i = 0; i < N; i++) sum = fma((f64)x[i], (f64)x[i], sum);
    }
  }
  return sum;
}

template <class T>
DEV void row_norms(const T* x, f32* norm, u64 rows, u64 cols, u32 size) {
  DYN_SHARED(f64, shared);
  Team team = team_of(size);
  bool aligned = in_packs<Together<T>::count>(x, cols);
  for (u64 row = team.first; row < rows; row += team.step) {
    const T* from = x + at(row, cols, 0);
    f64 sum = aligned ? squares_of<T, true>(from, cols, team) : squares_of<T, false>(from, cols, team);
    sum = team_sum(team, sum, shared);
    if (team.lane == 0) norm[row] = norm_of(sum);
  }
}

#define INSTANCE(T) \
  KERNEL(256) row_norms_##T(const T* x, f32* norm, u64 rows, u64 cols, u32 size) { row_norms<T>(x, norm, rows, cols, size); }
FOR_FLOATS(INSTANCE)
