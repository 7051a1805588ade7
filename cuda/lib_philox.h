// Philox4x32-10 (J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11).
#pragma once

struct Words4 {
  u32 word[4];
};

DEV Words4 philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 key_0, u32 key_1) {
#pragma unroll
  for (u32 round = 0; round < 10; round++) {
    u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
    c0 = (u32)(b >> 32) ^ c1 ^ key_0;
    c1 = (u32)b;
    c2 = (u32)(a >> 32) ^ c3 ^ key_1;
    c3 = (u32)a;
    key_0 += 0x9E3779B9u;
    key_1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
