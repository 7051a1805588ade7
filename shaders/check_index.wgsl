// Finds indices out of range: a flag, and the largest of them.
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let r = group * WORKGROUP_SIZE + lid;
    var first = 0u;
    var last = params.rows;
    if (HAS_OFFSETS) {
        first = load_offsets(0u);
        last = min(load_offsets(params.experts), params.rows);
    }
    if (r < first || r >= last) {
        return;
    }
    let value = load_index(r);
    if (value >= params.limit && !(NONE_ALLOWED && value == NONE)) {
        let flag = or_faults(params.place, 1u);
        let largest = max_faults(params.place + 1u, value);
    }
}
