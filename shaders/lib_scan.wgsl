var<workgroup> scan_words: array<u32, WORKGROUP_SIZE>;

// Sum of the values of all invocations up to this one. All invocations of the workgroup call it together.
fn scan(lane: u32, value: u32) -> u32 {
    // Others may still read the sum of the last call.
    workgroupBarrier();
    scan_words[lane] = value;
    workgroupBarrier();
    for (var step = 1u; step < WORKGROUP_SIZE; step <<= 1u) {
        var sum = scan_words[lane];
        if (lane >= step) {
            sum += scan_words[lane - step];
        }
        workgroupBarrier();
        scan_words[lane] = sum;
        workgroupBarrier();
    }
    return scan_words[lane];
}

// Sum of all values of the last call.
fn scanned() -> u32 {
    return scan_words[WORKGROUP_SIZE - 1u];
}
