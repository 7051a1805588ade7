//! Elementary functions and reductions that vectorise, with a fixed order of operations.
//!
//! Nothing here fuses a multiplication with an addition, so every instruction set gives the same bits.

/// Lanes of a reduction: fixed, so that the order of a sum does not depend on the vector width.
const LANES: usize = 16;

/// Rows that one task of a row-parallel kernel takes.
pub(super) const ROW_CHUNK: usize = 64;

/// Runs `f` with the widest vector instructions of this machine. Everything in it must be inlined to profit.
#[inline(always)]
pub(super) fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    struct Op<F>(F);
    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Op<F> {
        type Output = R;
        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Op(f))
}

/// Name of the instruction set that the kernels use here.
pub(super) fn instruction_set() -> String {
    let arch = format!("{:?}", pulp::Arch::new());
    let level = arch.split(['(', ' ', '{']).next().unwrap_or("scalar").to_lowercase();
    format!("{} ({level})", std::env::consts::ARCH)
}

/// `e^x` to about 1 unit in the last place: range reduction by log 2 and the degree-5 polynomial of Cephes `expf`
/// (Moshier). Overflows to infinity and underflows to 0 as it should; NaN stays NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer held in the low bits
    const LN2_HI: f32 = 355.0 / 512.0; // 9 bits, so n * LN2_HI is exact
    const LN2_LO: f32 = -2.121_944_4e-4;
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HI - n * LN2_LO;
    let mut p = 1.987_569_1e-4f32;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let e = p * (r * r) + r + 1.0;
    // 2^n in two factors: n reaches from -150 to 128, outside the exponents of a normal number.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let scale = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    e * scale(half) * scale(n.wrapping_sub(half))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn fold(lanes: [f64; LANES]) -> f64 {
    let mut lanes = lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Sum of products in f64.
#[inline(always)]
pub(super) fn dot(len: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let whole = len - len % LANES;
    let mut base = 0;
    while base < whole {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane += f64::from(a(base + l)) * f64::from(b(base + l));
        }
        base += LANES;
    }
    for l in whole..len {
        lanes[l - whole] += f64::from(a(l)) * f64::from(b(l));
    }
    fold(lanes)
}

/// Euclidean norm from a sum of squares in f64: exactly 0 for zero, otherwise in the finite positive range of f32, and
/// +infinity where an element was not finite. f64 holds squares of any f32, so nothing overflows or vanishes.
#[inline(always)]
pub(super) fn norm_from_squares(sum: f64) -> f32 {
    if !sum.is_finite() {
        f32::INFINITY
    } else if sum == 0.0 {
        0.0
    } else {
        (sum.sqrt() as f32).clamp(f32::from_bits(1), f32::MAX)
    }
}

/// Rounds to f32 within the normal positive range: scores and priorities stay comparable where a device flushes
/// subnormal numbers.
#[inline(always)]
pub(super) fn clamp_positive(x: f64) -> f32 {
    (x as f32).clamp(f32::MIN_POSITIVE, f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_of_the_last_place() {
        let mut worst = 0.0f64;
        for i in -104_000..=89_000 {
            let x = i as f32 * 1e-3;
            let want = f64::from(x).exp();
            let got = f64::from(exp(x));
            if want > f64::from(f32::MAX) {
                assert!(got == f64::INFINITY || got > 3.3e38, "{x}: {got}");
                continue;
            }
            let unit = if want < 1.2e-38 { f64::from(f32::from_bits(1)) } else { want * f64::from(f32::EPSILON) };
            worst = worst.max((got - want).abs() / unit);
        }
        assert!(worst < 2.0, "{worst} units");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
    }

    #[test]
    fn norms_survive_extremes() {
        let norm = |v: &[f32]| norm_from_squares(dot(v.len(), |i| v[i], |i| v[i]));
        assert_eq!(norm(&[0.0, -0.0]), 0.0);
        assert_eq!(norm(&[3e38, 3e38, 3e38]), f32::MAX);
        assert_eq!(norm(&[f32::from_bits(1); 4]), f32::from_bits(2));
        assert_eq!(norm(&[1.0, f32::NAN]), f32::INFINITY);
        assert_eq!(norm(&[f32::NEG_INFINITY; 17]), f32::INFINITY);
        assert_eq!(norm(&[3.0, 4.0]), 5.0);
    }
}
