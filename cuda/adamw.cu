// One step of AdamW; see the kernel's documentation for the formula.
#include "lib_pack.h"

// Packs of each array that a thread has under way.
#define PACKS 2

#define N 4

struct Step {
  f32 grad_scale, beta1, rest1, beta2, rest2, correction1, correction2, eps, decay, lr;
};

DEV f32 advance(const Step& step, f32 w, f32 grad, f32& m, f32& v) {
  f32 g = grad * step.grad_scale;
  m = step.beta1 * m + step.rest1 * g;
  v = step.beta2 * v + step.rest2 * (g * g);
  f32 rate = m / step.correction1 / (sqrtf(v / step.correction2) + step.eps);
  return w * step.decay - step.lr * rate;
}

DEV void store_rounded(f32*, u64, const f32 (&)[N]) {}

template <class W>
DEV void store_rounded(W* weight, u64 i, const f32 (&w)[N]) {
  write_once(as_pack<N>(weight + i), packed<W>(w));
}

// `exact` is what is stepped: the master weights, or the weights where there are none.
template <class W>
DEV void adamw(const f32* grad, W* weight, f32* exact, f32* m, f32* v, u64 len, const Step& step) {
  u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  u64 threads = (u64)gridDim.x * blockDim.x;
  u64 whole = 0;
  if (begins_packs<N>(grad) && begins_packs<N>(weight) && begins_packs<N>(exact) && begins_packs<N>(m) && begins_packs<N>(v)) {
    whole = len / N * N;
    u64 first = (blockIdx.x * (u64)blockDim.x * PACKS + threadIdx.x) * N;
    for (; first < whole; first += threads * PACKS * N) {
      Vec16 pg[PACKS], pw[PACKS], pm[PACKS], pv[PACKS];
      for (u32 p = 0; p < PACKS; p++) {
        u64 i = first + p * blockDim.x * N;
        if (i >= whole) continue;
        pg[p] = load_once(as_pack<N>(grad + i));
        pw[p] = *as_pack<N>(exact + i);
        pm[p] = *as_pack<N>(m + i);
        pv[p] = *as_pack<N>(v + i);
      }
      for (u32 p = 0; p < PACKS; p++) {
        u64 i = first + p * blockDim.x * N;
        if (i >= whole) continue;
        f32 g[N], w[N], x[N], y[N];
        unpack<f32>(pg[p], g);
        unpack<f32>(pw[p], w);
        unpack<f32>(pm[p], x);
        unpack<f32>(pv[p], y);
        for (u32 e = 0; e < N; e++) w[e] = advance(step, w[e], g[e], x[e], y[e]);
        store_once(as_pack<N>(exact + i), packed<f32>(w));
        store_once(as_pack<N>(m + i), packed<f32>(x));
        store_once(as_pack<N>(v + i), packed<f32>(y));
        store_rounded(weight, i, w);
      }
    }
  }
  for (u64 i = whole + thread; i < len; i += threads) {
    f32 x = m[i], y = v[i];
    f32 w = advance(step, exact[i], grad[i], x, y);
    m[i] = x;
    v[i] = y;
    exact[i] = w;
    if (sizeof(W) == 2) weight[i] = from_f32<W>(w);
  }
}

#define INSTANCE(W)                                                                                                        \
  KERNEL(256) adamw_##W(const f32* grad, W* weight, f32* exact, f32* m, f32* v, u64 len, f32 grad_scale, f32 beta1,        \
                        f32 rest1, f32 beta2, f32 rest2, f32 correction1, f32 correction2, f32 eps, f32 decay, f32 lr) {   \
    adamw<W>(grad, weight, exact, m, v, len,                                                                               \
             Step{grad_scale, beta1, rest1, beta2, rest2, correction1, correction2, eps, decay, lr});                      \
  }
FOR_FLOATS(INSTANCE)
