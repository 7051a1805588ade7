//! Transposition of eight rows: the one copy that compilers do not turn into vector code by themselves.

/// Rows transposed at a time.
pub(super) const SQUARE: usize = 8;

/// `to[p * width + first + i] = rows[i][p]` for all eight rows and every whole `width` of `to`.
///
/// # Panics
/// Where a row is shorter than that, or `width` than `first + 8`: a slip of the caller.
pub(super) fn turn(rows: [&[f32]; SQUARE], first: usize, width: usize, to: &mut [f32]) {
    let depth = to.len() / width;
    let rows = rows.map(|row| &row[..depth]);
    let done = squares(rows, first, width, to);
    for (p, to) in to.chunks_exact_mut(width).enumerate().skip(done) {
        for (to, row) in to[first..first + SQUARE].iter_mut().zip(rows) {
            *to = row[p];
        }
    }
}

/// Does whole squares where the processor has the instructions. Returns the depth steps that are done.
#[cfg(target_arch = "x86_64")]
fn squares(rows: [&[f32]; SQUARE], first: usize, width: usize, to: &mut [f32]) -> usize {
    let Some(simd) = pulp::x86::V3::try_new() else {
        return 0;
    };
    simd.vectorize(x86::Turn { simd, rows: rows.map(|row| row.as_chunks().0), first, width, to });
    rows[0].len() / SQUARE * SQUARE
}

/// Elsewhere one element at a time has to do.
#[cfg(not(target_arch = "x86_64"))]
const fn squares(_: [&[f32]; SQUARE], _: usize, _: usize, _: &mut [f32]) -> usize {
    0
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::SQUARE;
    use pulp::x86::V3;
    use std::arch::x86_64::__m256;

    /// All whole squares of eight rows.
    pub(super) struct Turn<'a> {
        pub(super) simd: V3,
        pub(super) rows: [&'a [[f32; SQUARE]]; SQUARE],
        pub(super) first: usize,
        pub(super) width: usize,
        pub(super) to: &'a mut [f32],
    }

    impl pulp::NullaryFnOnce for Turn<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Self { simd, rows: [a, b, c, d, e, f, g, h], first, width, to } = self;
            let low = a.iter().zip(b).zip(c).zip(d);
            let high = e.iter().zip(f).zip(g).zip(h);
            for ((low, high), to) in low.zip(high).zip(to.chunks_exact_mut(SQUARE * width)) {
                let (((a, b), c), d) = low;
                let (((e, f), g), h) = high;
                let (low, high) = (fours(simd, [a, b, c, d]), fours(simd, [e, f, g, h]));
                for (i, (&low, &high)) in low.iter().zip(&high).enumerate() {
                    // The halves of a register are four steps apart.
                    let near = simd.avx._mm256_permute2f128_ps::<0x20>(low, high);
                    let far = simd.avx._mm256_permute2f128_ps::<0x31>(low, high);
                    to[i * width + first..][..SQUARE].copy_from_slice(&pulp::cast::<__m256, [f32; SQUARE]>(near));
                    to[(i + 4) * width + first..][..SQUARE].copy_from_slice(&pulp::cast::<__m256, [f32; SQUARE]>(far));
                }
            }
        }
    }

    /// Register `i` holds step `i` of the four rows in its lower half, and step `i + 4` in its upper half.
    #[inline(always)]
    fn fours(simd: V3, rows: [&[f32; SQUARE]; 4]) -> [__m256; 4] {
        let [a, b, c, d] = [pulp::cast(*rows[0]), pulp::cast(*rows[1]), pulp::cast(*rows[2]), pulp::cast(*rows[3])];
        let (ab, cd) = (simd.avx._mm256_unpacklo_ps(a, b), simd.avx._mm256_unpacklo_ps(c, d));
        let (ab2, cd2) = (simd.avx._mm256_unpackhi_ps(a, b), simd.avx._mm256_unpackhi_ps(c, d));
        [
            simd.avx._mm256_shuffle_ps::<0x44>(ab, cd),
            simd.avx._mm256_shuffle_ps::<0xee>(ab, cd),
            simd.avx._mm256_shuffle_ps::<0x44>(ab2, cd2),
            simd.avx._mm256_shuffle_ps::<0xee>(ab2, cd2),
        ]
    }
}
