// Sums, counts and the histogram of the scores of one expert per workgroup, relative to their mean.

const BINS: u32 = 64u;
const SUMS: u32 = 3u;
const COUNTS: u32 = 2u;

var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> tally: array<atomic<u32>, COUNTS>;

// Bin of a ratio from its bits: by comparisons alone, so that every backend agrees.
fn bin_of(ratio: u32) -> u32 {
    let mantissa = bitcast<f32>((ratio & 0x007fffffu) | ONE);
    let low = vec4<f32>(1.0905077, 1.1892071, 1.2968396, 1.4142135);
    let high = vec3<f32>(1.5422108, 1.6817929, 1.834008);
    let steps = dot(vec4<u32>(vec4<f32>(mantissa) >= low), vec4<u32>(1u))
        + dot(vec3<u32>(vec3<f32>(mantissa) >= high), vec3<u32>(1u));
    return u32(clamp(8 * (i32(ratio >> 23u) - 127) + i32(steps) + 16, 0, i32(BINS) - 1));
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let e = group_index(wid);
    if (e >= params.groups) {
        return;
    }
    if (lid < BINS) {
        atomicStore(&bins[lid], 0u);
    }
    if (lid < COUNTS) {
        atomicStore(&tally[lid], 0u);
    }
    workgroupBarrier();
    let mean = load_mean(e);
    let end = group_end(e, params.rows);
    var sum = vec2<f32>(0.0);
    var squares = vec2<f32>(0.0);
    var top = vec2<f32>(0.0);
    var eligible = 0u;
    var infinite = 0u;
    for (var r = group_begin(e, params.rows) + lid; r < end; r += WORKGROUP_SIZE) {
        let score = load_score(r);
        if (score - 1u >= INFINITE) {
            continue;
        }
        eligible += 1u;
        if (score == INFINITE) {
            infinite += 1u;
            continue;
        }
        let bits = divide(score, mean);
        let bin = bin_of(bits);
        atomicAdd(&bins[bin], 1u);
        let ratio = bitcast<f32>(min(bits, LARGEST_FINITE));
        sum = plus(sum, ratio);
        squares = plus(squares, ratio * ratio);
        if (bin == BINS - 1u) {
            top = plus(top, ratio);
        }
    }
    atomicAdd(&tally[0], eligible);
    atomicAdd(&tally[1], infinite);
    let sums = vec3<f32>(sum_lanes(lid, sum), sum_lanes(lid, squares), sum_lanes(lid, top));
    if (lid < BINS) {
        store_histogram(e * BINS + lid, atomicLoad(&bins[lid]));
    }
    if (lid < COUNTS) {
        store_counts(e * COUNTS + lid, atomicLoad(&tally[lid]));
    }
    if (lid < SUMS) {
        store_sums(e * SUMS + lid, min(bitcast<u32>(sums[lid]), LARGEST_FINITE));
    }
}
