// One workgroup a row.

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_index(wid);
    if (row >= params.groups) {
        return;
    }
    // A row that is not in use has no columns: barriers must be reached by all.
    let used = row >= load_offsets(0u) && row < load_offsets(params.experts);
    let width = select(0u, params.width, used);
    let a_start = row * 2u * params.width;
    let b_start = a_start + params.width;
    let h_start = row * params.width;
    var largest = 0u;
    for (var c = lane; c < width; c += WORKGROUP_SIZE) {
        let a = load_ab(a_start + c);
        let h = a * sigmoid_pair(a).x * load_ab(b_start + c);
        store_h(h_start + c, h);
        largest = max(largest, magnitude(h));
    }
    largest = workgroup_max(lane, largest);
    let shift = norm_shift(largest);
    var squares = 0.0;
    for (var c = lane; c < width; c += WORKGROUP_SIZE) {
        let h = scaled(load_h(h_start + c), shift);
        squares += h * h;
    }
    squares = workgroup_sum(lane, squares);
    if (lane == 0u && used) {
        store_norm(row, norm_bits(largest, squares));
    }
}
