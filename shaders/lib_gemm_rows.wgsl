// Products whose rows of c are rows of the batch: tiles are found on the device, from offsets.

// The group of tile t of this window's groups: the last one whose tiles start at or before it.
fn locate(workgroup: u32) -> Tile {
    let t = load_starts(params.group_first) + workgroup / params.col_tiles;
    if (t >= load_starts(params.group_end)) {
        return Tile();
    }
    var low = params.group_first;
    var high = params.group_end;
    while (high - low > 1u) {
        let middle = (low + high) >> 1u;
        if (load_starts(middle) <= t) {
            low = middle;
        } else {
            high = middle;
        }
    }
    let first = group_begin(low, params.rows) + (t - load_starts(low)) * TILE_ROWS;
    let end = min(first + TILE_ROWS, group_end(low, params.rows));
    let column = (workgroup % params.col_tiles) * TILE_COLS;
    return Tile(low, first, end, column, params.step_first, params.step_end);
}

fn a_start(row: u32) -> u32 {
    if (HAS_A_INDEX) {
        return (load_a_index(row) / params.a_div) * params.a_cols;
    }
    return row * params.a_cols;
}

fn a_scale(step: u32) -> f32 {
    return 1.0;
}

const A_IS_SCALED: bool = false;
