// A product of many tiles on tensor cores: the loop over tiles and steps, and the multiplications of one stage.
//
// Blocks stay for the whole launch and take every gridDim-th tile. Copies run ahead of the multiplications by a ring of stages
// in shared memory, across the borders of tiles, so that the end of one tile and the beginning of the next overlap.
//
// # Numeric contract
// 16-bit operands of one type: one mma each 16 steps, in ascending order, that adds to the accumulator in f32. All others: each
// 16 steps, products of bf16 pieces of the numbers, from the smallest, summed by tensor cores from zero, then added to the
// accumulator in f32 to nearest. Products are exact; how one mma sums them is the hardware's: in no documented order, with bits
// far below the largest summand cut off, and not the same on every architecture. On one device an element's bits depend on its
// row, its column and the number of steps, never on the tile around it or on how its operands were copied.
#pragma once
#include "dev.h"
#include "lib_gemm_load.h"
#include "lib_gemm_tile.h"

// Rows and columns of a tile of c, steps of a stage, and how the four warps share the tile.
template <int tile_rows_, int tile_cols_, int steps_, int warps_down_>
struct Shape {
  static const int tile_rows = tile_rows_, tile_cols = tile_cols_, steps = steps_;
  static const int warps_down = warps_down_, warps_across = GEMM_THREADS / 32 / warps_down_;
  // What one warp holds, and in blocks of mma.
  static const int warp_rows = tile_rows / warps_down, warp_cols = tile_cols / warps_across;
  static const int downs = warp_rows / 16, acrosses = warp_cols / 8;
  // Blocks that a multiprocessor shall hold.
  static const int fitting = downs * acrosses > 16 ? 2 : 3;
};

// One tile of c: the first row and column, rows that exist; and the steps that it sums over.
struct Spot {
  u32 group;
  u32 row, rows;
  u32 col;
  u32 first_step, steps;
};

// Tiles in bands of eight rows, down each column of a band in turn: blocks that run together share columns of b and, where a
// band is wide, rows of a.
struct Place {
  u32 row, col;
};

DEV Place raster(u32 tile, u32 rows, u32 cols) {
  const u32 band = tile / (8 * cols), in_band = tile % (8 * cols), high = min(8u, rows - band * 8);
  return Place{band * 8 + in_band % high, in_band / high};
}

// Tiles that copies have begun are kept in shared memory, so that neither they nor their numbers are computed twice. Copies are
// less than eight tiles ahead.
struct alignas(32) KeptSpot {
  Spot spot;
};
#define GEMM_SPOTS 8u

// Where the copies are: they run ahead of the multiplications.
template <class Op>
struct Ahead {
  u32 tile, tiles;
  // Tiles begun so far.
  u32 begun;
  u32 step, steps, first_step;
  View<typename Op::Left::Type> left;
  View<typename Op::Right::Type> right;
  u32 left_rows[Share<typename Op::Left>::rows];
  u32 right_rows[Share<typename Op::Right>::rows];
};

template <class Op>
DEV void begin_tile(Ahead<Op>& ahead, const typename Op::Args& args, KeptSpot* spots) {
  if (ahead.tile >= ahead.tiles) return;
  const Spot spot = Op::spot(args, ahead.tile);
  if (threadIdx.x == 0) spots[ahead.begun % GEMM_SPOTS].spot = spot;
  ahead.begun++;
  ahead.step = 0;
  ahead.steps = spot.steps;
  ahead.first_step = spot.first_step;
  ahead.left = Op::left(args, spot);
  ahead.right = Op::right(args, spot);
  look_up<typename Op::Left>(ahead.left_rows, ahead.left, 0);
  look_up<typename Op::Right, Op::paired>(ahead.right_rows, ahead.right, 0);
}

