// One workgroup a row: its largest magnitude, then the sum of squares in its scale.

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group_index(wid);
    if (row >= params.groups) {
        return;
    }
    let start = row * params.cols;
    var largest = 0u;
    for (var c = lane; c < params.cols; c += WORKGROUP_SIZE) {
        largest = max(largest, magnitude(load_x(start + c)));
    }
    largest = workgroup_max(lane, largest);
    let shift = norm_shift(largest);
    var squares = 0.0;
    for (var c = lane; c < params.cols; c += WORKGROUP_SIZE) {
        let x = scaled(load_x(start + c), shift);
        squares += x * x;
    }
    squares = workgroup_sum(lane, squares);
    if (lane == 0u) {
        store_norm(row, norm_bits(largest, squares));
    }
}
