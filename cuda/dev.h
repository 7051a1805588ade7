// What kernels are written in: types, conversions, and wrappers of the instructions that C++ has no word for. On a GPU they are
// inline PTX; on the host, with tests/shim/shim.h, plain C++ that does the same.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef float f32;
typedef double f64;

// 16-bit floats as they lie in memory.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

// 16 bytes that are moved at once; 16-byte aligned.
struct alignas(16) Vec16 { u32 word[4]; };

#define FULL_WARP 0xffffffffu

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

#define DEV static __device__ __forceinline__
#define DEV_MEMBER __device__ __forceinline__
// A kernel, and the threads of its blocks: the same number as in its row of the kernel table.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
// The same, of which so many blocks shall fit on a multiprocessor by their registers.
#define KERNEL_FITTING(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
// All of a block's shared memory: as many bytes as the launch asks for, 128-byte aligned.
#define DYN_SHARED(T, name)                                    \
  extern __shared__ __align__(128) unsigned char name##_raw[]; \
  T* name = reinterpret_cast<T*>(name##_raw)

DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

DEV f32 to_f32(f16 x) {
  f32 y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

DEV f16 to_f16(f32 x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// d += a b: a is 16 x 16, row-major, b is 16 x 8, column-major, d is 16 x 8; fragments as the PTX manual lays them out.
DEV void mma(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEV void mma(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], f16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of 16-bit elements from shared memory; lane l gives the address of row l % 8 of matrix l / 8.
DEV void ldmatrix_x4(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same, each matrix transposed.
DEV void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes from global to shared memory, both 16-byte aligned, behind the thread's back; zeros, and no read, where `real` is false.
// Copies go along rows: the rest of the 128 bytes may come to the L2 cache with them.
DEV void cp_async16(void* shared, const void* global, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(real ? 16 : 0)
               : "memory");
}

// The same for 4 bytes, 4-byte aligned.
DEV void cp_async4(void* shared, const void* global, bool real) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(real ? 4 : 0)
               : "memory");
}

// Closes a group of this thread's copies.
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `left` of this thread's groups are under way.
template <int left>
DEV void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// Reads and writes of 16 bytes that are used once: they need not stay in the nearest cache.
DEV Vec16 load_once(const Vec16* p) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p));
  return v;
}

DEV void store_once(Vec16* p, Vec16 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}

#else
#include "shim.h"
#endif

DEV f32 bits_f32(u32 bits) { return __uint_as_float(bits); }
DEV u32 f32_bits(f32 x) { return __float_as_uint(x); }

DEV f32 to_f32(f32 x) { return x; }
DEV f32 to_f32(bf16 x) { return bits_f32((u32)x.bits << 16); }

// To nearest even; every NaN becomes 0x7fff, as cvt makes it.
DEV bf16 to_bf16(f32 x) {
  u32 u = f32_bits(x);
  bf16 y;
  if ((u & 0x7fffffffu) > 0x7f800000u)
    y.bits = 0x7fff;
  else
    y.bits = (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  return y;
}

// Two numbers to nearest even, the first in the low half.
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
DEV u32 pack(f32 low, f32 high, bf16) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

DEV u32 pack(f32 low, f32 high, f16) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
#else
DEV u32 pack(f32 low, f32 high, bf16) { return to_bf16(low).bits | (u32)to_bf16(high).bits << 16; }
DEV u32 pack(f32 low, f32 high, f16) { return to_f16(low).bits | (u32)to_f16(high).bits << 16; }
#endif

DEV f32 convert(f32 x, f32) { return x; }
DEV bf16 convert(f32 x, bf16) { return to_bf16(x); }
DEV f16 convert(f32 x, f16) { return to_f16(x); }

// To the type T, to nearest even.
template <class T>
DEV T from_f32(f32 x) {
  return convert(x, T{});
}

// Index of an element: rows times columns pass 2^32.
DEV u64 at(u64 row, u64 cols, u64 col) { return row * cols + col; }

// What stands in an index where there is no row, expert or pair.
#define NONE 0xffffffffu

// One kernel for each float type, or for each pair of them: INSTANCE(T) or INSTANCE(S, D) defines it.
#define FOR_FLOATS(INSTANCE) INSTANCE(f32) INSTANCE(bf16) INSTANCE(f16)
#define FOR_FLOAT_PAIRS(INSTANCE)                              \
  INSTANCE(f32, f32) INSTANCE(f32, bf16) INSTANCE(f32, f16)    \
  INSTANCE(bf16, f32) INSTANCE(bf16, bf16) INSTANCE(bf16, f16) \
  INSTANCE(f16, f32) INSTANCE(f16, bf16) INSTANCE(f16, f16)
