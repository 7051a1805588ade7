// Scores in fixed point, relative to the largest of an expert. Needs lib_exact.

const SIZE_BITS: u32 = 40u;

// `round(2^40 score / largest)`, halves rounded up, of the bits of two finite scores; `score <= largest`, `largest > 0`.
fn fixed_point(score: u32, largest: u32) -> vec2<u32> {
    let shift = max(largest >> 23u, 1u) - max(score >> 23u, 1u);
    // Less than a half.
    if (shift > SIZE_BITS + 1u) {
        return vec2<u32>(0u);
    }
    let mantissa = (score & 0x007fffffu) | select(0u, 0x00800000u, score >= 0x00800000u);
    let top = (largest & 0x007fffffu) | select(0u, 0x00800000u, largest >= 0x00800000u);
    // The quotient of the mantissas, below 2, with 40 bits behind the point in digits of 8.
    var quotient = vec2<u32>(u32(mantissa >= top), 0u);
    var rest = mantissa - quotient.x * top;
    for (var i = 0u; i < SIZE_BITS / 8u; i++) {
        let digit = digit_and_rest(rest << 8u, top);
        quotient = vec2<u32>((quotient.x << 8u) | digit.x, (quotient.y << 8u) | (quotient.x >> 24u));
        rest = digit.y;
    }
    if (shift == 0u) {
        return add64(quotient, vec2<u32>(u32(2u * rest >= top), 0u));
    }
    // What was cut off is less than one of the last digits, so it does not change how this rounds.
    return shr64(add64(quotient, shl96(vec3<u32>(1u, 0u, 0u), shift - 1u).xy), shift);
}

fn size(score: u32, largest: u32) -> vec2<u32> {
    let s = fixed_point(score, largest);
    return vec2<u32>(select(s.x, 1u, all(s == vec2<u32>(0u))), s.y);
}
