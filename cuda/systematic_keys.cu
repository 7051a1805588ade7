// Counts the rows of a segment by the key of their token, and finds out whether their order within the keys is that of their places
// already and the keys are bytes: then one pass sorts them. One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_plan.h"
#include "lib_place.h"
#include "lib_list.h"

struct KeysShared {
  u32 bins[KEYS];
};

KERNEL(SEGMENT_THREADS)
systematic_keys(const u32* pair_of_row, const u32* token_ids, const u32* order, const u32* offsets, u32* plans, u32* counts, u64 first_token,
                u32 rows, u32 experts, u32 top_k, u32 pairs) {
  DYN_SHARED(KeysShared, shared);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  Plan* plan = (Plan*)plans + s.expert;
  if (plan->slots == 0) return;
  Tokens tokens = {pair_of_row, token_ids, first_token, top_k, pairs};
  u32 end = rows_end(offsets, s.expert, rows);
  shared->bins[threadIdx.x] = 0;
  __syncthreads();
  bool unordered = false;
  for (u32 r = s.begin + threadIdx.x; r < s.end; r += SEGMENT_THREADS) {
    u32 key = order[pair_of(tokens, r) / top_k];
    unordered |= key >= KEYS || (r + 1 < end && is_before(place_of(tokens, r + 1), place_of(tokens, r)));
    atomicAdd(&shared->bins[key % KEYS], 1u);
  }
  if (__any_sync(FULL_WARP, unordered) && lane_id() == 0) atomicOr(&plan->unordered, 1u);
  __syncthreads();
  counts[at(blockIdx.x, KEYS, threadIdx.x)] = shared->bins[threadIdx.x];
}
