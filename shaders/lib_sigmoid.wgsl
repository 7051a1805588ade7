// `1 / (1 + e^-x)`, and 1 less that, without the cancellation of a difference.
fn sigmoid_and_rest(x: f32) -> vec2<f32> {
    let e = exp_of_negative(-abs(x));
    let above = 1.0 / (1.0 + e);
    let below = e * above;
    return select(vec2(below, above), vec2(above, below), x >= 0.0);
}
