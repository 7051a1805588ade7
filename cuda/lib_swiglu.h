// The logistic function and what SwiGLU makes of it.
#include "dev.h"

// `sigmoid(x)` and `1 - sigmoid(x)`, neither by a difference.
struct SigmoidPair {
  f32 value;
  f32 rest;
};

DEV SigmoidPair sigmoid_pair(f32 x) {
  f32 e = expf(-fabsf(x));
  f32 small = e / (1.0f + e);
  f32 large = 1.0f / (1.0f + e);
  return x < 0.0f ? SigmoidPair{small, large} : SigmoidPair{large, small};
}

DEV f32 swiglu_of(f32 a, f32 b) { return a * sigmoid_pair(a).value * b; }

struct SwigluBackward {
  f32 h;
  f32 da;
  f32 db;
};

// `su` is the upstream gradient of h, scaled.
DEV SwigluBackward swiglu_backward_of(f32 a, f32 b, f32 su) {
  SigmoidPair s = sigmoid_pair(a);
  f32 silu = a * s.value;
  return SwigluBackward{silu * b, su * b * (s.value * (1.0f + a * s.rest)), su * silu};
}
