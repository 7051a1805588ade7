// Raises finite scores to the floor of their expert; rows that are not eligible get 0.
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
    if (score == NONE) {
        store_score(r, 0u);
    } else {
        store_score(r, max(score, load_floors(e)));
    }
}
