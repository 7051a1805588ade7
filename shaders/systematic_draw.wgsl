// Systematic sampling along every expert's list, one workgroup each: lengths are laid end to end on a circle of the sum of the sizes,
// and a pair stays where its own passes the end of the circle. Pairs whose length is 0 are not on it.

// Where lengths begin within their part, and where parts end.
var<workgroup> starts: array<vec2<u32>, WORKGROUP_SIZE>;
var<workgroup> part_ends: array<vec2<u32>, PARTS>;
// Slots and sum of the sizes, and the expert's rows.
var<workgroup> start: vec3<u32>;
var<workgroup> span: vec2<u32>;

// Modulo `sum`, which is above both.
fn add_around(a: vec2<u32>, b: vec2<u32>, sum: vec2<u32>) -> vec2<u32> {
    let room = sub64(sum, a);
    if (less64(b, room)) {
        return add64(a, b);
    }
    return sub64(b, room);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let e = group_index(wid);
    if (e >= params.groups) {
        return;
    }
    let plan = e * PLAN_WORDS;
    if (lid == 0u) {
        start = vec3<u32>(load_plan(plan + PLAN_SLOTS), load_plan(plan + PLAN_SUM), load_plan(plan + PLAN_SUM + 1u));
        span = vec2<u32>(group_begin(e, params.rows), group_end(e, params.rows));
    }
    let rows = workgroupUniformLoad(&span);
    let given = workgroupUniformLoad(&start);
    if (given.x == 0u) {
        return;
    }
    let sum = given.yz;
    let bits = philox(vec4<u32>(0u, 0u, e, 1u), vec2<u32>(params.key_0, params.key_1));
    var at = mul64_high(bits.yx, sum);
    for (var tile = rows.x; tile < rows.y; tile += WORKGROUP_SIZE) {
        var row = NONE;
        var length = vec2<u32>(0u);
        if (tile + lid < rows.y) {
            row = load_sorted(tile + lid);
            length = vec2<u32>(load_length(2u * row), load_length(2u * row + 1u));
        }
        starts[lid] = length;
        workgroupBarrier();
        if (lid < PARTS) {
            var through = vec2<u32>(0u);
            for (var i = lid * SPAN; i < (lid + 1u) * SPAN; i++) {
                let own = starts[i];
                starts[i] = through;
                through = add_around(through, own, sum);
            }
            part_ends[lid] = through;
        }
        workgroupBarrier();
        var before = add_around(at, starts[lid], sum);
        for (var part = 0u; part < PARTS; part++) {
            if (part < lid / SPAN) {
                before = add_around(before, part_ends[part], sum);
            }
            at = add_around(at, part_ends[part], sum);
        }
        if (any(length != vec2<u32>(0u)) && less64(length, sub64(sum, before))) {
            store_chosen(row, 0u);
        }
    }
}
