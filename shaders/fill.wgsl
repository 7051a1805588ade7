// Sets words to a pattern; the last one keeps the bits of `keep`.
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let group = group_index(wid);
    if (group >= params.groups) {
        return;
    }
    let word = group * WORKGROUP_SIZE + lid;
    if (word < params.words) {
        let keep = select(0u, params.keep, word + 1u == params.words);
        store_buffer(word, (load_buffer(word) & keep) | (params.pattern & ~keep));
    }
}
