// Retained rows of each expert in forward order, one workgroup each.

var<workgroup> span: vec2<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let e = group_index(wid);
    if (e >= params.groups) {
        return;
    }
    var at = load_kept_offsets(e);
    if (lid == 0u) {
        span = vec2<u32>(group_begin(e, params.rows), group_end(e, params.rows));
    }
    let rows = workgroupUniformLoad(&span);
    for (var tile = rows.x; tile < rows.y; tile += WORKGROUP_SIZE) {
        let r = tile + lid;
        var weight = 0u;
        if (r < rows.y) {
            weight = load_chosen(r);
        }
        let through = scan(lid, u32(weight != 0u));
        let to = at + through - 1u;
        if (weight != 0u && to < params.capacity) {
            store_row(to, r);
            store_pair(to, load_pair_of_row(r));
            store_weight(to, min(weight, params.cap));
        }
        at += scanned();
    }
}
