// Offsets of the retained rows, by one workgroup.
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    if (group_index(wid) >= params.groups) {
        return;
    }
    var before = 0u;
    for (var tile = 0u; tile < params.experts; tile += WORKGROUP_SIZE) {
        let e = tile + lid;
        var kept = 0u;
        if (e < params.experts) {
            kept = load_plan(e * PLAN_WORDS);
        }
        let through = scan(lid, kept);
        if (e < params.experts) {
            store_kept_offsets(e + 1u, before + through);
        }
        before += scanned();
    }
    if (lid == 0u) {
        store_kept_offsets(0u, 0u);
    }
}
