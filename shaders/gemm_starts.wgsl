// Row tiles of every group, counted up: `starts[e]..starts[e + 1]` are the tiles of group e. One workgroup.

var<workgroup> sums: array<u32, WORKGROUP_SIZE>;

fn tiles_of(e: u32) -> u32 {
    let rows = group_end(e, params.rows) - group_begin(e, params.rows);
    return rows / params.tile_rows + select(0u, 1u, rows % params.tile_rows != 0u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let workgroup = group_index(wid);
    if (workgroup >= params.groups) {
        return;
    }
    // Each invocation counts a run of consecutive groups.
    let run = (params.experts + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    let first = min(lane * run, params.experts);
    let end = min(first + run, params.experts);
    var sum = 0u;
    for (var e = first; e < end; e++) {
        sum += tiles_of(e);
    }
    sums[lane] = sum;
    workgroupBarrier();
    var before = 0u;
    for (var i = 0u; i < lane; i++) {
        before += sums[i];
    }
    for (var e = first; e < end; e++) {
        store_starts(e, before);
        before += tiles_of(e);
    }
    if (lane == WORKGROUP_SIZE - 1u) {
        store_starts(params.experts, before);
    }
}
