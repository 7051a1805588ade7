// One invocation per pair; see `RouterGrad` for the formula.

/// `c_t`: what a pair that was dropped gets.
fn baseline(token: u32) -> f32 {
    if (!HAS_DOT_DY) {
        return 0.0;
    }
    var sum = 0.0;
    for (var slot = 0u; slot < params.top_k; slot++) {
        sum += load_weights(token * params.top_k + slot);
    }
    if (sum == 0.0) {
        return 0.0;
    }
    return load_dot_dy(token) / sum;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let pair = group * WORKGROUP_SIZE + lane;
    if (pair >= params.pairs) {
        return;
    }
    if (load_ids(pair) == NONE) {
        store_d_weights(pair, 0.0);
        return;
    }
    let row = load_kept_of_pair(pair);
    var w = 0.0;
    var gradient = 0.0;
    if (row != NONE) {
        w = 1.0;
        if (HAS_WEIGHT) {
            w = load_weight(row);
        }
        gradient = load_dot(row);
    }
    // The product itself where the weight is 1: no rounding, and no baseline that may not be finite.
    if (bitcast<u32>(w) != bitcast<u32>(1.0)) {
        let c = baseline(pair / params.top_k);
        gradient = c + w * (gradient - c);
    }
    store_d_weights(pair, gradient);
}
