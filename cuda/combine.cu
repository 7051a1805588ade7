// out[t] (+)= sum_j weights[t, j] rows[row_of_pair[t, j]]. A column is one thread's, and its slots are added in order.
#include "lib_pack.h"
#include "lib_span.h"

// Slots, and packs of each, that a thread has under way.
#define SLOTS 4
#define PACKS 2

#define N 4

struct Slots {
  const f32* rows;
  const u32* row_of_pair;
  const f32* weights;
  u64 stored;
  u64 cols;
  u32 top_k;
  bool accumulate;
};

// Where the row of a pair is; null where there is none.
DEV const f32* row_at(const Slots& slots, u64 pair) {
  u64 row = pair;
  if (slots.row_of_pair) {
    u32 index = slots.row_of_pair[pair];
    if (index == NONE) return nullptr;
    row = index;
  }
  return row < slots.stored ? slots.rows + at(row, slots.cols, 0) : nullptr;
}

DEV f32 weight_at(const Slots& slots, u64 pair) { return slots.weights ? slots.weights[pair] : 1.0f; }

// Columns first..first + left of a token whose slots begin at `pair`.
DEV void combine_packs(const Slots& slots, u64 pair, u64 first, u32 left, f32* to, const Spans& spans) {
  f32 sum[PACKS][N];
  for (u32 p = 0; p < PACKS; p++) {
    u32 c = (p * spans.size + spans.lane) * N;
    Vec16 v{};
    if (slots.accumulate && c < left) v = *as_pack<N>(to + c);
    unpack<f32>(v, sum[p]);
  }
  for (u32 slot = 0; slot < slots.top_k; slot += SLOTS) {
    const f32* from[SLOTS];
    for (u32 s = 0; s < SLOTS; s++) from[s] = slot + s < slots.top_k ? row_at(slots, pair + slot + s) : nullptr;
    Vec16 v[SLOTS][PACKS];
    for (u32 s = 0; s < SLOTS; s++)
      for (u32 p = 0; p < PACKS; p++) {
        u32 c = (p * spans.size + spans.lane) * N;
        if (from[s] && c < left) v[s][p] = load_once(as_pack<N>(from[s] + first + c));
      }
    for (u32 s = 0; s < SLOTS; s++) {
      if (!from[s]) continue;
      f32 weight = weight_at(slots, pair + slot + s);
      for (u32 p = 0; p < PACKS; p++)
        for (u32 i = 0; i < N; i++) sum[p][i] += weight * bits_f32(v[s][p].word[i]);
    }
  }
  for (u32 p = 0; p < PACKS; p++) {
    u32 c = (p * spans.size + spans.lane) * N;
    if (c < left) store_once(as_pack<N>(to + c), packed<f32>(sum[p]));
  }
}

DEV void combine_elements(const Slots& slots, u64 pair, u64 first, u32 left, f32* to, const Spans& spans) {
  for (u32 c = spans.lane; c < left; c += spans.size) {
    f32 sum = slots.accumulate ? to[c] : 0.0f;
    for (u32 slot = 0; slot < slots.top_k; slot++) {
      const f32* from = row_at(slots, pair + slot);
      if (from) sum += weight_at(slots, pair + slot) * from[first + c];
    }
    to[c] = sum;
  }
}

KERNEL(256) combine(const f32* rows, const u32* row_of_pair, const f32* weights, f32* out, u64 tokens, u64 cols, u64 stored,
                    u32 top_k, u32 accumulate, u32 spans_per_row, u32 team) {
  Slots slots{rows, row_of_pair, weights, stored, cols, top_k, accumulate != 0};
  Spans spans = spans_of(tokens, spans_per_row, team);
  bool aligned = in_packs<N>(rows, cols) && in_packs<N>(out, cols);
  u32 width = team * PACKS * N;
  for (u64 span = spans.first; span < spans.all; span += spans.step) {
    u64 token = divide(span, spans_per_row);
    u64 first = (span - token * spans_per_row) * width;
    u32 left = left_of(cols, first, width);
    f32* to = out + at(token, cols, first);
    if (aligned)
      combine_packs(slots, token * top_k, first, left, to, spans);
    else
      combine_elements(slots, token * top_k, first, left, to, spans);
  }
}
