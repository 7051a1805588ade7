// The host's side of cuda/dev.h: CUDA's builtins and the wrappers, for kernels that run as fibers on a CPU. dev.h includes this file
// after its types; the engine behind it (shim.cpp, warp.cpp, copies.cpp, launch.cpp) is compiled apart and never instrumented.
#pragma once

#if !defined(__SIZEOF_INT128__)
#error "the shim wants a 64-bit compiler with __int128: g++ or clang++"
#endif
#include <cmath>
#include <cstring>
#include <utility>

namespace shim {

// Where a kernel called something: taken by default arguments, so that it names the caller's line.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
  bool operator==(const Site& other) const { return line == other.line && !strcmp(file, other.file); }
};

// Builtin variables of the thread that runs now. Kernels are one-dimensional here.
struct Index { u32 x; };
struct Now { Index thread, block, threads, blocks; unsigned char* shared; };
extern __thread Now now __attribute__((tls_model("initial-exec")));

// Ends the block, and with it the launch, with a message: what a GPU answers with a sticky error.
[[noreturn]] void fail(Site at, const char* format, ...) __attribute__((format(printf, 2, 3)));

void barrier(Site at);
void fence();

// What the lanes of a warp do together. A lane gives a value and an argument and gets a value.
enum class Collective : u8 { sync, shuffle, up, down, xor_, ballot, any, all, match, add, min, max, and_, or_, mma_bf16, mma_f16, ldmatrix, ldmatrix_trans };
u64 collective(Collective what, u32 mask, u64 value, u32 argument, u32 width, Site at);

struct Mma { f32* d; const u32* a; const u32* b; };
struct Ldmatrix { u32* r; const void* row; };

void copy_async(void* shared, const void* global, u32 bytes, bool real, Site at);
void copy_commit();
void copy_wait(u32 left);

[[noreturn]] void misaligned(const void* p, u32 bytes, const char* what, Site at);
static inline void check_aligned(const void* p, u32 bytes, const char* what, Site at) {
  if ((u64)p & (bytes - 1)) misaligned(p, bytes, what, at);
}

// A parameter of type T that takes what converts to it.
template <class T>
struct Same_ { typedef T type; };
template <class T>
using Same = typename Same_<T>::type;

u32 half_to_float_bits(u16 half);
u16 float_bits_to_half(u32 bits);

