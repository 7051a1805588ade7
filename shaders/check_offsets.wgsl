// Finds offsets that fall, and a last one beyond the rows.
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let e = group * WORKGROUP_SIZE + lid;
    if (e > params.experts) {
        return;
    }
    let value = load_offsets(e);
    if (e < params.experts && value > load_offsets(e + 1u)) {
        let flag = or_faults(params.place, 1u);
        let largest = max_faults(params.place + 1u, value);
    }
    if (e == params.experts && value > params.rows) {
        let flag = or_faults(params.place, 2u);
        let last = max_faults(params.place + 2u, value);
    }
}
