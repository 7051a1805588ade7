// Magnitudes and powers of two by bits, because a device may flush subnormal numbers in arithmetic.

const INFINITY_BITS: u32 = 0x7f800000u;
const LARGEST_BITS: u32 = 0x7f7fffffu;
const SMALLEST_NORMAL_BITS: u32 = 0x00800000u;

// Bits of |x|: they order as the numbers do, from INFINITY_BITS on what is not finite.
fn magnitude(x: f32) -> u32 {
    return bitcast<u32>(x) & 0x7fffffffu;
}

// 2^shift x for -126 <= shift <= 126. Subnormal numbers are lifted as the integers that they are multiples of 2^-149 with; below a
// shift of 23 they stay subnormal, and the device may flush them.
fn scaled(x: f32, shift: i32) -> f32 {
    let bits = magnitude(x);
    let lifted = bits < SMALLEST_NORMAL_BITS && shift >= 23;
    let factor = bitcast<f32>(u32(select(shift, shift - 149, lifted) + 127) << 23u);
    if (lifted) {
        let size = f32(bits) * factor;
        return select(size, -size, bitcast<u32>(x) != bits);
    }
    return x * factor;
}
