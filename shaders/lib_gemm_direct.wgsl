// No workgroup memory: an invocation has THREAD_ROWS x THREAD_COLS elements in registers. Its rows come from the index of the
// workgroup alone, so a's values are the same for all invocations: a CPU loads them once for a whole vector.

@compute @workgroup_size(WORKGROUP_SIZE)
fn direct(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let workgroup = group_index(wid);
    if (workgroup >= params.groups) {
        return;
    }
    let tile = locate(workgroup);
    if (tile.first >= tile.end || (RESUME && tile.begin >= tile.stop)) {
        return;
    }
    // What lies outside the product is computed from its last row or column, and not stored.
//: for m in 0..THREAD_ROWS
    let row_$m = min(tile.first + ${m}u, tile.end - 1u);
//: if !A_ROWS_ARE_STEPS
    let a_start_$m = a_start(row_$m);
//: end
//: end
//: if A_ROWS_ARE_STEPS && VEC4
//: for m in 0..THREAD_ROWS / 4
    let a_four_$m = min(tile.first + ${4 * m}u, tile.end - 4u) / 4u;
//: end
//: end
//: if B_ROWS_ARE_STEPS && VEC4
//: for n in 0..THREAD_COLS / 4
    let b_four_$n = min(tile.column / 4u + lane + WORKGROUP_SIZE * ${n}u, params.cols / 4u - 1u);
//: for i in 0..4
    let col_${4 * n + i} = tile.column + 4u * (lane + WORKGROUP_SIZE * ${n}u) + ${i}u;
//: end
//: end
//: else
//: for n in 0..THREAD_COLS
    let col_$n = tile.column + lane + WORKGROUP_SIZE * ${n}u;
    let inside_$n = min(col_$n, params.cols - 1u);
//: if !B_ROWS_ARE_STEPS
    let b_start_$n = b_start(tile.group, inside_$n);
//: end
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
    var s = tile.begin;
//: for steps in 4, 1
    // Four values of one row of storage are always whole; where each step is a row of its own, some may be left.
//: if steps == 4 || !VEC4 || A_ROWS_ARE_STEPS && B_ROWS_ARE_STEPS
    for (; s + ${steps}u <= tile.stop; s += ${steps}u) {
//: for q in 0..steps
//: if A_ROWS_ARE_STEPS
        let a_line_$q = a_start(s + ${q}u);
        let scale_$q = a_scale(s + ${q}u);
//: if VEC4
//: for m in 0..THREAD_ROWS / 4
        let a4_${q}_$m = load4_a(a_line_$q / 4u + a_four_$m);
//: end
//: for m in 0..THREAD_ROWS
        let a_${m}_$q = select(a4_${q}_${m / 4}[${m % 4}], a4_${q}_${m / 4}[${m % 4}] * scale_$q, A_IS_SCALED);
//: end
//: else
//: for m in 0..THREAD_ROWS
        let a_at_${m}_$q = load_a(a_line_$q + row_$m);
        let a_${m}_$q = select(a_at_${m}_$q, a_at_${m}_$q * scale_$q, A_IS_SCALED);
//: end
//: end
//: end
//: if B_ROWS_ARE_STEPS
        let b_line_$q = b_start(tile.group, s + ${q}u);
//: if VEC4
//: for n in 0..THREAD_COLS / 4
        let b4_${q}_$n = load4_b(b_line_$q / 4u + b_four_$n);
//: end
//: for n in 0..THREAD_COLS
        let b_${n}_$q = b4_${q}_${n / 4}[${n % 4}];
//: end
//: else
//: for n in 0..THREAD_COLS
        let b_${n}_$q = load_b(b_line_$q + inside_$n);
//: end
//: end
//: end
//: end
//: if !A_ROWS_ARE_STEPS
//: for m in 0..THREAD_ROWS
//: if VEC4
        let a4_$m = load4_a((a_start_$m + s) / 4u);
//: end
//: for q in 0..steps
//: if VEC4
        let a_${m}_$q = a4_$m[$q];
//: else
        let a_${m}_$q = load_a(a_start_$m + s + ${q}u);
//: end
//: end
//: end
//: end
//: if !B_ROWS_ARE_STEPS
//: for n in 0..THREAD_COLS
//: if VEC4
        let b4_$n = load4_b((b_start_$n + s) / 4u);
//: end
//: for q in 0..steps
//: if VEC4
        let b_${n}_$q = b4_$n[$q];
//: else
        let b_${n}_$q = load_b(b_start_$n + s + ${q}u);
//: end
//: end
//: end
//: end
//: for q in 0..steps
//: for m in 0..THREAD_ROWS
//: for n in 0..THREAD_COLS
        acc_${m}_$n = fma(a_${m}_$q, b_${n}_$q, acc_${m}_$n);
//: end
//: end
//: end
    }
//: end
//: end
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
