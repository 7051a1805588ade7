// Sums of non-negative f32 with the rounding errors carried along (A. Neumaier, 1974): sum in x, what it lost in y.

fn plus(sum: vec2<f32>, value: f32) -> vec2<f32> {
    let total = sum.x + value;
    let large = max(sum.x, value);
    let small = min(sum.x, value);
    return vec2<f32>(total, sum.y + ((large - total) + small));
}

// Beyond f32 it is infinite: what was lost is NaN then.
fn total(sum: vec2<f32>) -> f32 {
    if (is_finite(sum.x)) {
        return sum.x + sum.y;
    }
    return sum.x;
}

var<workgroup> partial_sums: array<vec2<f32>, WORKGROUP_SIZE>;

// The sum over all invocations, in a fixed order. All invocations of the workgroup call it together.
fn sum_lanes(lane: u32, own: vec2<f32>) -> f32 {
    workgroupBarrier();
    partial_sums[lane] = own;
    for (var width = WORKGROUP_SIZE / 2u; width > 0u; width >>= 1u) {
        workgroupBarrier();
        if (lane < width) {
            let other = partial_sums[lane + width];
            let sum = plus(partial_sums[lane], other.x);
            partial_sums[lane] = vec2<f32>(sum.x, sum.y + other.y);
        }
    }
    workgroupBarrier();
    return total(partial_sums[0]);
}
