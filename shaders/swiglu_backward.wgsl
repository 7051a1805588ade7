// One workgroup a row and COLUMNS of its columns. The dot product of a row is another launch: it needs one more binding than
// there are.

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let row = group / params.chunks;
    if (row < load_offsets(0u) || row >= load_offsets(params.experts)) {
        return;
    }
    let first = group % params.chunks * COLUMNS;
    let last = min(first + COLUMNS, params.width);
    var source = row;
    if (HAS_AB_INDEX) {
        source = load_ab_index(row);
    }
    var scale = 1.0;
    if (HAS_SCALE) {
        scale = load_scale(row);
    }
    let a_source = source * 2u * params.width;
    let a_target = row * 2u * params.width;
    for (var c = first + lane; c < last; c += WORKGROUP_SIZE) {
        let a = load_ab(a_source + c);
        let b = load_ab(a_source + params.width + c);
        let s = sigmoid_pair(a);
        let silu = a * s.x;
        let su = scale * load_u(row * params.width + c);
        store_h(row * params.width + c, silu * b);
        store_d_ab(a_target + c, su * b * (s.x * (1.0 + a * s.y)));
        store_d_ab(a_target + params.width + c, su * silu);
    }
}
