// Reductions over a workgroup: every invocation takes part and gets the result. The order of additions depends on nothing but
// WORKGROUP_SIZE. What one call reads last is written by the next only behind its first barrier.

var<workgroup> lane_sums: array<f32, WORKGROUP_SIZE>;
var<workgroup> part_sums: array<f32, PARTS>;
var<workgroup> lane_maxima: array<u32, WORKGROUP_SIZE>;
var<workgroup> part_maxima: array<u32, PARTS>;

fn workgroup_sum(lane: u32, value: f32) -> f32 {
    lane_sums[lane] = value;
    workgroupBarrier();
    if (lane < PARTS) {
        var sum = value;
        for (var other = lane + PARTS; other < WORKGROUP_SIZE; other += PARTS) {
            sum += lane_sums[other];
        }
        part_sums[lane] = sum;
    }
    workgroupBarrier();
    var all = part_sums[0];
    for (var part = 1u; part < PARTS; part++) {
        all += part_sums[part];
    }
    return all;
}

fn workgroup_max(lane: u32, value: u32) -> u32 {
    lane_maxima[lane] = value;
    workgroupBarrier();
    if (lane < PARTS) {
        var largest = value;
        for (var other = lane + PARTS; other < WORKGROUP_SIZE; other += PARTS) {
            largest = max(largest, lane_maxima[other]);
        }
        part_maxima[lane] = largest;
    }
    workgroupBarrier();
    var all = part_maxima[0];
    for (var part = 1u; part < PARTS; part++) {
        all = max(all, part_maxima[part]);
    }
    return all;
}
