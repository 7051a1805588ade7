// Matrix units: one subgroup a workgroup, FRAGMENTS x FRAGMENTS cooperative matrices of SIDE x SIDE. Sums of a matrix product
// are the hardware's, so bits differ from those of the other strategies.
//: enable wgpu_cooperative_matrix
//: if HALVES
//: enable f16
alias Element = f16;
alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;
//: else
alias Element = f32;
alias Left = coop_mat8x8<f32, A>;
alias Right = coop_mat8x8<f32, B>;
alias Sum = coop_mat8x8<f32, C>;
//: end

// Rows in workgroup memory begin at multiples of 16 bytes, and not all in the same bank.
const PITCH: u32 = STEPS + 8u;
const C_PITCH: u32 = TILE_COLS + 4u;

// Row-major in rows of c and steps; columns of c and steps; rows and columns of c.
var<workgroup> a_tile: array<Element, TILE_ROWS * PITCH>;
var<workgroup> b_tile: array<Element, TILE_COLS * PITCH>;
var<workgroup> c_tile: array<f32, TILE_ROWS * C_PITCH>;
var<workgroup> whole_tile: Tile;

@compute @workgroup_size(WORKGROUP_SIZE)
fn cooperative(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    // Matrices need uniform control flow, and naga takes only what comes from workgroupUniformLoad for uniform, not a variable
    // or what `||` makes of two conditions.
    let workgroup = group_index(wid);
    if (lane == 0u) {
        whole_tile = Tile();
        if (workgroup < params.groups) {
            whole_tile = locate(workgroup);
        }
    }
    let tile = workgroupUniformLoad(&whole_tile);
    if (tile.first >= tile.end) {
        return;
    }
//: if RESUME
    if (tile.begin >= tile.stop) {
        return;
    }
//: end
    for (var item = lane; item < TILE_ROWS * TILE_COLS; item += WORKGROUP_SIZE) {
        let row = item / TILE_COLS;
        let col = item % TILE_COLS;
        var old = 0.0;
        if (RESUME && tile.first + row < tile.end && tile.column + col < params.cols) {
            old = load_c(c_start(tile.group, tile.first + row) + tile.column + col);
        }
        c_tile[row * C_PITCH + col] = old;
    }
    workgroupBarrier();
//: for i in 0..FRAGMENTS
//: for j in 0..FRAGMENTS
    var sum_${i}_$j = coopLoadT<Sum>(&c_tile[${i}u * SIDE * C_PITCH + ${j}u * SIDE], C_PITCH);
//: end
//: end
    for (var s = tile.begin; s < tile.stop; s += STEPS) {
        // Four elements of a row of storage at a time; what lies outside repeats the last row, or is zero past the last step.
        for (var item = lane; item < TILE_ROWS * STEPS / 4u; item += WORKGROUP_SIZE) {
//: if A_ROWS_ARE_STEPS
            let step = item / (TILE_ROWS / 4u);
            let row = item % (TILE_ROWS / 4u) * 4u;
            var a = vec4<f32>(0.0);
            if (s + step < tile.stop) {
                a = load4_a((a_start(s + step) + min(tile.first + row, tile.end - 4u)) / 4u);
                a = select(a, a * a_scale(s + step), A_IS_SCALED);
            }
//: for i in 0..4
            a_tile[(row + ${i}u) * PITCH + step] = Element(a[$i]);
//: end
//: else
            let row = item / (STEPS / 4u);
            let step = item % (STEPS / 4u) * 4u;
            var a = vec4<f32>(0.0);
            if (s + step < tile.stop) {
                a = load4_a((a_start(min(tile.first + row, tile.end - 1u)) + s + step) / 4u);
            }
//: for i in 0..4
            a_tile[row * PITCH + step + ${i}u] = Element(a[$i]);
//: end
//: end
        }
        for (var item = lane; item < TILE_COLS * STEPS / 4u; item += WORKGROUP_SIZE) {
//: if B_ROWS_ARE_STEPS
            let step = item / (TILE_COLS / 4u);
            let col = item % (TILE_COLS / 4u) * 4u;
            var b = vec4<f32>(0.0);
            if (s + step < tile.stop) {
                b = load4_b((b_start(tile.group, s + step) + min(tile.column + col, params.cols - 4u)) / 4u);
            }
//: for i in 0..4
            b_tile[(col + ${i}u) * PITCH + step] = Element(b[$i]);
//: end
//: else
            let col = item / (STEPS / 4u);
            let step = item % (STEPS / 4u) * 4u;
            var b = vec4<f32>(0.0);
            if (s + step < tile.stop) {
                b = load4_b((b_start(tile.group, min(tile.column + col, params.cols - 1u)) + s + step) / 4u);
            }
//: for i in 0..4
            b_tile[col * PITCH + step + ${i}u] = Element(b[$i]);
//: end
//: end
        }
        workgroupBarrier();
        for (var t = 0u; t < STEPS; t += SIDE) {
//: for i in 0..FRAGMENTS
            let left_$i = coopLoadT<Left>(&a_tile[${i}u * SIDE * PITCH + t], PITCH);
//: end
//: for j in 0..FRAGMENTS
            let right_$j = coopLoad<Right>(&b_tile[${j}u * SIDE * PITCH + t], PITCH);
//: end
//: for i in 0..FRAGMENTS
//: for j in 0..FRAGMENTS
            sum_${i}_$j = coopMultiplyAdd(left_$i, right_$j, sum_${i}_$j);
//: end
//: end
        }
        workgroupBarrier();
    }
//: for i in 0..FRAGMENTS
//: for j in 0..FRAGMENTS
    coopStoreT(sum_${i}_$j, &c_tile[${i}u * SIDE * C_PITCH + ${j}u * SIDE], C_PITCH);
//: end
//: end
    workgroupBarrier();
    for (var item = lane; item < TILE_ROWS * TILE_COLS; item += WORKGROUP_SIZE) {
        let row = item / TILE_COLS;
        let col = item % TILE_COLS;
        if (tile.first + row < tile.end && tile.column + col < params.cols) {
            store_c(c_start(tile.group, tile.first + row) + tile.column + col, c_tile[row * C_PITCH + col]);
        }
    }
}
