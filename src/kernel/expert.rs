//! Expert kernels: the three grouped GEMMs and SwiGLU.

kernel! {
    /// Grouped GEMM, forward: `out[r] = x[index[r] / index_div] W[e]^T`.
    ///
    /// Each output element is one chain of fused multiply-adds over `k` in ascending order, so a row's bits do not
    /// depend on the rows beside it.
    GroupedForward {
        params {
            /// Rows of `out` at most.
            rows: usize,
            /// E.
            groups: usize,
            /// Output columns.
            n: usize,
            /// Input columns.
            k: usize,
            /// Divisor of the index.
            index_div: usize,
        }
        read {
            /// Any float type, `[S, k]`.
            x: Buf,
            /// u32 `[rows]`; row r itself where absent.
            index: Option<Buf>,
            /// Any float type, `[E, n, k]`.
            w: Buf,
            /// u32 `[E + 1]`.
            offsets: Buf,
        }
        write {
            /// f32 `[rows, n]`.
            out: Buf,
        }
    }
}

kernel! {
    /// Grouped GEMM, gradient of the input: `out[r] = dy[index[r] / index_div] W[e]`.
    GroupedDgrad {
        params {
            /// Rows of `out` at most.
            rows: usize,
            /// E.
            groups: usize,
            /// Columns of `dy`.
            n: usize,
            /// Columns of `out`.
            k: usize,
            /// Divisor of the index.
            index_div: usize,
        }
        read {
            /// Any float type, `[S, n]`.
            dy: Buf,
            /// u32 `[rows]`; row r itself where absent.
            index: Option<Buf>,
            /// Any float type, `[E, n, k]`.
            w: Buf,
            /// u32 `[E + 1]`.
            offsets: Buf,
        }
        write {
            /// f32 `[rows, k]`.
            out: Buf,
        }
    }
}

kernel! {
    /// Grouped GEMM, gradient of the weight: `out[e] (+)= sum_r scale[r] dy[..]^T x[..]` over the rows of group e.
    ///
    /// A group without rows gets exact zeros, or stays as it is when accumulating.
    GroupedWgrad {
        params {
            /// Rows at most.
            rows: usize,
            /// E.
            groups: usize,
            /// Columns of `dy`.
            n: usize,
            /// Columns of `x`.
            k: usize,
            /// Divisor of `dy_index`.
            dy_div: usize,
            /// Divisor of `x_index`.
            x_div: usize,
            /// Add to `out` instead of overwriting it.
            accumulate: bool,
        }
        read {
            /// Any float type, `[S, n]`.
            dy: Buf,
            /// u32 `[rows]`.
            dy_index: Option<Buf>,
            /// f32 `[rows]`.
            dy_scale: Option<Buf>,
            /// Any float type, `[S', k]`.
            x: Buf,
            /// u32 `[rows]`.
            x_index: Option<Buf>,
            /// u32 `[E + 1]`.
            offsets: Buf,
        }
        write {
            /// f32 `[E, n, k]`.
            out: Buf,
        }
    }
}

kernel! {
    /// `h = silu(a) b` with `ab = [a | b]`, and `||h||` per row. Rows in front of the first offset are left alone.
    SwiGlu {
        params {
            /// Rows at most.
            rows: usize,
            /// I.
            width: usize,
            /// E.
            groups: usize,
        }
        read {
            /// f32 `[rows, 2 I]`.
            ab: Buf,
            /// u32 `[E + 1]`.
            offsets: Buf,
        }
        write {
            /// f32 `[rows, I]`.
            h: Buf,
            /// f32 `[rows]`; +infinity where h is not finite.
            norm: Buf,
        }
    }
}

kernel! {
    /// Backward of SwiGLU with the pair scale: `da = s u b silu'(a)`, `db = s u silu(a)`, `h`, and `dot = <u, h>`.
    /// Rows in front of the first offset are left alone.
    SwiGluBackward {
        params {
            /// Rows at most.
            rows: usize,
            /// I.
            width: usize,
            /// E.
            groups: usize,
        }
        read {
            /// f32 `[S, 2 I]`.
            ab: Buf,
            /// u32 `[rows]`: row of `ab`; row r itself where absent.
            ab_index: Option<Buf>,
            /// f32 `[rows, I]`: upstream gradient of h before the pair scale.
            u: Buf,
            /// f32 `[rows]`: `w_p g_p`; 1 where absent.
            scale: Option<Buf>,
            /// u32 `[E + 1]`.
            offsets: Buf,
        }
        write {
            /// f32 `[rows, 2 I]`: `[da | db]`.
            d_ab: Buf,
            /// f32 `[rows, I]`.
            h: Buf,
            /// f32 `[rows]`.
            dot: Buf,
        }
    }
}
