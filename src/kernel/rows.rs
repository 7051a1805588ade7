//! Row kernels: permutation, compaction, combine, norms, dot products, casts.

kernel! {
    /// Stable counting sort of pairs by expert. Entries [`NONE`](super::NONE) are left out.
    Permute {
        params {
            /// P.
            pairs: usize,
            /// E.
            experts: usize,
        }
        read {
            /// u32 `[P]`.
            ids: Buf,
        }
        write {
            /// u32 `[E]`.
            counts: Buf,
            /// u32 `[E + 1]`.
            offsets: Buf,
            /// u32 `[P]`: pair of each row; rows past the last offset keep what they held.
            pair_of_row: Buf,
            /// u32 `[P]`: row of each pair, or [`NONE`](super::NONE).
            row_of_pair: Buf,
        }
    }
}

kernel! {
    /// Compaction: `dst[r] = scale[r] * src[index[r] / index_div]`.
    GatherRows {
        params {
            /// Rows of `index` and `dst` at most.
            rows: usize,
            /// Columns.
            cols: usize,
            /// Divisor of the index: k turns a pair into its token.
            index_div: usize,
            /// E.
            groups: usize,
        }
        read {
            /// Any float type, `[S, cols]`.
            src: Buf,
            /// u32 `[rows]`.
            index: Buf,
            /// f32 `[rows]`.
            scale: Option<Buf>,
            /// u32 `[E + 1]`.
            offsets: Buf,
        }
        write {
            /// f32, or the type of `src` without `scale`: `[rows, cols]`.
            dst: Buf,
        }
    }
}

kernel! {
    /// Gather-form sum of a token's rows: `out[t] (+)= sum_j weights[t, j] rows[row_of_pair[t, j]]`, j ascending.
    Combine {
        params {
            /// T.
            tokens: usize,
            /// Slots of a token.
            top_k: usize,
            /// Columns.
            cols: usize,
            /// Add to `out` instead of overwriting it.
            accumulate: bool,
        }
        read {
            /// f32 `[R, cols]`.
            rows: Buf,
            /// u32 `[T, k]`, [`NONE`](super::NONE) adds nothing; row t itself (k = 1) where absent.
            row_of_pair: Option<Buf>,
            /// f32 `[T, k]`; 1 where absent.
            weights: Option<Buf>,
        }
        write {
            /// f32 `[T, cols]`.
            out: Buf,
        }
    }
}

kernel! {
    /// Euclidean norm of each row, free of overflow and underflow; +infinity where an element is not finite.
    RowNorms {
        params {
            /// R.
            rows: usize,
            /// Columns.
            cols: usize,
        }
        read {
            /// Any float type, `[R, cols]`.
            x: Buf,
        }
        write {
            /// f32 `[R]`, in the finite positive range or exactly 0 for finite rows.
            norm: Buf,
        }
    }
}

kernel! {
    /// `dot[i] = <a[i / a_div], b[b_index[i]]>`, 0 where the index is [`NONE`](super::NONE).
    RowDots {
        params {
            /// Number of products.
            rows: usize,
            /// Columns.
            cols: usize,
            /// Divisor: k turns a pair into its token.
            a_div: usize,
        }
        read {
            /// Any float type.
            a: Buf,
            /// Any float type.
            b: Buf,
            /// u32 `[rows]`; row i itself where absent.
            b_index: Option<Buf>,
        }
        write {
            /// f32 `[rows]`.
            dot: Buf,
        }
    }
}

kernel! {
    /// Conversion between float types, to nearest even.
    Cast {
        params {
            /// Elements.
            len: usize,
        }
        read {
            /// Any float type.
            src: Buf,
        }
        write {
            /// Any float type.
            dst: Buf,
        }
    }
}
