// One workgroup a product.

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let product = group_index(wid);
    if (product >= params.groups) {
        return;
    }
    var row = product;
    if (HAS_B_INDEX) {
        row = load_b_index(product);
    }
    let used = !HAS_OFFSETS || (product >= load_offsets(0u) && product < load_offsets(params.experts));
    // A row that is not there has no columns: barriers must be reached by all. NONE is above every row.
    let cols = select(0u, params.cols, used && row < params.stored);
    let a_start = product / params.a_div * params.cols;
    let b_start = row * params.cols;
    var sum = 0.0;
    for (var c = lane; c < cols; c += WORKGROUP_SIZE) {
        sum += load_a(a_start + c) * load_b(b_start + c);
    }
    sum = workgroup_sum(lane, sum);
    if (lane == 0u && used) {
        store_dot(product, sum);
    }
}
