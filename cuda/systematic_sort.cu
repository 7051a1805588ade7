// One block per expert: where the rows of each segment and key begin in the list. Where rows are not in the order of their places, or
// keys are no bytes, the block sorts its rows itself, by a byte at a time from the last.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_plan.h"
#include "lib_place.h"
#include "lib_list.h"

// Words of what rows are sorted by, the last first: slot, token (low, high), key.
#define WORDS 4u

struct Listing {
  Tokens tokens;
  const u32* order;
  // Rows as the bytes behind this one have them, or null for their own order.
  const u32* from;
  u32 byte;
  // Entries of the list, all below this: blocks whose rows overlap may read what nobody has written.
  u32 rows;
};

DEV u32 word_of(const Listing& listing, u32 row, u32 word) {
  const Tokens& tokens = listing.tokens;
  u32 pair = pair_of(tokens, row), token = pair / tokens.top_k;
  if (word == 0) return pair - token * tokens.top_k;
  if (word == 3) return listing.order[token];
  u64 id = token_id(tokens, token);
  return word == 1 ? (u32)id : (u32)(id >> 32);
}

DEV u32 row_at(const Listing& listing, u32 index) { return listing.from ? min(listing.from[index], listing.rows - 1) : index; }
DEV u32 digit_of(const Listing& listing, u32 row) { return word_of(listing, row, listing.byte / 4) >> 8 * (listing.byte % 4) & 0xff; }

// Starts of each digit, from the counts in shared->base.
DEV void starts(u32 begin, SortShared* shared) {
  u32 own = shared->base[threadIdx.x], through = block_scan(own, shared->parts);
  shared->base[threadIdx.x] = begin + through - own;
}

DEV void sort(Listing listing, u32 begin, u32 end, u32* list, u32* spare, SortShared* shared) {
  if (threadIdx.x < WORDS) shared->varies[threadIdx.x] = 0;
  __syncthreads();
  for (u32 word = 0; word < WORDS; word++) {
    u32 varies = 0, first = word_of(listing, begin, word);
    for (u32 r = begin + threadIdx.x; r < end; r += SEGMENT_THREADS) varies |= word_of(listing, r, word) ^ first;
    varies = __reduce_or_sync(FULL_WARP, varies);
    if (lane_id() == 0 && varies) atomicOr(&shared->varies[word], varies);
  }
  __syncthreads();
  u32 passes = 0;
  for (u32 byte = 0; byte < 4 * WORDS; byte++) passes += (shared->varies[byte / 4] >> 8 * (byte % 4) & 0xff) != 0;
  if (passes == 0) {
    for (u32 r = begin + threadIdx.x; r < end; r += SEGMENT_THREADS) list[r] = r;
    return;
  }
  // The last pass ends in `list`; the first takes rows as they are.
  u32* to = passes % 2 == 1 ? list : spare;
  for (u32 byte = 0; byte < 4 * WORDS; byte++) {
    if ((shared->varies[byte / 4] >> 8 * (byte % 4) & 0xff) == 0) continue;
    listing.byte = byte;
    shared->base[threadIdx.x] = 0;
    __syncthreads();
    for (u32 i = begin + threadIdx.x; i < end; i += SEGMENT_THREADS) atomicAdd(&shared->base[digit_of(listing, i)], 1u);
    __syncthreads();
    starts(begin, shared);
    __syncthreads();
    for (u64 tile = begin; tile < end; tile += SEGMENT) {
      scatter(listing, (u32)tile, (u32)min(tile + SEGMENT, (u64)end), to, listing.rows, shared);
      __syncthreads();
    }
    listing.from = to;
    to = to == list ? spare : list;
  }
}

// Without a word on blocks, the compiler spills for the sake of more of them.
KERNEL_FITTING(SEGMENT_THREADS, 2)
systematic_sort(const u32* pair_of_row, const u32* token_ids, const u32* order, const u32* offsets, const u32* plans, u32* counts, u32* list,
                u32* spare, u64 first_token, u32 rows, u32 experts, u32 top_k, u32 pairs) {
  DYN_SHARED(SortShared, shared);
  u32 expert = (u32)blockIdx.x;
  const Plan* plan = (const Plan*)plans + expert;
  u32 begin = rows_begin(offsets, expert, rows), end = rows_end(offsets, expert, rows);
  if (begin >= end || plan->slots == 0) return;
  if (plan->unordered) {
    Listing listing = {{pair_of_row, token_ids, first_token, top_k, pairs}, order, nullptr, 0, rows};
    sort(listing, begin, end, list, spare, shared);
    return;
  }
  counts += at(first_block(offsets, expert, rows), KEYS, threadIdx.x);
  u64 segments = ((u64)(end - begin) + SEGMENT - 1) / SEGMENT;
  u32 sum = 0;
  for (u64 segment = 0; segment < segments; segment++) sum += counts[segment * KEYS];
  shared->base[threadIdx.x] = sum;
  starts(begin, shared);
  u32 next = shared->base[threadIdx.x];
  for (u64 segment = 0; segment < segments; segment++) {
    u32 own = counts[segment * KEYS];
    counts[segment * KEYS] = next;
    next += own;
  }
}