// Bytes of one stage: both tiles and, where steps are scaled, their scales.
template <class Op>
struct Stage {
  static const u32 left = 0, right = Op::Left::bytes, scale = right + Op::Right::bytes;
  static const u32 bytes = scale + (Op::scaled ? 128 : 0);
  // So many that two blocks fit on a multiprocessor of 164 KB or more; one of 100 KB (sm_86, sm_89, sm_120) holds one block. The
  // launch knows the same rule.
  static const int fitting = 75776 / bytes, count = fitting < 2 ? 2 : fitting > 4 ? 4 : fitting;
  static_assert(!Op::scaled || Op::Shape::steps <= 32, "scales of a stage");
};

// Starts the copies of the next stage, if there is one, and closes their group.
template <class Op>
DEV void feed(Ahead<Op>& ahead, const typename Op::Args& args, u8* stage, KeptSpot* spots) {
  typedef typename Op::Left Left;
  typedef typename Op::Right Right;
  if (ahead.tile < ahead.tiles) {
    copy<Left>(stage + Stage<Op>::left, ahead.left_rows, ahead.left, ahead.step);
    copy<Right>(stage + Stage<Op>::right, ahead.right_rows, ahead.right, ahead.step);
    if (Op::scaled && threadIdx.x < Op::Shape::steps) {
      const u32 step = ahead.step + threadIdx.x;
      const bool real = step < ahead.steps;
      cp_async4(stage + Stage<Op>::scale + threadIdx.x * 4, Op::scale(args) + (real ? ahead.first_step + step : 0), real);
    }
    ahead.step += Op::Shape::steps;
    if (ahead.step >= ahead.steps) {
      ahead.tile += gridDim.x;
      begin_tile<Op>(ahead, args, spots);
    } else {
      if (Left::rows_are_steps) look_up<Left>(ahead.left_rows, ahead.left, ahead.step);
      if (Right::rows_are_steps) look_up<Right>(ahead.right_rows, ahead.right, ahead.step);
    }
  }
  cp_async_commit();
}

template <class Shape>
struct Sums {
  f32 of[Shape::downs][Shape::acrosses][4];
};

// Fragments of 16 steps, of operands that mma takes as they are.
template <class Op>
struct Fragments {
  u32 left[Op::Shape::downs][4];
  u32 right[Op::Shape::acrosses / 2][4];
};

template <class Op>
DEV void load_fragments(Fragments<Op>& f, const u8* stage, u32 row, u32 col, u32 step) {
#pragma unroll
  for (int i = 0; i < Op::Shape::downs; i++) left_bits<typename Op::Left>(f.left[i], stage + Stage<Op>::left, row + i * 16, step);
#pragma unroll
  for (int j = 0; j < Op::Shape::acrosses / 2; j++)
    right_bits<typename Op::Right>(f.right[j], stage + Stage<Op>::right, col + j * 16, step);
}

template <class Op>
DEV void multiply(Sums<typename Op::Shape>& sums, const Fragments<Op>& f) {
#pragma unroll
  for (int i = 0; i < Op::Shape::downs; i++) {
#pragma unroll
    for (int j = 0; j < Op::Shape::acrosses; j++) {
      const u32 right[2] = {f.right[j / 2][j % 2 * 2], f.right[j / 2][j % 2 * 2 + 1]};
      mma(sums.of[i][j], f.left[i], right, typename Op::Mma{});
    }
  }
}

// Pieces of 16 lanes times 16 steps of the left or right operand, scaled first where it is the scaled one.
template <class Op, bool on_left>
struct Pieces {
  typedef typename Op::Left Left;
  typedef typename Op::Right Right;
  static const int count = on_left ? Op::left_pieces : Op::right_pieces;
  u32 of[count][4];
};

