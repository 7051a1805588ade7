// The score of an expert: a sigmoid of its logit, or its softmax. Needs lib_softmax.
fn score_of(logit: f32, softmax: Softmax) -> f32 {
    if (SIGMOID) {
        return sigmoid_pair(logit).x;
    }
    return probability(logit, softmax);
}

