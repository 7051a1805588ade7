// One invocation per word of weights; see `AdamW` for the formula.

fn old_weight(i: u32) -> f32 {
    if (HAS_MASTER) {
        return load_master(i);
    }
    return load_weight(i);
}

/// Steps one element; its new weight.
fn advance(i: u32) -> f32 {
    let g = load_grad(i) * params.grad_scale;
    let m = params.beta1 * load_m(i) + params.rest1 * g;
    let v = params.beta2 * load_v(i) + params.rest2 * (g * g);
    let rate = m / params.correction1 / (sqrt(v / params.correction2) + params.eps);
    let w = old_weight(i) * params.decay - params.lr * rate;
    store_m(i, m);
    store_v(i, v);
    store_master(i, w);
    return w;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    let word = group * WORKGROUP_SIZE + lane;
    let i = word * WEIGHT_PER_WORD;
    if (group >= params.groups || i >= params.len) {
        return;
    }
    let low = advance(i);
    if (WEIGHT_PER_WORD == 1u || i + 1u == params.len) {
        store_low_weight(word, low);
    } else {
        store_word_weight(word, low, advance(i + 1u));
    }
}
