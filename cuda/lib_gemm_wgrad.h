// wgrad: c[e][i, j] (+)= sum over rows r of group e of scale[r] dy[r, i] x[r, j].
#pragma once
#include "dev.h"
#include "lib_gemm_mma.h"

// Rows of dy are whole chunks, and so are rows of x; elements of c can be written in pairs; c is added to.
#define GEMM_LEFT_WHOLE 1u
#define GEMM_RIGHT_WHOLE 2u
#define GEMM_OUT_PAIRS 4u
#define GEMM_ACCUMULATE 8u

template <class S, class D>
struct WgradArgs {
  const S* dy;
  const u32* dy_index;
  const f32* scale;
  const D* x;
  const u32* x_index;
  const u32* offsets;
  f32* out;
  u64 dy_div, x_div;
  u32 dy_stored, x_stored, rows, groups, n, k, flags;
};

template <class S, class D, class M, int left_pieces_, int right_pieces_, bool scaled_, bool scale_left_, class Shape_>
struct WgradOp {
  typedef Shape_ Shape;
  typedef M Mma;
  typedef WgradArgs<S, D> Args;
  typedef Tile<S, Shape::tile_rows, Shape::steps, true> Left;
  typedef Tile<D, Shape::tile_cols, Shape::steps, true> Right;
  static const int left_pieces = left_pieces_, right_pieces = right_pieces_;
  static const bool scaled = scaled_, scale_left = scale_left_;
  static const int paired = 0;
  static const u32 slice_bytes = 0;

  DEV u32 row_tiles(const Args& args) { return (args.n + Shape::tile_rows - 1) / Shape::tile_rows; }
  DEV u32 col_tiles(const Args& args) { return (args.k + Shape::tile_cols - 1) / Shape::tile_cols; }
  DEV u32 tiles(const Args& args) { return args.groups * row_tiles(args) * col_tiles(args); }
  DEV const f32* scale(const Args& args) { return args.scale; }

  DEV Spot spot(const Args& args, u32 tile) {
    const u32 rows = row_tiles(args), cols = col_tiles(args), group = tile / (rows * cols);
    const Place place = raster(tile - group * (rows * cols), rows, cols);
    const u32 first = min(args.offsets[group], args.rows), end = min(args.offsets[group + 1], args.rows);
    const u32 row = place.row * Shape::tile_rows;
    return Spot{group, row, args.n - row, place.col * (u32)Shape::tile_cols, first, end > first ? end - first : 0};
  }

  DEV View<S> left(const Args& args, const Spot& spot) {
    return View<S>{args.dy,         args.dy_index, args.dy_div, args.dy_stored, args.n, (args.flags & GEMM_LEFT_WHOLE) != 0,
                   spot.first_step, spot.steps,    spot.row,    args.n - spot.row, 0};
  }

  DEV View<D> right(const Args& args, const Spot& spot) {
    return View<D>{args.x,          args.x_index, args.x_div, args.x_stored, args.k, (args.flags & GEMM_RIGHT_WHOLE) != 0,
                   spot.first_step, spot.steps,   spot.col,   args.k - spot.col, 0};
  }

  DEV void finish(const Args& args, const Spot& spot, const Sums<Shape>& sums, u32 row, u32 col, f32*) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, cols = args.k;
    const bool pairs = (args.flags & GEMM_OUT_PAIRS) != 0, add = (args.flags & GEMM_ACCUMULATE) != 0;
    if (add && spot.steps == 0) return;
#pragma unroll
    for (int i = 0; i < Shape::downs; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 r = row + i * 16 + half * 8 + g;
        if (r >= spot.rows) continue;
        const u32 first = spot.col + col + 2 * t;
        f32* out = args.out + at((u64)spot.group * args.n + spot.row + r, cols, first);
        F32Pair old[Shape::acrosses];
#pragma unroll
        for (int j = 0; j < Shape::acrosses; j++) {
          old[j] = F32Pair{0, 0};
          if (!add || first + j * 8 >= cols) continue;
          if (pairs) {
            old[j] = *reinterpret_cast<F32Pair*>(out + j * 8);
          } else {
            old[j].x = out[j * 8];
            if (first + j * 8 + 1 < cols) old[j].y = out[j * 8 + 1];
          }
        }
#pragma unroll
        for (int j = 0; j < Shape::acrosses; j++) {
          if (first + j * 8 >= cols) continue;
          const F32Pair sum{sums.of[i][j][half * 2] + old[j].x, sums.of[i][j][half * 2 + 1] + old[j].y};
          if (pairs) {
            *reinterpret_cast<F32Pair*>(out + j * 8) = sum;
          } else {
            out[j * 8] = sum.x;
            if (first + j * 8 + 1 < cols) out[j * 8 + 1] = sum.y;
          }
        }
      }
    }
  }
};

typedef Shape<128, 128, 32, 2> WgradShape;

// A kernel for dy of type S and x of type D, as so many pieces of type M. An f32 operand takes the scale, or else dy.
#define GEMM_WGRAD(name, scaled, S, D, M, left_pieces, right_pieces)                                                          \
  KERNEL_FITTING(GEMM_THREADS, WgradShape::fitting)                                                                           \
  name##_##S##_##D(const S* dy, const u32* dy_index, const f32* scale, const D* x, const u32* x_index, const u32* offsets,    \
                   f32* out, u64 dy_div, u64 x_div, u32 dy_stored, u32 x_stored, u32 rows, u32 groups, u32 n, u32 k,          \
                   u32 flags) {                                                                                               \
    const bool scale_left = sizeof(S) == 4 || sizeof(D) != 4;                                                                 \
    multiply_tiles<WgradOp<S, D, M, left_pieces, right_pieces, scaled, scale_left, WgradShape>>(                              \
        {dy, dy_index, scale, x, x_index, offsets, out, dy_div, x_div, dy_stored, x_stored, rows, groups, n, k, flags});      \
  }
