// Gradients of SwiGLU, h, and <u, h> of each row.
#include "lib_pack.h"
#include "lib_swiglu.h"
#include "lib_team.h"

#define N 4

template <bool aligned>
DEV f64 backward_row(const f32* a, const f32* u, f32 scale, f32* da, f32* h, u64 width, const Team& team) {
  u32 batch = team.size * N;
  u32 c = team.lane * N;
  f64 dot = 0.0;
  for (u64 first = 0; first < width; first += batch) {
    u32 left = left_of(width, first, batch);
    Vec16 va = read_pack<aligned, N>(a + first, c, left);
    Vec16 vb = read_pack<aligned, N>(a + width + first, c, left);
    Vec16 vu = read_pack<aligned, N>(u + first, c, left);
    f32 x[N], y[N], z[N], out[N];
    unpack<f32>(va, x);
    unpack<f32>(vb, y);
    unpack<f32>(vu, z);
    for (u32 i = 0; i < N; i++) {
      SwigluBackward d = swiglu_backward_of(x[i], y[i], scale * z[i]);
      dot = fma((f64)z[i], (f64)d.h, dot);
      out[i] = d.h;
      x[i] = d.da;
      y[i] = d.db;
    }
    write_values<aligned>(h + first, c, left, out);
    write_values<aligned>(da + first, c, left, x);
    write_values<aligned>(da + width + first, c, left, y);
  }
  return dot;
}

KERNEL(256) swiglu_backward(const f32* ab, const u32* ab_index, const f32* u, const f32* scale, const u32* offsets, f32* d_ab,
                            f32* h, f32* dot, u64 rows, u64 stored, u64 width, u32 groups, u32 size) {
  DYN_SHARED(f64, shared);
  Team team = team_of(size);
  bool aligned = in_packs<N>(ab, width) && in_packs<N>(u, width) && in_packs<N>(d_ab, width) && in_packs<N>(h, width);
  u64 begin = offsets[0], end = min((u64)offsets[groups], rows);
  for (u64 row = team.first; row < end; row += team.step) {
    if (row < begin) continue;
    u64 source = row;
    if (ab_index) source = ab_index[row];
    f64 sum = 0.0;
    // An index that nobody checked reads nothing.
    if (source < stored) {
      const f32* a = ab + at(source, 2 * width, 0);
      const f32* upstream = u + at(row, width, 0);
      f32 factor = scale ? scale[row] : 1.0f;
      f32* da = d_ab + at(row, 2 * width, 0);
      f32* to = h + at(row, width, 0);
      sum = aligned ? backward_row<true>(a, upstream, factor, da, to, width, team)
                   : backward_row<false>(a, upstream, factor, da, to, width, team);
    }
    sum = team_sum(team, sum, shared);
    if (team.lane == 0) dot[row] = (f32)sum;
  }
}
