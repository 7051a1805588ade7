// Products whose sums go through SwiGLU before they are stored, with the results of swiglu.cu and swiglu_backward.cu.
//
// Sums over a row (squares of h, u h) are taken in f64 for each 16 columns, whatever the tile, and added up by gemm_norms and gemm_dots:
// sum b of row r is parts[b rows + r].
#pragma once
#include "dev.h"
#include "lib_gemm_rows.h"
#include "lib_swiglu.h"

// Eight rows of what a warp holds, on their way through shared memory: lanes then have neighbouring columns, and one piece of code
// serves all of them. Blocks of 8 columns are permuted so that pairs of four rows are in different banks.
template <class Shape>
struct Slice {
  static const int rows = 8, cols = Shape::warp_cols;
  static const u32 bytes = rows * cols * sizeof(f32);

  DEV u32 place(u32 row, u32 col) { return row * cols + ((col / 8 ^ row % 4) * 8 + col % 8); }

  DEV void put(f32* slice, const f32 (&sums)[Shape::acrosses][4], int half) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < Shape::acrosses; j++)
      *reinterpret_cast<F32Pair*>(slice + place(g, j * 8 + 2 * t)) = F32Pair{sums[j][half * 2], sums[j][half * 2 + 1]};
  }

  DEV F32Pair take(const f32* slice, u32 row, u32 col) { return *reinterpret_cast<const F32Pair*>(slice + place(row, col)); }
};

// Adds what eight lanes have of a row, and stores it by the first of them.
DEV void store_part(f64* parts, u64 rows, u64 row, u32 block, f64 sum, bool real) {
  sum += __shfl_xor_sync(FULL_WARP, sum, 1);
  sum += __shfl_xor_sync(FULL_WARP, sum, 2);
  sum += __shfl_xor_sync(FULL_WARP, sum, 4);
  if (real && threadIdx.x % 8 == 0) parts[at(block, rows, row)] = sum;
}

// Forward of W_gate and W_up: ab is stored, and h = silu(a) b.
struct GateUp {
  static const bool paired = true, staged = true;
  f32* ab;
  f32* h;
  f64* parts;
  u64 rows;

  template <class Shape>
  DEV_MEMBER void write(const Spot& spot, u32 cols, bool pairs, const Sums<Shape>& sums, u32 row, u32 col, f32* slice) const {
    const u32 lanes = Shape::warp_cols / 4, lane = threadIdx.x % 32, c = lane % lanes * 2;
    const u32 to = spot.col + col + c;
    const bool second = to + 1 < cols;
#pragma unroll
    for (int i = 0; i < Shape::downs; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 first = row + i * 16 + half * 8;
        if (first >= spot.rows) continue;
        Slice<Shape>::put(slice, sums.of[i], half);
        __syncwarp();
#pragma unroll 1
        for (u32 q = lane / lanes; q < 8; q += 32 / lanes) {
          const bool real = first + q < spot.rows && to < cols;
          const u64 r = spot.row + (u64)first + q;
          const F32Pair a = Slice<Shape>::take(slice, q, c), b = Slice<Shape>::take(slice, q, Shape::warp_cols / 2 + c);
          const F32Pair product{swiglu_of(a.x, b.x), swiglu_of(a.y, b.y)};
          f64 squares = 0;
          if (real) {
            f32* pair = ab + at(r, 2 * (u64)cols, to);
            write_pair(pair, a, pairs, second);
            write_pair(pair + cols, b, pairs, second);
            write_pair(h + at(r, cols, to), product, pairs, second);
            squares = (f64)product.x * (f64)product.x;
            if (second) squares = fma((f64)product.y, (f64)product.y, squares);
          }
          store_part(parts, rows, r, to / 16, squares, real);
        }
        __syncwarp();
      }
    }
  }
};

// Dgrad of W_down: u is stored, and what SwiGLU makes of it and the pair scale.
struct DownBack {
  static const bool paired = false, staged = true;
  f32* u;
  const f32* ab;
  const u32* ab_index;
  const f32* scale;
  f32* d_ab;
  f32* h;
  f64* parts;
  u64 rows, stored;

  // What is read for two columns of a row.
  struct Kept {
    F32Pair a, b;
    f32 factor;
  };

