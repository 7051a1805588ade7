// Sign random projections: a workgroup has ROWS rows, and an invocation one projection of one row, which it adds up in
// ascending order of columns. Elements and hashes of some columns at a time are shared by the workgroup.

const ROWS: u32 = WORKGROUP_SIZE / BITS;
const COLUMNS: u32 = WORKGROUP_SIZE;
// One more than the columns, so that the rows of a column lie in different banks.
const STRIDE: u32 = COLUMNS + 1u;

// Rows without an element of this magnitude, 2^-62, are lifted by LIFT: their sums may vanish where a device flushes
// subnormal numbers, and do not overflow when lifted.
const SMALL_BITS: u32 = 0x20800000u;
const LIFT: i32 = 64;
// Rows with a sum that is not finite are shrunk.
const SHRINK: i32 = -64;

var<workgroup> tile: array<u32, ROWS * STRIDE>;
var<workgroup> hashes: array<u32, COLUMNS>;
var<workgroup> shifts: array<i32, ROWS>;
// Bit sets of rows.
var<workgroup> overflowing: atomic<u32>;
var<workgroup> with_small: atomic<u32>;
var<workgroup> with_large: atomic<u32>;
var<workgroup> rescaled: u32;
var<workgroup> codes: array<atomic<u32>, ROWS>;

fn hash(column: u32) -> u32 {
    var v = column + 0x9E3779B9u;
    v = (v ^ (v >> 16u)) * 0x85EBCA6Bu;
    v = (v ^ (v >> 13u)) * 0xC2B2AE35u;
    return v ^ (v >> 16u);
}

// An element with its sign as the projection has it.
fn signed(r: u32, column: u32, bit: u32) -> f32 {
    let flip = (~hashes[column] << (31u - bit)) & 0x80000000u;
    return bitcast<f32>(tile[r * STRIDE + column] ^ flip);
}

// The sum of this invocation's row and projection, each row scaled by its shift.
fn project(first_row: u32, lane: u32) -> f32 {
    let r = lane / BITS;
    let bit = lane % BITS;
    var sum = 0.0;
    var small = 0u;
    var large = 0u;
    for (var base = 0u; base < params.cols; base += COLUMNS) {
        let column = base + lane;
        hashes[lane] = hash(column);
        for (var i = 0u; i < ROWS; i++) {
            var x = 0.0;
            if (column < params.cols && first_row + i < params.rows) {
                x = load_x((first_row + i) * params.cols + column);
            }
            let size = magnitude(x);
            small |= u32(size > 0u && size < SMALL_BITS) << i;
            large |= u32(size >= SMALL_BITS) << i;
            let shift = shifts[i];
            if (shift != 0) {
                x = scaled(x, shift);
            }
            tile[i * STRIDE + lane] = bitcast<u32>(x);
        }
        workgroupBarrier();
        for (var c = 0u; c < COLUMNS; c += 4u) {
            sum += signed(r, c, bit);
            sum += signed(r, c + 1u, bit);
            sum += signed(r, c + 2u, bit);
            sum += signed(r, c + 3u, bit);
        }
        workgroupBarrier();
    }
    atomicOr(&with_small, small);
    atomicOr(&with_large, large);
    atomicOr(&overflowing, u32(!is_finite(sum)) << r);
    return sum;
}

// Bit i of the rank in reflected binary Gray order is the parity of the code's bits from i on.
fn gray_rank(code: u32) -> u32 {
    var rank = code ^ (code >> 1u);
    rank ^= rank >> 2u;
    return rank ^ (rank >> 4u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let first_row = group * ROWS;
    let r = lane / BITS;
    let bit = lane % BITS;
    if (bit == 0u) {
        shifts[r] = 0;
        atomicStore(&codes[r], 0u);
    }
    if (lane == 0u) {
        atomicStore(&overflowing, 0u);
        atomicStore(&with_small, 0u);
        atomicStore(&with_large, 0u);
    }
    workgroupBarrier();
    var sum = project(first_row, lane);
    workgroupBarrier();
    if (lane == 0u) {
        let shrunk = atomicLoad(&overflowing);
        let lifted = atomicLoad(&with_small) & ~atomicLoad(&with_large);
        for (var i = 0u; i < ROWS; i++) {
            shifts[i] = select(select(0, LIFT, ((lifted >> i) & 1u) != 0u), SHRINK, ((shrunk >> i) & 1u) != 0u);
        }
        rescaled = shrunk | lifted;
    }
    if (workgroupUniformLoad(&rescaled) != 0u) {
        // A row that keeps its scale gets the same sums again.
        sum = project(first_row, lane);
    }
    // Positive by bits: neither 0 nor NaN nor negative.
    let bits = bitcast<u32>(sum);
    if (bits > 0u && bits <= INFINITY_BITS) {
        atomicOr(&codes[r], 1u << (BITS - 1u - bit));
    }
    workgroupBarrier();
    if (bit == 0u && first_row + r < params.rows) {
        store_key(first_row + r, gray_rank(atomicLoad(&codes[r])));
    }
}
