// One workgroup per block.

/// |x| scaled by a power of two so that neither subnormal numbers nor quotients of the largest ones are lost: only bits tell
/// subnormal numbers where a device flushes them.
fn scaled(bits: u32, large: bool) -> f32 {
    let magnitude = bits & 0x7fffffffu;
    if (large) {
        return bitcast<f32>(magnitude) * 0x1p-32f;
    }
    if (magnitude < 0x00800000u) {
        return f32(magnitude) * 0x1p-85f;
    }
    return bitcast<f32>(magnitude) * 0x1p64f;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = group_index(wid);
    if (block >= params.groups) {
        return;
    }
    let first = block * BLOCK;
    let last = min(first + BLOCK, params.len);
    // Bits of magnitudes have the order of the numbers, with NaN above infinity.
    var largest = 0u;
    for (var i = first + lane; i < last; i += WORKGROUP_SIZE) {
        largest = max(largest, load_x(i) & 0x7fffffffu);
    }
    largest = workgroup_max(lane, largest);
    let large = largest >= 0x3f800000u;
    let unit = scaled(largest, large);
    var sum = 0.0;
    for (var i = first + lane; i < last; i += WORKGROUP_SIZE) {
        let ratio = scaled(load_x(i), large) / unit;
        sum += ratio * ratio;
    }
    sum = workgroup_sum(lane, sum);
    if (lane == 0u) {
        if (largest == 0u || largest >= 0x7f800000u) {
            sum = 1.0;
        }
        store_partial(2u * block, largest);
        store_partial(2u * block + 1u, bitcast<u32>(sum));
    }
}
