// Softmax of a row of `logits`, which are bound as bits. Needs lib_sigmoid and lib_reduce.

/// Orders as the float with these bits: equal zeros, NaN above every number.
fn order_key(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0xffffffffu;
    }
    if (magnitude == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits > 0x7fffffffu);
}

/// The float that has this key.
fn float_of_key(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}

/// `softmax(l) = e^(l - top) / sum`. Both are NaN where the row has no softmax: NaN or infinity among the logits, or nothing else
/// than minus infinity.
struct Softmax {
    top: f32,
    sum: f32,
}

/// `e^(logit - top)`, NaN where one of them is.
fn exp_below(logit: f32, top: f32) -> f32 {
    if (is_nan(logit) || is_nan(top)) {
        return nan();
    }
    return exp_minus(top - logit);
}

/// Part of a sum. Division may be off by a few units in the last place, but all of a sum is exactly 1 of it: with one expert a token
/// the gradient of the weight is then exactly 0.
fn share(part: f32, sum: f32) -> f32 {
    return select(part / sum, 1.0, part == sum);
}

fn row_softmax(lane: u32, first: u32, experts: u32) -> Softmax {
    var key = 0u;
    for (var e = lane; e < experts; e += WORKGROUP_SIZE) {
        key = max(key, order_key(load_logits(first + e)));
    }
    var top = float_of_key(workgroup_max(lane, key));
    if (!is_finite(top)) {
        top = nan();
    }
    var sum = 0.0;
    for (var e = lane; e < experts; e += WORKGROUP_SIZE) {
        sum += exp_below(bitcast<f32>(load_logits(first + e)), top);
    }
    return Softmax(top, workgroup_sum(lane, sum));
}

fn probability(logit: f32, softmax: Softmax) -> f32 {
    return exp_below(logit, softmax.top) / softmax.sum;
}

fn log_sum_exp(softmax: Softmax) -> f32 {
    if (is_nan(softmax.top)) {
        return nan();
    }
    // One step of Newton's method: `log` is wrong by up to 2^-21 next to 1.
    let log_sum = max(log(softmax.sum), 0.0);
    return softmax.top + (log_sum + (softmax.sum * exp_minus(log_sum) - 1.0));
}
