// The forward product and dgrad: rows of c are rows of the batch, those of one expert together.
//   forward: c[r, j] = sum over s of x[r, s] W[e, j, s]
//   dgrad:   c[r, j] = sum over s of dy[r, s] W[e, s, j]
#pragma once
#include "dev.h"
#include "lib_gemm_mma.h"

// Rows of x are whole chunks, and so are rows of W; elements of c can be written in pairs.
#define GEMM_LEFT_WHOLE 1u
#define GEMM_RIGHT_WHOLE 2u
#define GEMM_OUT_PAIRS 4u

template <class S, class D>
struct RowsArgs {
  const S* x;
  const u32* index;
  const D* w;
  // Entries of gemm_tiles.
  const u32* tiles;
  f32* out;
  u64 div;
  u32 stored, n, k, flags;
};

template <class S, class D, class M, int left_pieces_, int right_pieces_, bool forward, class Shape_, bool by_chunk = false>
struct RowsOp {
  typedef Shape_ Shape;
  typedef M Mma;
  typedef RowsArgs<S, D> Args;
  typedef Tile<S, Shape::tile_rows, Shape::steps, false, by_chunk> Left;
  typedef Tile<D, Shape::tile_cols, Shape::steps, !forward, by_chunk> Right;
  static const int left_pieces = left_pieces_, right_pieces = right_pieces_;
  static const bool scaled = false, scale_left = false;

  DEV u32 cols(const Args& args) { return forward ? args.n : args.k; }
  DEV u32 steps(const Args& args) { return forward ? args.k : args.n; }
  DEV u32 col_tiles(const Args& args) { return (cols(args) + Shape::tile_cols - 1) / Shape::tile_cols; }
  DEV u32 tiles(const Args& args) { return args.tiles[0] * col_tiles(args); }
  DEV const f32* scale(const Args&) { return nullptr; }

  DEV Spot spot(const Args& args, u32 tile) {
    const Place place = raster(tile, args.tiles[0], col_tiles(args));
    const Vec16 entry = reinterpret_cast<const Vec16*>(args.tiles)[1 + place.row];
    return Spot{entry.word[0], entry.word[1], entry.word[2], place.col * (u32)Shape::tile_cols, 0, steps(args)};
  }

  DEV View<S> left(const Args& args, const Spot& spot) {
    const u32 cols = steps(args);
    return View<S>{args.x, args.index, args.div, args.stored, cols, (args.flags & GEMM_LEFT_WHOLE) != 0,
                   spot.row, spot.rows, 0, cols};
  }

  DEV View<D> right(const Args& args, const Spot& spot) {
    const D* w = args.w + at(spot.group, (u64)args.n * args.k, 0);
    const bool whole = (args.flags & GEMM_RIGHT_WHOLE) != 0;
    if (forward) return View<D>{w, nullptr, 0, args.n, args.k, whole, spot.col, args.n - spot.col, 0, args.k};
    return View<D>{w, nullptr, 0, args.n, args.k, whole, 0, args.n, spot.col, args.k - spot.col};
  }

  DEV void finish(const Args& args, const Spot& spot, const Sums<RowsOp>& sums, u32 row, u32 col) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, cols = RowsOp::cols(args);
    const bool pairs = (args.flags & GEMM_OUT_PAIRS) != 0;
#pragma unroll
    for (int i = 0; i < Shape::downs; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 r = row + i * 16 + half * 8 + g;
        if (r >= spot.rows) continue;
        const u32 first = spot.col + col + 2 * t;
        f32* out = args.out + at(spot.row + r, cols, first);
#pragma unroll
        for (int j = 0; j < Shape::acrosses; j++) {
          const F32Pair sum{sums.of[i][j][half * 2], sums.of[i][j][half * 2 + 1]};
          if (first + j * 8 >= cols) break;
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

// Few rows to an expert, or few tiles in all, take the small one: the bits are the same.
typedef Shape<128, 128, 32, 2> LargeShape;
typedef Shape<32, 128, 32, 1> SmallShape;

// A kernel for x of type S and W of type D, as so many pieces of type M.
#define GEMM_ROWS(name, forward, shape, S, D, M, left_pieces, right_pieces)                                                  \
  KERNEL_FITTING(GEMM_THREADS, shape::fitting)                                                                               \
  name##_##S##_##D(const S* x, const u32* index, const D* w, const u32* tiles, f32* out, u64 div, u32 stored, u32 n, u32 k,  \
                   u32 flags) {                                                                                              \
    multiply_tiles<RowsOp<S, D, M, left_pieces, right_pieces, forward, shape>>(                                              \
        {x, index, w, tiles, out, div, stored, n, k, flags});                                                                \
  }

// Rows in f32 or the type of the weights: what layers have.
#define GEMM_ROWS_USUAL(name, forward, shape)                    \
  GEMM_ROWS(name, forward, shape, bf16, bf16, bf16, 1, 1)        \
  GEMM_ROWS(name, forward, shape, f16, f16, f16, 1, 1)           \
  GEMM_ROWS(name, forward, shape, f32, bf16, bf16, 3, 1)         \
  GEMM_ROWS(name, forward, shape, f32, f16, bf16, 3, 2)

// Other pairs.
#define GEMM_ROWS_MIXED(name, forward, shape)                    \
  GEMM_ROWS(name, forward, shape, bf16, f32, bf16, 1, 3)         \
  GEMM_ROWS(name, forward, shape, f16, f32, bf16, 2, 3)          \
  GEMM_ROWS(name, forward, shape, bf16, f16, bf16, 1, 2)         \
  GEMM_ROWS(name, forward, shape, f16, bf16, bf16, 2, 1)

// The f32 operand is rounded to the type of the other.
#define GEMM_ROWS_ROUNDED(name, forward, shape)                  \
  GEMM_ROWS(name, forward, shape, f32, bf16, bf16, 1, 1)         \
  GEMM_ROWS(name, forward, shape, f32, f16, f16, 1, 1)           \
  GEMM_ROWS(name, forward, shape, bf16, f32, bf16, 1, 1)         \
  GEMM_ROWS(name, forward, shape, f16, f32, f16, 1, 1)
