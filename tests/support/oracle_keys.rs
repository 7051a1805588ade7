//! Keys of rows: signs of random projections in f64, ranked by writing the reflected Gray code out.

/// Projections of a row.
pub const BITS: usize = 8;

/// Rank of each row's signs; nothing where a sum is so near 0 that f32 may see another sign.
pub fn row_keys(rows: &[f64], cols: usize) -> Vec<Option<u32>> {
    let codes = reflected();
    rows.chunks(cols.max(1)).map(|row| key(row, &codes)).collect()
}

/// The key of one row by a list of codes in order.
pub fn key(row: &[f64], codes: &[u32]) -> Option<u32> {
    let size: f64 = row.iter().map(|x| x.abs()).sum();
    // Sums of small integers are exact in f32 in any order.
    let exact = size < (1u32 << 24).into() && row.iter().all(|x| x.fract() == 0.0);
    let mut code = 0;
    for i in 0..BITS {
        let sum: f64 = row.iter().enumerate().map(|(c, x)| if positive(c, i) { *x } else { -x }).sum();
        let rounding = row.len() as f64 * size / f64::from(1u32 << 24);
        if sum.is_finite() && !exact && sum.abs() <= rounding {
            return None;
        }
        code = 2 * code + u32::from(sum > 0.0);
    }
    codes.iter().position(|&c| c == code).map(|rank| rank as u32)
}

/// All codes: those of one bit less, then the same backwards with the next bit set.
pub fn reflected() -> Vec<u32> {
    let mut codes = vec![0];
    for bit in 0..BITS {
        let mirrored: Vec<u32> = codes.iter().rev().map(|code| code + (1 << bit)).collect();
        codes.extend(mirrored);
    }
    codes
}

/// Whether projection `i` adds column `c`, from the documented hash in 64-bit arithmetic.
fn positive(c: usize, i: usize) -> bool {
    const WORD: u64 = 1 << 32;
    let mixed = |v: u64, shift: u32, factor: u64| ((v ^ (v >> shift)) * factor) % WORD;
    let v = mixed((c as u64 + 0x9E37_79B9) % WORD, 16, 0x85EB_CA6B);
    let v = mixed(mixed(v, 13, 0xC2B2_AE35), 16, 1);
    (v / (1 << i)) % 2 == 1
}
