//! Elementary functions that give the same bits on every machine.
//!
//! Plans are compared by hash across ranks, and weights are initialised on whichever device comes first, so neither may
//! depend on the platform's mathematics library. Everything here is built from IEEE 754 `+ - * /` on `f64`, which
//! round the same way everywhere. Results are within a few units in the last place; they are not correctly rounded.

/// Natural logarithm of a positive, normal, finite `x`.
///
/// `x = 2^k z` with `z` in `[sqrt(1/2), sqrt(2))`, then `ln z = 2 artanh((z - 1) / (z + 1))` by its power series, whose
/// first omitted term is below `2^-56`.
pub(crate) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0, "ln of {x}");
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut z = f64::from_bits((bits & MANTISSA) | 1023 << 52);
    if z >= std::f64::consts::SQRT_2 {
        z *= 0.5;
        exponent += 1;
    }
    let s = (z - 1.0) / (z + 1.0);
    let s2 = s * s;
    let mut series = 0.0;
    for odd in (1..=21).rev().step_by(2) {
        series = series * s2 + 1.0 / f64::from(odd);
    }
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * s * series
}

/// `e^x` for `|x| <= 700`.
///
/// `x = k ln 2 + r` with `|r| <= ln(2) / 2`, then the Taylor polynomial of degree 14.
fn exp(x: f64) -> f64 {
    debug_assert!(x.abs() <= 700.0, "exp of {x}");
    // ln 2 in two parts, the first with enough trailing zeros that k * HIGH is exact.
    const HIGH: f64 = f64::from_bits(0x3FE6_2E42_FEE0_0000);
    const LOW: f64 = 1.908_214_929_270_587_7e-10;
    let k = (x * std::f64::consts::LOG2_E).round();
    let r = (x - k * HIGH) - k * LOW;
    let mut series = 1.0;
    for n in (1..=14).rev() {
        series = 1.0 + series * r / f64::from(n);
    }
    series * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// `x^p` for a positive, normal `x` and a finite `p` with `|p ln x| <= 700`; exact for `p` 0 and 1.
pub(crate) fn pow(x: f64, p: f64) -> f64 {
    if p == 0.0 {
        1.0
    } else if p == 1.0 {
        x
    } else {
        exp(p * ln(x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_platform() {
        for i in -3000..3000 {
            let x = 1.37f64.powf(f64::from(i) / 4.0).clamp(1e-300, 1e300);
            let error = (ln(x) - x.ln()).abs();
            assert!(error <= 4.0 * f64::EPSILON * x.ln().abs().max(0.25), "ln({x:e}): off by {error:e}");
        }
        for i in -7000..=7000 {
            let x = f64::from(i) / 10.0;
            let error = (exp(x) / x.exp() - 1.0).abs();
            assert!(error <= 8.0 * f64::EPSILON, "exp({x}): relative error {error:e}");
        }
        for p in [0.0, 0.25, 0.3, 0.5, 0.9, 1.0] {
            for x in [1e-90, 1e-9, 0.3, 0.5, 1.0, 7.0] {
                let error = (pow(x, p) / f64::powf(x, p) - 1.0).abs();
                assert!(error <= 1e-13, "{x:e}^{p}: relative error {error:e}");
            }
        }
    }

    /// The bits themselves are part of the contract: a change here changes plan hashes.
    #[test]
    fn golden_bits() {
        assert_eq!(ln(1.0).to_bits(), 0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(pow(0.3, 1.0), 0.3);
        assert_eq!(pow(0.3, 0.0), 1.0);
    }
}
