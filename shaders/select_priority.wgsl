// Priority score / u of every row, u in (0, 1] from the counter-based generator; 0 for rows that are not eligible.
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
    let score = load_score(r);
    var priority = 0u;
    if (score == INFINITE) {
        priority = INFINITE;
    } else if (is_eligible(score)) {
        let place = place_of(r);
        let word = philox(vec4<u32>(place.y, place.x, e, 0u), vec2<u32>(params.key_0, params.key_1)).x;
        // At most 2^24: exact, and so is the product.
        let u = f32((word >> 8u) + 1u) * 0x1p-24f;
        priority = clamp_positive(divide(score, bitcast<u32>(u)));
    }
    store_priority(r, priority);
}
