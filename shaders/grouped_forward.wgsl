// out[r] = x[index[r] / index_div] W[e]^T: a = x, b = w, steps are the columns of both.

fn b_start(group: u32, column: u32) -> u32 {
    return ((group - params.group_first) * params.cols + column) * params.a_cols + params.shift;
}

fn c_start(group: u32, row: u32) -> u32 {
    return row * params.c_cols + params.lane_first;
}
