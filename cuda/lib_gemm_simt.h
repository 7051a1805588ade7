// Products without tensor cores: f32 operands, each element of c one chain of fused multiply-adds in ascending order.
#pragma once
#include "dev.h"
#include "lib_gemm_mma.h"
#include "lib_gemm_rows.h"

// 64 x 64 elements of c by 128 threads: each has eight rows, eight apart, of four columns.
typedef Shape<64, 64, 16, 1> SimtShape;

struct alignas(16) F32Four {
  f32 of[4];
};

// Four steps of four columns from `col` on: steps of a column follow each other where rows of the tile are columns.
template <class Tile>
DEV void load_columns(F32Four (&b)[4], const u8* tile, u32 col, u32 step) {
  if (Tile::rows_are_steps) {
#pragma unroll
    for (int s = 0; s < 4; s++) b[s] = *reinterpret_cast<const F32Four*>(tile + Tile::element(step + s, col * 4));
  } else {
    // Columns 16 apart: neighbouring threads read neighbouring rows of the tile.
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const F32Four steps = *reinterpret_cast<const F32Four*>(tile + Tile::element(col + j * 16, step));
#pragma unroll
      for (int s = 0; s < 4; s++) b[s].of[j] = steps.of[s];
    }
  }
}

template <class Op>
DEV void simt_tiles(const typename Op::Args& args) {
  typedef typename Op::Shape Shape;
  typedef typename Op::Right Right;
  DYN_SHARED(u8, shared);
  const u32 row = threadIdx.x / 16, col = threadIdx.x % 16;
  const u32 end = Stage<Op>::count * Stage<Op>::bytes;
  KeptSpot* spots = reinterpret_cast<KeptSpot*>(shared + end);
  Ahead<Op> ahead;
  ahead.tile = blockIdx.x;
  ahead.begun = 0;
  ahead.tiles = Op::tiles(args);
  begin_tile<Op>(ahead, args, spots);
#pragma unroll 1
  for (u32 stage = 0; stage < end - Stage<Op>::bytes; stage += Stage<Op>::bytes) feed<Op>(ahead, args, shared + stage, spots);
  u32 here = 0;
  cp_async_wait<Stage<Op>::count - 2>();
  __syncthreads();
#pragma unroll 1
  for (u32 tile = 0; tile < ahead.begun; tile++) {
    f32 sums[8][4];
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) sums[i][j] = 0;
    const Spot* spot = &spots[tile % GEMM_SPOTS].spot;
    const u32 rows = spot->rows, cols = Op::cols(args);
    // The columns of this thread: neighbours, or 16 apart.
    const u32 first = spot->col + (Right::rows_are_steps ? col * 4 : col), apart = Right::rows_are_steps ? 1 : 16;
    u32 stages = (spot->steps + Shape::steps - 1) / Shape::steps;
#pragma unroll 1
    do {
      feed<Op>(ahead, args, shared + (here == 0 ? end : here) - Stage<Op>::bytes, spots);
      const u8 *left = shared + here + Stage<Op>::left, *right = shared + here + Stage<Op>::right;
      if (row < rows && first < cols) {
#pragma unroll
        for (int step = 0; step < Shape::steps; step += 4) {
          F32Four b[4];
          load_columns<Right>(b, right, col, step);
#pragma unroll
          for (int i = 0; i < 8; i++) {
            if (row + i * 8 >= rows) break;
            const F32Four a = *reinterpret_cast<const F32Four*>(left + Op::Left::element(row + i * 8, step));
#pragma unroll
            for (int s = 0; s < 4; s++)
#pragma unroll
              for (int j = 0; j < 4; j++) sums[i][j] = fmaf(a.of[s], b[s].of[j], sums[i][j]);
          }
        }
      }
      here = here + Stage<Op>::bytes == end ? 0 : here + Stage<Op>::bytes;
      cp_async_wait<Stage<Op>::count - 2>();
      __syncthreads();
    } while (--stages);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (row + i * 8 >= rows) break;
      f32* out = args.out.to + at(spot->row + row + i * 8, cols, first);
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (first + j * apart < cols) out[j * apart] = sums[i][j];
    }
  }
}

#define GEMM_SIMT(name, forward)                                                                                               \
  KERNEL(GEMM_THREADS)                                                                                                         \
  name##_f32_f32(const f32* x, const u32* index, const f32* w, const u32* tiles, f32* out, u64 div, u32 stored, u32 n, u32 k,  \
                 u32 flags) {                                                                                                  \
    simt_tiles<RowsOp<f32, f32, f32, 1, 1, forward, SimtShape, Stored, true>>({x, index, w, tiles, {out}, div, stored, n, k, flags});    \
  }
