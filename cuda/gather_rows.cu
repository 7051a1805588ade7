// Copies rows bit by bit: dst[r] = src[index[r] / index_div].
#include "lib_pack.h"
#include "lib_span.h"

// Packs that a thread has under way.
#define PACKS 4

template <class T>
DEV void gather_rows(const T* src, const u32* index, const u32* offsets, T* dst, u64 rows, u64 stored, u64 cols, u32 index_div,
                     u32 groups, u32 spans_per_row, u32 team) {
  constexpr u32 N = Together<T>::count;
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
    const T* from = src + at(source, cols, first);
    T* to = dst + at(row, cols, first);
    if (aligned) {
      Vec16 v[PACKS];
      for (u32 p = 0; p < PACKS; p++) {
        u32 c = (p * team + spans.lane) * N;
        if (c < left) v[p] = load_once(as_pack<N>(from + c));
      }
      for (u32 p = 0; p < PACKS; p++) {
        u32 c = (p * team + spans.lane) * N;
        if (c < left) store_once(as_pack<N>(to + c), v[p]);
      }
    } else {
      for (u32 c = spans.lane; c < left; c += team) to[c] = from[c];
    }
  }
}

#define INSTANCE(T)                                                                                                        \
  KERNEL(256) gather_rows_##T(const T* src, const u32* index, const u32* offsets, T* dst, u64 rows, u64 stored, u64 cols,  \
                              u32 index_div, u32 groups, u32 spans_per_row, u32 team) {                                    \
    gather_rows<T>(src, index, offsets, dst, rows, stored, cols, index_div, groups, spans_per_row, team);                  \
  }
FOR_FLOATS(INSTANCE)
