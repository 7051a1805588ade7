fn widen_bf16(bits: u32) -> f32 {
    return bitcast<f32>(bits << 16u);
}

fn widen4_bf16(words: vec2<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>((words.xxyy << vec4<u32>(16u, 0u, 16u, 0u)) & vec4<u32>(0xffff0000u));
}

// To nearest even; NaN stays NaN.
fn narrow_bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 0x40u, is_nan(x));
}

// Integer arithmetic: drivers may flush subnormal numbers, and rounding in `pack2x16float` is theirs.
fn widen_f16(half: u32) -> f32 {
    let sign = (half & 0x8000u) << 16u;
    let rest = half & 0x7fffu;
    if (rest >= 0x7c00u) {
        return bitcast<f32>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13u));
    }
    if (rest >= 0x0400u) {
        return bitcast<f32>(sign | ((rest << 13u) + 0x38000000u));
    }
    // Subnormal: a multiple of 2^-24, exact in f32.
    let magnitude = f32(rest) * 5.9604644775390625e-8;
    return bitcast<f32>(sign | bitcast<u32>(magnitude));
}

// The same bits, without branches.
fn widen4_f16(words: vec2<u32>) -> vec4<f32> {
    let halves = words.xxyy >> vec4<u32>(0u, 16u, 0u, 16u);
    let sign = (halves & vec4<u32>(0x8000u)) << vec4<u32>(16u);
    let rest = halves & vec4<u32>(0x7fffu);
    let bias = select(vec4<u32>(0x38000000u), vec4<u32>(0x70000000u), rest >= vec4<u32>(0x7c00u));
    let normal = (rest << vec4<u32>(13u)) + bias;
    // Of signed integers, which more devices convert in one instruction.
    let subnormal = bitcast<vec4<u32>>(vec4<f32>(vec4<i32>(rest)) * 5.9604644775390625e-8);
    return bitcast<vec4<f32>>(sign | select(normal, subnormal, rest < vec4<u32>(0x0400u)));
}

fn narrow_f16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        return sign | 0x7e00u | ((rest >> 13u) & 0x3ffu);
    }
    if (rest >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (rest >= 0x38800000u) {
        let shifted = rest - 0x38000000u;
        return sign | ((shifted + 0xfffu + ((shifted >> 13u) & 1u)) >> 13u);
    }
    // Below half of the smallest subnormal number, the tie included.
    if (rest <= 0x33000000u) {
        return sign;
    }
    let shift = 126u - (rest >> 23u);
    let mantissa = (rest & 0x7fffffu) | 0x800000u;
    let kept = mantissa >> shift;
    let lost = mantissa & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    let up = lost > half || (lost == half && (kept & 1u) == 1u);
    return sign | (kept + select(0u, 1u, up));
}

