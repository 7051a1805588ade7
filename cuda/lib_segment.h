// Blocks take segments of the rows of one expert, so that an expert with most of the rows is no slower than many with few.
// Needs lib_warp.
#pragma once

// Rows of a segment at most, 8 for each of the 256 threads of a block.
#define SEGMENT 2048u
#define SEGMENT_THREADS 256

// The first block of an expert: it has offsets[e + 1] / SEGMENT - offsets[e] / SEGMENT + 1 of them, which is enough for all its rows,
// and some may find no rows. So rows / SEGMENT + experts + 1 blocks are enough for all, the last of them for what lies behind.
DEV u32 first_block(const u32* offsets, u32 expert, u32 rows) { return min(offsets[expert], rows) / SEGMENT + expert; }

DEV u32 rows_begin(const u32* offsets, u32 expert, u32 rows) { return min(offsets[expert], rows); }
DEV u32 rows_end(const u32* offsets, u32 expert, u32 rows) {
  return max(min(offsets[expert + 1], rows), rows_begin(offsets, expert, rows));
}

struct Segment {
  // NONE where the block has nothing to do.
  u32 expert;
  u32 begin, end;
  // Whether it is the first of its expert: every expert has one, also where it has no rows.
  bool first;
};

// The segment of a block. Every warp looks for itself, 32 experts at a time. Offsets that do not ascend lead to wrong rows, but none
// beyond `rows`.
DEV Segment find_segment(const u32* offsets, u32 experts, u32 rows) {
  u32 block = (u32)blockIdx.x, low = 0, count = experts + 1;
  Segment none = {NONE, 0, 0, false};
  bool narrowed = false;
  while (count > 1 || !narrowed) {
    u32 step = (count + 31) / 32, at = lane_id() * step;
    u32 reached = __popc(__ballot_sync(FULL_WARP, at < count && first_block(offsets, low + at, rows) <= block));
    if (reached == 0) return none;
    u32 skipped = (reached - 1) * step;
    low += skipped;
    count = min(step, count - skipped);
    narrowed = true;
  }
  if (low >= experts) return none;
  u32 first = first_block(offsets, low, rows);
  if (block < first) return none;
  u32 end = rows_end(offsets, low, rows);
  u64 begin = rows_begin(offsets, low, rows) + (u64)(block - first) * SEGMENT;
  Segment s = {low, (u32)min(begin, (u64)end), (u32)min(begin + SEGMENT, (u64)end), block == first};
  return s;
}
