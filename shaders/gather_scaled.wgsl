// Scaled rows in f32, one workgroup a row and COLUMNS of its columns.

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
    let last = min(first + COLUMNS, params.cols);
    let source = load_index(row) / params.index_div * params.cols;
    let scale = load_scale(row);
    for (var c = first + lane; c < last; c += WORKGROUP_SIZE) {
        store_dst(row * params.cols + c, scale * load_src(source + c));
    }
}
