@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    let i = group * WORKGROUP_SIZE + lane;
    if (group < params.groups && i < params.len) {
        store_s(i, sigmoid_pair(load_z(i)).x);
    }
}
