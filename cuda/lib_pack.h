// Elements that a thread moves at once: 16 bytes of the widest type that a kernel moves together, and as many elements of the
// others. Values are f32.
#pragma once
#include "dev.h"

struct alignas(8) Vec8 { u32 word[2]; };

template <u32 bytes> struct Moved;
template <> struct Moved<16> { typedef Vec16 Vec; };
template <> struct Moved<8> { typedef Vec8 Vec; };

// N elements of the type T, as they lie in memory.
template <class T, u32 N>
using Pack = typename Moved<N * sizeof(T)>::Vec;

// How many elements of the types A and B go together.
template <class A, class B = A>
struct Together { enum : u32 { count = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B)) }; };

// Whether rows of so many columns that begin here are packs of N.
template <u32 N, class T>
DEV bool in_packs(const T* p, u64 cols) {
  return (u64)p % sizeof(Pack<T, N>) == 0 && cols % N == 0;
}

// The same for single elements, of which any number may be left over.
template <u32 N, class T>
DEV bool begins_packs(const T* p) {
  return (u64)p % sizeof(Pack<T, N>) == 0;
}

template <u32 N, class T>
DEV const Pack<T, N>* as_pack(const T* p) { return reinterpret_cast<const Pack<T, N>*>(p); }
template <u32 N, class T>
DEV Pack<T, N>* as_pack(T* p) { return reinterpret_cast<Pack<T, N>*>(p); }

// What no kernel writes while it is read, and what is not used again soon.
DEV Vec16 read_once(const Vec16* p) { return load_once(p); }
DEV Vec8 read_once(const Vec8* p) {
  u64 both = *reinterpret_cast<const u64*>(p);
  return Vec8{{(u32)both, (u32)(both >> 32)}};
}
DEV void write_once(Vec16* p, Vec16 v) { store_once(p, v); }
DEV void write_once(Vec8* p, Vec8 v) { *reinterpret_cast<u64*>(p) = v.word[0] | (u64)v.word[1] << 32; }

template <class V> DEV f32 value_of(const V& v, u32 i, f32) { return bits_f32(v.word[i]); }
template <class V> DEV f32 value_of(const V& v, u32 i, bf16) { return to_f32(bf16{(u16)(v.word[i / 2] >> (i % 2 * 16))}); }
template <class V> DEV f32 value_of(const V& v, u32 i, f16) { return to_f32(f16{(u16)(v.word[i / 2] >> (i % 2 * 16))}); }

template <class T, u32 N, class V>
DEV void unpack(const V& v, f32 (&x)[N]) {
  for (u32 i = 0; i < N; i++) x[i] = value_of(v, i, T{});
}

template <u32 N>
DEV void put_values(Vec16& v, const f32 (&x)[N], f32) {
  for (u32 i = 0; i < N; i++) v.word[i] = f32_bits(x[i]);
}

template <u32 N, class V, class H>
DEV void put_values(V& v, const f32 (&x)[N], H) {
  for (u32 i = 0; i < N; i += 2) v.word[i / 2] = pack(x[i], x[i + 1], H{});
}

template <class T, u32 N>
DEV Pack<T, N> packed(const f32 (&x)[N]) {
  Pack<T, N> v;
  put_values(v, x, T{});
  return v;
}

// The bits of single elements, for packs of them that are not aligned.
DEV void put_bits(Vec16& v, u32 i, f32 x) { v.word[i] = f32_bits(x); }
template <class V, class H>
DEV void put_bits(V& v, u32 i, H x) { v.word[i / 2] |= (u32)x.bits << (i % 2 * 16); }

// N elements of a row from column c on; zeros from `cols` on.
template <bool aligned, u32 N, class T>
DEV Pack<T, N> read_pack(const T* row, u32 c, u32 cols) {
  Pack<T, N> v{};
  if (aligned) {
    if (c < cols) v = read_once(as_pack<N>(row + c));
  } else {
    for (u32 i = 0; i < N; i++)
      if (c + i < cols) put_bits(v, i, row[c + i]);
  }
  return v;
}

// Writes them to a row of f32; nothing from `cols` on.
template <bool aligned, u32 N>
DEV void write_values(f32* row, u32 c, u32 cols, const f32 (&x)[N]) {
  if (aligned) {
    if (c < cols) *as_pack<N>(row + c) = packed<f32>(x);
  } else {
    for (u32 i = 0; i < N; i++)
      if (c + i < cols) row[c + i] = x[i];
  }
}

// What is left of a row, `most` at most.
DEV u32 left_of(u64 cols, u64 first, u32 most) { return cols - first < most ? (u32)(cols - first) : most; }
