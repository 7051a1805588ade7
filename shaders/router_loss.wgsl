// Sums over tokens in three passes: the softmax of each token, sums over chunks of tokens, sums over the chunks. Masked tokens are in
// none of them, whatever their logits.

/// One workgroup per token: `stats` gets shift and denominator of its softmax.
@compute @workgroup_size(WORKGROUP_SIZE)
fn stats_of_tokens(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let token = group_index(wid);
    if (token >= params.groups) {
        return;
    }
    let softmax = row_softmax(lane, token * params.experts, params.experts);
    if (lane == 0u) {
        store_stats(2u * token, softmax.top);
        store_stats(2u * token + 1u, softmax.sum);
    }
}

/// One invocation per column and chunk of tokens: a column is an expert, the last one the squared logsumexp.
@compute @workgroup_size(WORKGROUP_SIZE)
fn sums_of_chunks(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let chunk = group / params.column_groups;
    let column = group % params.column_groups * WORKGROUP_SIZE + lane;
    if (column > params.experts) {
        return;
    }
    var sum = 0.0;
    let last = min((chunk + 1u) * CHUNK, params.tokens);
    for (var token = chunk * CHUNK; token < last; token++) {
        if (HAS_MASK && load_mask(token) == 0u) {
            continue;
        }
        let softmax = Softmax(load_stats(2u * token), load_stats(2u * token + 1u));
        if (column < params.experts) {
            sum += probability(bitcast<f32>(load_logits(token * params.experts + column)), softmax);
        } else {
            let lse = log_sum_exp(softmax);
            sum += lse * lse;
        }
    }
    store_partial(chunk * (params.experts + 1u) + column, sum);
}
