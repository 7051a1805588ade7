// dst = src in another float type, to nearest even, or bit by bit in the same one.
#include "lib_pack.h"

// Packs that a thread has under way.
#define PACKS 4

template <class S, class D> struct Same { enum { is = 0 }; };
template <class S> struct Same<S, S> { enum { is = 1 }; };

template <class S, class D>
DEV void cast(const S* src, D* dst, u64 len) {
  constexpr u32 N = Together<S, D>::count;
  u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  u64 threads = (u64)gridDim.x * blockDim.x;
  u64 whole = 0;
  if (begins_packs<N>(src) && begins_packs<N>(dst)) {
    whole = len / N * N;
    u64 first = (blockIdx.x * (u64)blockDim.x * PACKS + threadIdx.x) * N;
    for (; first < whole; first += threads * PACKS * N) {
      Pack<S, N> v[PACKS];
      for (u32 p = 0; p < PACKS; p++) {
        u64 i = first + p * blockDim.x * N;
        if (i < whole) v[p] = read_once(as_pack<N>(src + i));
      }
      for (u32 p = 0; p < PACKS; p++) {
        u64 i = first + p * blockDim.x * N;
        if (i >= whole) break;
        if constexpr (Same<S, D>::is) {
          write_once(as_pack<N>(dst + i), v[p]);
        } else {
          f32 x[N];
          unpack<S>(v[p], x);
          write_once(as_pack<N>(dst + i), packed<D>(x));
        }
      }
    }
  }
  for (u64 i = whole + thread; i < len; i += threads) {
    if constexpr (Same<S, D>::is)
      dst[i] = src[i];
    else
      dst[i] = from_f32<D>(to_f32(src[i]));
  }
}

#define INSTANCE(S, D) \
  KERNEL(256) cast_##S##_##D(const S* src, D* dst, u64 len) { cast<S, D>(src, dst, len); }
FOR_FLOAT_PAIRS(INSTANCE)
