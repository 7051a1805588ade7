// The logistic function to a few units in the last place. WGSL's own exp loses one for each unit of its argument.

/// e^-x for x >= 0: range reduction by log 2 and the degree-5 polynomial of Cephes `expf` (Moshier). Every multiplication that
/// is not exact is fused or alone, so that all shaders that call it get the same bits.
fn exp_minus(x: f32) -> f32 {
    let y = -min(x, 104.0);
    let n = round(y * 1.44269504);
    // 9 bits times 8 bits: exact.
    let r = fma(n, 2.12194440e-4, fma(n, -0.693359375, y));
    var p = 1.9875691e-4;
    p = fma(p, r, 1.3982e-3);
    p = fma(p, r, 8.333452e-3);
    p = fma(p, r, 4.1665796e-2);
    p = fma(p, r, 1.6666666e-1);
    p = fma(p, r, 0.5);
    p = fma(p, r * r, r + 1.0);
    // 2^n in two factors: n goes down to -150, below the exponents of normal numbers.
    let whole = i32(n);
    let half = whole / 2;
    return p * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(whole - half + 127) << 23u);
}

/// `sigmoid(x)` and `1 - sigmoid(x)`, neither by a difference.
fn sigmoid_pair(x: f32) -> vec2<f32> {
    if (is_nan(x)) {
        return vec2(x, x);
    }
    let e = exp_minus(abs(x));
    let above = 1.0 / (1.0 + e);
    let below = e * above;
    return select(vec2(below, above), vec2(above, below), x >= 0.0);
}
