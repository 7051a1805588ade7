// Grouped matrix product, c[i, j] = a chain of fma(a(i, s), b(s, j)) over the steps s, ascending: what all strategies share.
//
// A row of a's storage is either one i and all steps, or one step and all i (A_ROWS_ARE_STEPS); b alike. A kernel says where
// rows begin: `a_start(row)`, `b_start(group, row)`, `c_start(group, i)`, and which part of which product a workgroup has:
// `locate(workgroup)`. Every strategy keeps one chain for each element, so all give the same bits.

// Rows first..end and columns column..column + TILE_COLS (clipped to params.cols) of a group's c, over steps begin..stop.
struct Tile {
    group: u32,
    first: u32,
    end: u32,
    column: u32,
    begin: u32,
    stop: u32,
}
