// Tiles of the operands of a matrix product in shared memory, and the fragments of mma that are read from them.
//
// c[i, j] = sum over s of a(i, s) b(s, j): `lanes` are rows of c for a and columns of c for b, `steps` are what is summed over.
// An operand lies in shared memory as in global memory: where steps follow each other (x and W of the forward product), a row
// of the tile is one lane; where lanes follow each other (W of dgrad, both operands of wgrad), it is one step. Rows are stored
// in chunks of 16 bytes whose places are permuted within the row, so that neither copies nor fragments meet in a bank.
#pragma once
#include "dev.h"

template <class T, int lanes_, int steps_, bool rows_are_steps_, bool by_chunk_ = false>
struct Tile {
  typedef T Type;
  static const int lanes = lanes_, steps = steps_;
  static const bool rows_are_steps = rows_are_steps_;
  // Read a chunk at a time, not by fragments of mma.
  static const bool by_chunk = by_chunk_;
  static const bool wide = sizeof(T) == 4;
  static const int rows = rows_are_steps ? steps : lanes;
  static const int cols = rows_are_steps ? lanes : steps;
  static const int per_chunk = 16 / (int)sizeof(T);
  static const int chunks = cols / per_chunk;
  static const u32 row_bytes = cols * sizeof(T);
  static const u32 bytes = rows * row_bytes;

  // What the number of a chunk is combined with in a row. Eight rows at the same chunk (ldmatrix) are 128 bytes in all banks;
  // so are the 32-byte pairs of chunks that half a warp reads from four rows (pairs of f32 steps), and a warp from the four
  // pairs of rows of a k16 step (single f32 elements).
  DEV u32 key(u32 row) {
    if (!wide || by_chunk) return chunks == 4 ? (row >> 1) & 3 : row & 7;
    if (rows_are_steps) return ((row >> 1) & 3) << 1;
    return chunks == 4 ? ((row >> 1) & 1) << 1 : (row & 3) << 1;
  }

  // Byte offset of a chunk.
  DEV u32 place(u32 row, u32 chunk) { return row * row_bytes + ((chunk ^ key(row)) << 4); }

  // Byte offset of an element.
  DEV u32 element(u32 row, u32 col) { return place(row, col / per_chunk) + (col % per_chunk) * (u32)sizeof(T); }
};

// 16 lanes times 16 steps of 16-bit elements as mma wants them on the left: lanes `lane` on, steps `step` on.
template <class Tile>
DEV void left_bits(u32 (&r)[4], const u8* tile, u32 lane, u32 step) {
  const u32 l = threadIdx.x % 32;
  if (Tile::rows_are_steps)
    ldmatrix_x4_trans(r, tile + Tile::place(step + l / 16 * 8 + l % 8, lane / 8 + l / 8 % 2));
  else
    ldmatrix_x4(r, tile + Tile::place(lane + l % 16, step / 8 + l / 16));
}

// The same on the right, two blocks of 8 lanes: r[0..2] of the first, r[2..4] of the second.
template <class Tile>
DEV void right_bits(u32 (&r)[4], const u8* tile, u32 lane, u32 step) {
  const u32 l = threadIdx.x % 32;
  if (Tile::rows_are_steps)
    ldmatrix_x4_trans(r, tile + Tile::place(step + l / 8 % 2 * 8 + l % 8, lane / 8 + l / 16));
  else
    ldmatrix_x4(r, tile + Tile::place(lane + l / 16 * 8 + l % 8, step / 8 + l / 8 % 2));
}

struct alignas(8) F32Pair { f32 x, y; };

DEV F32Pair unpack(u32 bits, bf16) { return F32Pair{bits_f32(bits << 16), bits_f32(bits & 0xffff0000u)}; }
DEV F32Pair unpack(u32 bits, f16) { return F32Pair{to_f32(f16{(u16)(bits & 0xffffu)}), to_f32(f16{(u16)(bits >> 16)})}; }
DEV F32Pair unpack(u32, f32) { return F32Pair{0, 0}; }

// Two steps of one lane of an f32 tile.
template <class Tile>
DEV F32Pair two_steps(const u8* tile, u32 lane, u32 step) {
  if (!Tile::rows_are_steps) return *reinterpret_cast<const F32Pair*>(tile + Tile::element(lane, step));
  return F32Pair{*reinterpret_cast<const f32*>(tile + Tile::element(step, lane)),
                 *reinterpret_cast<const f32*>(tile + Tile::element(step + 1, lane))};
}

// What left_bits gives, as numbers, of any type.
template <class Tile>
DEV void left_values(F32Pair (&v)[4], const u8* tile, u32 lane, u32 step) {
  const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  if constexpr (Tile::wide) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = two_steps<Tile>(tile, lane + g + i % 2 * 8, step + 2 * t + i / 2 * 8);
  } else {
    u32 r[4];
    left_bits<Tile>(r, tile, lane, step);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = unpack(r[i], typename Tile::Type{});
  }
}

// What right_bits gives, as numbers, of any type.
template <class Tile>
DEV void right_values(F32Pair (&v)[4], const u8* tile, u32 lane, u32 step) {
  const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  if constexpr (Tile::wide) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = two_steps<Tile>(tile, lane + g + i / 2 * 8, step + 2 * t + i % 2 * 8);
  } else {
    u32 r[4];
    right_bits<Tile>(r, tile, lane, step);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = unpack(r[i], typename Tile::Type{});
  }
}

// A pair of numbers as so many pairs of the element type M of mma, each the nearest to what the ones before leave: three bf16
// hold an f32, two an f16, exactly (above 2^-108; an infinity leaves NaN).
template <class M, int pieces>
DEV void split(u32 (&piece)[pieces], F32Pair v) {
#pragma unroll
  for (int p = 0; p < pieces; p++) {
    piece[p] = pack(v.x, v.y, M{});
    if (p + 1 < pieces) {
      const F32Pair held = unpack(piece[p], M{});
      v = F32Pair{v.x - held.x, v.y - held.y};
    }
  }
}
