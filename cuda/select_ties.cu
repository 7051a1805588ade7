// Retains of the rows of the last key those that come first by place: a radix selection from the least place up, by one block for each
// expert that has such rows.
#include "dev.h"
#include "lib_warp.h"
#include "lib_segment.h"
#include "lib_wide.h"
#include "lib_plan.h"
#include "lib_place.h"

#define BINS 256u

struct TiesShared {
  u64 varies[2];
  u32 bins[BINS];
  u32 parts[32];
  u32 found, left, held;
};
static_assert(sizeof(TiesShared) <= 1184, "as much as launches ask for");

struct Bytes {
  u64 word[2];
};

DEV Bytes bytes_of(Place place) { return {{place.token, place.slot_and_row}}; }

KERNEL(1024)
select_ties(const u32* pair_of_row, const u32* token_ids, const u32* offsets, const u32* plans, const u32* ties, u32* chosen, u32* priority,
            u64 first_token, u32 rows, u32 experts, u32 top_k, u32 pairs, u32 stage) {
  DYN_SHARED(TiesShared, shared);
  u32 expert = (u32)blockIdx.x;
  const Plan* plan = (const Plan*)plans + expert;
  u32 begin = rows_begin(offsets, expert, rows);
  u32 count = min(plan->ties[stage], rows_end(offsets, expert, rows) - begin);
  if (count == 0) return;
  ties += begin;
  Tokens tokens = {pair_of_row, token_ids, first_token, top_k, pairs};
  // Of bytes that all places share, the first row has the right ones already.
  Bytes last = bytes_of(place_of(tokens, ties[0]));
  if (threadIdx.x == 0) shared->varies[0] = shared->varies[1] = 0;
  __syncthreads();
  u64 varies[2] = {0, 0};
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
    Bytes own = bytes_of(place_of(tokens, ties[i]));
    varies[0] |= own.word[0] ^ last.word[0];
    varies[1] |= own.word[1] ^ last.word[1];
  }
  if (varies[0]) atomicOr(&shared->varies[0], varies[0]);
  if (varies[1]) atomicOr(&shared->varies[1], varies[1]);
  __syncthreads();
  u32 left = plan->ties_kept[stage];
  bool whole = false;
#pragma unroll
  for (u32 word = 0; word < 2; word++) {
    for (u32 shift = 64; shift > 0 && !whole;) {
      shift -= 8;
      if ((shared->varies[word] >> shift & 0xff) == 0) continue;
      if (threadIdx.x < BINS) shared->bins[threadIdx.x] = 0;
      __syncthreads();
      for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        Bytes own = bytes_of(place_of(tokens, ties[i]));
        // Twice, for a shift by 64 is one by 0.
        bool matches = (own.word[word] ^ last.word[word]) >> shift >> 8 == 0 && (word == 0 || own.word[0] == last.word[0]);
        if (matches) atomicAdd(&shared->bins[own.word[word] >> shift & 0xff], 1u);
      }
      __syncthreads();
      u32 held = threadIdx.x < BINS ? shared->bins[threadIdx.x] : 0;
      u32 through = block_scan(held, shared->parts);
      if (through - held < left && left <= through) {
        shared->found = threadIdx.x;
        shared->left = left - (through - held);
        shared->held = held;
      }
      __syncthreads();
      left = shared->left;
      last.word[word] = (last.word[word] & ~(0xffull << shift)) | (u64)shared->found << shift;
      // Where a whole bin is retained, what lies below does not matter.
      whole = left == shared->held;
      if (whole) {
        last.word[word] |= (1ull << shift) - 1;
        if (word == 0) last.word[1] = ~0ull;
      }
    }
  }
  Place bound = {last.word[0], last.word[1]};
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
    u32 r = ties[i];
    if (is_before(bound, place_of(tokens, r))) continue;
    chosen[r] = stage == 0 ? SURE : DRAWN;
    if (priority) priority[r] = 0;
  }
}
