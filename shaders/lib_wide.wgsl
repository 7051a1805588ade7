// Integers of 64 and 96 bits out of words, low word first. All of it wraps.

fn mul32(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return vec2<u32>((right << 16u) | (low & 0xffffu), (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u));
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn mul64_32(a: vec2<u32>, b: u32) -> vec3<u32> {
    let low = mul32(a.x, b);
    let high = mul32(a.y, b);
    let middle = low.y + high.x;
    return vec3<u32>(low.x, middle, high.y + u32(middle < high.x));
}

// The upper half of the product.
fn mul64_high(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = mul64_32(a, b.x);
    let high = mul64_32(a, b.y);
    let carry = u32(low.y + high.x < high.x);
    return add64(add64(high.yz, vec2<u32>(low.z, 0u)), vec2<u32>(carry, 0u));
}

// For n below 64.
fn shr64(a: vec2<u32>, n: u32) -> vec2<u32> {
    if (n >= 32u) {
        return vec2<u32>(a.y >> (n - 32u), 0u);
    }
    if (n == 0u) {
        return a;
    }
    return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}

// For n below 96.
fn shl96(a: vec3<u32>, n: u32) -> vec3<u32> {
    var words = a;
    if (n >= 64u) {
        words = vec3<u32>(0u, 0u, a.x);
    } else if (n >= 32u) {
        words = vec3<u32>(0u, a.x, a.y);
    }
    let up = n & 31u;
    if (up == 0u) {
        return words;
    }
    return (words << vec3<u32>(up)) | (vec3<u32>(0u, words.xy) >> vec3<u32>(32u - up));
}

// 96 for zero.
fn leading_zeros96(a: vec3<u32>) -> u32 {
    if (a.z != 0u) {
        return countLeadingZeros(a.z);
    }
    if (a.y != 0u) {
        return 32u + countLeadingZeros(a.y);
    }
    return 64u + countLeadingZeros(a.x);
}
