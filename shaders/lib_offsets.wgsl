// Rows of a group. Offsets that nobody checked never make a range that is longer than the rows.
fn group_begin(e: u32, rows: u32) -> u32 {
    return min(load_offsets(e), rows);
}

fn group_end(e: u32, rows: u32) -> u32 {
    return max(min(load_offsets(e + 1u), rows), group_begin(e, rows));
}

// The group that holds row r; `groups` where none does.
fn find_group(r: u32, groups: u32) -> u32 {
    if (groups == 0u || r < load_offsets(0u) || r >= load_offsets(groups)) {
        return groups;
    }
    var low = 0u;
    var high = groups;
    // The last group that begins at or before r: empty groups in front of it begin there too.
    while (high - low > 1u) {
        let middle = (low + high) >> 1u;
        if (load_offsets(middle) <= r) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

