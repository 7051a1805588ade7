// Copies rows bit by bit, one workgroup a row and COLUMNS of its words.

fn in_use(row: u32) -> bool {
    return row >= load_offsets(0u) && row < load_offsets(params.experts);
}

fn source_start(row: u32) -> u32 {
    return load_index(row) / params.index_div * params.cols;
}

// A 16-bit element.
fn half_of(i: u32) -> u32 {
    return (load_src(i >> 1u) >> ((i & 1u) * 16u)) & 0xffffu;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn whole(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let row = group / params.chunks;
    if (!in_use(row)) {
        return;
    }
    let first = group % params.chunks * COLUMNS;
    let last = min(first + COLUMNS, params.cols);
    let source = source_start(row);
    for (var c = first + lane; c < last; c += WORKGROUP_SIZE) {
        store_dst(row * params.cols + c, load_src(source + c));
    }
}

// Rows of few words: one invocation a word, COLUMNS of all words a workgroup.
@compute @workgroup_size(WORKGROUP_SIZE)
fn narrow(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let last = min((group + 1u) * COLUMNS, params.total);
    for (var i = group * COLUMNS + lane; i < last; i += WORKGROUP_SIZE) {
        let row = i / params.cols;
        if (in_use(row)) {
            store_dst(i, load_src(source_start(row) + i - row * params.cols));
        }
    }
}

// Two elements a word. A row has the words that begin in it, so the last may end in the next row.
@compute @workgroup_size(WORKGROUP_SIZE)
fn halves(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let row = group / params.chunks;
    let used = in_use(row);
    let source = source_start(row);
    let start = row * params.cols;
    let end = start + params.cols;
    let first = (start + 1u) / 2u + group % params.chunks * COLUMNS;
    let last = min(first + COLUMNS, (end + 1u) / 2u);
    for (var word = first + lane; word < last; word += WORKGROUP_SIZE) {
        let column = word * 2u - start;
        var value = 0u;
        var kept = 0xffffffffu;
        if (used) {
            value = half_of(source + column);
            kept = 0xffff0000u;
        }
        if (column + 1u < params.cols) {
            if (used) {
                value |= half_of(source + column + 1u) << 16u;
                kept = 0u;
            }
        } else if (in_use(row + 1u)) {
            value |= half_of(source_start(row + 1u)) << 16u;
            kept &= 0xffffu;
        }
        if (kept != 0u) {
            value |= load_dst(word) & kept;
        }
        store_dst(word, value);
    }
}
