// Sets words to a pattern, and half a word behind them where `tail` is 1.
#include "dev.h"

KERNEL(256) fill(u32* out, u64 words, u32 pattern, u32 tail) {
  u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  u64 threads = (u64)gridDim.x * blockDim.x;
  u16* halves = reinterpret_cast<u16*>(out);
  // Elements of 16 bits may begin in the middle of a word: their pattern is the same there.
  u64 address = (u64)out;
  u64 before = 0;
  if (address % 4 != 0) {
    before = words != 0 || tail != 0;
    u64 all = 2 * words + tail;
    words = (all - before) / 2;
    tail = (u32)((all - before) % 2);
    out = reinterpret_cast<u32*>(halves + 1);
    address += 2;
  }
  // Words in front of the first 16 bytes at a multiple of 16.
  u64 lead = (16 - address % 16) % 16 / 4;
  if (lead > words) lead = words;
  u64 vectors = (words - lead) / 4;
  Vec16 v;
  for (u32 i = 0; i < 4; i++) v.word[i] = pattern;
  Vec16* middle = reinterpret_cast<Vec16*>(out + lead);
  for (u64 i = thread; i < vectors; i += threads) middle[i] = v;
  u64 rest = words - lead - 4 * vectors;
  for (u64 i = thread; i < lead; i += threads) out[i] = pattern;
  for (u64 i = thread; i < rest; i += threads) out[words - 1 - i] = pattern;
  if (thread == 0 && before) halves[0] = (u16)pattern;
  if (thread == 0 && tail) reinterpret_cast<u16*>(out + words)[0] = (u16)pattern;
}
