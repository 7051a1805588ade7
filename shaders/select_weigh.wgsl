// Bits of the weight of every row before the cap, 0 where it is not retained. For systematic sampling, the weight that a row has if it is
// drawn, and its length on the line of all sizes.

fn is_within(key: u32, row: u32, plan: u32) -> bool {
    let last = load_plan(plan);
    if (key != last) {
        return key < last;
    }
    let place = vec4<u32>(load_plan(plan + 1u), load_plan(plan + 2u), load_plan(plan + 3u), load_plan(plan + 4u));
    return !is_before(place, place_of(row));
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
    let plan = e * PLAN_WORDS;
    let score = load_score(r);
    var weight = 0u;
    var length = vec2<u32>(0u);
    if (!is_eligible(score)) {
        weight = 0u;
    } else if (is_within(~score, r, plan + PLAN_SURE)) {
        weight = ONE;
    } else if (RULE == SYSTEMATIC) {
        let slots = load_plan(plan + PLAN_SLOTS);
        if (slots != 0u) {
            let sum = vec3<u32>(load_plan(plan + PLAN_SUM), load_plan(plan + PLAN_SUM + 1u), 0u);
            length = mul64_32(size(score, load_plan(plan + PLAN_LARGEST)), slots).xy;
            weight = divide96(sum, length, 0);
        }
    } else if (RULE != TOP && is_within(~load_priority(r), r, plan + PLAN_DRAWN)) {
        weight = max(ONE, divide(load_plan(plan + PLAN_TAU), score));
        if (score == INFINITE) {
            weight = ONE;
        }
    }
    store_chosen(r, weight);
    if (RULE == SYSTEMATIC) {
        store_length(2u * r, length.x);
        store_length(2u * r + 1u, length.y);
    }
}
