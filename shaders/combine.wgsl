// One workgroup a token and COLUMNS of its columns. A column is one invocation's, and its slots are added in order.

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let token = group / params.chunks;
    let first = group % params.chunks * COLUMNS;
    let last = min(first + COLUMNS, params.cols);
    let first_pair = token * params.top_k;
    for (var c = first + lane; c < last; c += WORKGROUP_SIZE) {
        let at = token * params.cols + c;
        var sum = 0.0;
        if (ACCUMULATE) {
            sum = load_out(at);
        }
        for (var pair = first_pair; pair < first_pair + params.top_k; pair++) {
            var row = pair;
            if (HAS_ROW_OF_PAIR) {
                row = load_row_of_pair(pair);
            }
            // NONE is above every row.
            if (row < params.stored) {
                var weight = 1.0;
                if (HAS_WEIGHTS) {
                    weight = load_weights(pair);
                }
                sum += weight * load_rows(row * params.cols + c);
            }
        }
        store_out(at, sum);
    }
}
