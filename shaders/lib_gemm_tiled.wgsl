// Tiles of both operands in workgroup memory, THREAD_ROWS x THREAD_COLS elements of c in an invocation's registers.
//
// An invocation's rows and columns are GRID_ROWS and GRID_COLS apart, so that neighbours read and write neighbouring words.

// Operands whose rows are not steps are turned while they are stored: two words more spread those stores over the banks.
//: if A_ROWS_ARE_STEPS
const A_PITCH: u32 = TILE_ROWS;
//: else
const A_PITCH: u32 = TILE_ROWS + 2u;
//: end
//: if B_ROWS_ARE_STEPS
const B_PITCH: u32 = TILE_COLS;
//: else
const B_PITCH: u32 = TILE_COLS + 2u;
//: end

var<workgroup> a_tile: array<f32, STEPS * A_PITCH>;
var<workgroup> b_tile: array<f32, STEPS * B_PITCH>;
var<workgroup> whole_tile: Tile;

@compute @workgroup_size(WORKGROUP_SIZE)
fn tiled(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
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
    let thread_row = lane / GRID_COLS;
    let thread_col = lane % GRID_COLS;
    // What an invocation copies: WIDTH elements of a row of storage at a time.
//: for c in 0..TILE_ROWS * STEPS / WIDTH / (GRID_ROWS * GRID_COLS)
    let a_item_$c = lane + WORKGROUP_SIZE * ${c}u;
//: if A_ROWS_ARE_STEPS
    let a_step_$c = a_item_$c / (TILE_ROWS / WIDTH);
    let a_lane_$c = a_item_$c % (TILE_ROWS / WIDTH) * WIDTH;
    let a_from_$c = min(tile.first + a_lane_$c, tile.end - WIDTH);
//: else
    let a_step_$c = a_item_$c % (STEPS / WIDTH) * WIDTH;
    let a_lane_$c = a_item_$c / (STEPS / WIDTH);
    let a_from_$c = a_start(min(tile.first + a_lane_$c, tile.end - 1u));
//: end
//: end
//: for c in 0..TILE_COLS * STEPS / WIDTH / (GRID_ROWS * GRID_COLS)
    let b_item_$c = lane + WORKGROUP_SIZE * ${c}u;
//: if B_ROWS_ARE_STEPS
    let b_step_$c = b_item_$c / (TILE_COLS / WIDTH);
    let b_lane_$c = b_item_$c % (TILE_COLS / WIDTH) * WIDTH;
    let b_from_$c = min(tile.column + b_lane_$c, params.cols - WIDTH);
//: else
    let b_step_$c = b_item_$c % (STEPS / WIDTH) * WIDTH;
    let b_lane_$c = b_item_$c / (STEPS / WIDTH);
    let b_from_$c = b_start(tile.group, min(tile.column + b_lane_$c, params.cols - 1u));
//: end
//: end
//: for m in 0..THREAD_ROWS
    let row_$m = tile.first + thread_row + GRID_ROWS * ${m}u;
//: for n in 0..THREAD_COLS
    var acc_${m}_$n = 0.0;
//: end
//: end
//: for n in 0..THREAD_COLS
    let col_$n = tile.column + thread_col + GRID_COLS * ${n}u;
//: end
//: if RESUME
//: for m in 0..THREAD_ROWS
    let c_old_$m = c_start(tile.group, min(row_$m, tile.end - 1u));
//: for n in 0..THREAD_COLS
    acc_${m}_$n = load_c(c_old_$m + min(col_$n, params.cols - 1u));
//: end
//: end
//: end
    for (var s = tile.begin; s < tile.stop; s += STEPS) {
        // Steps past the end add -0, which changes no sum.
//: for c in 0..TILE_ROWS * STEPS / WIDTH / (GRID_ROWS * GRID_COLS)
//: for i in 0..WIDTH
        var a_${c}_$i = -0.0;
//: end
        if (s + a_step_$c < tile.stop) {
//: if A_ROWS_ARE_STEPS
            let line = a_start(s + a_step_$c) + a_from_$c;
            let scale = a_scale(s + a_step_$c);
//: else
            let line = a_from_$c + s + a_step_$c;
            let scale = 1.0;
//: end
//: if VEC4
            let read = load4_a(line / 4u);
            let value = select(read, read * scale, A_IS_SCALED);
//: for i in 0..4
            a_${c}_$i = value[$i];
//: end
//: else
            let read = load_a(line);
            a_${c}_0 = select(read, read * scale, A_IS_SCALED);
//: end
        }
//: for i in 0..WIDTH
//: if A_ROWS_ARE_STEPS
        a_tile[a_step_$c * A_PITCH + a_lane_$c + ${i}u] = a_${c}_$i;
//: else
        a_tile[(a_step_$c + ${i}u) * A_PITCH + a_lane_$c] = a_${c}_$i;
//: end
//: end
//: end
//: for c in 0..TILE_COLS * STEPS / WIDTH / (GRID_ROWS * GRID_COLS)
//: for i in 0..WIDTH
        var b_${c}_$i = 0.0;
//: end
        if (s + b_step_$c < tile.stop) {
//: if B_ROWS_ARE_STEPS
            let line = b_start(tile.group, s + b_step_$c) + b_from_$c;
//: else
            let line = b_from_$c + s + b_step_$c;
//: end
//: if VEC4
            let value = load4_b(line / 4u);
//: for i in 0..4
            b_${c}_$i = value[$i];
//: end
//: else
            b_${c}_0 = load_b(line);
//: end
        }
//: for i in 0..WIDTH
//: if B_ROWS_ARE_STEPS
        b_tile[b_step_$c * B_PITCH + b_lane_$c + ${i}u] = b_${c}_$i;
//: else
        b_tile[(b_step_$c + ${i}u) * B_PITCH + b_lane_$c] = b_${c}_$i;
//: end
//: end
//: end
        workgroupBarrier();
        for (var t = 0u; t < STEPS; t += 4u) {
//: for q in 0..4
//: for m in 0..THREAD_ROWS
            let a_${m}_$q = a_tile[(t + ${q}u) * A_PITCH + thread_row + GRID_ROWS * ${m}u];
//: end
//: for n in 0..THREAD_COLS
            let b_${n}_$q = b_tile[(t + ${q}u) * B_PITCH + thread_col + GRID_COLS * ${n}u];
//: end
//: for m in 0..THREAD_ROWS
//: for n in 0..THREAD_COLS
            acc_${m}_$n = fma(a_${m}_$q, b_${n}_$q, acc_${m}_$n);
//: end
//: end
//: end
        }
        workgroupBarrier();
    }
//: for m in 0..THREAD_ROWS
    if (row_$m < tile.end) {
        let c_row = c_start(tile.group, row_$m);
//: for n in 0..THREAD_COLS
        if (col_$n < params.cols) {
            store_c(c_row + col_$n, acc_${m}_$n);
        }
//: end
    }
//: end
}
