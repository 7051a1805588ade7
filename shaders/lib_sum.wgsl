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

fn plus_sum(sum: vec2<f32>, other: vec2<f32>) -> vec2<f32> {
    let both = plus(sum, other.x);
    return vec2<f32>(both.x, both.y + other.y);
}

var<workgroup> partial_sums: array<vec2<f32>, WORKGROUP_SIZE>;
var<workgroup> partial_parts: array<vec2<f32>, PARTS>;

// The sum over all invocations, in a fixed order. All invocations of the workgroup call it together.
fn sum_lanes(lane: u32, own: vec2<f32>) -> f32 {
    partial_sums[lane] = own;
    workgroupBarrier();
    if (lane < PARTS) {
        var sum = own;
        for (var other = lane + PARTS; other < WORKGROUP_SIZE; other += PARTS) {
            sum = plus_sum(sum, partial_sums[other]);
        }
        partial_parts[lane] = sum;
    }
    workgroupBarrier();
    var all = partial_parts[0];
    for (var part = 1u; part < PARTS; part++) {
        all = plus_sum(all, partial_parts[part]);
    }
    return total(all);
}
