// Sums of the lengths of every segment of the list, on the circle. One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_size.h"
#include "lib_plan.h"
#include "lib_circle.h"

KERNEL(SEGMENT_THREADS)
systematic_sums(const u32* score, const u32* list, const u32* offsets, const u32* plans, u64* sums, u32 rows, u32 experts) {
  DYN_SHARED(U128, parts);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  const Plan& plan = ((const Plan*)plans)[s.expert];
  if (plan.slots == 0) return;
  U128 own = wide(0);
  for (u32 i = s.begin + threadIdx.x; i < s.end; i += SEGMENT_THREADS)
    own = add_around(own, length_of(plan, score[min(list[i], rows - 1)]), plan.sum);
  own = scan_around(own, plan.sum, parts);
  if (threadIdx.x == SEGMENT_THREADS - 1) ((U128*)sums)[blockIdx.x] = own;
}