  DEV_MEMBER Kept read(u64 r, u32 col, u32 cols, bool pairs, bool real) const {
    Kept kept{{0, 0}, {0, 0}, 1.0f};
    if (!real) return kept;
    // An index that nobody checked reads nothing.
    const u64 source = ab_index ? ab_index[r] : r;
    if (source >= stored) return kept;
    const f32* from = ab + at(source, 2 * (u64)cols, col);
    kept.a = read_pair(from, pairs, col + 1 < cols);
    kept.b = read_pair(from + cols, pairs, col + 1 < cols);
    if (scale) kept.factor = scale[r];
    return kept;
  }

  template <class Shape>
  DEV_MEMBER void write(const Spot& spot, u32 cols, bool pairs, const Sums<Shape>& sums, u32 row, u32 col, f32* slice) const {
    const u32 lanes = Shape::warp_cols / 2, lane = threadIdx.x % 32, c = lane % lanes * 2;
    const u32 to = spot.col + col + c, step = 32 / lanes;
    const bool second = to + 1 < cols;
    // Of the first row; those of the next one are read while one is computed.
    Kept next = read(spot.row + (u64)row + lane / lanes, to, cols, pairs, row + lane / lanes < spot.rows && to < cols);
#pragma unroll
    for (int i = 0; i < Shape::downs; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 first = row + i * 16 + half * 8;
        if (first >= spot.rows) continue;
        Slice<Shape>::put(slice, sums.of[i], half);
        __syncwarp();
#pragma unroll 1
        for (u32 q = lane / lanes; q < 8; q += step) {
          const bool real = first + q < spot.rows && to < cols;
          const u64 r = spot.row + (u64)first + q;
          const Kept kept = next;
          // Rows of a warp follow each other, from slice to slice.
          const u32 behind = first + q + step;
          next = read(r + step, to, cols, pairs, behind < spot.rows && behind < row + Shape::warp_rows && to < cols);
          const F32Pair up = Slice<Shape>::take(slice, q, c);
          const SwigluBackward x = swiglu_backward_of(kept.a.x, kept.b.x, kept.factor * up.x);
          const SwigluBackward y = swiglu_backward_of(kept.a.y, kept.b.y, kept.factor * up.y);
          f64 dot = 0;
          if (real) {
            f32* pair = d_ab + at(r, 2 * (u64)cols, to);
            write_pair(u + at(r, cols, to), up, pairs, second);
            write_pair(h + at(r, cols, to), F32Pair{x.h, y.h}, pairs, second);
            write_pair(pair, F32Pair{x.da, y.da}, pairs, second);
            write_pair(pair + cols, F32Pair{x.db, y.db}, pairs, second);
            dot = (f64)up.x * (f64)x.h;
            if (second) dot = fma((f64)up.y, (f64)y.h, dot);
          }
          store_part(parts, rows, r, to / 16, dot, real);
        }
        __syncwarp();
      }
    }
  }
};

#define GEMM_GATE_UP(name, forward, shape, S, D, M, left_pieces, right_pieces)                                            \
  KERNEL_FITTING(GEMM_THREADS, shape::fitting)                                                                            \
  name##_##S##_##D(const S* x, const u32* index, const D* w, const u32* tiles, f32* ab, f32* h, f64* parts, u64 div,      \
                   u64 rows, u32 stored, u32 n, u32 k, u32 flags) {                                                       \
    multiply_tiles<RowsOp<S, D, M, left_pieces, right_pieces, forward, shape, GateUp>>(                                   \
        {x, index, w, tiles, {ab, h, parts, rows}, div, stored, n, k, flags});                                            \
  }

#define GEMM_DOWN_BACK(name, forward, shape, S, D, M, left_pieces, right_pieces)                                          \
  KERNEL_FITTING(GEMM_THREADS, shape::fitting)                                                                            \
  name##_##S##_##D(const S* x, const u32* index, const D* w, const u32* tiles, f32* u, const f32* ab, const u32* ab_index, \
                   const f32* scale, f32* d_ab, f32* h, f64* parts, u64 div, u64 rows, u64 ab_stored, u32 stored, u32 n,   \
                   u32 k, u32 flags) {                                                                                    \
    multiply_tiles<RowsOp<S, D, M, left_pieces, right_pieces, forward, shape, DownBack>>(                                 \
        {x, index, w, tiles, {u, ab, ab_index, scale, d_ab, h, parts, rows, ab_stored}, div, stored, n, k, flags});       \
  }
