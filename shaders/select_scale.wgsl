// Weight times combine weight of every retained row, and where each pair went.
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let at = group * WORKGROUP_SIZE + lid;
    if (at >= params.capacity || at >= load_kept_offsets(params.experts)) {
        return;
    }
    let pair = load_pair(at);
    let g = load_weights(pair);
    let w = load_weight(at);
    // The bits of g where the weight is 1, also of one that the device would flush.
    store_scale(at, select(bitcast<u32>(bitcast<f32>(w) * bitcast<f32>(g)), g, w == ONE));
    store_kept_of_pair(pair, at);
}
