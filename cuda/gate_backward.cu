// Gradient of the router, one warp per token: every expert gets what does not come through the combine weights, then the selected ones
// are computed again with what does.
#include "dev.h"
#include "lib_warp.h"
#include "lib_math.h"
#include "lib_softmax.h"

#define TOKENS_OF_A_BLOCK 4

struct Token {
  const f32* logits;
  const u32* ids;
  const f32* d_weights;
  u32 experts, top_k;
  bool sigmoid, normalise;
  f64 scaling;
  Softmax softmax;
  // Sum of the selected scores, and the mean of dL/dweight over them; of no use without normalisation.
  f64 sum, mean;
};

DEV f64 score_of(const Token& t, u32 e) {
  f32 logit = t.logits[e];
  return t.sigmoid ? sigmoid_of(logit) : probability(logit, t.softmax);
}

// dL/dscore of the expert in a slot.
DEV f64 slot_gradient(const Token& t, u32 slot) {
  f64 d_weight = t.d_weights[slot];
  return t.normalise ? t.scaling * (d_weight - t.mean) / t.sum : t.scaling * d_weight;
}

KERNEL(128)
gate_backward(const f32* logits, const u32* ids, const f32* d_weights, const f32* aux, f32* d_logits, u64 tokens, u32 experts,
              u32 top_k, u32 sigmoid, u32 normalise, f32 norm_eps, f32 scaling, f32 z_scale) {
  u64 token = blockIdx.x * (u64)TOKENS_OF_A_BLOCK + warp_id();
  if (token >= tokens) return;
  u32 lane = lane_id();
  Token t = {};
  t.logits = logits + at(token, experts, 0);
  t.ids = ids + at(token, top_k, 0);
  t.d_weights = d_weights + at(token, top_k, 0);
  t.experts = experts;
  t.top_k = top_k;
  t.sigmoid = sigmoid;
  t.normalise = normalise;
  t.scaling = scaling;
  d_logits += at(token, experts, 0);
  bool masked = false;
  for (u32 slot = lane; slot < top_k; slot += 32) masked |= t.ids[slot] >= experts;
  if (__any_sync(FULL_WARP, masked)) {
    for (u32 e = lane; e < experts; e += 32) d_logits[e] = 0.0f;
    return;
  }
  bool needs_softmax = !sigmoid || z_scale != 0.0f || aux;
  if (needs_softmax) t.softmax = row_softmax(t.logits, experts);
  if (normalise) {
    f64 sum = 0.0, mean = 0.0;
    for (u32 slot = lane; slot < top_k; slot += 32) sum += score_of(t, t.ids[slot]);
    t.sum = warp_sum(sum) + norm_eps;
    for (u32 slot = lane; slot < top_k; slot += 32) mean += t.d_weights[slot] * score_of(t, t.ids[slot]) / t.sum;
    t.mean = warp_sum(mean);
  }
  f64 inner = 0.0;
  if (aux) {
    for (u32 e = lane; e < experts; e += 32) inner += (f64)probability(t.logits[e], t.softmax) * aux[e];
  }
  if (!sigmoid) {
    for (u32 slot = lane; slot < top_k; slot += 32) inner += score_of(t, t.ids[slot]) * slot_gradient(t, slot);
  }
  inner = warp_sum(inner);
  f64 z = z_scale != 0.0f ? 2.0 * z_scale * log_sum_exp(t.softmax) : 0.0;
  // The auxiliary losses are functions of the softmax probabilities in every model.
  for (u32 e = lane; e < experts; e += 32) {
    f64 d_p = aux ? aux[e] : 0.0f;
    d_logits[e] = needs_softmax ? (f32)(probability(t.logits[e], t.softmax) * (d_p - inner + z)) : 0.0f;
  }
  __syncwarp();
  for (u32 slot = lane; slot < top_k; slot += 32) {
    u32 e = t.ids[slot];
    f64 own = slot_gradient(t, slot);
    f32 d_logit;
    if (sigmoid) {
      f64 s = score_of(t, e);
      d_logit = d_logits[e] + (f32)(own * s * (1.0 - s));
    } else {
      f64 d_p = aux ? aux[e] : 0.0f;
      d_logit = (f32)(score_of(t, e) * (d_p + own - inner + z));
    }
    d_logits[e] = d_logit;
  }
}
