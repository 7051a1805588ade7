// Stable counting sort, in four launches: how many pairs of each block of pairs go to each expert (`table`, experts by
// blocks), prefix sums along each expert's blocks, prefix sums over experts, and the move of each pair.

// A multiple of 4, which is what ranks are counted by.
var<workgroup> tile: array<u32, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn count(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let pair = group * WORKGROUP_SIZE + lane;
    if (pair < params.pairs) {
        let id = load_ids(pair);
        // NONE is above every expert.
        if (id < params.experts) {
            add_table(id * params.blocks + pair / params.block, 1u);
        }
    }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn sum_blocks(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let expert = group_index(wid);
    if (expert >= params.groups) {
        return;
    }
    // Each invocation has neighbouring blocks.
    let share = (params.blocks + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    let first = min(lane * share, params.blocks);
    let last = min(first + share, params.blocks);
    let start = expert * params.blocks;
    var sum = 0u;
    for (var block = first; block < last; block++) {
        sum += load_table(start + block);
    }
    var before = scan(lane, sum) - sum;
    for (var block = first; block < last; block++) {
        let pairs = load_table(start + block);
        store_table(start + block, before);
        before += pairs;
    }
    if (lane == WORKGROUP_SIZE - 1u) {
        store_counts(expert, before);
    }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn sum_experts(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if (group_index(wid) >= params.groups) {
        return;
    }
    let share = (params.experts + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    let first = min(lane * share, params.experts);
    let last = min(first + share, params.experts);
    var sum = 0u;
    for (var expert = first; expert < last; expert++) {
        sum += load_counts(expert);
    }
    var before = scan(lane, sum) - sum;
    for (var expert = first; expert < last; expert++) {
        store_offsets(expert, before);
        before += load_counts(expert);
    }
    if (lane == WORKGROUP_SIZE - 1u) {
        store_offsets(params.experts, before);
    }
}

// One workgroup a block, tile by tile: a pair's row is its expert's first row, and the pairs of the same expert in earlier
// blocks, in earlier tiles and earlier in the tile.
@compute @workgroup_size(WORKGROUP_SIZE)
fn move_pairs(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = group_index(wid);
    if (block >= params.groups) {
        return;
    }
    for (var step = 0u; step < params.block; step += WORKGROUP_SIZE) {
        let pair = block * params.block + step + lane;
        var id = NONE;
        if (pair < params.pairs) {
            id = load_ids(pair);
        }
        tile[lane] = id;
        workgroupBarrier();
        var rank = 0u;
        var equal = 0u;
        for (var i = 0u; i < WORKGROUP_SIZE; i += 4u) {
            let ids = vec4(tile[i], tile[i + 1u], tile[i + 2u], tile[i + 3u]);
            let same = vec4<u32>(ids == vec4(id));
            rank += dot(same, vec4<u32>(vec4(i, i + 1u, i + 2u, i + 3u) < vec4(lane)));
            equal += dot(same, vec4(1u));
        }
        let cell = id * params.blocks + block;
        let sorted = id < params.experts;
        var row = NONE;
        var earlier = 0u;
        if (sorted) {
            earlier = load_table(cell);
            row = load_offsets(id) + earlier + rank;
            store_pair_of_row(row, pair);
        }
        if (pair < params.pairs) {
            store_row_of_pair(pair, row);
        }
        // All have read the tile and the table before the next tile overwrites one and the last pair of each expert the
        // other.
        workgroupBarrier();
        storageBarrier();
        if (sorted && rank + 1u == equal) {
            store_table(cell, earlier + equal);
        }
        storageBarrier();
    }
}
