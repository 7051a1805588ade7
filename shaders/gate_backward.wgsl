// One workgroup per token: the slots give sums of their scores, and then every expert looks for itself among them.

struct Token {
    /// Index of its first logit.
    first: u32,
    /// Index of its first slot.
    slots: u32,
    softmax: Softmax,
    /// Sum of the selected scores, and the mean of dL/dweight over them; of no use without normalisation.
    sum: f32,
    mean: f32,
}

fn logit_of(token: Token, e: u32) -> f32 {
    return bitcast<f32>(load_logits(token.first + e));
}

fn score(token: Token, e: u32) -> f32 {
    return score_of(logit_of(token, e), token.softmax);
}

/// dL/dscore of the expert in a slot.
fn slot_gradient(token: Token, slot: u32) -> f32 {
    let d_weight = load_d_weights(token.slots + slot);
    if (NORMALISE) {
        return params.scaling * (d_weight - token.mean) / token.sum;
    }
    return params.scaling * d_weight;
}

/// What the combine weights ask of an expert: dL/dscore, times the derivative of a sigmoid. 0 where it is in no slot.
fn expert_gradient(token: Token, e: u32) -> f32 {
    var sum = 0.0;
    for (var slot = 0u; slot < params.top_k; slot++) {
        if (load_ids(token.slots + slot) == e) {
            var own = slot_gradient(token, slot);
            if (SIGMOID) {
                let s = sigmoid_pair(logit_of(token, e));
                own *= s.x * s.y;
            }
            sum += own;
        }
    }
    return sum;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_index(wid);
    if (row >= params.groups) {
        return;
    }
    var token = Token(row * params.experts, row * params.top_k, Softmax(0.0, 1.0), 1.0, 0.0);
    if (NEEDS_SOFTMAX) {
        token.softmax = row_softmax(lane, token.first, params.experts);
    }
    var masked = 0u;
    var scores = 0.0;
    for (var slot = lane; slot < params.top_k; slot += WORKGROUP_SIZE) {
        let e = load_ids(token.slots + slot);
        if (e == NONE) {
            masked = 1u;
        } else {
            scores += score(token, e);
        }
    }
    masked = workgroup_max(lane, masked);
    if (NORMALISE) {
        token.sum = workgroup_sum(lane, scores) + params.norm_eps;
        var weighted = 0.0;
        for (var slot = lane; slot < params.top_k; slot += WORKGROUP_SIZE) {
            let e = load_ids(token.slots + slot);
            if (e != NONE) {
                weighted += load_d_weights(token.slots + slot) * share(score(token, e), token.sum);
            }
        }
        token.mean = workgroup_sum(lane, weighted);
    }
    var inner = 0.0;
    if (NEEDS_SOFTMAX) {
        if (HAS_AUX) {
            for (var e = lane; e < params.experts; e += WORKGROUP_SIZE) {
                inner += probability(logit_of(token, e), token.softmax) * load_aux(e);
            }
        }
        if (!SIGMOID) {
            for (var slot = lane; slot < params.top_k; slot += WORKGROUP_SIZE) {
                let e = load_ids(token.slots + slot);
                inner += score(token, min(e, params.experts - 1u)) * slot_gradient(token, slot);
            }
        }
        inner = workgroup_sum(lane, inner);
    }
    var z = 0.0;
    if (HAS_Z) {
        z = 2.0 * params.z_scale * log_sum_exp(token.softmax);
    }
    for (var e = lane; e < params.experts; e += WORKGROUP_SIZE) {
        var d_logit = 0.0;
        if (masked == 0u) {
            let own = expert_gradient(token, e);
            if (NEEDS_SOFTMAX) {
                // The auxiliary losses are functions of the softmax probabilities in every model.
                let d_p = load_aux(e) + select(own, 0.0, SIGMOID);
                d_logit = probability(logit_of(token, e), token.softmax) * (d_p - inner + z);
            }
            if (SIGMOID) {
                d_logit += own;
            }
        }
        store_d_logits(token.first + e, d_logit);
    }
}
