//! Optimizer kernels.

use crate::Error;
use crate::tensor::DType;

/// Elements of a block of [`SumSquares`].
pub const SUM_SQUARES_BLOCK: usize = 4096;

/// Scalars of one [`AdamW`] step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWStep {
    /// Learning rate.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// `1 - beta1^t`.
    pub correction1: f32,
    /// `1 - beta2^t`.
    pub correction2: f32,
    /// Factor on the gradient (inverse loss scale times clipping).
    pub grad_scale: f32,
}

kernel! {
    /// One decoupled AdamW step (Loshchilov and Hutter 2019) on `len` elements.
    ///
    /// `g = grad_scale grad; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
    /// w = w (1 - lr decay) - lr (m / c1) / (sqrt(v / c2) + eps)`, in f32 on `master` where there is one, which is
    /// then rounded to `weight`.
    AdamW {
        params {
            /// Elements.
            len: usize,
            /// Step size, decay and bias corrections.
            step: AdamWStep,
        }
        read {
            /// f32.
            grad: Buf,
        }
        write {
            /// f32, bf16 or f16.
            weight: Buf,
            /// f32; absent where `weight` is f32.
            master: Option<Buf>,
            /// f32: first moment.
            m: Buf,
            /// f32: second moment.
            v: Buf,
        }
    }
}

impl<Buf> AdamW<Buf> {
    /// The error where weights of this type do not go with the master weights, or with there being none.
    pub(crate) fn wrong_storage(&self, weight: DType) -> Error {
        let got = format!("{weight}, {} master", if self.master.is_some() { "with" } else { "without" });
        Error::shape("weight of adamw", got, "f32 without master, or bf16 or f16 with one")
    }
}

kernel! {
    /// Scaled sums of squares: block b of 4,096 elements gives `max |x|` and `sum (x / max)^2`.
    ///
    /// The maximum is NaN where an element is; the sum is 1 where the maximum is 0 or not finite.
    SumSquares {
        params {
            /// Elements.
            len: usize,
        }
        read {
            /// f32.
            x: Buf,
        }
        write {
            /// f32 `[blocks, 2]`.
            partial: Buf,
        }
    }
}
