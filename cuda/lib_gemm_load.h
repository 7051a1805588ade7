// Rows of an operand on their way to shared memory.
#pragma once
#include "dev.h"
#include "lib_gemm_tile.h"

// Threads of a block of the tensor-core products.
#define GEMM_THREADS 128

// A divisor d of 32-bit numbers: 2^64 / d, rounded up; 0 for 1.
DEV u32 divide(u32 x, u64 divisor) {
  if (divisor == 0) return x;
  return (u32)(((u64)x * (u32)(divisor >> 32) + ((u64)x * (u32)divisor >> 32)) >> 32);
}

// One operand of one tile of c: rows of `base`, `cols` elements each, gathered by an index where there is one.
template <class T>
struct View {
  const T* base;
  const u32* index;
  u64 div;
  // Rows of `base` that exist.
  u32 stored;
  u32 cols;
  // Whether rows are whole chunks, 16-byte aligned.
  bool whole;
  // The rows of this tile (lanes) or of all steps, and the columns (of all steps, or lanes): the first, and how many there are.
  u32 row, rows;
  u32 col, width;
  // Lanes in pairs of rows: how far the second is below the first.
  u32 apart;
};

// Row of `base` that is row r of the view; NONE where there is none.
template <class T>
DEV u32 source_row(const View<T>& view, u32 r) {
  if (r >= view.rows) return NONE;
  u32 row = view.row + r;
  if (view.index) row = divide(view.index[row], view.div);
  return row < view.stored ? row : NONE;
}

DEV u32 bits_of(f32 x) { return f32_bits(x); }
DEV u32 bits_of(bf16 x) { return x.bits; }
DEV u32 bits_of(f16 x) { return x.bits; }

// A chunk of a row that is not whole chunks: element by element, zeros where there is none.
template <class T>
DEV void copy_loose(u8* to, const T* from, u32 left) {
  const u32 per_word = 4 / sizeof(T);
  Vec16 v = {{0, 0, 0, 0}};
#pragma unroll
  for (u32 i = 0; i < 16 / sizeof(T); i++)
    if (i < left) v.word[i / per_word] |= bits_of(from[i]) << (i % per_word * 16);
  *reinterpret_cast<Vec16*>(to) = v;
}

// How the threads of a block share a tile: eight of them, or as many as it has chunks, take a row.
template <class Tile>
struct Share {
  static const int across = Tile::chunks < 8 ? Tile::chunks : 8;
  static const int down = GEMM_THREADS / across;
  static const int rows = Tile::rows / down;
  static const int chunks = Tile::chunks / across;
  static_assert(rows * down == Tile::rows && chunks * across == Tile::chunks, "threads share a tile evenly");
  static_assert(without_conflicts<Tile>(across), "threads meet in no bank");
  // So rows of one thread have the same key, and so do its chunks.
  static_assert(down % 8 == 0, "keys repeat");
};

// The rows that this thread will copy, looked up ahead: for tiles of lanes once a tile, for tiles of steps at each step. Where `paired`
// is not 0, so many lanes are followed by as many that are `apart` rows below them.
template <class Tile, int paired = 0>
DEV void look_up(u32 (&rows)[Share<Tile>::rows], const View<typename Tile::Type>& view, u32 step) {
  const u32 first = threadIdx.x / Share<Tile>::across + (Tile::rows_are_steps ? step : 0);
#pragma unroll
  for (int i = 0; i < Share<Tile>::rows; i++) {
    const u32 lane = first + i * Share<Tile>::down;
    if constexpr (paired == 0) {
      rows[i] = source_row(view, lane);
    } else {
      const u32 row = source_row(view, lane / (2 * paired) * paired + lane % paired);
      rows[i] = row == NONE ? NONE : row + lane / paired % 2 * view.apart;
    }
  }
}

// Starts the copies of this thread for the steps from `step` on.
template <class Tile>
DEV void copy(u8* tile, const u32 (&rows)[Share<Tile>::rows], const View<typename Tile::Type>& view, u32 step) {
  typedef typename Tile::Type T;
  typedef Share<Tile> S;
  const u32 chunk = threadIdx.x % S::across, col = (Tile::rows_are_steps ? 0 : step) + chunk * Tile::per_chunk;
  u8* to = tile + Tile::place(threadIdx.x / S::across, chunk);
  const T* from = view.base + (view.col + col);
  if (view.whole) {
#pragma unroll
    for (int i = 0; i < S::rows; i++)
#pragma unroll
      for (int j = 0; j < S::chunks; j++) {
        const u32 right = j * S::across * Tile::per_chunk;
        const bool real = rows[i] != NONE && col + right < view.width;
        // Nothing is read where there is nothing, but an address has to be one: in the first row, or a tile behind it at most.
        const u32 row = real ? rows[i] : 0;
        cp_async16(to + i * S::down * Tile::row_bytes + j * S::across * 16, from + ((u64)row * view.cols + right), real);
      }
  } else {
#pragma unroll
    for (int i = 0; i < S::rows; i++)
#pragma unroll
      for (int j = 0; j < S::chunks; j++) {
        const u32 right = j * S::across * Tile::per_chunk;
        copy_loose(to + i * S::down * Tile::row_bytes + j * S::across * 16, from + ((u64)rows[i] * view.cols + right),
                   rows[i] != NONE && col + right < view.width ? view.width - col - right : 0);
      }
  }
}
