// One subgroup a workgroup, no workgroup memory: each invocation loads another step of a's rows and hands it round by shuffles.
// For products whose rows of a are not steps; four values at a time.

var<workgroup> whole_tile: Tile;

@compute @workgroup_size(WORKGROUP_SIZE)
fn subgroup(@builtin(workgroup_id) wid: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {
    let workgroup = group_index(wid);
    if (workgroup >= params.groups) {
        return;
    }
    if (lane == 0u) {
        whole_tile = locate(workgroup);
    }
    let tile = workgroupUniformLoad(&whole_tile);
    if (tile.first >= tile.end || (RESUME && tile.begin >= tile.stop)) {
        return;
    }
    // What lies outside the product is computed from its last row or column, and not stored.
//: for m in 0..THREAD_ROWS
    let row_$m = min(tile.first + ${m}u, tile.end - 1u);
    let a_start_$m = a_start(row_$m);
//: end
//: if B_ROWS_ARE_STEPS
//: for n in 0..THREAD_COLS / 4
    let b_four_$n = min(tile.column / 4u + lane + WORKGROUP_SIZE * ${n}u, params.cols / 4u - 1u);
//: for i in 0..4
    let col_${4 * n + i} = tile.column + 4u * (lane + WORKGROUP_SIZE * ${n}u) + ${i}u;
//: end
//: end
//: else
//: for n in 0..THREAD_COLS
    let col_$n = tile.column + lane + WORKGROUP_SIZE * ${n}u;
    let b_start_$n = b_start(tile.group, min(col_$n, params.cols - 1u));
//: end
//: end
//: for m in 0..THREAD_ROWS
//: for n in 0..THREAD_COLS
    var acc_${m}_$n = 0.0;
//: end
//: if RESUME
    let c_old_$m = c_start(tile.group, row_$m);
//: for n in 0..THREAD_COLS
    acc_${m}_$n = load_c(c_old_$m + min(col_$n, params.cols - 1u));
//: end
//: end
//: end
    for (var first = tile.begin; first < tile.stop; first += WORKGROUP_SIZE) {
        let mine = min(first + lane, tile.stop - 1u);
//: for m in 0..THREAD_ROWS
        let a_mine_$m = load_a(a_start_$m + mine);
//: end
        let steps = min(WORKGROUP_SIZE, tile.stop - first);
        for (var t = 0u; t < steps; t += 4u) {
            let s = first + t;
//: if B_ROWS_ARE_STEPS
//: for q in 0..4
            let b_line_$q = b_start(tile.group, s + ${q}u);
//: for n in 0..THREAD_COLS / 4
            let b4_${q}_$n = load4_b(b_line_$q / 4u + b_four_$n);
//: end
//: for n in 0..THREAD_COLS
            let b_${n}_$q = b4_${q}_${n / 4}[${n % 4}];
//: end
//: end
//: else
//: for n in 0..THREAD_COLS
            let b4_$n = load4_b((b_start_$n + s) / 4u);
//: for q in 0..4
            let b_${n}_$q = b4_$n[$q];
//: end
//: end
//: end
//: for q in 0..4
//: for m in 0..THREAD_ROWS
            let a_${m}_$q = subgroupShuffle(a_mine_$m, t + ${q}u);
//: for n in 0..THREAD_COLS
            acc_${m}_$n = fma(a_${m}_$q, b_${n}_$q, acc_${m}_$n);
//: end
//: end
//: end
        }
    }
//: for m in 0..THREAD_ROWS
    if (tile.first + ${m}u < tile.end) {
        let c_row = c_start(tile.group, row_$m);
//: for n in 0..THREAD_COLS
        if (col_$n < params.cols) {
            store_c(c_row + col_$n, acc_${m}_$n);
        }
//: end
    }
//: end
}
