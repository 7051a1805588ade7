// s = sigmoid(z).
#include "dev.h"
#include "lib_math.h"

KERNEL(256) sigmoid(const f32* z, f32* s, u64 len) {
  u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  if (i < len) s[i] = sigmoid_of(z[i]);
}
