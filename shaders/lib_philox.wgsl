// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC'11): four random words from a 128-bit counter and a 64-bit key.
fn philox(counter: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    var c = counter;
    var k = key;
    for (var i = 0u; i < 10u; i++) {
        let a = mul32(0xd2511f53u, c.x);
        let b = mul32(0xcd9e8d57u, c.z);
        c = vec4<u32>(b.y ^ c.y ^ k.x, b.x, a.y ^ c.w ^ k.y, a.x);
        k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}
