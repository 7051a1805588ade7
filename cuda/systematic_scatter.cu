// Lists rows by the byte that their token has as key, where they are in the order of their places already. One block per segment.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_plan.h"
#include "lib_place.h"
#include "lib_list.h"

struct Listing {
  Tokens tokens;
  const u32* order;
};

DEV u32 row_at(const Listing&, u32 index) { return index; }
DEV u32 digit_of(const Listing& listing, u32 row) {
  return listing.order[pair_of(listing.tokens, row) / listing.tokens.top_k] % KEYS;
}

KERNEL(SEGMENT_THREADS)
systematic_scatter(const u32* pair_of_row, const u32* order, const u32* offsets, const u32* plans, const u32* starts, u32* list, u32 rows,
                   u32 experts, u32 top_k, u32 pairs) {
  DYN_SHARED(SortShared, shared);
  Segment s = find_segment(offsets, experts, rows);
  if (s.begin >= s.end) return;
  const Plan* plan = (const Plan*)plans + s.expert;
  if (plan->slots == 0 || plan->unordered) return;
  Listing listing = {{pair_of_row, nullptr, 0, top_k, pairs}, order};
  shared->base[threadIdx.x] = starts[at(blockIdx.x, KEYS, threadIdx.x)];
  scatter(listing, s.begin, s.end, list, rows, shared);
}
