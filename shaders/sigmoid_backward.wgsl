@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    let i = group * WORKGROUP_SIZE + lane;
    if (group < params.groups && i < params.len) {
        let s = load_s(i);
        store_dz(i, load_ds(i) * s * (1.0 - s));
    }
}
