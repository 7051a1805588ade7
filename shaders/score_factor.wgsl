// sqrt(h^2 + kappa^2 x^2) of every row as mantissa and exponent: neither the squares nor the root need fit f32. The mantissa is NONE
// where an input is not finite.

// A mantissa in 1..4 times a power of two; zero has the lowest exponent.
struct Scaled {
    value: f32,
    exponent: i32,
}

fn scaled_to(a: Scaled, exponent: i32) -> f32 {
    let down = exponent - a.exponent;
    // Too small to matter beside the other.
    if (down > 60) {
        return 0.0;
    }
    return a.value * bitcast<f32>(u32(127 - down) << 23u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let r = group * WORKGROUP_SIZE + lid;
    if (r >= params.rows) {
        return;
    }
    let e = find_group(r, params.experts);
    if (e >= params.experts) {
        return;
    }
    let h_bits = load_h_norm(r);
    let x_bits = load_x_norm(load_pair_of_row(r) / params.top_k);
    let kappa_bits = load_kappa(e);
    if (!(is_finite_bits(h_bits) && is_finite_bits(x_bits) && is_finite_bits(kappa_bits))) {
        store_factor(2u * r, NONE);
        return;
    }
    let h = number_of(h_bits);
    let x = number_of(x_bits);
    let kappa = number_of(kappa_bits);
    var a = Scaled(0.0, -1000);
    if (h.mantissa != 0u) {
        a = Scaled(f32(h.mantissa) * 0x1p-23f, h.exponent + 23);
    }
    var b = Scaled(0.0, -1000);
    if (x.mantissa != 0u && kappa.mantissa != 0u) {
        let mantissas = (f32(x.mantissa) * 0x1p-23f) * (f32(kappa.mantissa) * 0x1p-23f);
        b = Scaled(mantissas, x.exponent + kappa.exponent + 46);
    }
    let exponent = max(a.exponent, b.exponent);
    let u = scaled_to(a, exponent);
    let v = scaled_to(b, exponent);
    let root = number_of(bitcast<u32>(sqrt(u * u + v * v)));
    store_factor(2u * r, root.mantissa);
    store_factor(2u * r + 1u, bitcast<u32>(root.exponent + exponent));
}
