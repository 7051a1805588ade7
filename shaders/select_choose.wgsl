// How many pairs each expert retains, and the last of them in the order of choice: a radix selection by one workgroup of 256 per expert.

const BINS: u32 = 256u;
// Bytes of an inverted key, token id, slot and row.
const LEVELS: u32 = 20u;

var<workgroup> bins: array<atomic<u32>, BINS>;
// Eligible, infinite, largest finite score, largest priority that is not retained.
var<workgroup> tally: array<atomic<u32>, 4>;
var<workgroup> tallied: vec4<u32>;
// Bin that holds the last row that is retained, how many rows it takes of this bin, and how many the bin holds.
var<workgroup> found: vec3<u32>;
// Last row retained by score, and by priority.
var<workgroup> last_key: array<u32, 2>;
var<workgroup> last_place: array<vec4<u32>, 2>;

// Keys fall in the order of choice, everything else rises.
fn key_of(row: u32, by: u32) -> u32 {
    if (by == 0u) {
        return ~load_score(row);
    }
    return ~load_priority(row);
}

fn is_retained(row: u32, by: u32) -> bool {
    let key = key_of(row, by);
    if (key != last_key[by]) {
        return key < last_key[by];
    }
    return !is_before(last_place[by], place_of(row));
}

// Byte `level` of the row's rank, or NONE where the bytes above are not those of the last row.
fn byte_of(row: u32, by: u32, level: u32) -> u32 {
    let word = level >> 2u;
    let shift = 24u - 8u * (level & 3u);
    // Twice, for a shift by 32 is one by 0.
    let above = (NONE << shift) << 8u;
    let key = key_of(row, by);
    if (word == 0u) {
        return select(NONE, (key >> shift) & 0xffu, ((key ^ last_key[by]) & above) == 0u);
    }
    if (key != last_key[by]) {
        return NONE;
    }
    let place = place_of(row);
    let differs = place ^ last_place[by];
    let masks = select(vec4<u32>(0u), vec4<u32>(NONE), vec4<u32>(1u, 2u, 3u, 4u) < vec4<u32>(word));
    if (any((differs & masks) != vec4<u32>(0u)) || (differs[word - 1u] & above) != 0u) {
        return NONE;
    }
    return (place[word - 1u] >> shift) & 0xffu;
}

// Finds the row that is number `count` (from 1) among those that are eligible and not retained by score before.
fn find_last(begin: u32, end: u32, lane: u32, by: u32, count: u32) {
    var left = count;
    for (var level = 0u; level < LEVELS; level++) {
        atomicStore(&bins[lane], 0u);
        workgroupBarrier();
        for (var r = begin + lane; r < end; r += WORKGROUP_SIZE) {
            if (!is_eligible(load_score(r)) || (by == 1u && is_retained(r, 0u))) {
                continue;
            }
            let byte = byte_of(r, by, level);
            if (byte != NONE) {
                atomicAdd(&bins[byte], 1u);
            }
        }
        workgroupBarrier();
        let held = atomicLoad(&bins[lane]);
        let through = scan(lane, held);
        if (through - held < left && left <= through) {
            found = vec3<u32>(lane, left - (through - held), held);
        }
        let hit = workgroupUniformLoad(&found);
        left = hit.y;
        let word = level >> 2u;
        let shift = 24u - 8u * (level & 3u);
        // Where the whole bin is retained, what lies below does not matter.
        let whole = hit.y == hit.z;
        if (lane == 0u) {
            let digits = (hit.x << shift) | select(0u, (1u << shift) - 1u, whole);
            if (word == 0u) {
                last_key[by] |= digits;
            } else {
                last_place[by][word - 1u] |= digits;
            }
            for (var below = word; whole && below < 4u; below++) {
                last_place[by][below] = NONE;
            }
        }
        workgroupBarrier();
        if (whole) {
            return;
        }
    }
}

fn store_rank(at: u32, by: u32) {
    store_plan(at, last_key[by]);
    for (var i = 0u; i < 4u; i++) {
        store_plan(at + 1u + i, last_place[by][i]);
    }
}

// Of a quota below the number of eligible pairs, those that are certain: the whole fraction, but two slots are left to be drawn.
fn certain_of(quota: u32) -> u32 {
    if (params.certain >= ONE) {
        return quota;
    }
    let fraction = number_of(params.certain);
    let down = u32(min(-fraction.exponent, 63));
    let whole = shr64(mul32(fraction.mantissa, quota), down).x;
    return min(whole, max(quota, 2u) - 2u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let e = group_index(wid);
    if (e >= params.groups) {
        return;
    }
    let begin = group_begin(e, params.rows);
    let end = group_end(e, params.rows);
    if (lid < 4u) {
        atomicStore(&tally[lid], 0u);
    }
    if (lid < 2u) {
        last_key[lid] = 0u;
        last_place[lid] = vec4<u32>(0u);
    }
    if (lid == 0u) {
        found = vec3<u32>(0u);
    }
    workgroupBarrier();
    var eligible = 0u;
    var infinite = 0u;
    var largest = 0u;
    for (var r = begin + lid; r < end; r += WORKGROUP_SIZE) {
        let score = load_score(r);
        if (is_eligible(score)) {
            eligible += 1u;
            infinite += u32(score == INFINITE);
            largest = max(largest, select(score, 0u, score == INFINITE));
        }
    }
    atomicAdd(&tally[0], eligible);
    atomicAdd(&tally[1], infinite);
    atomicMax(&tally[2], largest);
    workgroupBarrier();
    if (lid == 0u) {
        tallied = vec4<u32>(atomicLoad(&tally[0]), atomicLoad(&tally[1]), atomicLoad(&tally[2]), load_quotas(e));
    }
    let seen = workgroupUniformLoad(&tallied);
    let quota = min(seen.w, seen.x);
    var sure = quota;
    var drawn = 0u;
    var slots = 0u;
    if (quota == seen.x) {
        // All of them.
        if (lid == 0u) {
            last_key[0] = NONE;
        }
        workgroupBarrier();
    } else {
        if (RULE == SYSTEMATIC && quota > seen.y) {
            // The rule's own kernels take over.
            slots = quota - seen.y;
            sure = 0u;
        } else if (RULE == UNBIASED || RULE == MIXED) {
            sure = select(certain_of(quota), 0u, RULE == UNBIASED);
            drawn = quota - sure;
        }
        if (sure > 0u) {
            find_last(begin, end, lid, 0u, sure);
        }
        if (drawn > 0u) {
            find_last(begin, end, lid, 1u, drawn);
            var tau = 0u;
            for (var r = begin + lid; r < end; r += WORKGROUP_SIZE) {
                if (is_eligible(load_score(r)) && !is_retained(r, 0u) && !is_retained(r, 1u)) {
                    tau = max(tau, load_priority(r));
                }
            }
            atomicMax(&tally[3], tau);
            workgroupBarrier();
        }
    }
    if (lid == 0u) {
        let plan = e * PLAN_WORDS;
        store_plan(plan, quota);
        store_rank(plan + PLAN_SURE, 0u);
        store_rank(plan + PLAN_DRAWN, 1u);
        store_plan(plan + PLAN_TAU, atomicLoad(&tally[3]));
        store_plan(plan + PLAN_SLOTS, slots);
        store_plan(plan + PLAN_LARGEST, seen.z);
    }
}
