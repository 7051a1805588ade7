// out[e] (+)= sum over rows r of scale[r] dy[..]^T x[..]: a = dy, b = x, steps are the rows of group e.

const A_IS_SCALED: bool = HAS_SCALE;

fn locate(workgroup: u32) -> Tile {
    let tile = workgroup / params.col_tiles;
    let group = params.group_first + tile / params.row_tiles;
    let first = params.lane_first + (tile % params.row_tiles) * TILE_ROWS;
    let end = min(first + TILE_ROWS, params.lane_end);
    let column = (workgroup % params.col_tiles) * TILE_COLS;
    // Rows step_first..step_end of the group: longer groups take several dispatches.
    let begin = group_begin(group, params.rows);
    let rows = group_end(group, params.rows) - begin;
    return Tile(group, first, end, column, begin + min(rows, params.step_first), begin + min(rows, params.step_end));
}

fn a_start(step: u32) -> u32 {
    if (HAS_A_INDEX) {
        return (load_a_index(step) / params.a_div) * params.a_cols;
    }
    return step * params.a_cols;
}

fn b_start(group: u32, step: u32) -> u32 {
    if (HAS_B_INDEX) {
        return (load_b_index(step) / params.b_div) * params.cols;
    }
    return step * params.cols;
}

fn c_start(group: u32, lane: u32) -> u32 {
    let lanes = params.lane_end - params.lane_first;
    return ((group - params.group_first) * lanes + lane - params.lane_first) * params.cols + params.shift;
}

fn a_scale(step: u32) -> f32 {
    return load_scale(step);
}
