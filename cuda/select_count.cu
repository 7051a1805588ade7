// How many rows of every segment are retained. One block per segment; those without rows have none.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_plan.h"

KERNEL(SEGMENT_THREADS) select_count(const u32* chosen, const u32* offsets, u32* counts, u32 rows, u32 experts) {
  DYN_SHARED(u32, parts);
  Segment s = find_segment(offsets, experts, rows);
  u32 count = 0;
  for (u32 r = s.begin + threadIdx.x; r < s.end; r += SEGMENT_THREADS) count += chosen[r] != DROPPED;
  count = block_sum(count, parts);
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}
