// Sign random projections. A warp has 32 rows, or 8 where there are few: a thread adds up two of the eight sums of four of them, or of
// one, in ascending order of columns.
#include "lib_pack.h"

#define LANES 32
#define GROUPS 8
#define BITS 2

// Columns at a time, and how far a row's lie from the next row's: an odd number of 16 bytes, so that the rows of a column do not
// meet in one bank.
#define COLUMNS 32
#define STRIDE (COLUMNS + 4)

// 2^-64
#define SHRINK 5.421010862427522e-20f

DEV u32 hash(u32 column) {
  u32 v = column + 0x9E3779B9u;
  v = (v ^ (v >> 16)) * 0x85EBCA6Bu;
  v = (v ^ (v >> 13)) * 0xC2B2AE35u;
  return v ^ (v >> 16);
}

// 1 where the bit is set and -1 elsewhere.
DEV f32 sign_of(u32 bits, u32 i) { return bits_f32(0x3f800000u | (~(bits >> i) << 31)); }

struct Rows {
  u64 first;
  u64 all;
  u64 cols;
  bool aligned;
};

// The tile's rows from a column on, as they lie in memory.
template <class T, u32 N, u32 PACKS>
DEV void fetch(Pack<T, N> (&v)[PACKS], const T* x, const Rows& rows, u64 first) {
  u32 left = left_of(rows.cols, first, COLUMNS);
  for (u32 p = 0; p < PACKS; p++) {
    u32 pack = p * LANES + threadIdx.x;
    u64 row = rows.first + pack / (COLUMNS / N);
    u32 c = pack % (COLUMNS / N) * N;
    const T* from = x + at(row, rows.cols, first);
    v[p] = Pack<T, N>{};
    if (row >= rows.all) continue;
    v[p] = rows.aligned ? read_pack<true, N>(from, c, left) : read_pack<false, N>(from, c, left);
  }
}

// This thread's sums; `scale` multiplies each row.
template <class T, u32 ROWS>
DEV void project(f32 (&sum)[ROWS][BITS], const T* x, const Rows& rows, f32* tile, const f32* scale) {
  constexpr u32 N = Together<T>::count;
  constexpr u32 PACKS = GROUPS * ROWS * COLUMNS / N / LANES;
  u32* hashes = reinterpret_cast<u32*>(tile + GROUPS * ROWS * STRIDE);
  u32 group = threadIdx.x % GROUPS;
  u32 bit = threadIdx.x / GROUPS * BITS;
  for (u32 r = 0; r < ROWS; r++)
    for (u32 b = 0; b < BITS; b++) sum[r][b] = 0.0f;
  Pack<T, N> next[PACKS];
  fetch<T, N>(next, x, rows, 0);
  for (u64 first = 0; first < rows.cols; first += COLUMNS) {
    hashes[threadIdx.x] = hash((u32)first + threadIdx.x);
    for (u32 p = 0; p < PACKS; p++) {
      u32 pack = p * LANES + threadIdx.x;
      u32 row = pack / (COLUMNS / N);
      f32 value[N];
      unpack<T>(next[p], value);
      for (u32 i = 0; i < N; i++) tile[row * STRIDE + pack % (COLUMNS / N) * N + i] = scale[row] * value[i];
    }
    __syncwarp();
    // Under way while this tile is added up.
    if (first + COLUMNS < rows.cols) fetch<T, N>(next, x, rows, first + COLUMNS);
    for (u32 c = 0; c < COLUMNS; c += 4) {
      Vec16 h = *as_pack<4>(hashes + c);
      Vec16 v[ROWS];
      for (u32 r = 0; r < ROWS; r++) v[r] = *as_pack<4>(tile + (r * GROUPS + group) * STRIDE + c);
      for (u32 i = 0; i < 4; i++)
        for (u32 b = 0; b < BITS; b++) {
          f32 sign = sign_of(h.word[i], bit + b);
          for (u32 r = 0; r < ROWS; r++) sum[r][b] = fmaf(sign, bits_f32(v[r].word[i]), sum[r][b]);
        }
    }
    __syncwarp();
  }
}

DEV bool is_finite(f32 x) { return (f32_bits(x) & 0x7f800000u) != 0x7f800000u; }

// Bits of a row that any of its threads has.
DEV u32 of_row(u32 bits) {
  bits |= __shfl_xor_sync(FULL_WARP, bits, GROUPS);
  return bits | __shfl_xor_sync(FULL_WARP, bits, 2 * GROUPS);
}

template <class T, u32 ROWS = 4>
DEV void row_keys(const T* x, u32* key, u64 all, u64 cols) {
  constexpr u32 N = Together<T>::count;
  DYN_SHARED(f32, tile);
  f32* scale = tile + GROUPS * ROWS * STRIDE + COLUMNS;
  u32 group = threadIdx.x % GROUPS;
  u32 bit = threadIdx.x / GROUPS * BITS;
  for (u64 first = blockIdx.x * (u64)(GROUPS * ROWS); first < all; first += gridDim.x * (u64)(GROUPS * ROWS)) {
    Rows rows{first, all, cols, in_packs<N>(x, cols)};
    scale[threadIdx.x] = 1.0f;
    __syncwarp();
    f32 sum[ROWS][BITS];
    project<T, ROWS>(sum, x, rows, tile, scale);
    u32 shrunk = 0;
    for (u32 r = 0; r < ROWS; r++)
      for (u32 b = 0; b < BITS; b++) shrunk |= (u32)!is_finite(sum[r][b]) << r;
    shrunk = of_row(shrunk);
    if (__any_sync(FULL_WARP, shrunk != 0)) {
      if (threadIdx.x < GROUPS)
        for (u32 r = 0; r < ROWS; r++) scale[r * GROUPS + group] = shrunk >> r & 1 ? SHRINK : 1.0f;
      __syncwarp();
      // A row that keeps its scale gets the same sums again.
      project<T, ROWS>(sum, x, rows, tile, scale);
    }
    for (u32 r = 0; r < ROWS; r++) {
      u32 code = 0;
      for (u32 b = 0; b < BITS; b++) code |= (u32)(sum[r][b] > 0.0f) << (7 - bit - b);
      code = of_row(code);
      // Bit i of the rank is the parity of the code's bits from i on.
      code ^= code >> 1;
      code ^= code >> 2;
      code ^= code >> 4;
      u64 row = first + r * GROUPS + group;
      if (bit == 0 && row < all) key[row] = code;
    }
    __syncwarp();
  }
}

#define INSTANCE(T)                                                                                      \
  KERNEL(32) row_keys_##T(const T* x, u32* key, u64 rows, u64 cols) { row_keys<T>(x, key, rows, cols); } \
  KERNEL(32) row_keys_few_##T(const T* x, u32* key, u64 rows, u64 cols) { row_keys<T, 1>(x, key, rows, cols); }
FOR_FLOATS(INSTANCE)
