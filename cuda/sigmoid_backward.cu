// dz = ds s (1 - s).
#include "dev.h"

KERNEL(256) sigmoid_backward(const f32* s, const f32* ds, f32* dz, u64 len) {
  u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  if (i < len) dz[i] = ds[i] * s[i] * (1.0f - s[i]);
}