template <class Op, bool on_left>
DEV void load_pieces(Pieces<Op, on_left>& p, const u8* stage, u32 lane, u32 step) {
  typedef typename Op::Left Left;
  typedef typename Op::Right Right;
  const bool scale = Op::scaled && Op::scale_left == on_left;
  const bool as_is = Pieces<Op, on_left>::count == 1 && !scale && (on_left ? !Left::wide : !Right::wide);
  if constexpr (as_is) {
    if constexpr (on_left)
      left_bits<Left>(p.of[0], stage + Stage<Op>::left, lane, step);
    else
      right_bits<Right>(p.of[0], stage + Stage<Op>::right, lane, step);
  } else {
    F32Pair v[4];
    if constexpr (on_left)
      left_values<Left>(v, stage + Stage<Op>::left, lane, step);
    else
      right_values<Right>(v, stage + Stage<Op>::right, lane, step);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (scale) {
        const u32 at = step + threadIdx.x % 4 * 2 + (on_left ? i / 2 : i % 2) * 8;
        const F32Pair s = *reinterpret_cast<const F32Pair*>(stage + Stage<Op>::scale + at * 4);
        v[i] = F32Pair{v[i].x * s.x, v[i].y * s.y};
      }
      u32 piece[Pieces<Op, on_left>::count];
      split<typename Op::Mma>(piece, v[i]);
#pragma unroll
      for (int q = 0; q < Pieces<Op, on_left>::count; q++) p.of[q][i] = piece[q];
    }
  }
}

// Four blocks of c beside each other: products of pieces from the smallest, or straight into the accumulators where there is one
// piece of each. Products of pieces whose numbers sum to more than 2 are below half a unit in the last place of the product.
template <class Op>
DEV void multiply_pieces(f32 (&sums)[Op::Shape::acrosses][4], int j, const Pieces<Op, true>& left,
                         const Pieces<Op, false> (&right)[2]) {
  const bool direct = Op::left_pieces * Op::right_pieces == 1;
  f32 sum[4][4];
#pragma unroll
  for (int b = 0; b < 4; b++)
#pragma unroll
    for (int x = 0; x < 4; x++) sum[b][x] = direct ? sums[j + b][x] : 0.0f;
#pragma unroll
  for (int order = 2; order >= 0; order--) {
#pragma unroll
    for (int p = 0; p < Op::left_pieces; p++) {
      const int q = order - p;
      if (q < 0 || q >= Op::right_pieces) continue;
#pragma unroll
      for (int b = 0; b < 4; b++) {
        const u32(&four)[4] = right[b / 2].of[q];
        const u32 two[2] = {four[b % 2 * 2], four[b % 2 * 2 + 1]};
        mma(sum[b], left.of[p], two, typename Op::Mma{});
      }
    }
  }
#pragma unroll
  for (int b = 0; b < 4; b++)
#pragma unroll
    for (int x = 0; x < 4; x++) sums[j + b][x] = direct ? sum[b][x] : sums[j + b][x] + sum[b][x];
}

// All products of one stage, of operands that are split or rounded first. The right one is held, the left one passes.
template <class Op>
DEV void multiply_stage(Sums<typename Op::Shape>& sums, const u8* stage, u32 row, u32 rows, u32 col) {
  typedef typename Op::Shape Shape;
  // Where both are split, registers hold pieces of half the columns.
  const int halves = Op::left_pieces > 1 && Op::right_pieces > 1 && Shape::acrosses > 4 ? 2 : 1, held = Shape::acrosses / halves;
#pragma unroll
  for (int step = 0; step < Shape::steps; step += 16) {
#pragma unroll
    for (int half = 0; half < halves; half++) {
      Pieces<Op, false> right[held / 2];
#pragma unroll
      for (int j = 0; j < held / 2; j++) load_pieces<Op, false>(right[j], stage, col + (half * held / 2 + j) * 16, step);
#pragma unroll
      for (int i = 0; i < Shape::downs; i++) {
        if (row + i * 16 >= rows) break;
        Pieces<Op, true> left;
        load_pieces<Op, true>(left, stage, row + i * 16, step);
#pragma unroll
        for (int j = 0; j < held; j += 4)
          multiply_pieces<Op>(sums.of[i], half * held + j, left, {right[j / 2], right[j / 2 + 1]});
      }
    }
  }
}

