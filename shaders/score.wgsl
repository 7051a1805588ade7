// The score of every row before the floor, rounded once. Rows that are not eligible are marked with NONE until the floor is applied.

const PRODUCT: u32 = 0u;
const FULL: u32 = 1u;
const GATE_GRAD: u32 = 2u;
const GATE: u32 = 3u;

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let r = group * WORKGROUP_SIZE + lid;
    if (r >= params.rows || r < load_offsets(0u) || r >= load_offsets(params.experts)) {
        return;
    }
    let pair = load_pair_of_row(r);
    let g_bits = load_weights(pair);
    let d_bits = load_d_norm(pair / params.top_k);
    let h_bits = load_h_norm(r);
    let finite = is_finite_bits(g_bits) && is_finite_bits(d_bits) && is_finite_bits(h_bits);
    if (!finite || (METRIC == FULL && load_factor(2u * r) == NONE)) {
        store_score(r, INFINITE);
        return;
    }
    let g = number_of(g_bits);
    let d = number_of(d_bits);
    if (g.mantissa == 0u || d.mantissa == 0u) {
        store_score(r, NONE);
        return;
    }
    var score = ONE;
    if (METRIC == PRODUCT) {
        score = product3(g, d, number_of(h_bits));
    } else if (METRIC == FULL) {
        score = product3(g, d, Number(load_factor(2u * r), bitcast<i32>(load_factor(2u * r + 1u))));
    } else if (METRIC == GATE_GRAD) {
        score = product(g, d);
    } else if (METRIC == GATE) {
        score = g_bits & 0x7fffffffu;
    }
    store_score(r, min(score, LARGEST_FINITE));
}
