// Prefix sums over a workgroup.

var<workgroup> lane_prefixes: array<u32, WORKGROUP_SIZE>;

/// Sum of the values of the lanes before this one (Hillis and Steele, "Data parallel algorithms", CACM 1986).
fn workgroup_prefix(lane: u32, value: u32) -> u32 {
    lane_prefixes[lane] = value;
    workgroupBarrier();
    for (var distance = 1u; distance < WORKGROUP_SIZE; distance *= 2u) {
        var sum = lane_prefixes[lane];
        if (lane >= distance) {
            sum += lane_prefixes[lane - distance];
        }
        workgroupBarrier();
        lane_prefixes[lane] = sum;
        workgroupBarrier();
    }
    return lane_prefixes[lane] - value;
}
