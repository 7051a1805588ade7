const NONE: u32 = 0xffffffffu;

// Reductions and prefix sums over a workgroup go in two steps: invocations below PARTS take SPAN values each, then all of them
// take what those found. That is two barriers instead of one for each doubling, and barriers are what costs most where a core
// runs the invocations of a workgroup in turn.
const PARTS: u32 = 8u + 8u * u32(WORKGROUP_SIZE > 64u);
const SPAN: u32 = WORKGROUP_SIZE / PARTS;

// Grids are folded into two dimensions and split into several dispatches: the linear index of a workgroup.
fn group_index(workgroup: vec3<u32>) -> u32 {
    return params.group_base + workgroup.y * params.grid_x + workgroup.x;
}

// WGSL lets a compiler assume that nothing is infinite or NaN: only bits tell.
fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// Not constants: an expression that evaluates to one of these while it is compiled is an error.
fn infinity() -> f32 {
    return bitcast<f32>(params.infinity);
}

fn nan() -> f32 {
    return bitcast<f32>(params.infinity | 0x00400000u);
}

