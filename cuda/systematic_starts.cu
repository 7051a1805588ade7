// Where every segment of the list begins on the circle, from what the expert draws. One block per expert.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_size.h"
#include "lib_plan.h"
#include "lib_circle.h"
#include "lib_philox.h"

struct StartsShared {
  U128 parts[8];
  U128 next;
};
static_assert(sizeof(StartsShared) <= 144, "as much as launches ask for");

KERNEL(SEGMENT_THREADS)
systematic_starts(const u32* offsets, const u32* plans, u64* sums, u32 rows, u32 experts, u32 key_0, u32 key_1) {
  DYN_SHARED(StartsShared, shared);
  u32 expert = (u32)blockIdx.x;
  const Plan& plan = ((const Plan*)plans)[expert];
  if (plan.slots == 0) return;
  U128 sum = plan.sum;
  Words4 random = philox(0, 0, expert, 1, key_0, key_1);
  u64 bits = (u64)random.word[0] << 32 | random.word[1];
  // bits * sum / 2^64, rounded down.
  U128 here = product(bits, sum.high) + wide(__umul64hi(bits, sum.low));
  U128* own = (U128*)sums + first_block(offsets, expert, rows);
  u64 segments = ((u64)(rows_end(offsets, expert, rows) - rows_begin(offsets, expert, rows)) + SEGMENT - 1) / SEGMENT;
  for (u64 base = 0; base < segments; base += SEGMENT_THREADS) {
    u64 segment = base + threadIdx.x;
    U128 length = segment < segments ? own[segment] : wide(0);
    U128 through = scan_around(length, sum, shared->parts);
    if (threadIdx.x == SEGMENT_THREADS - 1) shared->next = add_around(here, through, sum);
    // Back to before this segment, and on by what lies before all of them.
    U128 before = through < length ? through + sum - length : through - length;
    if (segment < segments) own[segment] = add_around(here, before, sum);
    __syncthreads();
    here = shared->next;
    __syncthreads();
  }
}
