// Arithmetic on the bits of f32 that rounds once, to nearest even, and knows subnormal numbers. A device's own division may be off by
// some units in the last place and take subnormal numbers for zero, and what is selected would depend on it.

const ONE: u32 = 0x3f800000u;
const INFINITE: u32 = 0x7f800000u;
const LARGEST_FINITE: u32 = 0x7f7fffffu;
const SMALLEST_NORMAL: u32 = 0x00800000u;

// `mantissa * 2^exponent`, the mantissa of 24 bits; for zero it is zero.
struct Number {
    mantissa: u32,
    exponent: i32,
}

// The magnitude of a finite number.
fn number_of(bits: u32) -> Number {
    let mantissa = bits & 0x007fffffu;
    let exponent = (bits >> 23u) & 0xffu;
    if (exponent != 0u) {
        return Number(mantissa | 0x00800000u, i32(exponent) - 150);
    }
    if (mantissa == 0u) {
        return Number(0u, 0);
    }
    let up = countLeadingZeros(mantissa) - 8u;
    return Number(mantissa << up, -149 - i32(up));
}

fn is_finite_bits(bits: u32) -> bool {
    return (bits & INFINITE) != INFINITE;
}

// Into the normal positive range: scores and priorities stay comparable where a device flushes subnormal numbers.
fn clamp_positive(bits: u32) -> u32 {
    return clamp(bits, SMALLEST_NORMAL, LARGEST_FINITE);
}

// f32 next to `(value + rest) * 2^exponent`, with a rest below 1 of which only matters whether it is zero. `value` is not zero, and has
// at least 26 bits where there is a rest.
fn round_word(value: u32, rest: bool, exponent: i32) -> u32 {
    let zeros = countLeadingZeros(value);
    let aligned = value << zeros;
    let biased = exponent + 158 - i32(zeros);
    if (biased >= 255) {
        return INFINITE;
    }
    // Bits that do not fit: 8, and more in a subnormal number.
    let drop = u32(8 + max(1 - biased, 0));
    if (drop > 32u) {
        return 0u;
    }
    var kept = 0u;
    if (drop < 32u) {
        kept = aligned >> drop;
    }
    let lost = aligned << (32u - drop);
    let up = lost > 0x80000000u || (lost == 0x80000000u && (rest || (kept & 1u) == 1u));
    // The leading bit of a normal number counts the exponent up by one, and so does a carry.
    return (u32(max(biased - 1, 0)) << 23u) + kept + u32(up);
}

// f32 next to `value * 2^exponent`.
fn round96(value: vec3<u32>, exponent: i32) -> u32 {
    let zeros = leading_zeros96(value);
    if (zeros == 96u) {
        return 0u;
    }
    let aligned = shl96(value, zeros);
    return round_word(aligned.z, any(aligned.xy != vec2<u32>(0u)), exponent + 64 - i32(zeros));
}

fn product(a: Number, b: Number) -> u32 {
    return round96(vec3<u32>(mul32(a.mantissa, b.mantissa), 0u), a.exponent + b.exponent);
}

fn product3(a: Number, b: Number, c: Number) -> u32 {
    return round96(mul64_32(mul32(a.mantissa, b.mantissa), c.mantissa), a.exponent + b.exponent + c.exponent);
}

// Quotient and rest, for a divisor below 2^24 and a quotient below 2^8. By a division of floats, which is off by one at most:
// few devices have one of integers.
fn digit_and_rest(dividend: u32, divisor: u32) -> vec2<u32> {
    let near = u32(f32(dividend) / f32(divisor));
    // Below zero, and so at the upper end, where the quotient is one too large.
    let rest = dividend - near * divisor;
    let above = u32(rest >= 0x80000000u);
    let below = u32(rest >= divisor) - above;
    return vec2<u32>(near - above + below, rest + (above - below) * divisor);
}

// The quotient of two non-negative numbers. 0 / 0 is 0.
fn divide(dividend: u32, divisor: u32) -> u32 {
    let a = number_of(dividend);
    let b = number_of(divisor);
    if (a.mantissa == 0u || dividend >= INFINITE) {
        return dividend;
    }
    if (b.mantissa == 0u) {
        return INFINITE;
    }
    // 31 bits behind the point in digits of 8 bits: a rest is below 2^24, so the next digit's dividend fits a word.
    var quotient = u32(a.mantissa >= b.mantissa);
    var rest = a.mantissa - quotient * b.mantissa;
    for (var i = 0u; i < 4u; i++) {
        let bits = select(8u, 7u, i == 3u);
        let digit = digit_and_rest(rest << bits, b.mantissa);
        quotient = (quotient << bits) | digit.x;
        rest = digit.y;
    }
    return round_word(quotient, rest != 0u, a.exponent - b.exponent - 31);
}

// f32 next to `dividend / divisor * 2^exponent`; the divisor is not zero.
fn divide96(dividend: vec3<u32>, divisor: vec2<u32>, exponent: i32) -> u32 {
    let zeros = leading_zeros96(dividend);
    if (zeros == 96u) {
        return 0u;
    }
    let aligned = shl96(dividend, zeros);
    // 64 bits, of which the first is set.
    let shift = leading_zeros96(vec3<u32>(0u, divisor));
    let by = shl96(vec3<u32>(0u, divisor), shift).yz;
    var rest = aligned.yz;
    var quotient = 0u;
    if (!less64(rest, by)) {
        rest = sub64(rest, by);
        quotient = 1u;
    }
    // 26 more bits; the last word of the dividend comes in from the right.
    for (var i = 0u; i < 26u; i++) {
        let overflows = (rest.y >> 31u) != 0u;
        rest = shl96(vec3<u32>((aligned.x << i) & 0x80000000u, rest), 1u).yz;
        quotient <<= 1u;
        if (overflows || !less64(rest, by)) {
            rest = sub64(rest, by);
            quotient |= 1u;
        }
    }
    let is_rest = any(rest != vec2<u32>(0u)) || (aligned.x << 26u) != 0u;
    return round_word(quotient, is_rest, exponent + 6 + i32(shift) - i32(zeros));
}
