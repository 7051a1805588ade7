// Exponentials by range reduction and the degree-5 polynomial of Cephes `expf` (Moshier), as on the CPU: `exp` may be wrong by
// tens of units in the last place, and promises nothing of infinities.

fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}

/// `e^x` of `x <= 0`, to about one unit in the last place; 0 where that is below the subnormal numbers.
fn exp_of_negative(x: f32) -> f32 {
    if (is_nan(x)) {
        return nan();
    }
    let bounded = clamp(x, -104.0, 0.0);
    let n = round(bounded * 1.44269504);
    // log 2 in two parts, the first of 9 bits: its product with n is exact.
    let r = (bounded - n * 0.693359375) - n * -2.1219444e-4;
    var p = 1.9875691e-4;
    p = p * r + 1.3982e-3;
    p = p * r + 8.333452e-3;
    p = p * r + 4.1665796e-2;
    p = p * r + 1.6666665e-1;
    p = p * r + 0.5;
    let e = p * (r * r) + r + 1.0;
    // 2^n in two factors: n falls below the exponents of normal numbers.
    let half = i32(n) >> 1u;
    return e * power_of_two(half) * power_of_two(i32(n) - half);
}

/// `1 / (1 + e^-x)`.
fn sigmoid(x: f32) -> f32 {
    let e = exp_of_negative(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}
