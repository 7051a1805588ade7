// Powers of two and magnitudes by bits, because a device may flush subnormal numbers in arithmetic.

const INFINITY_BITS: u32 = 0x7f800000u;
const LARGEST_BITS: u32 = 0x7f7fffffu;
const SMALLEST_NORMAL_BITS: u32 = 0x00800000u;

/// Bits of |x|: they order as the numbers do, from INFINITY_BITS on what is not finite.
fn magnitude(x: f32) -> u32 {
    return bitcast<u32>(x) & 0x7fffffffu;
}

/// 2^exponent, for exponents of normal numbers.
fn power_of_two(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

/// 2^shift x for -126 <= shift <= 126. Subnormal numbers are lifted as the integers that they are multiples of 2^-149 with;
/// below a shift of 23 they stay subnormal, and the device may flush them.
fn scaled(x: f32, shift: i32) -> f32 {
    let bits = magnitude(x);
    if (bits < SMALLEST_NORMAL_BITS && shift >= 23) {
        let lifted = f32(bits) * power_of_two(shift - 149);
        return select(lifted, -lifted, bitcast<u32>(x) != bits);
    }
    return x * power_of_two(shift);
}
