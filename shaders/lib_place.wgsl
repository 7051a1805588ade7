// Where a row stands among rows of equal keys: global token id (high word first), slot, row.
fn place_of(row: u32) -> vec4<u32> {
    let pair = load_pair_of_row(row);
    let token = pair / params.top_k;
    let slot = pair - token * params.top_k;
    if (HAS_TOKEN_IDS) {
        return vec4<u32>(load_token_ids(2u * token + 1u), load_token_ids(2u * token), slot, row);
    }
    let id = add64(vec2<u32>(params.first_low, params.first_high), vec2<u32>(token, 0u));
    return vec4<u32>(id.y, id.x, slot, row);
}

fn is_before(a: vec4<u32>, b: vec4<u32>) -> bool {
    if (a.x != b.x) {
        return a.x < b.x;
    }
    if (a.y != b.y) {
        return a.y < b.y;
    }
    if (a.z != b.z) {
        return a.z < b.z;
    }
    return a.w < b.w;
}
