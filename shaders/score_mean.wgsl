// The mean score of each expert, one workgroup each, and the floor that follows from it. Where every score vanished, scores fall back
// to |g| ||d||, and to 1 where that vanishes too; the floor is 0 there.

var<workgroup> tally_largest: atomic<u32>;
var<workgroup> tally_count: atomic<u32>;
var<workgroup> tally_low: atomic<u32>;
var<workgroup> tally_high: atomic<u32>;
var<workgroup> mean_of_all: u32;
var<workgroup> largest_of_all: u32;

fn add_tally(value: vec2<u32>) {
    let old = atomicAdd(&tally_low, value.x);
    atomicAdd(&tally_high, value.y + u32(old + value.x < old));
}

// Bits of the mean finite score of rows `begin..end`, 0 where all are 0: a fixed-point sum relative to the largest, in any order.
fn mean_score(begin: u32, end: u32, lane: u32) -> u32 {
    if (lane == 0u) {
        atomicStore(&tally_largest, 0u);
        atomicStore(&tally_count, 0u);
        atomicStore(&tally_low, 0u);
        atomicStore(&tally_high, 0u);
    }
    workgroupBarrier();
    var largest = 0u;
    var count = 0u;
    for (var r = begin + lane; r < end; r += WORKGROUP_SIZE) {
        let score = load_score(r);
        if (score < INFINITE) {
            largest = max(largest, score);
            count += 1u;
        }
    }
    atomicMax(&tally_largest, largest);
    atomicAdd(&tally_count, count);
    workgroupBarrier();
    if (lane == 0u) {
        largest_of_all = atomicLoad(&tally_largest);
    }
    largest = workgroupUniformLoad(&largest_of_all);
    if (largest == 0u) {
        return 0u;
    }
    var sum = vec2<u32>(0u);
    for (var r = begin + lane; r < end; r += WORKGROUP_SIZE) {
        let score = load_score(r);
        if (score < INFINITE) {
            sum = add64(sum, fixed_point(score, largest));
        }
    }
    add_tally(sum);
    workgroupBarrier();
    if (lane == 0u) {
        let unit = number_of(largest);
        let all = vec2<u32>(atomicLoad(&tally_low), atomicLoad(&tally_high));
        let scaled = mul64_32(all, unit.mantissa);
        let divisor = vec2<u32>(atomicLoad(&tally_count), 0u);
        mean_of_all = clamp_positive(divide96(scaled, divisor, unit.exponent - i32(SIZE_BITS)));
    }
    return workgroupUniformLoad(&mean_of_all);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let e = group_index(wid);
    if (e >= params.groups) {
        return;
    }
    let begin = group_begin(e, params.rows);
    let end = group_end(e, params.rows);
    var mean = mean_score(begin, end, lid);
    var least = 0u;
    if (mean != 0u) {
        least = clamp_positive(product(number_of(params.floor), number_of(mean)));
    } else {
        for (var r = begin + lid; r < end; r += WORKGROUP_SIZE) {
            if (load_score(r) == 0u) {
                let pair = load_pair_of_row(r);
                let score = product(number_of(load_weights(pair)), number_of(load_d_norm(pair / params.top_k)));
                store_score(r, select(clamp_positive(score), ONE, score == 0u));
            }
        }
        // Each invocation reads the rows that it wrote.
        mean = mean_score(begin, end, lid);
    }
    if (lid == 0u) {
        store_mean(e, mean);
        store_floors(e, least);
    }
}
