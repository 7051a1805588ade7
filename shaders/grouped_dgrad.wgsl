// out[r] = dy[index[r] / index_div] W[e]: a = dy, b = w, steps are the columns of dy and the rows of W[e].

fn b_start(group: u32, step: u32) -> u32 {
    let lanes = params.lane_end - params.lane_first;
    return ((group - params.group_first) * lanes + step - params.lane_first) * params.cols + params.shift;
}

fn c_start(group: u32, row: u32) -> u32 {
    return row * params.c_cols;
}
