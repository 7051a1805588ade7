// Sums over chunks of tokens, one block each: the softmax of its tokens first, then every thread adds up columns. A column is an
// expert, the last one the squared logsumexp. Masked tokens are in none, whatever their logits.
#include "dev.h"
#include "lib_warp.h"
#include "lib_math.h"
#include "lib_softmax.h"

#define CHUNK 32

KERNEL(256) router_loss(const f32* logits, const u32* mask, f64* partial, u64 tokens, u32 experts) {
  DYN_SHARED(Softmax, softmax);
  u64 first = blockIdx.x * (u64)CHUNK;
  u32 count = (u32)min(tokens - first, (u64)CHUNK);
  for (u32 i = warp_id(); i < count; i += blockDim.x / 32) {
    if (mask && mask[first + i] == 0) continue;
    Softmax s = row_softmax(logits + at(first + i, experts, 0), experts);
    if (lane_id() == 0) softmax[i] = s;
  }
  __syncthreads();
  partial += at(blockIdx.x, (u64)experts + 1, 0);
  for (u32 column = threadIdx.x; column <= experts; column += blockDim.x) {
    f64 sum = 0.0;
    for (u32 i = 0; i < count; i++) {
      if (mask && mask[first + i] == 0) continue;
      if (column < experts) {
        sum += probability(logits[at(first + i, experts, column)], softmax[i]);
      } else {
        f64 lse = log_sum_exp(softmax[i]);
        sum += lse * lse;
      }
    }
    partial[column] = sum;
  }
}
