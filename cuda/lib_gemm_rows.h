// The forward product and dgrad: rows of c are rows of the batch, those of one expert together.
//   forward: c[r, j] = sum over s of x[r, s] W[e, j, s]
//   dgrad:   c[r, j] = sum over s of dy[r, s] W[e, s, j]
// What becomes of c is a type of its own: it is stored, or goes through SwiGLU first (lib_gemm_swiglu.h).
#pragma once
#include "dev.h"
#include "lib_gemm_mma.h"

// Rows of x are whole chunks, and so are rows of W; elements of the output can be written in pairs.
#define GEMM_LEFT_WHOLE 1u
#define GEMM_RIGHT_WHOLE 2u
#define GEMM_OUT_PAIRS 4u

// `Out` is what the sums go to: its `write` stores those of one warp, and where its columns are `paired`, column j of a tile comes
// with column j + I of W.
template <class S, class D, class Out>
struct RowsArgs {
  const S* x;
  const u32* index;
  const D* w;
  // Entries of gemm_tiles.
  const u32* tiles;
  Out out;
  u64 div;
  u32 stored, n, k, flags;
};

template <class S, class D, class M, int left_pieces_, int right_pieces_, bool forward, class Shape_, class Out, bool by_chunk = false>
struct RowsOp {
  typedef Shape_ Shape;
  typedef M Mma;
  typedef RowsArgs<S, D, Out> Args;
  typedef Tile<S, Shape::tile_rows, Shape::steps, false, by_chunk> Left;
  typedef Tile<D, Shape::tile_cols, Shape::steps, !forward, by_chunk> Right;
  static const int left_pieces = left_pieces_, right_pieces = right_pieces_;
  static const bool scaled = false, scale_left = false;
  // Eight rows of a warp, on their way through shared memory.
  static const u32 slice_bytes = Out::staged ? 8 * Shape::warp_cols * sizeof(f32) : 0;
  // Lanes of a warp that are columns, and whose partners follow them.
  static const int paired = Out::paired ? Shape::warp_cols / 2 : 0;
  static const u32 tile_cols = Out::paired ? Shape::tile_cols / 2 : Shape::tile_cols;

  DEV u32 cols(const Args& args) { return !forward ? args.k : Out::paired ? args.n / 2 : args.n; }
  DEV u32 steps(const Args& args) { return forward ? args.k : args.n; }
  DEV u32 col_tiles(const Args& args) { return (cols(args) + tile_cols - 1) / tile_cols; }
  DEV u32 tiles(const Args& args) { return args.tiles[0] * col_tiles(args); }
  DEV const f32* scale(const Args&) { return nullptr; }

  DEV Spot spot(const Args& args, u32 tile) {
    const Place place = raster(tile, args.tiles[0], col_tiles(args));
    const Vec16 entry = reinterpret_cast<const Vec16*>(args.tiles)[1 + place.row];
    return Spot{entry.word[0], entry.word[1], entry.word[2], place.col * tile_cols, 0, steps(args)};
  }

  DEV View<S> left(const Args& args, const Spot& spot) {
    const u32 cols = steps(args);
    const bool whole = (args.flags & GEMM_LEFT_WHOLE) != 0;
    return View<S>{args.x, args.index, args.div, args.stored, cols, whole, spot.row, spot.rows, 0, cols, 0};
  }

  DEV View<D> right(const Args& args, const Spot& spot) {
    const D* w = args.w + at(spot.group, (u64)args.n * args.k, 0);
    const bool whole = (args.flags & GEMM_RIGHT_WHOLE) != 0;
    const u32 left = cols(args) - spot.col;
    if (forward) return View<D>{w, nullptr, 0, cols(args), args.k, whole, spot.col, left, 0, args.k, cols(args)};
    return View<D>{w, nullptr, 0, args.n, args.k, whole, 0, args.n, spot.col, left, 0};
  }

  DEV void finish(const Args& args, const Spot& spot, const Sums<Shape>& sums, u32 row, u32 col, f32* slice) {
    args.out.write(spot, cols(args), (args.flags & GEMM_OUT_PAIRS) != 0, sums, row, Out::paired ? col / 2 : col, slice);
  }
};

// A pair of elements of a row, of which the second may be behind the last; `whole` says that rows are pairs.
DEV void write_pair(f32* to, F32Pair pair, bool whole, bool second) {
  if (whole) {
    *reinterpret_cast<F32Pair*>(to) = pair;
  } else {
    *to = pair.x;
    if (second) to[1] = pair.y;
  }
}

DEV F32Pair read_pair(const f32* from, bool whole, bool second) {
  if (whole) return *reinterpret_cast<const F32Pair*>(from);
  return F32Pair{*from, second ? from[1] : 0.0f};
}

// c is stored.
struct Stored {
  static const bool paired = false, staged = false;
  f32* to;

  template <class Shape>
  DEV_MEMBER void write(const Spot& spot, u32 cols, bool pairs, const Sums<Shape>& sums, u32 row, u32 col, f32*) const {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, first = spot.col + col + 2 * t;
#pragma unroll
    for (int i = 0; i < Shape::downs; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 r = row + i * 16 + half * 8 + g;
        if (r >= spot.rows) continue;
        f32* out = to + at(spot.row + r, cols, first);
#pragma unroll
        for (int j = 0; j < Shape::acrosses; j++) {
          if (first + j * 8 >= cols) break;
          write_pair(out + j * 8, F32Pair{sums.of[i][j][half * 2], sums.of[i][j][half * 2 + 1]}, pairs, first + j * 8 + 1 < cols);
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
    multiply_tiles<RowsOp<S, D, M, left_pieces, right_pieces, forward, shape, Stored>>(                                      \
        {x, index, w, tiles, {out}, div, stored, n, k, flags});                                                              \
  }

// Rows in f32 or the type of the weights: what layers have. KIND is GEMM_ROWS or another one like it.
#define GEMM_USUAL(KIND, name, forward, shape)          \
  KIND(name, forward, shape, bf16, bf16, bf16, 1, 1)    \
  KIND(name, forward, shape, f16, f16, f16, 1, 1)       \
  KIND(name, forward, shape, f32, bf16, bf16, 3, 1)     \
  KIND(name, forward, shape, f32, f16, bf16, 3, 2)

// Other pairs.
#define GEMM_MIXED(KIND, name, forward, shape)          \
  KIND(name, forward, shape, bf16, f32, bf16, 1, 3)     \
  KIND(name, forward, shape, f16, f32, bf16, 2, 3)      \
  KIND(name, forward, shape, bf16, f16, bf16, 1, 2)     \
  KIND(name, forward, shape, f16, bf16, bf16, 2, 1)

// The f32 operand is rounded to the type of the other.
#define GEMM_ROUNDED(KIND, name, forward, shape)        \
  KIND(name, forward, shape, f32, bf16, bf16, 1, 1)     \
  KIND(name, forward, shape, f32, f16, f16, 1, 1)       \
  KIND(name, forward, shape, bf16, f32, bf16, 1, 1)     \
  KIND(name, forward, shape, f16, f32, f16, 1, 1)
