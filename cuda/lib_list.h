// The list that systematic sampling goes along: the rows of an expert by the key of their token, then by place. Needs lib_warp.
#pragma once

#define KEYS 256u
#define WARPS 8u

struct SortShared {
  // Where the next row of each warp and key goes.
  u32 next[WARPS][KEYS];
  u32 parts[WARPS];
  u32 base[KEYS];
  u32 varies[4];
};
static_assert(sizeof(SortShared) <= 9264, "as much as launches ask for");

// Moves up to SEGMENT rows, in their order, to where their digits say: digit d from base[d] on, which moves on behind them.
// `row_at(source, index)` and `digit_of(source, row)` say what there is. All 256 threads of the block; every warp takes consecutive rows.
// The list has `length` entries: offsets that do not ascend can lead beyond it, and nothing is written there.
template <class Rows>
DEV void scatter(const Rows& source, u32 begin, u32 end, u32* to, u32 length, SortShared* shared) {
  u32 warp = warp_id(), lane = lane_id();
  for (u32 key = lane; key < KEYS; key += 32) shared->next[warp][key] = 0;
  __syncwarp();
  u32 first = begin + warp * (SEGMENT / WARPS);
  u32 last = min(first + SEGMENT / WARPS, end);
  u32 rows[SEGMENT / WARPS / 32];
#pragma unroll
  for (u32 i = 0; i < SEGMENT / WARPS / 32; i++) {
    u32 index = first + 32 * i + lane;
    bool real = index < last;
    rows[i] = real ? row_at(source, index) : NONE;
    u32 digit = real ? digit_of(source, rows[i]) : KEYS;
    u32 peers = __match_any_sync(FULL_WARP, digit);
    if (real && (peers & ((1u << lane) - 1)) == 0) shared->next[warp][digit] += (u32)__popc(peers);
    __syncwarp();
  }
  __syncthreads();
  u32 before = shared->base[threadIdx.x];
  for (u32 w = 0; w < WARPS; w++) {
    u32 own = shared->next[w][threadIdx.x];
    shared->next[w][threadIdx.x] = before;
    before += own;
  }
  shared->base[threadIdx.x] = before;
  __syncthreads();
#pragma unroll
  for (u32 i = 0; i < SEGMENT / WARPS / 32; i++) {
    bool real = rows[i] != NONE;
    u32 digit = real ? digit_of(source, rows[i]) : KEYS;
    u32 peers = __match_any_sync(FULL_WARP, digit), below = (u32)__popc(peers & ((1u << lane) - 1));
    u32 position = real ? shared->next[warp][digit] : 0;
    __syncwarp();
    if (real && below == 0) shared->next[warp][digit] = position + (u32)__popc(peers);
    __syncwarp();
    if (real && position + below < length) to[position + below] = rows[i];
  }
}