// The product: every gridDim-th tile of c.
template <class Op>
DEV void multiply_tiles(const typename Op::Args& args) {
  typedef typename Op::Shape Shape;
  DYN_SHARED(u8, shared);
  const u32 warp = threadIdx.x / 32;
  const u32 row = warp / Shape::warps_across * Shape::warp_rows, col = warp % Shape::warps_across * Shape::warp_cols;
  const u32 end = Stage<Op>::count * Stage<Op>::bytes;
  // Operands that mma takes as they are: fragments are read one multiplication ahead.
  const bool as_is = Op::left_pieces * Op::right_pieces == 1 && !Op::scaled && !Op::Left::wide && !Op::Right::wide;

  KeptSpot* spots = reinterpret_cast<KeptSpot*>(shared + end);
  f32* slice = reinterpret_cast<f32*>(shared + end + GEMM_SPOTS * sizeof(KeptSpot) + warp * Op::slice_bytes);
  Ahead<Op> ahead;
  ahead.tile = blockIdx.x;
  ahead.begun = 0;
  ahead.tiles = Op::tiles(args);
  begin_tile<Op>(ahead, args, spots);
#pragma unroll 1
  for (u32 stage = 0; stage < end - Stage<Op>::bytes; stage += Stage<Op>::bytes) feed<Op>(ahead, args, shared + stage, spots);

  // The stage being multiplied; the one before it is free.
  u32 here = 0;
  Fragments<Op> f[2];
  cp_async_wait<Stage<Op>::count - 2>();
  __syncthreads();
  // The next tile is begun before the last stage of this one is multiplied.
#pragma unroll 1
  for (u32 tile = 0; tile < ahead.begun; tile++) {
    Sums<Shape> sums;
#pragma unroll
    for (int i = 0; i < Shape::downs; i++)
#pragma unroll
      for (int j = 0; j < Shape::acrosses; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) sums.of[i][j][q] = 0;
    // The first fragments again: registers are short while sums are stored.
    if constexpr (as_is) load_fragments<Op>(f[0], shared + here, row, col, 0);
    const Spot* spot = &spots[tile % GEMM_SPOTS].spot;
    const u32 rows = spot->rows;
    const bool busy = row < rows;
    u32 stages = max(1u, (spot->steps + Shape::steps - 1) / Shape::steps);
#pragma unroll 1
    do {
      if constexpr (as_is) {
        const int parts = Shape::steps / 16;
        static_assert(parts % 2 == 0, "fragments alternate");
#pragma unroll
        for (int part = 0; part < parts; part++) {
          if (part + 1 < parts) {
            load_fragments<Op>(f[(part + 1) % 2], shared + here, row, col, (part + 1) * 16);
          } else {
            here = here + Stage<Op>::bytes == end ? 0 : here + Stage<Op>::bytes;
            cp_async_wait<Stage<Op>::count - 2>();
            __syncthreads();
            load_fragments<Op>(f[(part + 1) % 2], shared + here, row, col, 0);
          }
          if (part == 0) {
            feed<Op>(ahead, args, shared + (here == 0 ? end : here) - Stage<Op>::bytes, spots);
          }
          if (busy) multiply<Op>(sums, f[part % 2]);
        }
      } else {
        feed<Op>(ahead, args, shared + (here == 0 ? end : here) - Stage<Op>::bytes, spots);
        if (busy) multiply_stage<Op>(sums, shared + here, row, rows, col);
        here = here + Stage<Op>::bytes == end ? 0 : here + Stage<Op>::bytes;
        cp_async_wait<Stage<Op>::count - 2>();
        __syncthreads();
      }
    } while (--stages);
    if (busy) Op::finish(args, *spot, sums, row, col, slice);
  }
}
