//! Row kernels: permutation, compaction, combine, norms, dot products, casts.

use super::NONE;
use crate::{Error, Result};

kernel! {
    /// Stable counting sort of pairs by expert. Entries [`NONE`] are left out.
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
            /// u32 `[P]`: row of each pair, or [`NONE`].
            row_of_pair: Buf,
        }
    }
}

impl<Buf> Permute<Buf> {
    /// Refuses more pairs than 32 bits number beside [`NONE`].
    pub(crate) fn check_pairs(&self) -> Result<()> {
        if self.pairs >= NONE as usize {
            return Err(Error::Overflow { what: "pairs".into(), detail: format!("{} do not fit 32 bits", self.pairs) });
        }
        Ok(())
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
            /// u32 `[T, k]`, [`NONE`] adds nothing; row t itself (k = 1) where absent.
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

impl<Buf> Combine<Buf> {
    /// Refuses anything but a row for each token where there is no index.
    pub(crate) fn check_rows(&self, stored: usize) -> Result<()> {
        if self.row_of_pair.is_none() && (self.top_k != 1 || stored < self.tokens) {
            let expected = format!("1 row for each of {} tokens where `row_of_pair` is absent", self.tokens);
            return Err(Error::shape("rows of combine", format!("{stored} rows, top_k {}", self.top_k), expected));
        }
        Ok(())
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

/// Projections of a row in [`RowKeys`]: keys are below 2 to this power.
pub const ROW_KEY_BITS: usize = 8;

kernel! {
    /// A key below 256 of each row, such that rows of similar direction tend to have equal or neighbouring keys.
    ///
    /// Bit i of 8 is set where `sum_c s_i(c) x[row, c] > 0`: sign random projections (M. Charikar, "Similarity estimation techniques
    /// from rounding algorithms", STOC 2002), so two rows differ in a bit with a chance of their angle over pi. The sign `s_i(c)` is +1
    /// where bit i of `hash(c)` is set and -1 elsewhere; `hash`, on 32-bit integers that wrap:
    ///
    /// ```text
    /// v = c + 0x9E3779B9
    /// v = (v ^ (v >> 16)) * 0x85EBCA6B
    /// v = (v ^ (v >> 13)) * 0xC2B2AE35
    /// hash(c) = v ^ (v >> 16)
    /// ```
    ///
    /// The key is the rank of the bits, bit 0 the most significant, in reflected binary Gray order: neighbours in rank differ in one bit.
    /// Sums are f32, columns ascending. Where one of a row's eight is not finite they are taken again of `2^-64 x`, so no finite row
    /// overflows. An infinity makes its sums infinite; a sum that is NaN sets no bit, and neither does one that is 0.
    RowKeys {
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
            /// u32 `[R]`, below 256.
            key: Buf,
        }
    }
}

kernel! {
    /// `dot[i] = <a[i / a_div], b[b_index[i]]>`, 0 where the index is [`NONE`].
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
    /// Conversion between float types, to nearest even. A NaN stays one, of any bits.
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
