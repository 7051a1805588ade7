// One workgroup per token.
//
// Candidates are found best first: each round takes the best of those behind the one found before, so that nothing needs to be marked
// as taken, and any number of experts can be ranked without memory for them.

// Scores of experts for selection, as order keys; where they are too many to be kept, they are computed again in each round.
var<workgroup> expert_keys: array<u32, KEPT_KEYS>;
var<workgroup> group_keys: array<u32, N_GROUP>;
var<workgroup> best_keys: array<u32, WORKGROUP_SIZE>;
var<workgroup> best_ids: array<u32, WORKGROUP_SIZE>;
var<workgroup> part_keys: array<u32, PARTS>;
var<workgroup> part_ids: array<u32, PARTS>;

struct Token {
    /// Index of its first logit.
    first: u32,
    softmax: Softmax,
}

/// A place in the order of candidates: by falling key, then by rising id.
struct Rank {
    key: u32,
    id: u32,
}

/// Before every candidate.
fn rank_start() -> Rank {
    return Rank(0xffffffffu, NONE);
}

/// Behind every candidate: no float has key 0.
fn rank_end() -> Rank {
    return Rank(0u, NONE);
}

fn precedes(a: Rank, b: Rank) -> bool {
    // The id NONE is in front of all others, but for the end.
    return a.key > b.key || (a.key == b.key && a.id + 1u < b.id + 1u);
}

/// The first of the candidates that the invocations bring. Every invocation takes part.
fn workgroup_first(lane: u32, own: Rank) -> Rank {
    best_keys[lane] = own.key;
    best_ids[lane] = own.id;
    workgroupBarrier();
    if (lane < PARTS) {
        var best = own;
        for (var i = lane + PARTS; i < WORKGROUP_SIZE; i += PARTS) {
            let other = Rank(best_keys[i], best_ids[i]);
            if (precedes(other, best)) {
                best = other;
            }
        }
        part_keys[lane] = best.key;
        part_ids[lane] = best.id;
    }
    workgroupBarrier();
    var first = Rank(part_keys[0], part_ids[0]);
    for (var part = 1u; part < PARTS; part++) {
        let other = Rank(part_keys[part], part_ids[part]);
        if (precedes(other, first)) {
            first = other;
        }
    }
    return first;
}

fn score(token: Token, e: u32) -> f32 {
    return score_of(bitcast<f32>(load_logits(token.first + e)), token.softmax);
}

fn compute_key(token: Token, e: u32) -> u32 {
    if (BY_LOGIT) {
        return order_key(load_logits(token.first + e));
    }
    let own = score(token, e);
    if (!HAS_BIAS || is_nan(own)) {
        return order_key(bitcast<u32>(own));
    }
    let bias = load_bias(e);
    return order_key(bitcast<u32>(select(bias, own + bias, is_finite(bias))));
}

fn expert_key(token: Token, e: u32) -> u32 {
    if (KEEPS_KEYS) {
        return expert_keys[e];
    }
    return compute_key(token, e);
}

/// Key of the sum of a group's two best.
fn compute_group_key(token: Token, group: u32) -> u32 {
    var first = 0u;
    var second = 0u;
    for (var e = group * params.group_size; e < (group + 1u) * params.group_size; e++) {
        let key = expert_key(token, e);
        second = max(second, min(first, key));
        first = max(first, key);
    }
    if (second == 0u || first == 0xffffffffu) {
        return first;
    }
    return order_key(bitcast<u32>(float_of_key(first) + float_of_key(second)));
}

/// The last of the groups that stay eligible.
fn last_group(lane: u32, token: Token) -> Rank {
    for (var group = lane; group < N_GROUP; group += WORKGROUP_SIZE) {
        group_keys[group] = compute_group_key(token, group);
    }
    workgroupBarrier();
    var found = rank_start();
    for (var taken = 0u; taken < TOPK_GROUP; taken++) {
        var best = rank_end();
        for (var group = lane; group < N_GROUP; group += WORKGROUP_SIZE) {
            let candidate = Rank(group_keys[group], group);
            if (precedes(found, candidate) && precedes(candidate, best)) {
                best = candidate;
            }
        }
        found = workgroup_first(lane, best);
    }
    return found;
}

fn is_eligible(e: u32, last: Rank) -> bool {
    if (TOPK_GROUP == N_GROUP) {
        return true;
    }
    let group = e / params.group_size;
    return !precedes(last, Rank(group_keys[group], group));
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_index(wid);
    if (row >= params.groups) {
        return;
    }
    let slots = row * params.top_k;
    var token = Token(row * params.experts, Softmax(0.0, 1.0));
    if (!SIGMOID) {
        token.softmax = row_softmax(lane, token.first, params.experts);
    }
    if (KEEPS_KEYS) {
        for (var e = lane; e < params.experts; e += WORKGROUP_SIZE) {
            expert_keys[e] = compute_key(token, e);
        }
        workgroupBarrier();
    }
    var last = rank_end();
    if (TOPK_GROUP < N_GROUP) {
        last = last_group(lane, token);
    }
    let masked = HAS_MASK && load_mask(row) == 0u;
    var found = rank_start();
    var sum = 0.0;
    for (var slot = 0u; slot < params.top_k; slot++) {
        var best = rank_end();
        for (var e = lane; e < params.experts; e += WORKGROUP_SIZE) {
            let candidate = Rank(expert_key(token, e), e);
            if (precedes(found, candidate) && precedes(candidate, best) && is_eligible(e, last)) {
                best = candidate;
            }
        }
        found = workgroup_first(lane, best);
        // An invocation writes the weights of its slots only, and can read them again without a barrier.
        if (slot % WORKGROUP_SIZE == lane) {
            let own = score(token, found.id);
            sum += own;
            store_ids(slots + slot, select(found.id, NONE, masked));
            store_weights(slots + slot, own);
        }
    }
    var divisor = 1.0;
    if (NORMALISE) {
        divisor = workgroup_sum(lane, sum) + params.norm_eps;
    }
    for (var slot = lane; slot < params.top_k; slot += WORKGROUP_SIZE) {
        let weight = share(load_weights(slots + slot), divisor) * params.scaling;
        store_weights(slots + slot, select(weight, 0.0, masked));
    }
}
