// Which sizes are certain under systematic sampling: by ranges of scores, as documented at `SelectRule`. One workgroup of 256 per
// expert; four rounds, one for each byte of a score.

const BINS: u32 = 256u;
const ROUNDS: u32 = 4u;

// Pairs and sizes (low and high word) of a range.
var<workgroup> pairs: array<atomic<u32>, BINS>;
var<workgroup> sizes_low: array<atomic<u32>, BINS>;
var<workgroup> sizes_high: array<atomic<u32>, BINS>;
// Sums over ranges, as in lib_scan.
var<workgroup> ranges: array<vec3<u32>, BINS>;
var<workgroup> parts: array<vec3<u32>, PARTS>;
// First range from the top that is not certain, and slots and sizes that those above leave.
var<workgroup> first: atomic<u32>;
var<workgroup> start: vec2<u32>;
var<workgroup> left: vec4<u32>;

fn add_sizes(bin: u32, value: vec2<u32>) {
    let old = atomicAdd(&sizes_low[bin], value.x);
    atomicAdd(&sizes_high[bin], value.y + u32(old + value.x < old));
}

// Pairs, and sizes in yz, of a range and all above.
fn scan_ranges(lane: u32, value: vec3<u32>) -> vec3<u32> {
    ranges[lane] = value;
    workgroupBarrier();
    if (lane < PARTS) {
        var sum = vec3<u32>(0u);
        for (var i = lane * SPAN; i < (lane + 1u) * SPAN; i++) {
            sum = add_range(sum, ranges[i]);
            ranges[i] = sum;
        }
        parts[lane] = sum;
    }
    workgroupBarrier();
    var through = ranges[lane];
    for (var part = 0u; part < lane / SPAN; part++) {
        through = add_range(through, parts[part]);
    }
    return through;
}

fn add_range(a: vec3<u32>, b: vec3<u32>) -> vec3<u32> {
    return vec3<u32>(a.x + b.x, add64(a.yz, b.yz));
}

// Sizes of all ranges of the last call.
fn scanned_sizes() -> vec2<u32> {
    var sum = vec2<u32>(0u);
    for (var part = 0u; part < PARTS; part++) {
        sum = add64(sum, parts[part].yz);
    }
    return sum;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let e = group_index(wid);
    if (e >= params.groups) {
        return;
    }
    let plan = e * PLAN_WORDS;
    if (lid == 0u) {
        start = vec2<u32>(load_plan(plan + PLAN_SLOTS), load_plan(plan + PLAN_LARGEST));
    }
    let given = workgroupUniformLoad(&start);
    let largest = given.y;
    if (given.x == 0u) {
        return;
    }
    let begin = group_begin(e, params.rows);
    let end = group_end(e, params.rows);
    var slots = given.x;
    var sum = vec2<u32>(0u);
    // Upper bytes of the range that is split.
    var prefix = 0u;
    for (var round = 0u; round < ROUNDS; round++) {
        let shift = 24u - 8u * round;
        let above = (NONE << shift) << 8u;
        atomicStore(&pairs[lid], 0u);
        atomicStore(&sizes_low[lid], 0u);
        atomicStore(&sizes_high[lid], 0u);
        if (lid == 0u) {
            atomicStore(&first, BINS - 1u);
        }
        workgroupBarrier();
        for (var r = begin + lid; r < end; r += WORKGROUP_SIZE) {
            let score = load_score(r);
            if (is_eligible(score) && score != INFINITE && ((score ^ prefix) & above) == 0u) {
                // From the top down.
                let bin = BINS - 1u - ((score >> shift) & 0xffu);
                atomicAdd(&pairs[bin], 1u);
                add_sizes(bin, size(score, largest));
            }
        }
        workgroupBarrier();
        let own_pairs = atomicLoad(&pairs[lid]);
        let own_sizes = vec2<u32>(atomicLoad(&sizes_low[lid]), atomicLoad(&sizes_high[lid]));
        let range = scan_ranges(lid, vec3<u32>(own_pairs, own_sizes));
        let through = range.x;
        if (round == 0u) {
            sum = scanned_sizes();
        }
        // The least score of the range decides, and its size where the range's own pairs have taken theirs. More pairs than slots are
        // never all certain, also where nothing is left below them.
        let least = min(prefix | ((BINS - 1u - lid) << shift), largest);
        let rest = sub64(sum, range.yz);
        let reach = mul64_32(size(least, largest), slots - min(slots, through));
        if (through > slots || (reach.z == 0u && less64(reach.xy, rest))) {
            atomicMin(&first, lid);
        }
        workgroupBarrier();
        let at = atomicLoad(&first);
        if (lid == at) {
            left = vec4<u32>(lid, slots - (through - own_pairs), add64(rest, own_sizes));
        }
        let next = workgroupUniformLoad(&left);
        prefix |= (BINS - 1u - next.x) << shift;
        slots = next.y;
        sum = next.zw;
    }
    if (lid == 0u) {
        // Certain are the scores above the highest that is not. All infinite ones are, also where the highest range of all is not.
        store_plan(plan + PLAN_SURE, ~(min(prefix, LARGEST_FINITE) + 1u));
        for (var i = 1u; i < 5u; i++) {
            store_plan(plan + PLAN_SURE + i, NONE);
        }
        store_plan(plan + PLAN_SLOTS, slots);
        store_plan(plan + PLAN_SUM, sum.x);
        store_plan(plan + PLAN_SUM + 1u, sum.y);
    }
}
