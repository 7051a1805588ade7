// Stable counting sort of pairs by expert. Warps have segments of pairs; `table`, experts by segments, has how many pairs of each
// segment go to each expert, and later where the first of them goes among the expert's.
#pragma once
#include "dev.h"

// Lanes of the warp with the same id, and none for ids that are not sorted. `bits` tell all ids apart.
DEV u32 same_lanes(u32 id, bool sorted, u32 bits) {
  u32 same = __ballot_sync(FULL_WARP, sorted);
  for (u32 b = 0; b < bits; b++) {
    bool set = id >> b & 1;
    u32 with = __ballot_sync(FULL_WARP, set);
    same &= set ? with : ~with;
  }
  return sorted ? same : 0;
}

DEV u32 lowest(u32 lanes) { return (u32)__ffs((i32)lanes) - 1; }

// Bits of ids below this many.
DEV u32 bits_below(u32 experts) { return experts > 1 ? 32 - (u32)__clz((i32)(experts - 1)) : 0; }

// Pairs of a segment.
struct Segment {
  u64 first;
  u64 last;
};

DEV Segment segment_at(u64 segment, u32 length, u64 pairs) {
  u64 first = segment * length;
  return Segment{first, first + length < pairs ? first + length : pairs};
}
