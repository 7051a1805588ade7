// SwiGLU of two numbers, in the order of operations of the CPU.
#pragma once
#include "dev.h"
#include "lib_math.h"

DEV f32 swiglu_of(f32 a, f32 b) { return a * sigmoid_of(a) * b; }

struct SwigluBackward {
  f32 h;
  f32 da;
  f32 db;
};

// `su` is the upstream gradient of h, scaled.
DEV SwigluBackward swiglu_backward_of(f32 a, f32 b, f32 su) {
  f32 s = sigmoid_of(a);
  f32 silu = a * s;
  return SwigluBackward{silu * b, su * b * (s * (1.0f + a * (1.0f - s))), su * silu};
}
