// What each expert retained, by one workgroup each: scores in units of the mean, weights, and what the cap removed.

const STATS: u32 = 5u;

var<workgroup> heaviest: atomic<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let e = group_index(wid);
    if (e >= params.groups) {
        return;
    }
    if (lid == 0u) {
        atomicStore(&heaviest, 0u);
    }
    workgroupBarrier();
    let mean = load_mean(e);
    let end = min(load_kept_offsets(e + 1u), params.capacity);
    var scores = vec2<f32>(0.0);
    var weights = vec2<f32>(0.0);
    var squares = vec2<f32>(0.0);
    var removed = vec2<f32>(0.0);
    var largest = 0u;
    for (var at = load_kept_offsets(e) + lid; at < end; at += WORKGROUP_SIZE) {
        let row = load_row(at);
        let score = load_score(row);
        let relative = bitcast<f32>(divide(score, mean));
        let before = load_chosen(row);
        let weight = min(before, params.cap);
        let w = bitcast<f32>(weight);
        if (score != INFINITE) {
            scores = plus(scores, relative);
        }
        weights = plus(weights, w);
        squares = plus(squares, w * w);
        largest = max(largest, weight);
        if (weight < before) {
            removed = plus(removed, (bitcast<f32>(before) - w) * relative);
        }
    }
    atomicMax(&heaviest, largest);
    let sum_of_scores = sum_lanes(lid, scores);
    let sum_of_weights = sum_lanes(lid, weights);
    let sum_of_squares = sum_lanes(lid, squares);
    let sum_removed = sum_lanes(lid, removed);
    if (lid == 0u) {
        store_stats(e * STATS, sum_of_scores);
        store_stats(e * STATS + 1u, sum_of_weights);
        store_stats(e * STATS + 2u, sum_of_squares);
        store_stats(e * STATS + 3u, bitcast<f32>(atomicLoad(&heaviest)));
        store_stats(e * STATS + 4u, sum_removed);
    }
}
