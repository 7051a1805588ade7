// One workgroup WORDS words of the target.

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let first = group * WORDS;
    let last = min(first + WORDS, (params.len + DST_PER_WORD - 1u) / DST_PER_WORD);
    for (var word = first + lane; word < last; word += WORKGROUP_SIZE) {
        let i = word * DST_PER_WORD;
        let low = load_src(i);
        if (DST_PER_WORD == 1u) {
            store_word_dst(word, low, 0.0);
        } else if (i + 1u < params.len) {
            store_word_dst(word, low, load_src(i + 1u));
        } else {
            store_low_dst(word, low);
        }
    }
}
