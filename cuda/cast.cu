// dst = src in another float type, to nearest even.
#include "dev.h"

template <class S, class D>
DEV void cast(const S* src, D* dst, u64 len) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x)
    dst[i] = from_f32<D>(to_f32(src[i]));
}

#define INSTANCE(S, D) \
  KERNEL(256) cast_##S##_##D(const S* src, D* dst, u64 len) { cast<S, D>(src, dst, len); }
FOR_FLOAT_PAIRS(INSTANCE)
