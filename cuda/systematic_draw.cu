// Systematic sampling: a pair stays where its own length passes the end of the circle. One block per segment of the list.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_size.h"
#include "lib_plan.h"
#include "lib_circle.h"

KERNEL(SEGMENT_THREADS)
systematic_draw(const u32* score, const u32* list, const u32* offsets, const u32* plans, const u64* starts, u32* chosen, u32 rows,
                u32 experts) {
  DYN_SHARED(U128, parts);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  const Plan& plan = ((const Plan*)plans)[s.expert];
  if (plan.slots == 0) return;
  U128 sum = plan.sum, own = wide(0);
  u32 row[ENTRIES];
  // A thread takes consecutive entries.
#pragma unroll
  for (u32 i = 0; i < ENTRIES; i++) {
    u64 entry = (u64)s.begin + threadIdx.x * ENTRIES + i;
    row[i] = entry < s.end ? min(list[entry], rows - 1) : NONE;
    if (row[i] != NONE) own = add_around(own, length_of(plan, score[row[i]]), sum);
  }
  U128 through = scan_around(own, sum, parts);
  U128 before = through < own ? through + sum - own : through - own;
  U128 at = add_around(((const U128*)starts)[blockIdx.x], before, sum);
#pragma unroll
  for (u32 i = 0; i < ENTRIES; i++) {
    if (row[i] == NONE) continue;
    U128 length = length_of(plan, score[row[i]]);
    U128 next = at + length;
    bool passes = !is_zero(length) && !(next < sum);
    at = passes ? next - sum : next;
    if (passes) chosen[row[i]] = DRAWN;
  }
}