template <class T>
u64 bits_of(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 32 or 64 bits");
  u64 bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
T of_bits(u64 bits) {
  T value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T shuffled(Collective what, u32 mask, T value, u32 argument, u32 width, Site at) {
  return of_bits<T>(collective(what, mask, bits_of(value), argument, width, at));
}

}  // namespace shim

// What a wrapper reads or writes on the kernel's behalf, as the sanitizers should see it.
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_read_range(void*, unsigned long);
extern "C" void __tsan_write_range(void*, unsigned long);
#define SHIM_READS(p, bytes) __tsan_read_range(const_cast<void*>(static_cast<const void*>(p)), bytes)
#define SHIM_WRITES(p, bytes) __tsan_write_range(p, bytes)
#elif defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_loadN(const void*, unsigned long);
extern "C" void __asan_storeN(void*, unsigned long);
#define SHIM_READS(p, bytes) __asan_loadN(p, bytes)
#define SHIM_WRITES(p, bytes) __asan_storeN(p, bytes)
#else
#define SHIM_READS(p, bytes) (void)0
#define SHIM_WRITES(p, bytes) (void)0
#endif

#define DEV_MEMBER inline
#define DEV [[maybe_unused]] static inline
#define KERNEL(threads) extern "C" void
#define KERNEL_FITTING(threads, blocks) extern "C" void
#define DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(shim::now.shared)

#define threadIdx (shim::now.thread)
#define blockIdx (shim::now.block)
#define blockDim (shim::now.threads)
#define gridDim (shim::now.blocks)
#define warpSize 32

#define SHIM_SITE shim::Site at = shim::Site::here()

// ---- Synchronisation

DEV void __syncthreads(SHIM_SITE) { shim::barrier(at); }
DEV void __syncwarp(u32 mask = FULL_WARP, SHIM_SITE) { shim::collective(shim::Collective::sync, mask, 0, 0, 32, at); }
DEV void __threadfence() { shim::fence(); }
DEV void __threadfence_block() { shim::fence(); }

// ---- Warps

template <class T>
DEV T __shfl_sync(u32 mask, T value, int lane, int width = 32, SHIM_SITE) {
  return shim::shuffled(shim::Collective::shuffle, mask, value, (u32)lane, (u32)width, at);
}
template <class T>
DEV T __shfl_up_sync(u32 mask, T value, u32 delta, int width = 32, SHIM_SITE) {
  return shim::shuffled(shim::Collective::up, mask, value, delta, (u32)width, at);
}
template <class T>
DEV T __shfl_down_sync(u32 mask, T value, u32 delta, int width = 32, SHIM_SITE) {
  return shim::shuffled(shim::Collective::down, mask, value, delta, (u32)width, at);
}
template <class T>
DEV T __shfl_xor_sync(u32 mask, T value, int bits, int width = 32, SHIM_SITE) {
  return shim::shuffled(shim::Collective::xor_, mask, value, (u32)bits, (u32)width, at);
}
DEV u32 __ballot_sync(u32 mask, int yes, SHIM_SITE) { return (u32)shim::collective(shim::Collective::ballot, mask, yes != 0, 0, 32, at); }
DEV int __any_sync(u32 mask, int yes, SHIM_SITE) { return (int)shim::collective(shim::Collective::any, mask, yes != 0, 0, 32, at); }
DEV int __all_sync(u32 mask, int yes, SHIM_SITE) { return (int)shim::collective(shim::Collective::all, mask, yes != 0, 0, 32, at); }
template <class T>
DEV u32 __match_any_sync(u32 mask, T value, SHIM_SITE) {
  return (u32)shim::collective(shim::Collective::match, mask, shim::bits_of(value), 0, 32, at);
}
DEV u32 __reduce_add_sync(u32 mask, u32 value, SHIM_SITE) { return (u32)shim::collective(shim::Collective::add, mask, value, 0, 32, at); }
DEV u32 __reduce_min_sync(u32 mask, u32 value, SHIM_SITE) { return (u32)shim::collective(shim::Collective::min, mask, value, 0, 32, at); }
DEV u32 __reduce_max_sync(u32 mask, u32 value, SHIM_SITE) { return (u32)shim::collective(shim::Collective::max, mask, value, 0, 32, at); }
DEV u32 __reduce_and_sync(u32 mask, u32 value, SHIM_SITE) { return (u32)shim::collective(shim::Collective::and_, mask, value, 0, 32, at); }
DEV u32 __reduce_or_sync(u32 mask, u32 value, SHIM_SITE) { return (u32)shim::collective(shim::Collective::or_, mask, value, 0, 32, at); }

// ---- Bits

DEV f32 __uint_as_float(u32 bits) { return shim::of_bits<f32>(bits); }
DEV u32 __float_as_uint(f32 x) { return (u32)shim::bits_of(x); }
DEV f32 __int_as_float(i32 bits) { return shim::of_bits<f32>((u32)bits); }
DEV i32 __float_as_int(f32 x) { return (i32)shim::bits_of(x); }
DEV f64 __longlong_as_double(long long bits) { return shim::of_bits<f64>((u64)bits); }
DEV long long __double_as_longlong(f64 x) { return (long long)shim::bits_of(x); }
DEV int __popc(u32 x) { return __builtin_popcount(x); }
DEV int __popcll(u64 x) { return __builtin_popcountll(x); }
DEV int __ffs(int x) { return __builtin_ffs(x); }
DEV int __ffsll(long long x) { return __builtin_ffsll(x); }
DEV int __clz(int x) { return x ? __builtin_clz((u32)x) : 32; }
DEV int __clzll(long long x) { return x ? __builtin_clzll((u64)x) : 64; }
DEV u32 __brev(u32 x) {
  u32 y = 0;
  for (int i = 0; i < 32; i++) y |= (x >> i & 1u) << (31 - i);
  return y;
}
DEV u32 __umulhi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
DEV u64 __umul64hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
// Byte i of the result is byte (selector >> 4 i) & 7 of the eight in b:a.
DEV u32 __byte_perm(u32 a, u32 b, u32 selector) {
  u64 both = (u64)b << 32 | a;
  u32 y = 0;
  for (int i = 0; i < 4; i++) y |= (u32)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return y;
}

// ---- Arithmetic that <cmath> leaves out

#define SHIM_MIN_MAX(T)                               \
  DEV T min(T a, T b) { return b < a ? b : a; }       \
  DEV T max(T a, T b) { return a < b ? b : a; }
SHIM_MIN_MAX(int)
SHIM_MIN_MAX(unsigned)
SHIM_MIN_MAX(long)
SHIM_MIN_MAX(unsigned long)
SHIM_MIN_MAX(long long)
SHIM_MIN_MAX(unsigned long long)
#undef SHIM_MIN_MAX
DEV u32 min(int a, u32 b) { return min((u32)a, b); }
DEV u32 min(u32 a, int b) { return min(a, (u32)b); }
DEV u32 max(int a, u32 b) { return max((u32)a, b); }
DEV u32 max(u32 a, int b) { return max(a, (u32)b); }
DEV f32 min(f32 a, f32 b) { return fminf(a, b); }
DEV f32 max(f32 a, f32 b) { return fmaxf(a, b); }
DEV f64 min(f64 a, f64 b) { return fmin(a, b); }
DEV f64 max(f64 a, f64 b) { return fmax(a, b); }
DEV f32 __fadd_rn(f32 a, f32 b) { return a + b; }
DEV f32 __fmul_rn(f32 a, f32 b) { return a * b; }
DEV f32 __fdiv_rn(f32 a, f32 b) { return a / b; }
DEV f32 __fsqrt_rn(f32 a) { return sqrtf(a); }
DEV f32 __fmaf_rn(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }

template <class T>
DEV T __ldg(const T* p) {
  return *p;
}

// ---- Atomics. They order nothing by themselves: that is __threadfence's and the barriers' work.

#define SHIM_ATOMIC(name, apply)                              \
  template <class T>                                         \
  DEV T name(T* p, shim::Same<T> value, SHIM_SITE) {         \
    shim::check_aligned(p, sizeof(T), #name, at);            \
    static_assert(T(0.5f) == T(0), "no float atomics: their sums depend on the order"); \
    return apply(p, value, __ATOMIC_RELAXED);                \
  }
SHIM_ATOMIC(atomicAdd, __atomic_fetch_add)
SHIM_ATOMIC(atomicSub, __atomic_fetch_sub)
SHIM_ATOMIC(atomicAnd, __atomic_fetch_and)
SHIM_ATOMIC(atomicOr, __atomic_fetch_or)
SHIM_ATOMIC(atomicXor, __atomic_fetch_xor)
SHIM_ATOMIC(atomicExch, __atomic_exchange_n)
#undef SHIM_ATOMIC
template <class T>
DEV T atomicCAS(T* p, shim::Same<T> expected, shim::Same<T> value, SHIM_SITE) {
  shim::check_aligned(p, sizeof(T), "atomicCAS", at);
  __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T>
DEV T atomicMax(T* p, shim::Same<T> value, SHIM_SITE) {
  shim::check_aligned(p, sizeof(T), "atomicMax", at);
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <class T>
DEV T atomicMin(T* p, shim::Same<T> value, SHIM_SITE) {
  shim::check_aligned(p, sizeof(T), "atomicMin", at);
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (value < old && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

// ---- The wrappers of cuda/dev.h

DEV f32 to_f32(f16 x) { return __uint_as_float(shim::half_to_float_bits(x.bits)); }
DEV f16 to_f16(f32 x) { return f16{shim::float_bits_to_half(__float_as_uint(x))}; }

DEV void mma(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], bf16, SHIM_SITE) {
  shim::Mma lane{d, a, b};
  shim::collective(shim::Collective::mma_bf16, FULL_WARP, (u64)&lane, 0, 32, at);
}
DEV void mma(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], f16, SHIM_SITE) {
  shim::Mma lane{d, a, b};
  shim::collective(shim::Collective::mma_f16, FULL_WARP, (u64)&lane, 0, 32, at);
}

DEV void ldmatrix_x4(u32 (&r)[4], const void* row, SHIM_SITE) {
  SHIM_READS(row, 16);
  shim::Ldmatrix lane{r, row};
  shim::collective(shim::Collective::ldmatrix, FULL_WARP, (u64)&lane, 0, 32, at);
}
DEV void ldmatrix_x4_trans(u32 (&r)[4], const void* row, SHIM_SITE) {
  SHIM_READS(row, 16);
  shim::Ldmatrix lane{r, row};
  shim::collective(shim::Collective::ldmatrix_trans, FULL_WARP, (u64)&lane, 0, 32, at);
}

DEV void cp_async16(void* shared, const void* global, bool real, SHIM_SITE) {
  SHIM_WRITES(shared, 16);
  if (real) SHIM_READS(global, 16);
  shim::copy_async(shared, global, 16, real, at);
}
DEV void cp_async4(void* shared, const void* global, bool real, SHIM_SITE) {
  SHIM_WRITES(shared, 4);
  if (real) SHIM_READS(global, 4);
  shim::copy_async(shared, global, 4, real, at);
}
DEV void cp_async_commit() { shim::copy_commit(); }
template <int left>
DEV void cp_async_wait() {
  shim::copy_wait(left);
}

DEV Vec16 load_once(const Vec16* p, SHIM_SITE) {
  shim::check_aligned(p, 16, "load_once", at);
  return *p;
}
DEV void store_once(Vec16* p, Vec16 v, SHIM_SITE) {
  shim::check_aligned(p, 16, "store_once", at);
  *p = v;
}

#undef SHIM_SITE
