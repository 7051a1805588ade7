// One workgroup per column: the sum over the chunks of tokens.
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let column = group_index(wid);
    if (column >= params.groups) {
        return;
    }
    var sum = 0.0;
    for (var chunk = lane; chunk < params.chunks; chunk += WORKGROUP_SIZE) {
        sum += load_partial(chunk * params.columns + column);
    }
    sum = workgroup_sum(lane, sum);
    if (lane == 0u) {
        store_sums(column, sum);
    }
}
