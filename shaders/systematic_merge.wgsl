// One pass of a merge sort of every expert's rows by key, global token id, slot and row: sorted runs of `width` become runs twice as
// long. A row's place in the merged run is its own index and the number of rows of the other run that stand before it.

fn is_listed_before(a: u32, b: u32) -> bool {
    let key_a = load_order(load_pair_of_row(a) / params.top_k);
    let key_b = load_order(load_pair_of_row(b) / params.top_k);
    if (key_a != key_b) {
        return key_a < key_b;
    }
    return is_before(place_of(a), place_of(b));
}

// Rows in their own order, where nothing is sorted yet.
fn listed(at: u32) -> u32 {
    if (HAS_SORTED) {
        return load_sorted(at);
    }
    return at;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let at = group * WORKGROUP_SIZE + lid;
    if (at >= params.rows) {
        return;
    }
    let e = find_group(at, params.experts);
    if (e >= params.experts) {
        return;
    }
    let begin = group_begin(e, params.rows);
    let end = group_end(e, params.rows);
    let run = (at - begin) / params.width;
    let own = begin + run * params.width;
    let other = begin + (run ^ 1u) * params.width;
    let row = listed(at);
    var low = min(other, end);
    var high = min(other + params.width, end);
    while (low < high) {
        let middle = (low + high) >> 1u;
        if (is_listed_before(listed(middle), row)) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    let before = low - min(other, end);
    store_merged(min(own, other) + (at - own) + before, row);
}
