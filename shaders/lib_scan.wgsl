// Prefix sums over a workgroup. What one call reads last is written by the next only behind its first barrier.

var<workgroup> scan_words: array<u32, WORKGROUP_SIZE>;
var<workgroup> scan_parts: array<u32, PARTS>;

// Sum of the values of all invocations up to this one. All invocations of the workgroup call it together.
fn scan(lane: u32, value: u32) -> u32 {
    scan_words[lane] = value;
    workgroupBarrier();
    if (lane < PARTS) {
        var sum = 0u;
        for (var i = lane * SPAN; i < (lane + 1u) * SPAN; i++) {
            sum += scan_words[i];
            scan_words[i] = sum;
        }
        scan_parts[lane] = sum;
    }
    workgroupBarrier();
    var through = scan_words[lane];
    for (var part = 0u; part < lane / SPAN; part++) {
        through += scan_parts[part];
    }
    return through;
}

// Sum of all values of the last call.
fn scanned() -> u32 {
    var sum = 0u;
    for (var part = 0u; part < PARTS; part++) {
        sum += scan_parts[part];
    }
    return sum;
}
