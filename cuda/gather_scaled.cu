// Scaled rows in f32: dst[r] = scale[r] * src[index[r] / index_div].
#include "lib_pack.h"
#include "lib_span.h"

// Packs that a thread has under way.
#define PACKS 4

template <class S>
DEV void gather_scaled(const S* src, const u32* index, const f32* scale, const u32* offsets, f32* dst, u64 rows, u64 stored,
                       u64 cols, u32 index_div, u32 groups, u32 spans_per_row, u32 team) {
  constexpr u32 N = Together<f32>::count;
  Spans spans = spans_of(rows, spans_per_row, team);
  bool aligned = in_packs<N>(src, cols) && in_packs<N>(dst, cols);
  u32 begin = offsets[0];
  u32 end = offsets[groups];
  u32 width = team * PACKS * N;
  for (u64 span = spans.first; span < spans.all; span += spans.step) {
    u64 row = divide(span, spans_per_row);
    if (row < begin || row >= end) continue;
    u64 source = index[row] / index_div;
    // An index that is out of range has been found before: it reads nothing.
    if (source >= stored) continue;
    u64 first = (span - row * spans_per_row) * width;
    u32 left = left_of(cols, first, width);
    const S* from = src + at(source, cols, first);
    f32* to = dst + at(row, cols, first);
    f32 factor = scale[row];
    if (aligned) {
      Pack<S, N> v[PACKS];
      for (u32 p = 0; p < PACKS; p++) {
        u32 c = (p * team + spans.lane) * N;
        if (c < left) v[p] = read_once(as_pack<N>(from + c));
      }
      for (u32 p = 0; p < PACKS; p++) {
        u32 c = (p * team + spans.lane) * N;
        f32 x[N];
        unpack<S>(v[p], x);
        for (u32 i = 0; i < N; i++) x[i] = factor * x[i];
        if (c < left) store_once(as_pack<N>(to + c), packed<f32>(x));
      }
    } else {
      for (u32 c = spans.lane; c < left; c += team) to[c] = factor * to_f32(from[c]);
    }
  }
}

#define INSTANCE(S)                                                                                                        \
  KERNEL(256) gather_scaled_##S(const S* src, const u32* index, const f32* scale, const u32* offsets, f32* dst, u64 rows,  \
                                u64 stored, u64 cols, u32 index_div, u32 groups, u32 spans_per_row, u32 team) {            \
    gather_scaled<S>(src, index, scale, offsets, dst, rows, stored, cols, index_div, groups, spans_per_row, team);         \
  }
FOR_FLOATS(INSTANCE)
