// Reductions over a workgroup: every invocation takes part and gets the result. The order of additions depends on nothing but
// WORKGROUP_SIZE.

var<workgroup> lane_sums: array<f32, WORKGROUP_SIZE>;
var<workgroup> lane_maxima: array<u32, WORKGROUP_SIZE>;

fn workgroup_sum(lane: u32, value: f32) -> f32 {
    lane_sums[lane] = value;
    for (var width = WORKGROUP_SIZE / 2u; width > 0u; width /= 2u) {
        workgroupBarrier();
        if (lane < width) {
            lane_sums[lane] += lane_sums[lane + width];
        }
    }
    return workgroupUniformLoad(&lane_sums[0]);
}

fn workgroup_max(lane: u32, value: u32) -> u32 {
    lane_maxima[lane] = value;
    for (var width = WORKGROUP_SIZE / 2u; width > 0u; width /= 2u) {
        workgroupBarrier();
        if (lane < width) {
            lane_maxima[lane] = max(lane_maxima[lane], lane_maxima[lane + width]);
        }
    }
    return workgroupUniformLoad(&lane_maxima[0]);
}
