// Softmax of a row by one warp. Needs lib_math and lib_warp.
#pragma once

struct Softmax {
  f32 top;
  f32 inverse;
  f64 sum;
};

// All is NaN where the row has no softmax: NaN or infinity among the logits, or nothing else than minus infinity.
DEV Softmax row_softmax(const f32* logits, u32 experts) {
  Softmax s = {bits_f32(0xff800000u), 0.0f, 0.0};
  for (u32 e = lane_id(); e < experts; e += 32) s.top = fmaxf(s.top, logits[e]);
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1) s.top = fmaxf(s.top, __shfl_xor_sync(FULL_WARP, s.top, apart));
  for (u32 e = lane_id(); e < experts; e += 32) s.sum += exponential(logits[e] - s.top);
  s.sum = warp_sum(s.sum);
  s.inverse = (f32)(1.0 / s.sum);
  return s;
}

DEV f32 probability(f32 logit, const Softmax& s) { return exponential(logit - s.top) * s.inverse; }

DEV f32 log_sum_exp(const Softmax& s) { return s.top + (f32)log(s.sum); }
