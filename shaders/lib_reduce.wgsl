// Reductions over a workgroup, in an order that depends on nothing but its size. Every invocation gets the result, and takes part:
// there are barriers inside.

var<workgroup> sum_lanes: array<f32, WORKGROUP_SIZE>;
var<workgroup> max_lanes: array<u32, WORKGROUP_SIZE>;

fn workgroup_sum(lane: u32, value: f32) -> f32 {
    sum_lanes[lane] = value;
    workgroupBarrier();
    for (var width = WORKGROUP_SIZE / 2u; width > 0u; width /= 2u) {
        if (lane < width) {
            sum_lanes[lane] += sum_lanes[lane + width];
        }
        workgroupBarrier();
    }
    return workgroupUniformLoad(&sum_lanes[0]);
}

fn workgroup_max(lane: u32, value: u32) -> u32 {
    max_lanes[lane] = value;
    workgroupBarrier();
    for (var width = WORKGROUP_SIZE / 2u; width > 0u; width /= 2u) {
        if (lane < width) {
            max_lanes[lane] = max(max_lanes[lane], max_lanes[lane + width]);
        }
        workgroupBarrier();
    }
    return workgroupUniformLoad(&max_lanes[0]);
}
