// Euclidean norms that neither overflow nor vanish: elements are scaled by a power of two before they are squared.

// The shift that brings the largest magnitude into [1, 2), or as near as a normal power of two can.
fn norm_shift(largest: u32) -> i32 {
    return clamp(127 - i32(largest >> 23u), -126, 126);
}

// Bits of the norm, from the largest magnitude and the sum of squares of elements scaled by its shift. Infinite where an
// element was not finite; otherwise in the finite positive range, or 0 for a row of zeros.
fn norm_bits(largest: u32, squares: f32) -> u32 {
    if (largest >= INFINITY_BITS) {
        return INFINITY_BITS;
    }
    if (largest == 0u) {
        return 0u;
    }
    let root = sqrt(squares);
    let bits = bitcast<u32>(root);
    let exponent = i32(bits >> 23u) - norm_shift(largest);
    if (exponent >= 255) {
        return LARGEST_BITS;
    }
    if (exponent <= 0) {
        // Only at the shift of 126, which leaves subnormal numbers below 1: what they are multiples of is 2^-23 here.
        return max(u32(root * 8388608.0 + 0.5), 1u);
    }
    return (bits & 0x007fffffu) | (u32(exponent) << 23u);
}
