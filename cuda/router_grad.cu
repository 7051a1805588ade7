// The estimated gradient of the combine weights, one thread per pair; see `RouterGrad` for the formula.
#include "dev.h"

// What a pair that was dropped gets.
DEV f64 baseline_of(const f32* weights, const f32* dot_dy, u64 token, u32 top_k) {
  if (!dot_dy) return 0.0;
  f64 sum = 0.0;
  for (u32 slot = 0; slot < top_k; slot++) sum += weights[at(token, top_k, slot)];
  return sum == 0.0 ? 0.0 : dot_dy[token] / sum;
}

KERNEL(256)
router_grad(const f32* weights, const f32* dot_dy, const f32* dot, const f32* weight, const u32* kept_of_pair, const u32* ids,
            f32* d_weights, u64 pairs, u64 rows, u32 top_k) {
  u64 pair = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  if (pair >= pairs) return;
  f32 gradient = 0.0f;
  if (ids[pair] != NONE) {
    u32 row = kept_of_pair[pair];
    f32 w = 0.0f;
    if (row < rows) {
      w = weight ? weight[row] : 1.0f;
      gradient = dot[row];
    }
    // The product itself where the weight is 1: no rounding, and no baseline that may not be finite.
    if (row >= rows || w != 1.0f) {
      f64 c = baseline_of(weights, dot_dy, pair / top_k, top_k);
      gradient = (f32)(row >= rows ? c : c + w * (gradient - c));
    }
  }
  d_weights[pair] = gradient;
}
